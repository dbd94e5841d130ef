/* Σ n ψψᵀ over samples of whole numbers, where the processor multiplies bytes much faster than floats (ARM's SDOT).

   A sample less the centre, ψ = 128·high + low with low in -64..63 and high in -64..64, so that high, low and their sum
   fit a byte each. Of the products of these three planes with themselves,

       ψψᵀ = low·lowᵀ + 128·(sum·sumᵀ - high·highᵀ - low·lowᵀ) + 128²·high·highᵀ,

   and each product of bytes is exact in 32 bits over MAX_SAMPLES. Only the upper triangle is taken, in tiles of 4×4 whose
   loops the compiler turns into SDOT. On other processors the module has no function, and numpy multiplies floats.

   Safety. Lengths and values are checked before anything is read or written by them; allocations are checked.
   Threads. Nothing is kept between calls, and the interpreter's lock is free while products are taken. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#include <sys/auxv.h>
#define HAS_SDOT (getauxval(AT_HWCAP) >> 20 & 1)       /* HWCAP_ASIMDDP */
#define WITH_SDOT __attribute__((target("arch=armv8.2-a+dotprod")))
#else
#define HAS_SDOT 0
#define WITH_SDOT
#endif

#define LIMIT 4096               /* of samples and of the centre */
#define MAX_SAMPLES (1 << 16)
#define MAX_WIDTH (1 << 14)
#define MAX_TIMES (1 << 12)
#define TILE 4
#define STRIP 48                 /* columns that stay in the nearest cache while all others pass by */
#define LANE 16                  /* samples are padded with zeros to a multiple of this */


/* The products of four columns with four others. */
WITH_SDOT static void multiply_tile(const int8_t *restrict a, const int8_t *restrict b, int64_t stride,
                                    int32_t *restrict out) {
    const int8_t *a1 = a + stride, *a2 = a + 2 * stride, *a3 = a + 3 * stride;
    const int8_t *b1 = b + stride, *b2 = b + 2 * stride, *b3 = b + 3 * stride;
    int32_t s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
    int32_t s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
    for (int64_t i = 0; i < stride; i++) {
        s00 += a[i] * b[i]; s01 += a[i] * b1[i]; s02 += a[i] * b2[i]; s03 += a[i] * b3[i];
        s10 += a1[i] * b[i]; s11 += a1[i] * b1[i]; s12 += a1[i] * b2[i]; s13 += a1[i] * b3[i];
        s20 += a2[i] * b[i]; s21 += a2[i] * b1[i]; s22 += a2[i] * b2[i]; s23 += a2[i] * b3[i];
        s30 += a3[i] * b[i]; s31 += a3[i] * b1[i]; s32 += a3[i] * b2[i]; s33 += a3[i] * b3[i];
    }
    int32_t sums[TILE * TILE] = {s00, s01, s02, s03, s10, s11, s12, s13, s20, s21, s22, s23, s30, s31, s32, s33};
    memcpy(out, sums, sizeof sums);
}

static inline void add_tile(const int32_t *restrict sums, int64_t height, int64_t width, int64_t weight,
                            int64_t features, int64_t *restrict gram) {
    for (int64_t i = 0; i < height; i++)
        for (int64_t j = 0; j < width; j++) gram[i * features + j] += weight * sums[i * TILE + j];
}

/* gram += weight · plane·planeᵀ, the upper triangle. The plane has columns of zeros up to a multiple of TILE. */
static void add_plane(const int8_t *plane, int64_t stride, int64_t features, int64_t weight, int64_t *gram) {
    int32_t sums[TILE * TILE];
    for (int64_t first = 0; first < features; first += STRIP)
        for (int64_t row = 0; row < features && row < first + STRIP; row += TILE)
            for (int64_t column = row > first ? row : first; column < features && column < first + STRIP; column += TILE) {
                multiply_tile(plane + row * stride, plane + column * stride, stride, sums);
                int64_t *to = gram + row * features + column, height = features - row, width = features - column;
                if (height >= TILE && width >= TILE) add_tile(sums, TILE, TILE, weight, features, to);
                else add_tile(sums, height < TILE ? height : TILE, width < TILE ? width : TILE, weight, features, to);
            }
}

enum { LOW, HIGH, SUM };
static const int32_t weights[] = {1 - 128, 128 * 128 - 128, 128};

static void write_plane(const int16_t *values, int64_t count, int which, int8_t *plane) {
    for (int64_t i = 0; i < count; i++) {
        int32_t high = (values[i] + 64) >> 7, low = values[i] - 128 * high;
        plane[i] = (int8_t)(which == LOW ? low : which == HIGH ? high : low + high);
    }
}

/* Samples in rows, less the centre, to columns; the last one is the constant 1. */
static void write_columns(const int16_t *samples, int64_t count, int64_t width, const int16_t *centre, int64_t stride,
                          int16_t *columns) {
    for (int64_t first = 0; first < count; first += LANE) {
        int64_t last = count - first < LANE ? count : first + LANE;
        for (int64_t column = 0; column < width; column++)
            for (int64_t i = first; i < last; i++)
                columns[column * stride + i] = (int16_t)(samples[i * width + column] - centre[column]);
    }
    for (int64_t i = 0; i < count; i++) columns[width * stride + i] = 1;
}

static int are_small(const int16_t *values, int64_t count) {
    int wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong |= values[i] > LIMIT || values[i] < -LIMIT;
    return !wrong;
}

/* byte_products(samples, centre, gram[, times]): buffers of int16, N×h and h, and of int64, (h+1)×(h+1), to which so
   many times the products are added. */
static PyObject *byte_products(PyObject *module, PyObject *args) {
    enum { SAMPLES, CENTRE, GRAM, BUFFERS };
    PyObject *object[BUFFERS], *done = NULL;
    Py_buffer view[BUFFERS];
    int held = 0;
    int16_t *columns = NULL;
    int8_t *plane = NULL;
    Py_ssize_t times = 1;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO|n", &object[SAMPLES], &object[CENTRE], &object[GRAM], &times)) return NULL;
    for (; held < BUFFERS; held++)
        if (PyObject_GetBuffer(object[held], &view[held], held == GRAM ? PyBUF_CONTIG : PyBUF_CONTIG_RO)) goto end;
    int64_t width = view[CENTRE].len / 2, features = width + 1;
    int right = width > 0 && width < MAX_WIDTH && view[CENTRE].len == 2 * width && !(view[SAMPLES].len % (2 * width));
    right = right && view[GRAM].len == 8 * features * features && times > 0 && times <= MAX_TIMES;
    int64_t count = right ? view[SAMPLES].len / 2 / width : 0;
    const int16_t *samples = view[SAMPLES].buf, *centre = view[CENTRE].buf;
    right = right && count <= MAX_SAMPLES && are_small(samples, count * width) && are_small(centre, width);
    if (!right) {
        PyErr_Format(PyExc_ValueError, "the samples, the centre and the gram do not fit together");
        goto end;
    }
    int64_t stride = (count + LANE - 1) / LANE * LANE, padded = (features + TILE - 1) / TILE * TILE;
    columns = calloc((size_t)(padded * stride) + 1, sizeof *columns);
    plane = malloc((size_t)(padded * stride) + 1);
    if (!columns || !plane) { PyErr_NoMemory(); goto end; }
    Py_BEGIN_ALLOW_THREADS
    write_columns(samples, count, width, centre, stride, columns);
    for (int which = LOW; which <= SUM; which++) {
        write_plane(columns, padded * stride, which, plane);
        add_plane(plane, stride, features, times * weights[which], view[GRAM].buf);
    }
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
end:
    free(columns);
    free(plane);
    while (held) PyBuffer_Release(&view[--held]);
    return done;
}

static PyMethodDef functions[] = {
    {"byte_products", byte_products, METH_VARARGS, "Add the products of samples, less a centre, to a gram."},
    {NULL, NULL, 0, NULL},
};
static int fill(PyObject *module) { return HAS_SDOT ? PyModule_AddFunctions(module, functions) : 0; }
static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "byte_products", NULL, 0, NULL, slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_byte_products(void) { return PyModuleDef_Init(&module); }
