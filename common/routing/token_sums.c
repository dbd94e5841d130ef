/* The rows of a table added up over the tokens of each text, and over the runs of letters in its words: what numpy does
   in token_table.py and word_table.py, without its overhead.

   Safety. Every id, count, length and place of a letter is checked before anything is read by it. Sums are taken in
   unsigned numbers, which wrap; with rows of 32 bits that takes 2^32 tokens, more than a text can have. Runs of letters
   are counted in 32 bits; a text of more than MAX_LETTERS letters is refused, since it could have more of a kind.

   Threads. Nothing is kept between calls, and the interpreter's lock is free while rows are added. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include "../encoding/word_grams.h"

#define MAX_LETTERS ((int64_t)1 << 28)    /* each ends at most six runs, so that counts stay below 2^31 */
#define MAX_BUCKETS (1 << 24)

typedef enum { FITS, WRONG, TOO_LONG } Verdict;
typedef struct { const int32_t *rows; int64_t height, width; } Table;
/* What words say; without them, `buckets` has no rows. */
typedef struct { Table buckets; Spelling spelling; int64_t letters; Sketch sketch; } Words;

static inline void add_row(const Table *table, int64_t place, uint64_t times, uint64_t *restrict sums) {
    const int32_t *restrict row = table->rows + place * table->width;
    for (int64_t column = 0; column < table->width; column++) sums[column] += times * (uint64_t)(int64_t)row[column];
}

/* Adds the rows of `count` ids. */
static Verdict add_rows(const Table *table, const int32_t *ids, int64_t count, uint64_t *restrict sums) {
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= table->height) return WRONG;
        add_row(table, ids[i], 1, sums);
    }
    return FITS;
}

/* Adds the rows of the runs of letters in a text whose ids were checked; leaves the sketch empty. */
static Verdict add_words(const Words *words, const int32_t *ids, int64_t count, uint64_t *restrict sums) {
    int64_t letters = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t start = words->spelling.starts[ids[i]], end = words->spelling.starts[ids[i] + 1];
        if (start < 0 || end < start || end > words->letters) return WRONG;
        if ((letters += end - start) > MAX_LETTERS) return TOO_LONG;
    }
    count_words(&words->sketch, &words->spelling, ids, count);
    for (int64_t i = 0; i < words->buckets.height; i++)
        if (words->sketch.counts[i]) {
            add_row(&words->buckets, i, (uint64_t)(int64_t)(int32_t)words->sketch.counts[i], sums);
            words->sketch.counts[i] = 0;
        }
    return FITS;
}

static Verdict add_texts(const Table *table, const Words *words, const int32_t *ids, int64_t left,
                         const int64_t *counts, int64_t texts, uint64_t *sums) {
    Verdict verdict = FITS;
    for (int64_t i = 0; i < texts; i++, sums += table->width) {
        if (counts[i] < 0 || counts[i] > left) return WRONG;
        verdict = add_rows(table, ids, counts[i], sums);
        if (verdict == FITS && words->buckets.height) verdict = add_words(words, ids, counts[i], sums);
        if (verdict != FITS) return verdict;
        ids += counts[i];
        left -= counts[i];
    }
    return left ? WRONG : FITS;
}

static PyObject *as_list(const int64_t *numbers, int64_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (int64_t i = 0; list && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (!number || PyList_SetItem(list, (Py_ssize_t)i, number)) { Py_DECREF(list); return NULL; }
    }
    return list;
}

static PyObject *as_lists(const int64_t *numbers, int64_t height, int64_t width) {
    PyObject *lists = PyList_New((Py_ssize_t)height);
    for (int64_t i = 0; lists && i < height; i++) {
        PyObject *list = as_list(numbers + i * width, width);
        if (!list || PyList_SetItem(lists, (Py_ssize_t)i, list)) { Py_DECREF(lists); return NULL; }
    }
    return lists;
}

/* token_sums(table, width, ids, counts[, buckets, letters, starts]) -> (sums of each text, counts): buffers of int32,
   int32 and int64, then of int32, bytes and int64. */
static PyObject *token_sums(PyObject *module, PyObject *args) {
    enum { TABLE, IDS, COUNTS, BUCKETS, LETTERS, STARTS, BUFFERS };
    PyObject *object[BUFFERS] = {NULL}, *found = NULL;
    Py_buffer view[BUFFERS];
    Py_ssize_t width;
    uint64_t *sums = NULL;
    uint32_t *sketch = NULL;
    int held = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OnOO|OOO", &object[TABLE], &width, &object[IDS], &object[COUNTS], &object[BUCKETS],
                          &object[LETTERS], &object[STARTS])) return NULL;
    for (; held < BUFFERS && object[held]; held++)
        if (PyObject_GetBuffer(object[held], &view[held], PyBUF_CONTIG_RO)) goto end;
    int64_t texts = view[COUNTS].len / 8, ids = view[IDS].len / 4;
    int right = width > 0 && width < 1 << 24 && !(view[TABLE].len % (4 * width)) && !(view[IDS].len % 4);
    right = right && !(view[COUNTS].len % 8) && (held == BUCKETS || held == BUFFERS);
    Table table = {view[TABLE].buf, right ? view[TABLE].len / 4 / width : 0, width};
    Words words = {{NULL, 0, width}, {NULL, NULL}, 0, {NULL, 0}};
    if (right && held == BUFFERS) {
        int64_t buckets = view[BUCKETS].len / 4 / width;
        right = buckets && buckets <= MAX_BUCKETS && view[BUCKETS].len == 4 * width * buckets;
        right = right && view[STARTS].len == 8 * (table.height + 1);
        if (right && !(sketch = calloc((size_t)buckets, sizeof *sketch))) { PyErr_NoMemory(); goto end; }
        words = (Words){{view[BUCKETS].buf, buckets, width}, {view[LETTERS].buf, view[STARTS].buf}, view[LETTERS].len,
                        {sketch, (uint64_t)buckets}};
    }
    if (right && !(sums = calloc((size_t)(texts * width) + 1, sizeof *sums))) { PyErr_NoMemory(); goto end; }
    Verdict verdict = WRONG;
    Py_BEGIN_ALLOW_THREADS
    if (right) verdict = add_texts(&table, &words, view[IDS].buf, ids, view[COUNTS].buf, texts, sums);
    Py_END_ALLOW_THREADS
    if (verdict == FITS) {
        PyObject *lists = as_lists((int64_t *)sums, texts, width), *counts = as_list(view[COUNTS].buf, texts);
        if (lists && counts) found = PyTuple_Pack(2, lists, counts);
        Py_XDECREF(lists);
        Py_XDECREF(counts);
    } else if (verdict == WRONG) PyErr_Format(PyExc_ValueError, "the ids, the counts and the table do not fit together");
    else PyErr_Format(PyExc_OverflowError, "a text has more letters than can be counted");
end:
    free(sums);
    free(sketch);
    while (held) PyBuffer_Release(&view[--held]);
    return found;
}

static PyMethodDef functions[] = {
    {"token_sums", token_sums, METH_VARARGS, "The sums of table rows over the tokens of each text."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "token_sums", NULL, 0, functions, slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_token_sums(void) { return PyModuleDef_Init(&module); }
