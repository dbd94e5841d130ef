/* The rows of a table added up over the tokens of each text: what numpy does in token_table.py, without its overhead.

   Safety. Every id, count and length is checked before anything is read by it. Sums are taken in unsigned numbers, which
   wrap; with rows of 32 bits that takes 2^32 tokens, more than a text can have.

   Threads. Nothing is kept between calls, and the interpreter's lock is free while rows are added. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct { const int32_t *rows; int64_t height, width; } Table;

/* Adds the rows of `count` ids; 0 if one of them is outside the table. */
static int add_rows(const Table *table, const int32_t *ids, int64_t count, uint64_t *restrict sums) {
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= table->height) return 0;
        const int32_t *restrict row = table->rows + ids[i] * table->width;
        for (int64_t column = 0; column < table->width; column++) sums[column] += (uint64_t)(int64_t)row[column];
    }
    return 1;
}

static int add_texts(const Table *table, const int32_t *ids, int64_t left, const int64_t *counts, int64_t texts,
                     uint64_t *sums) {
    for (int64_t i = 0; i < texts; i++, sums += table->width) {
        if (counts[i] < 0 || counts[i] > left || !add_rows(table, ids, counts[i], sums)) return 0;
        ids += counts[i];
        left -= counts[i];
    }
    return !left;
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

/* token_sums(table, width, ids, counts) -> (sums of each text, counts): buffers of int32, int32 and int64. */
static PyObject *token_sums(PyObject *module, PyObject *args) {
    enum { TABLE, IDS, COUNTS, BUFFERS };
    PyObject *object[BUFFERS], *found = NULL;
    Py_buffer view[BUFFERS];
    Py_ssize_t width;
    uint64_t *sums = NULL;
    int held = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OnOO", &object[TABLE], &width, &object[IDS], &object[COUNTS])) return NULL;
    for (; held < BUFFERS; held++)
        if (PyObject_GetBuffer(object[held], &view[held], PyBUF_CONTIG_RO)) goto end;
    int64_t texts = view[COUNTS].len / 8, ids = view[IDS].len / 4;
    int right = width > 0 && width < 1 << 24 && !(view[TABLE].len % (4 * width)) && !(view[IDS].len % 4);
    right = right && !(view[COUNTS].len % 8);
    if (right && !(sums = calloc((size_t)(texts * width) + 1, sizeof *sums))) { PyErr_NoMemory(); goto end; }
    Py_BEGIN_ALLOW_THREADS
    if (right) {
        Table table = {view[TABLE].buf, view[TABLE].len / 4 / width, width};
        right = add_texts(&table, view[IDS].buf, ids, view[COUNTS].buf, texts, sums);
    }
    Py_END_ALLOW_THREADS
    if (right) {
        PyObject *lists = as_lists((int64_t *)sums, texts, width), *counts = as_list(view[COUNTS].buf, texts);
        if (lists && counts) found = PyTuple_Pack(2, lists, counts);
        Py_XDECREF(lists);
        Py_XDECREF(counts);
    } else PyErr_Format(PyExc_ValueError, "the ids, the counts and the table do not fit together");
end:
    free(sums);
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
