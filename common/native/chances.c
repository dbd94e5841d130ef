/* The chance of each domain in each text, out of the points that its tokens gave, and the chance that it belongs to any:
   what `chances` does in decision.py, faster.

   Safety. The lengths of all buffers are checked before anything is read. Any numbers in them will do.

   Bits. The operations and their order are those of Python, and exp, log and pow those of the same library; so results are
   the same to the last bit, if the compiler does not fuse products with sums (-ffp-contract=off). */
#include "native.h"
#include <math.h>

#define LEAST_LOGIT (-700.0)  /* below it a chance is 0: of more, e to the power cannot be had */

/* squares, rest: how often odds are squared, and the power that is left then. */
typedef struct {
    double unit, half, growth, tail, temperature;
    int squares;
    double rest;
    int is_scoped;
    double slope, longer, offset;
} Law;

static double odds(const Law *law, double apart) {
    if (!law->tail) return exp(-apart);
    double found = 1 / (1 + law->tail * apart);
    for (int i = 0; i < law->squares; i++) found *= found;
    return law->rest == 1 ? found : pow(found, law->rest);
}

static double scope_chance(const Law *law, const double *scores, Py_ssize_t width, double ahead, double size) {
    double above = 0, mean = 0, spread = 0;
    for (Py_ssize_t i = 0; i < width; i++) mean += scores[i];
    mean /= (double)width;
    for (Py_ssize_t i = 0; i < width; i++) spread += (scores[i] - mean) * (scores[i] - mean);
    spread = spread / (double)width + 1 / ((double)width * (double)width);
    if (width > 1) above = (ahead - mean) / sqrt((double)(width - 1) * spread);
    double logit = law->slope * above + law->longer * log(size) + law->offset;
    return logit > LEAST_LOGIT ? 1 / (1 + exp(-logit)) : 0;
}

/* Sets scores to chances; that of the domain ahead is returned, and that of any goes to *scope. */
static double row_chances(const Law *law, double *scores, Py_ssize_t width, double voters, double *scope) {
    double size = voters > 1 ? voters : 1, sharpness = size / (size + law->half), ahead = -INFINITY, total = 0;
    if (law->growth) sharpness *= pow(size, law->growth);
    for (Py_ssize_t i = 0; i < width; i++) {
        scores[i] = scores[i] * law->unit / size;
        ahead = scores[i] > ahead ? scores[i] : ahead;
    }
    *scope = law->is_scoped && voters > 0 ? scope_chance(law, scores, width, ahead, size) : 0;
    for (Py_ssize_t i = 0; i < width; i++) {
        scores[i] = odds(law, (ahead - scores[i]) * sharpness / law->temperature);
        total += scores[i];
    }
    double sure = 1 / total;
    for (Py_ssize_t i = 0; i < width; i++) scores[i] *= sure;
    return sure;
}

static PyObject *named(PyObject *names, const double *values, Py_ssize_t width) {
    PyObject *made = PyDict_New();
    for (Py_ssize_t i = 0; made && i < width; i++) {
        PyObject *value = PyFloat_FromDouble(values[i]);
        if (!value || PyDict_SetItem(made, PyTuple_GetItem(names, i), value)) Py_CLEAR(made);
        Py_XDECREF(value);
    }
    return made;
}

static PyObject *row_result(const Law *law, PyObject *names, double *scores, Py_ssize_t width, double voters) {
    Py_ssize_t first = 0;
    for (Py_ssize_t i = 1; i < width; i++) first = scores[i] > scores[first] ? i : first;
    double scope, sure = row_chances(law, scores, width, voters, &scope);
    PyObject *found = named(names, scores, width);
    if (!found) return NULL;
    return law->is_scoped ? Py_BuildValue("ndNd", first, sure, found, scope)
                          : Py_BuildValue("ndNO", first, sure, found, Py_None);
}

/* chances(names, points, voters, whole, unit, half, growth, tail, temperature[, slope, growth, offset]) -> of each text the
   place of the domain ahead, its chance, {name: chance}, and the chance of any or None. names: a tuple; points and voters:
   buffers of int64 if `whole`, else of double. */
PyObject *chances(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object[2], *names, *made = NULL;
    Py_buffer view[2] = {{0}};
    int held = 0, whole;
    Law law = {0};
    double *scores = NULL;
    law.slope = NAN;
    if (!PyArg_ParseTuple(args, "O!OOpddddd|ddd", &PyTuple_Type, &names, &object[0], &object[1], &whole, &law.unit,
                          &law.half, &law.growth, &law.tail, &law.temperature, &law.slope, &law.longer, &law.offset))
        return NULL;
    law.is_scoped = !isnan(law.slope);
    law.rest = 1 / law.tail;
    if (law.tail)
        for (; fmod(law.rest, 2) == 0; law.squares++) law.rest /= 2;
    if (!hold_buffers(object, 2, 2, view, &held)) goto end;
    Py_ssize_t width = PyTuple_Size(names), texts = view[1].len / 8;
    if (width < 1 || view[1].len % 8 || view[0].len / 8 / width != texts || view[0].len != 8 * width * texts) {
        PyErr_Format(PyExc_ValueError, "the names, the points and the voters do not fit together");
        goto end;
    }
    if (!(scores = malloc(sizeof *scores * (size_t)width))) {
        PyErr_NoMemory();
        goto end;
    }
    made = PyList_New(texts);
    for (Py_ssize_t text = 0; made && text < texts; text++) {
        for (Py_ssize_t i = 0; i < width; i++) {
            Py_ssize_t at = text * width + i;
            scores[i] = whole ? (double)((int64_t *)view[0].buf)[at] : ((double *)view[0].buf)[at];
        }
        double voters = whole ? (double)((int64_t *)view[1].buf)[text] : ((double *)view[1].buf)[text];
        PyObject *row = row_result(&law, names, scores, width, voters);
        if (!row || PyList_SetItem(made, text, row)) Py_CLEAR(made);
    }
end:
    free(scores);
    release_buffers(view, held);
    return made;
}
