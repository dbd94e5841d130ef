/* Σ n ψψᵀ over samples of whole numbers, where the processor multiplies bytes much faster than floats (ARM's SDOT).

   A sample less the centre, ψ = 128·high + low with low in -64..63 and high in -64..64, so that high, low and their sum
   fit a byte each. Of the products of these three planes with themselves,

       ψψᵀ = low·lowᵀ + 128·(sum·sumᵀ - high·highᵀ - low·lowᵀ) + 128²·high·highᵀ,

   and each product of bytes is exact in 32 bits over MAX_SAMPLES. Only the upper triangle is taken, in tiles of 4×4 whose
   loops the compiler turns into SDOT. On other processors the module has no function, and numpy multiplies floats.

   The last columns may be coarse: few of their values are not 0, and those are small multiples of COARSE. They are
   listed, column by column, and the samples that a list names are added up instead of being multiplied by zeros.

   Safety. Lengths and values are checked before anything is read or written by them; allocations are checked.
   Threads. Nothing is kept between calls, and the interpreter's lock is free while products are taken. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#include <arm_neon.h>
#include <sys/auxv.h>
#define HAS_SDOT (getauxval(AT_HWCAP) >> 20 & 1)       /* HWCAP_ASIMDDP */
#define WITH_SDOT __attribute__((target("arch=armv8.2-a+dotprod")))

#define LIMIT 4096               /* of samples and of the centre */
#define MAX_SAMPLES (1 << 13)    /* so that sums of LIMIT · LIMIT / COARSE over them fit 32 bits */
#define MAX_WIDTH (1 << 14)
#define MAX_TIMES ((int64_t)1 << 38)
#define TILE 4
#define STRIP 24                 /* columns that stay in the nearest cache while all others pass by */
#define LANE 16                  /* samples are padded with zeros to a multiple of this */
#define COARSE 128
#define GROUP 4                  /* samples that are added at once, in 16 bits */
#define LINE 8                   /* coarse columns that are written together, */
#define CHUNK 32                 /* and columns that they are multiplied by, whose sums are in registers */


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

/* Of tiles beyond the last column, what is there. */
static inline void add_tile(const int32_t *restrict sums, int64_t height, int64_t width, uint64_t weight,
                            int64_t features, uint64_t *restrict gram) {
    for (int64_t i = 0; i < height; i++)
        for (int64_t j = 0; j < width; j++) gram[i * features + j] += weight * (uint64_t)sums[i * TILE + j];
}

/* gram += weight · plane·planeᵀ, the upper triangle. The plane has columns of zeros up to a multiple of TILE. */
static void add_plane(const int8_t *plane, int64_t stride, int64_t columns, int64_t features, uint64_t weight,
                      uint64_t *gram) {
    int32_t sums[TILE * TILE];
    for (int64_t first = 0; first < columns; first += STRIP)
        for (int64_t row = 0; row < columns && row < first + STRIP; row += TILE)
            for (int64_t column = row > first ? row : first; column < columns && column < first + STRIP; column += TILE) {
                multiply_tile(plane + row * stride, plane + column * stride, stride, sums);
                uint64_t *to = gram + row * features + column;
                int64_t height = columns - row, width = columns - column;
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

/* Samples in rows, less the centre, to columns: the first so many of them. */
static void write_columns(const int16_t *samples, int64_t count, int64_t width, const int16_t *centre, int64_t chosen,
                          int64_t stride, int16_t *columns) {
    for (int64_t first = 0; first < count; first += LANE) {
        int64_t last = count - first < LANE ? count : first + LANE;
        for (int64_t column = 0; column < chosen; column++)
            for (int64_t i = first; i < last; i++)
                columns[column * stride + i] = (int16_t)(samples[i * width + column] - centre[column]);
    }
}

/* The last column of gram: of the constant 1 behind each sample with all others, and with itself. */
static void add_sums(const int16_t *restrict samples, int64_t count, int64_t width, const int16_t *restrict centre,
                     int32_t *restrict sums, uint64_t times, uint64_t *gram) {
    memset(sums, 0, sizeof *sums * (size_t)width);
    for (int64_t i = 0; i < count; i++, samples += width)
        for (int64_t j = 0; j < width; j++) sums[j] += samples[j] - centre[j];
    for (int64_t j = 0; j < width; j++) gram[j * (width + 1) + width] += times * (uint64_t)sums[j];
    gram[(width + 1) * (width + 1) - 1] += times * (uint64_t)count;
}

/* Coarse columns. places, values: those of each sample that are not 0, up to stops[sample]. samples: for each column
   and sign a list of samples, in which one stands as often as its value says: from ends[k - 1] to ends[k], k being twice
   the column, and one more for negative values. pairs: the products of values. chunk: CHUNK columns of
   all samples. */
typedef struct { int16_t *places, *values, *chunk; uint16_t *samples; int64_t *stops, *ends; int32_t *pairs; } Lists;

static void write_lists(const int16_t *samples, int64_t count, int64_t width, int64_t coarse, Lists *lists) {
    int16_t *places = lists->places, *values = lists->values;
    for (int64_t i = 0, found = 0; i < count; lists->stops[i++] = found)
        for (int64_t j = 0; j < coarse; j++) {
            int16_t value = (int16_t)(samples[i * width + width - coarse + j] >> 7);
            if (!value) continue;
            places[found] = (int16_t)j;
            values[found++] = value;
            lists->ends[2 * j + (value < 0)] += abs(value);
        }
    for (int64_t k = 0, total = 0; k < 2 * coarse; k++) {
        int64_t size = lists->ends[k];
        lists->ends[k] = total;
        total += size;
    }
    for (int64_t i = 0, a = 0; i < count; i++)
        for (; a < lists->stops[i]; a++) {
            int32_t *row = lists->pairs + places[a] * coarse, value = values[a];
            int64_t *end = lists->ends + 2 * places[a] + (value < 0);
            for (int times = abs(value); times; times--) lists->samples[(*end)++] = (uint16_t)i;
            for (int64_t b = a; b < lists->stops[i]; b++) row[places[b]] += value * values[b];
        }
}

/* The sums of CHUNK columns over the samples that a list names. */
static void sum_listed(const int16_t *samples, const uint16_t *at, const uint16_t *end, int32_t *sums) {
    int32x4_t low[CHUNK / 8], high[CHUNK / 8];
    for (int i = 0; i < CHUNK / 8; i++) low[i] = high[i] = vdupq_n_s32(0);
    for (; at < end; at += GROUP) {
        int many = end - at >= GROUP;
        const int16_t *a = samples + at[0] * CHUNK, *b = samples + at[many] * CHUNK;
        const int16_t *c = samples + at[2 * many] * CHUNK, *d = samples + at[3 * many] * CHUNK;
        for (int i = 0; i < CHUNK / 8; i++) {
            int16x8_t sum = vld1q_s16(a + 8 * i);
            if (many) {
                sum = vaddq_s16(sum, vld1q_s16(b + 8 * i));
                sum = vaddq_s16(sum, vaddq_s16(vld1q_s16(c + 8 * i), vld1q_s16(d + 8 * i)));
            }
            low[i] = vaddw_s16(low[i], vget_low_s16(sum));
            high[i] = vaddw_high_s16(high[i], sum);
        }
        if (!many) at -= GROUP - 1;
    }
    for (int i = 0; i < CHUNK / 8; i++) { vst1q_s32(sums + 8 * i, low[i]); vst1q_s32(sums + 8 * i + 4, high[i]); }
}

/* The products of a few coarse columns with CHUNK that are not, `samples` having those alone. */
static void add_coarse(const int16_t *samples, int64_t width, const int16_t *centre, const Lists *lists, int64_t first,
                       int64_t together, uint64_t weight, uint64_t *gram) {
    int32_t plus[LINE][CHUNK], minus[LINE][CHUNK];
    int64_t moved[LINE];
    for (int64_t k = 0; k < together; k++) {
        int64_t *ends = lists->ends + 2 * (first + k), begin = first + k ? ends[-1] : 0;
        const uint16_t *list = lists->samples;
        sum_listed(samples, list + begin, list + ends[0], plus[k]);
        sum_listed(samples, list + ends[0], list + ends[1], minus[k]);
        moved[k] = (ends[0] - begin) - (ends[1] - ends[0]);
    }
    for (int64_t i = 0; i < CHUNK; i++, gram += width + 1)
        for (int64_t k = 0; k < together; k++)
            gram[k] += weight * (uint64_t)((int64_t)plus[k][i] - minus[k][i] - moved[k] * centre[i]);
}

static void add_all_coarse(const int16_t *samples, int64_t count, int64_t width, const int16_t *centre, int64_t coarse,
                           Lists *lists, uint64_t weight, uint64_t *gram) {
    int64_t dense = width - coarse, features = width + 1;
    write_lists(samples, count, width, coarse, lists);
    for (int64_t at = 0; at < dense; at += CHUNK) {
        for (int64_t i = 0; i < count; i++)
            memcpy(lists->chunk + i * CHUNK, samples + i * width + at, sizeof *samples * CHUNK);
        for (int64_t first = 0; first < coarse; first += LINE)
            add_coarse(lists->chunk, width, centre + at, lists, first, coarse - first < LINE ? coarse - first : LINE,
                       weight, gram + at * features + dense + first);
    }
    for (int64_t i = 0; i < coarse; i++)
        for (int64_t j = i; j < coarse; j++)
            gram[(dense + i) * features + dense + j] += COARSE * weight * (uint64_t)lists->pairs[i * coarse + j];
}

static int are_small(const int16_t *values, int64_t count) {
    int wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong |= values[i] > LIMIT || values[i] < -LIMIT;
    return !wrong;
}

/* How many entries lists will have, or -1 where values are not coarse, or moved by the centre. */
static int64_t count_listed(const int16_t *samples, int64_t count, int64_t width, const int16_t *centre, int64_t coarse) {
    int64_t listed = 0;
    int wrong = 0;
    for (int64_t j = width - coarse; j < width; j++) wrong |= centre[j];
    for (int64_t i = 0; i < count; i++) {
        int32_t sum = 0;
        for (int64_t j = width - coarse; j < width; j++) {
            wrong |= samples[i * width + j] & (COARSE - 1);
            sum += abs(samples[i * width + j]) >> 7;
        }
        listed += sum;
    }
    return wrong ? -1 : listed;
}

/* byte_products(samples, centre, gram[, times, coarse]): buffers of int16, N×h and h, and of int64, (h+1)×(h+1), to
   which so many times the products are added; the last so many columns are coarse, and not moved by the centre. */
static PyObject *byte_products(PyObject *module, PyObject *args) {
    enum { SAMPLES, CENTRE, GRAM, BUFFERS };
    PyObject *object[BUFFERS], *done = NULL;
    Py_buffer view[BUFFERS];
    int held = 0;
    int16_t *columns = NULL;
    int8_t *plane = NULL;
    int32_t *sums = NULL;
    Lists lists = {NULL};
    Py_ssize_t times = 1, coarse = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO|nn", &object[SAMPLES], &object[CENTRE], &object[GRAM], &times, &coarse)) return NULL;
    for (; held < BUFFERS; held++)
        if (PyObject_GetBuffer(object[held], &view[held], held == GRAM ? PyBUF_CONTIG : PyBUF_CONTIG_RO)) goto end;
    int64_t width = view[CENTRE].len / 2, features = width + 1, dense = width - coarse;
    int right = width > 0 && width < MAX_WIDTH && view[CENTRE].len == 2 * width && !(view[SAMPLES].len % (2 * width));
    right = right && view[GRAM].len == 8 * features * features && times > 0 && times <= MAX_TIMES;
    right = right && coarse >= 0 && dense > 0 && !(coarse && dense % CHUNK);
    int64_t count = right ? view[SAMPLES].len / 2 / width : 0;
    const int16_t *samples = view[SAMPLES].buf, *centre = view[CENTRE].buf;
    right = right && count <= MAX_SAMPLES && are_small(samples, count * width) && are_small(centre, width);
    int64_t listed = right ? count_listed(samples, count, width, centre, coarse) : -1;
    if (listed < 0) {
        PyErr_Format(PyExc_ValueError, "the samples, the centre and the gram do not fit together");
        goto end;
    }
    int64_t stride = (count + LANE - 1) / LANE * LANE, padded = (dense + TILE - 1) / TILE * TILE;
    columns = calloc((size_t)(padded * stride) + 1, sizeof *columns);
    plane = malloc((size_t)(padded * stride) + 1);
    sums = malloc(sizeof *sums * (size_t)width);
    if (!columns || !plane || !sums) { PyErr_NoMemory(); goto end; }
    if (coarse) {
        size_t entries = (size_t)listed + 1;
        lists = (Lists){calloc(entries, 2), calloc(entries, 2), calloc((size_t)stride + 1, 2 * CHUNK), calloc(entries, 2),
                        calloc((size_t)stride + 1, 8), calloc(2 * (size_t)coarse, 8), calloc((size_t)(coarse * coarse), 4)};
        int all = lists.places && lists.values && lists.chunk && lists.samples && lists.stops && lists.ends && lists.pairs;
        if (!all) { PyErr_NoMemory(); goto end; }
    }
    Py_BEGIN_ALLOW_THREADS
    uint64_t *gram = view[GRAM].buf;                   /* which wraps; what is asked for does not */
    write_columns(samples, count, width, centre, dense, stride, columns);
    for (int which = LOW; which <= SUM; which++) {
        write_plane(columns, padded * stride, which, plane);
        add_plane(plane, stride, dense, features, (uint64_t)(times * weights[which]), gram);
    }
    add_sums(samples, count, width, centre, sums, (uint64_t)times, gram);
    if (coarse) add_all_coarse(samples, count, width, centre, coarse, &lists, COARSE * (uint64_t)times, gram);
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
end:
    free(lists.places); free(lists.values); free(lists.chunk); free(lists.samples); free(lists.stops); free(lists.ends); free(lists.pairs);
    free(sums);
    free(columns);
    free(plane);
    while (held) PyBuffer_Release(&view[--held]);
    return done;
}

static PyMethodDef functions[] = {
    {"byte_products", byte_products, METH_VARARGS, "Add the products of samples, less a centre, to a gram."},
    {NULL, NULL, 0, NULL},
};
#else
#define HAS_SDOT 0
static PyMethodDef functions[] = {{NULL, NULL, 0, NULL}};
#endif

static int fill(PyObject *module) { return HAS_SDOT ? PyModule_AddFunctions(module, functions) : 0; }
static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "byte_products", NULL, 0, NULL, slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_byte_products(void) { return PyModuleDef_Init(&module); }
