/* The rows of a table added up over the tokens of each text, and over the runs of letters in its words, and the decisions
   that follow: what token_table.py, word_table.py and router.py do with numpy and Python, without their overhead.

   Safety. Every id, count, length and place of a letter is checked before anything is read by it. Sums are taken in
   unsigned numbers, which wrap; with rows of 32 bits that takes 2^32 tokens, more than a text can have. Runs of letters
   are counted in 32 bits; a text of more than MAX_LETTERS letters is refused, since it could have more of a kind.

   Numbers. Decisions are Python's own, bit for bit: the same operations of the same library in the same order.

   Threads. Nothing is kept between calls, and the interpreter's lock is free while rows are added. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "../encoding/word_grams.h"

#define MAX_LETTERS ((int64_t)1 << 27)    /* each ends at most eight runs, so that counts stay below 2^31 */
#define MAX_BUCKETS (1 << 24)
#define EXACT_DOUBLES ((int64_t)1 << 53)
#define BEGINS_APART 1                    /* no word goes on from the token before */
#define ENDS_APART 2                      /* no word goes on into the token behind */
#define LANES 4                           /* columns that are added up together */

typedef enum { FITS, WRONG, TOO_LONG } Verdict;
typedef struct { const int32_t *rows; int64_t height, width; } Table;
/* What words say; without them, `buckets` has no rows. `alone` has, if it is there, the row of each token with its own
   letters' rows added as if it stood alone, and `borders` where words end at its borders. `counted` has room for a row of
   each bucket. */
typedef struct {
    Table buckets;
    Spelling spelling;
    int64_t letters;
    Sketch sketch;
    const int32_t *alone, **counted;
    const uint8_t *borders;
} Words;

static inline void add_row(const int32_t *restrict row, uint64_t *restrict sums, int64_t width) {
    for (int64_t column = 0; column < width; column++) sums[column] += (uint64_t)(int64_t)row[column];
}

/* Adds `lanes` columns of rows, each as often as `times` says; their sums stay in registers. */
static inline void add_columns(const int32_t *const *rows, const uint32_t *times, int64_t count, int64_t first,
                               const int lanes, uint64_t *restrict sums) {
    uint64_t held[LANES] = {0};
    for (int64_t i = 0; i < count; i++)
        for (int lane = 0; lane < lanes; lane++)
            held[lane] += (uint64_t)((int64_t)(int32_t)times[i] * rows[i][first + lane]);
    for (int lane = 0; lane < lanes; lane++) sums[first + lane] += held[lane];
}

/* Adds the rows of what was counted, and empties the sketch. */
static void add_counted(const Words *words, uint64_t *sums) {
    uint32_t *counts = words->sketch.counts;
    const int32_t *row = words->buckets.rows, **rows = words->counted;
    int64_t kept = 0, first = 0;
    for (int64_t i = 0; i < words->buckets.height; i++) {      /* without a branch: what was counted is as good as random */
        uint32_t times = counts[i];
        rows[kept] = row;
        counts[kept] = times;
        kept += times != 0;
        row += words->buckets.width;
    }
    for (; first + LANES <= words->buckets.width; first += LANES) add_columns(rows, counts, kept, first, LANES, sums);
    for (; first < words->buckets.width; first++) add_columns(rows, counts, kept, first, 1, sums);
    memset(counts, 0, sizeof *counts * (size_t)words->buckets.height);
}

/* Adds the rows of a text's tokens, and of the runs of letters in its words. Where rows of tokens that stand alone are
   known, those that share no word with their neighbours add theirs, and only the others are spelt out. */
static Py_ALWAYS_INLINE inline Verdict add_sizes(const Table *table, const Words *words, const int32_t *ids, int64_t count,
                                                 uint64_t *sums, const int shortest, const int longest) {
    const Spelling spelling = words->spelling;        /* copies, which no count that is written can change */
    const Sketch sketch = words->sketch;
    const uint8_t *borders = words->borders;
    int64_t letters = 0;
    int wrong = 0, begins_apart = 1, ends_apart;
    Run run = {{0}, 0};
    for (int64_t i = 0; i < count; i++) wrong |= ids[i] < 0 || ids[i] >= table->height;
    if (wrong) return WRONG;
    for (int64_t i = 0; i < count; i++, begins_apart = ends_apart) {
        int32_t id = ids[i];
        ends_apart = i + 1 == count || (borders && (borders[id] & ENDS_APART || borders[ids[i + 1]] & BEGINS_APART));
        int alone = borders && begins_apart && ends_apart;
        add_row((alone ? words->alone : table->rows) + id * table->width, sums, table->width);
        if (alone) continue;
        int64_t start = spelling.starts[id], end = spelling.starts[id + 1];
        if (start < 0 || end < start || end > words->letters) return WRONG;
        if ((letters += end - start) > MAX_LETTERS) return TOO_LONG;
        count_token(&sketch, &run, &spelling, id, shortest, longest);
        if (ends_apart) end_word(&sketch, &run, shortest, longest);
    }
    if (letters) add_counted(words, sums);
    return FITS;
}

static Verdict add_text(const Table *table, const Words *words, const int32_t *ids, int64_t count, uint64_t *sums) {
    if (words->buckets.height && has_usual_sizes(&words->sketch))
        return add_sizes(table, words, ids, count, sums, USUAL_SIZES);
    if (words->buckets.height)
        return add_sizes(table, words, ids, count, sums, words->sketch.shortest, words->sketch.longest);
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= table->height) return WRONG;
        add_row(table->rows + ids[i] * table->width, sums, table->width);
    }
    return FITS;
}

static Verdict add_texts(const Table *table, const Words *words, const int32_t *ids, int64_t left,
                         const int64_t *counts, int64_t texts, uint64_t *sums) {
    for (int64_t i = 0; i < texts; i++, sums += table->width) {
        if (counts[i] < 0 || counts[i] > left) return WRONG;
        Verdict verdict = add_text(table, words, ids, counts[i], sums);
        if (verdict != FITS) return verdict;
        ids += counts[i];
        left -= counts[i];
    }
    return left ? WRONG : FITS;
}

/* The buffers of a call, and what was made of them. */
enum { IDS, COUNTS, TABLE, BUCKETS, LETTERS, STARTS, ALONE, BUFFERS };
typedef struct {
    Py_buffer view[BUFFERS];
    int held;
    Table table;
    Words words;
    uint64_t *sums;
    int64_t texts;
} Call;

static void end_call(Call *call) {
    free(call->sums);
    free(call->words.counted);
    while (call->held) PyBuffer_Release(&call->view[--call->held]);
}

/* Takes the buffers from `first` on up to the last that was given, and looks whether they fit. Sets an error, or 1. */
static int begin_call(Call *call, PyObject **object, int first, Py_ssize_t width, const Py_ssize_t *sizes) {
    Py_buffer *view = call->view;
    memset(call, 0, sizeof *call);
    for (; call->held < BUFFERS; call->held++) {
        if (call->held < first) { view[call->held] = (Py_buffer){0}; continue; }
        if (!object[call->held]) break;
        if (PyObject_GetBuffer(object[call->held], &view[call->held], PyBUF_CONTIG_RO)) return 0;
    }
    int right = width > 0 && width < 1 << 24 && !(view[TABLE].len % (4 * width)) && !(view[IDS].len % 4);
    right = right && !(view[COUNTS].len % 8) && (call->held == BUCKETS || call->held >= ALONE);
    right = right && view[TABLE].len / 4 / width <= INT32_MAX;
    if (right) call->table = (Table){view[TABLE].buf, view[TABLE].len / 4 / width, width};
    call->texts = view[COUNTS].len / 8;
    if (right && call->held >= ALONE) {
        int64_t buckets = view[BUCKETS].len / 4 / width, height = call->table.height;
        right = buckets && buckets <= MAX_BUCKETS && view[BUCKETS].len == 4 * width * buckets;
        right = right && view[STARTS].len == 8 * (height + 1) && are_sizes(sizes[0], sizes[1]);
        right = right && (call->held == ALONE || view[ALONE].len == (4 * width + 1) * height);
        const int32_t **counted = right ? calloc((size_t)buckets, sizeof *counted + sizeof(uint32_t)) : NULL;
        if (right && !counted) { PyErr_NoMemory(); return 0; }
        Sketch sketch = {(uint32_t *)(counted + buckets), (uint32_t)buckets, (int)sizes[0], (int)sizes[1]};
        call->words = (Words){{view[BUCKETS].buf, buckets, width}, {view[LETTERS].buf, view[STARTS].buf},
                              view[LETTERS].len, sketch, NULL, counted, NULL};
        if (right && call->held > ALONE) {
            call->words.alone = view[ALONE].buf;
            call->words.borders = (const uint8_t *)(call->words.alone + width * height);
        }
    }
    if (!right) PyErr_Format(PyExc_ValueError, "the ids, the counts and the table do not fit together");
    return right;
}

/* Fills the sums of a call that was begun. Sets an error, or 1. */
static int sum_up(Call *call) {
    Verdict verdict;
    call->sums = calloc((size_t)(call->texts * call->table.width) + 1, sizeof *call->sums);
    if (!call->sums) { PyErr_NoMemory(); return 0; }
    Py_BEGIN_ALLOW_THREADS
    verdict = add_texts(&call->table, &call->words, call->view[IDS].buf, call->view[IDS].len / 4,
                        call->view[COUNTS].buf, call->texts, call->sums);
    Py_END_ALLOW_THREADS
    if (verdict == WRONG) PyErr_Format(PyExc_ValueError, "the ids, the counts and the table do not fit together");
    if (verdict == TOO_LONG) PyErr_Format(PyExc_OverflowError, "a text has more letters than can be counted");
    return verdict == FITS;
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

/* token_sums(ids, counts, table, width[, buckets, letters, starts, shortest, longest[, alone]]) -> (sums of each text,
   counts): buffers of int32, int64 and int32, then of int32, bytes, int64 and int32. */
static PyObject *token_sums(PyObject *module, PyObject *args) {
    PyObject *object[BUFFERS] = {NULL}, *found = NULL;
    Py_ssize_t width, sizes[2] = {0, 0};
    Call call;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOn|OOOnnO", &object[IDS], &object[COUNTS], &object[TABLE], &width, &object[BUCKETS],
                          &object[LETTERS], &object[STARTS], &sizes[0], &sizes[1], &object[ALONE])) return NULL;
    if (begin_call(&call, object, IDS, width, sizes) && sum_up(&call)) {
        PyObject *lists = as_lists((int64_t *)call.sums, call.texts, width);
        PyObject *counts = as_list(call.view[COUNTS].buf, call.texts);
        if (lists && counts) found = PyTuple_Pack(2, lists, counts);
        Py_XDECREF(lists);
        Py_XDECREF(counts);
    }
    end_call(&call);
    return found;
}

/* alone_rows(table, width, buckets, letters, starts, shortest, longest) -> what `alone` is, as bytes. */
static PyObject *alone_rows(PyObject *module, PyObject *args) {
    PyObject *object[BUFFERS] = {NULL}, *made = NULL;
    Py_ssize_t width, sizes[2] = {0, 0};
    Call call;
    (void)module;
    if (!PyArg_ParseTuple(args, "OnOOOnn", &object[TABLE], &width, &object[BUCKETS], &object[LETTERS], &object[STARTS],
                          &sizes[0], &sizes[1])) return NULL;
    if (!begin_call(&call, object, TABLE, width, sizes)) goto end;
    made = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)((4 * width + 1) * call.table.height));
    uint64_t *sums = calloc((size_t)width, sizeof *sums);
    if (made && !sums) { PyErr_NoMemory(); Py_CLEAR(made); }
    int32_t *row = made ? (int32_t *)PyByteArray_AsString(made) : NULL;
    uint8_t *borders = row ? (uint8_t *)(row + width * call.table.height) : NULL;
    Verdict verdict = FITS;
    Py_BEGIN_ALLOW_THREADS
    for (int32_t id = 0; row && id < call.table.height && verdict == FITS; id++, row += width) {
        int64_t start = call.words.spelling.starts[id], end = call.words.spelling.starts[id + 1];
        memset(sums, 0, sizeof *sums * (size_t)width);
        verdict = add_text(&call.table, &call.words, &id, 1, sums);
        if (verdict != FITS) break;
        for (int64_t column = 0; column < width; column++) row[column] = (int32_t)(uint32_t)sums[column];
        const uint8_t *spelt = call.words.spelling.letters;
        int begins = start < end && !is_word_byte(spelt[start]), ends = start < end && !is_word_byte(spelt[end - 1]);
        borders[id] = (uint8_t)((begins ? BEGINS_APART : 0) | (ends ? ENDS_APART : 0));
    }
    Py_END_ALLOW_THREADS
    free(sums);
    if (made && verdict != FITS) {
        Py_CLEAR(made);
        PyErr_Format(PyExc_ValueError, "the spelling and the table do not fit together");
    }
end:
    end_call(&call);
    return made;
}

/* How points become decisions; router.py says what each number is. */
typedef struct {
    PyTypeObject *kind;
    PyObject *names, *fallback;
    double sharpness, power, half, tail, threshold, unit, slope, growth, offset, least;
    int scoped, familiar;           /* familiar: one more column tells, below 0, text that is like nothing known */
} Rule;

/* A product that no compiler adds to anything without rounding it first. */
static double product(double one, double other) {
    volatile double made = one * other;
    return made;
}

/* The chance that a text belongs to any domain; below 0 where these numbers do not hold it as Python's do. */
static double chance(const Rule *rule, const int64_t *points, int64_t width, int64_t most, int64_t voters) {
    int64_t total = 0;
    if (!voters) return 0.0;
    for (int64_t i = 0; i < width; i++) {
        if (points[i] > EXACT_DOUBLES / width || points[i] < -EXACT_DOUBLES / width) return -1.0;
        total += points[i];
    }
    double count = (double)width, unit = rule->unit / (double)voters, mean = (double)total / count, squares = 0.0;
    for (int64_t i = 0; i < width; i++) {
        double off = (double)points[i] - mean;
        squares += product(off, off);
    }
    double spread = product(squares / count * unit, unit) + 1.0 / (count * count);
    double above = ((double)most - mean) * unit / sqrt((count - 1.0) * spread);
    double grown = product(rule->growth, log((double)voters));
    double odds = exp(-(product(rule->slope, above) + grown + rule->offset));
    return isfinite(odds) ? 1.0 / (1.0 + odds) : -1.0;
}

/* width: the number of domains. scores: room for as many numbers. */
static PyObject *decision(const Rule *rule, const int64_t *points, int64_t width, int64_t tokens, double *scores) {
    int64_t winner = 0;
    double total = 0.0;
    for (int64_t i = 1; i < width; i++)
        if (points[i] > points[winner]) winner = i;
    double count = (double)tokens, tail = rule->tail;
    double sharpness = tokens ? rule->sharpness * pow(count, rule->power) * (count / (count + rule->half)) : 0.0;
    for (int64_t i = 0; i < width; i++) {
        double distance = (double)(points[winner] - points[i]) * sharpness;
        scores[i] = tail > 0.0 ? pow(1.0 + product(tail, distance), -1.0 / tail) : exp(-distance);
        total += scores[i];
    }
    double confidence = 1.0 / total, scope = 0.0;
    if (rule->scoped && (scope = chance(rule, points, width, points[winner], tokens)) < 0) {
        PyErr_Format(PyExc_OverflowError, "these numbers are Python's to reckon with");
        return NULL;
    }
    int known = !rule->familiar || points[width] >= 0, told = rule->scoped || rule->familiar;
    int belongs = known && (!rule->scoped || scope >= rule->least), taken = belongs && confidence >= rule->threshold;
    if (rule->familiar) scope = !known ? 0.0 : rule->scoped ? scope : 1.0;
    PyObject *best = PyTuple_GetItem(rule->names, (Py_ssize_t)winner), *by_name = PyDict_New(), *made = NULL;
    for (int64_t i = 0; by_name && i < width; i++) {
        PyObject *score = PyFloat_FromDouble(scores[i] * confidence);
        if (!score || PyDict_SetItem(by_name, PyTuple_GetItem(rule->names, (Py_ssize_t)i), score)) Py_CLEAR(by_name);
        Py_XDECREF(score);
    }
    PyObject *fields = !by_name ? NULL : Py_BuildValue(
        "((OdNOOLNO))", taken || rule->fallback == Py_None ? best : rule->fallback, confidence, by_name,
        taken ? Py_False : Py_True, best, (long long)tokens,
        told ? PyFloat_FromDouble(scope) : Py_NewRef(Py_None), belongs ? Py_True : Py_False);
    if (fields) made = ((newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new))(rule->kind, fields, NULL);
    Py_XDECREF(fields);
    return made;
}

/* token_decisions(rule, ids, counts, table, width[, …]) -> a decision for each text; the rest as in token_sums.
   rule: the class of decisions, a tuple; the domains; sharpness, power, half, tail, threshold, fallback; whether one
   more column tells unfamiliar text; unit, slope, growth, offset and least chance of the scope, if there is one. */
static PyObject *token_decisions(PyObject *module, PyObject *args) {
    PyObject *object[BUFFERS] = {NULL}, *rule_given, *made = NULL;
    Py_ssize_t width, sizes[2] = {0, 0};
    Rule rule = {NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    double *scores = NULL;
    Call call;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!OOOn|OOOnnO", &PyTuple_Type, &rule_given, &object[IDS], &object[COUNTS],
                          &object[TABLE], &width, &object[BUCKETS], &object[LETTERS], &object[STARTS], &sizes[0],
                          &sizes[1], &object[ALONE])) return NULL;
    if (!PyArg_ParseTuple(rule_given, "O!O!dddddOp|ddddd", &PyType_Type, &rule.kind, &PyTuple_Type, &rule.names,
                          &rule.sharpness, &rule.power, &rule.half, &rule.tail, &rule.threshold, &rule.fallback,
                          &rule.familiar, &rule.unit, &rule.slope, &rule.growth, &rule.offset, &rule.least)) return NULL;
    rule.scoped = PyTuple_Size(rule_given) > 9;
    Py_ssize_t domains = PyTuple_Size(rule.names);
    if (!PyType_IsSubtype(rule.kind, &PyTuple_Type) || domains < 1 || domains + rule.familiar != width) {
        PyErr_Format(PyExc_ValueError, "the rule and the table do not fit together");
        return NULL;
    }
    if (begin_call(&call, object, IDS, width, sizes) && sum_up(&call)) {
        scores = calloc((size_t)domains, sizeof *scores);
        made = scores ? PyList_New((Py_ssize_t)call.texts) : PyErr_NoMemory();
        for (int64_t i = 0; made && i < call.texts; i++) {
            int64_t tokens = ((const int64_t *)call.view[COUNTS].buf)[i];
            PyObject *each = decision(&rule, (int64_t *)call.sums + i * width, domains, tokens, scores);
            if (!each || PyList_SetItem(made, (Py_ssize_t)i, each)) Py_CLEAR(made);
        }
    }
    free(scores);
    end_call(&call);
    return made;
}

static PyMethodDef functions[] = {
    {"token_sums", token_sums, METH_VARARGS, "The sums of table rows over the tokens of each text."},
    {"alone_rows", alone_rows, METH_VARARGS, "The rows of tokens with those of their own letters."},
    {"token_decisions", token_decisions, METH_VARARGS, "The decision on each text."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "token_sums", NULL, 0, functions, slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_token_sums(void) { return PyModuleDef_Init(&module); }
