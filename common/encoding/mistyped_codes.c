/* The errors of mistyped_text.py, written into texts one character after another: what numpy does there, faster.

   Texts stand in one row of code points. Of n code points at most 2n are written, and buffers of other sizes are refused. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum { REPLACED, DROPPED, DOUBLED, SWAPPED, KEPT };  /* what happens to a character */
#define LEAST_PERCENT 3
#define RATES 23                 /* percents from the least to the most */
#define CAPITALS_EVERY 4

typedef struct { uint64_t first, second; } Seed;

/* The number of a place, counted from 1: splitmix64. */
static inline uint64_t roll_of(uint64_t seed, uint64_t place) {
    uint64_t value = seed + place * 0x9E3779B97F4A7C15u;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

static inline int kind_of(uint64_t roll, uint32_t struck) {
    return (roll & 0xFFFF) < struck ? (int)(roll >> 16 & 3) : KEPT;
}

static inline uint32_t letter_of(uint64_t roll) { return 'a' + (uint32_t)((roll >> 32) * 26 >> 32); }

static inline uint32_t in_case(uint32_t code, int capitals) { return capitals && code - 'a' < 26 ? code - 32 : code; }

/* One text with its errors to `out`; returns where it ends. A character changes places with the one before it unless that
   one does so, too. */
static uint32_t *write_text(const uint32_t *codes, int64_t size, const Seed *seed, uint32_t *out) {
    uint32_t struck = (uint32_t)((LEAST_PERCENT + seed->second % RATES) * (1 << 16) + 99) / 100;
    int capitals = (seed->second >> 32) % CAPITALS_EVERY == 0, kind = KEPT, next = KEPT, before = KEPT;
    uint64_t roll = 0, next_roll = 0;
    for (int64_t i = -1; i < size; i++) {
        before = kind;
        kind = next;
        roll = next_roll;
        if (i + 1 < size) next_roll = roll_of(seed->first, (uint64_t)i + 2);
        next = i + 1 < size ? kind_of(next_roll, struck) : KEPT;
        if (i < 0) continue;
        int64_t from = kind == SWAPPED ? i - (i && before != SWAPPED) : i + (next == SWAPPED);
        uint32_t code = in_case(codes[from], capitals);
        if (kind != DROPPED) *out++ = kind == REPLACED ? letter_of(roll) : code;
        if (kind == DOUBLED) *out++ = letter_of(roll);
    }
    return out;
}

static int are_lengths(const int64_t *lengths, int64_t texts, int64_t count) {
    for (int64_t i = 0; i < texts; count -= lengths[i++])
        if (lengths[i] < 0 || lengths[i] > count) return 0;
    return !count;
}

/* mistype(codes, lengths, seeds, out, ends): buffers of uint32, int64, two uint64 a text, and, to be filled, twice as many
   uint32, and an int64 a text: where it ends there. */
static PyObject *mistype(PyObject *module, PyObject *args) {
    enum { CODES, LENGTHS, SEEDS, OUT, ENDS, BUFFERS };
    PyObject *object[BUFFERS], *done = NULL;
    Py_buffer view[BUFFERS];
    int held = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOO", &object[0], &object[1], &object[2], &object[3], &object[4])) return NULL;
    for (; held < BUFFERS; held++)
        if (PyObject_GetBuffer(object[held], &view[held], held < OUT ? PyBUF_CONTIG_RO : PyBUF_CONTIG)) goto end;
    int64_t texts = view[LENGTHS].len / 8, count = view[CODES].len / 4;
    int right = !(view[LENGTHS].len % 8 || view[CODES].len % 4) && view[SEEDS].len == 16 * texts;
    right = right && view[OUT].len == 8 * count && view[ENDS].len == 8 * texts;
    right = right && are_lengths(view[LENGTHS].buf, texts, count);
    if (!right) {
        PyErr_Format(PyExc_ValueError, "the texts, their lengths and their seeds do not fit together");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    const uint32_t *codes = view[CODES].buf;
    uint32_t *first = view[OUT].buf, *out = first;
    for (int64_t i = 0, size; i < texts; i++, codes += size) {
        size = ((const int64_t *)view[LENGTHS].buf)[i];
        out = write_text(codes, size, (const Seed *)view[SEEDS].buf + i, out);
        ((int64_t *)view[ENDS].buf)[i] = out - first;
    }
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
end:
    while (held) PyBuffer_Release(&view[--held]);
    return done;
}

static PyMethodDef functions[] = {
    {"mistype", mistype, METH_VARARGS, "Write texts with their errors, and where each ends."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "mistyped_codes", NULL, 0, functions, slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_mistyped_codes(void) { return PyModuleDef_Init(&module); }
