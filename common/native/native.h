/* What the parts of the module `ridgeway._native` share. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

PyObject *letter_runs(PyObject *module, PyObject *args);
PyObject *unigram_type(void);
PyObject *row_means(PyObject *module, PyObject *args);
PyObject *sentence_network_type(void);
PyObject *sentence_variants(PyObject *module, PyObject *none);
PyObject *token_sums(PyObject *module, PyObject *args);

/* Takes the buffers of objects up to the first NULL, that at `writable` to be written to. Returns whether all were had; how
   many are held goes to *held. */
static inline int hold_buffers(PyObject **objects, int count, int writable, Py_buffer *views, int *held) {
    for (*held = 0; *held < count && objects[*held]; ++*held) {
        int flags = *held == writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO;
        if (PyObject_GetBuffer(objects[*held], &views[*held], flags)) return 0;
    }
    return 1;
}

static inline void release_buffers(Py_buffer *views, int held) {
    while (held) PyBuffer_Release(&views[--held]);
}
