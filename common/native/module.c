/* The module `ridgeway._native`: what numpy and the tokenizers library do, faster. Each function gives what its reference in
   Python gives; tests compare them. */
#include "native.h"

static int add_type(PyObject *module, const char *name, PyObject *type) {
    int failed = PyModule_AddObjectRef(module, name, type);  /* fails, with the error that is set, on no type */
    Py_XDECREF(type);
    return failed;
}

static int fill(PyObject *module) {
    if (add_type(module, "Encoder", encoder_type())) return -1;
    return add_type(module, "SentenceNetwork", sentence_network_type());
}

static PyMethodDef functions[] = {
    {"row_means", row_means, METH_VARARGS, "Fill the rounded mean row of each window, and its words."},
    {"sentence_variants", sentence_variants, METH_NOARGS, "The variants of SentenceNetwork that run here, the fastest first."},
    {"token_sums", token_sums, METH_VARARGS, "The sums of table rows over the tokens of each text, and its words."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, functions, slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
