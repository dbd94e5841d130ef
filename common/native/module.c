/* The module `ridgeway._native`: what numpy and libraries of tokenizers do, faster. Each function gives what its reference in
   Python gives; tests compare them. */
#include "native.h"

/* Takes over the type; fails, with the error that is set, on no type. */
static int add(PyObject *module, const char *name, PyObject *type) {
    int failed = PyModule_AddObjectRef(module, name, type);
    Py_XDECREF(type);
    return failed;
}

static int fill(PyObject *module) {
    return add(module, "SentenceNetwork", sentence_network_type()) || add(module, "Unigram", unigram_type()) ? -1 : 0;
}

static PyMethodDef functions[] = {
    {"letter_runs", letter_runs, METH_VARARGS, "The runs of letters in texts, and where those of each token end."},
    {"row_means", row_means, METH_VARARGS, "Fill the rounded mean row of each window, and its runs of letters."},
    {"sentence_variants", sentence_variants, METH_NOARGS, "The variants of SentenceNetwork that run here, the fastest first."},
    {"token_sums", token_sums, METH_VARARGS, "The sums of rows over the tokens of each text, and over its runs of letters."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, functions, slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
