/* Σ n ψψᵀ over samples of whole numbers, where the processor multiplies bytes much faster than floats (ARM's SDOT).

   A sample less the centre, ψ = 256·k + low with low in -128..127. Where most values are small, few k are not 0: they are
   listed, column by column, and the values that a list names are added up instead of being multiplied by zeros. So

       ψψᵀ = low·lowᵀ + 256·(k·lowᵀ + low·kᵀ) + 256²·k·kᵀ,

   of which the first part is one product of bytes. Where too many k would be listed, ψ = 128·high + low with low in
   -64..63 and high in -64..64, so that high, low and their sum fit a byte each, and there are three such products:

       ψψᵀ = low·lowᵀ + 128·(sum·sumᵀ - high·highᵀ - low·lowᵀ) + 128²·high·highᵀ.

   Each is exact in 32 bits over MAX_SAMPLES. Only the upper triangle is taken, in tiles. On other processors the module
   has no function, and numpy multiplies floats.

   The last columns may be coarse: few of their values are not 0, and those are small multiples of COARSE. They are listed
   whole, and have no part in the products of bytes.

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
#define MAX_SAMPLES (1 << 13)
#define MAX_WIDTH (1 << 20)
#define MAX_TIMES (1 << 16)      /* so that what a product of bytes counts fits 32 bits */
#define TILE 4
#define STRIP 24                 /* columns that stay in the nearest cache while all others pass by */
#define LANE 16                  /* samples are padded with zeros to a multiple of this */
#define STEP 256
#define COARSE 128
#define SUMMED 127               /* samples of a list that are added up in 16 bits, as many are taken off at most */
#define CHUNK 32                 /* columns whose sums are in registers while a list is passed through, */
#define LISTED 1024               /* and samples whose CHUNK columns stay in the nearest cache meanwhile */
#define DENSE 10                  /* one k in so many columns is too much for lists */

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* gram += weight · the products of TILE columns with TILE others, of which those beyond the last column are left out. */
WITH_SDOT static void add_tile(const int8_t *a, const int8_t *b, int64_t stride, int64_t height, int64_t width,
                               int32_t weight, int64_t features, int64_t *gram) {
    int32x4_t sums[TILE][TILE];
    for (int i = 0; i < TILE * TILE; i++) sums[i / TILE][i % TILE] = vdupq_n_s32(0);
    for (int64_t at = 0; at < stride; at += LANE) {
        int8x16_t right[TILE];
        for (int j = 0; j < TILE; j++) right[j] = vld1q_s8(b + j * stride + at);
        for (int i = 0; i < TILE; i++) {
            int8x16_t left = vld1q_s8(a + i * stride + at);
            for (int j = 0; j < TILE; j++) sums[i][j] = vdotq_s32(sums[i][j], left, right[j]);
        }
    }
    for (int i = 0; i < TILE; i++) {
        int64_t row[TILE] = {0}, *to = gram + i * features;
        if (i >= height) break;
        memcpy(row, to, sizeof *row * (size_t)width);
        int32x4_t sum = vpaddq_s32(vpaddq_s32(sums[i][0], sums[i][1]), vpaddq_s32(sums[i][2], sums[i][3]));
        for (int j = 0; a == b && j < i; j++) sum[j] = 0;  /* on the diagonal, what is below it */
        vst1q_s64(row, vmlal_n_s32(vld1q_s64(row), vget_low_s32(sum), weight));
        vst1q_s64(row + 2, vmlal_n_s32(vld1q_s64(row + 2), vget_high_s32(sum), weight));
        memcpy(to, row, sizeof *row * (size_t)width);
    }
}

/* gram += weight · plane·planeᵀ, the upper triangle. The plane has columns of zeros up to a multiple of TILE. */
static void add_plane(const int8_t *plane, int64_t stride, int64_t columns, int64_t features, int32_t weight,
                      int64_t *gram) {
    for (int64_t first = 0; first < columns; first += STRIP)
        for (int64_t row = 0; row < columns && row < first + STRIP; row += TILE)
            for (int64_t column = row > first ? row : first; column < columns && column < first + STRIP; column += TILE) {
                const int8_t *a = plane + row * stride, *b = plane + column * stride;
                int64_t *to = gram + row * features + column;
                if (columns - column >= TILE) add_tile(a, b, stride, TILE, TILE, weight, features, to);
                else add_tile(a, b, stride, least(TILE, columns - row), columns - column, weight, features, to);
            }
}

enum { LOW, HIGH, SUM, BYTE };
static const int32_t weights[] = {1 - 128, 128 * 128 - 128, 128, 1};

static void write_plane(const int16_t *values, int64_t count, int which, int8_t *plane) {
    for (int64_t i = 0; i < count; i++) {
        int32_t high = (values[i] + 64) >> 7, low = values[i] - 128 * high;
        plane[i] = (int8_t)(which == LOW ? low : which == HIGH ? high : which == SUM ? low + high : values[i]);
    }
}

/* Samples in rows, less the centre, to columns: the first so many of them. */
static void write_columns(const int16_t *samples, int64_t count, int64_t width, const int16_t *centre, int64_t chosen,
                          int64_t stride, int16_t *columns) {
    for (int64_t first = 0; first < count; first += LANE) {
        int64_t last = least(count, first + LANE);
        for (int64_t column = 0; column < chosen; column++)
            for (int64_t i = first; i < last; i++)
                columns[column * stride + i] = (int16_t)(samples[i * width + column] - centre[column]);
    }
}

/* The last column of gram: of the constant 1 behind each sample with all others, and with itself. */
static void add_sums(const int16_t *restrict samples, int64_t count, int64_t width, const int16_t *restrict centre,
                     int32_t *restrict sums, int64_t times, int64_t *gram) {
    memset(sums, 0, sizeof *sums * (size_t)width);
    for (int64_t i = 0; i < count; i++, samples += width)
        for (int64_t j = 0; j < width; j++) sums[j] += samples[j] - centre[j];
    for (int64_t j = 0; j < width; j++) gram[j * (width + 1) + width] += times * sums[j];
    gram[(width + 1) * (width + 1) - 1] += times * count;
}

/* What is listed: the k of the first `dense` columns, or of none of them, and the coarse ones behind.
   ks: those of one sample. keys, owners: of all that are not 0, twice the column, and one more for a negative k, and the
   sample, as often as k says. samples: for each key its owners, from ends[key - 1] to ends[key].
   digits: CHUNK columns of LISTED samples, of each sample the low parts, then the ks. */
typedef struct {
    int64_t width, dense, lists_dense;
    int8_t *ks, *digits; uint32_t *keys; uint16_t *owners, *samples; int64_t *ends;
} Lists;

static void write_digits(const Lists *lists, const int16_t *samples, int64_t count, const int16_t *centre, int64_t at,
                         int64_t here) {
    for (int64_t i = 0; i < count; i++) {
        const int16_t *sample = samples + i * lists->width + at;
        int8_t *restrict low = lists->digits + 2 * CHUNK * i, *restrict ks = low + CHUNK;
        for (int64_t j = 0; j < here; j++) {
            int16_t value = (int16_t)(sample[j] - centre[at + j]);
            low[j] = at < lists->dense ? (int8_t)value : 0;
            ks[j] = (int8_t)(at < lists->dense ? (value + STEP / 2) >> 8 : value >> 7);
        }
    }
}

static void write_lists(const Lists *lists, const int16_t *samples, int64_t count, const int16_t *centre) {
    int64_t found = 0, total = 0, *ends = lists->ends;
    memset(ends, 0, sizeof *ends * 2 * (size_t)lists->width);
    for (int64_t i = 0; i < count; i++, samples += lists->width) {
        int8_t *restrict ks = lists->ks;               /* which has zeros behind the last column */
        for (int64_t j = 0; j < lists->lists_dense; j++) ks[j] = (int8_t)((samples[j] - centre[j] + STEP / 2) >> 8);
        for (int64_t j = lists->dense; j < lists->width; j++) ks[j] = (int8_t)(samples[j] >> 7);
        for (int64_t j = 0; j < lists->width; j += 8) {
            uint64_t eight;
            for (memcpy(&eight, ks + j, 8); eight; ) {
                int place = __builtin_ctzll(eight) / 8, k = ks[j + place];
                uint32_t key = (uint32_t)(2 * (j + place) + (k < 0));
                ends[key] += abs(k);
                for (int times = abs(k); times; times--) { lists->keys[found] = key; lists->owners[found++] = (uint16_t)i; }
                eight &= ~((uint64_t)255 << 8 * place);
            }
        }
    }
    for (int64_t key = 0; key < 2 * lists->width; key++) {
        int64_t size = ends[key];
        ends[key] = total;
        total += size;
    }
    for (int64_t i = 0; i < found; i++) lists->samples[ends[lists->keys[i]]++] = lists->owners[i];
}

/* found += Σ ±(low + step·k) of CHUNK columns over the samples that a column's two lists name; step 0: of low alone.
   Sums are in 16 bits over SUMMED samples of each list. */
static inline __attribute__((always_inline)) void sum_listed(const Lists *lists, int64_t column, int with_low, int16_t step,
                                                             int32x4_t *found) {
    const int64_t *ends = lists->ends + 2 * column;
    const uint16_t *plus = lists->samples + (column ? ends[-1] : 0), *minus = lists->samples + ends[0];
    const uint16_t *last_plus = minus, *last_minus = lists->samples + ends[1];
    while (plus < last_plus || minus < last_minus) {
        int16x8_t low[CHUNK / 8], ks[CHUNK / 8];
        for (int i = 0; i < CHUNK / 8; i++) low[i] = ks[i] = vdupq_n_s16(0);
#define ADD(AT, END, WIDE) \
        for (const uint16_t *end = END - AT > SUMMED ? AT + SUMMED : END; AT < end; AT++) { \
            const int8_t *digits = lists->digits + 2 * CHUNK * *AT; \
            for (int i = 0; i < CHUNK / 16; i++) { \
                int8x16_t l = vld1q_s8(digits + 16 * i), k = vld1q_s8(digits + CHUNK + 16 * i); \
                if (with_low) low[2 * i] = WIDE##_s8(low[2 * i], vget_low_s8(l)); \
                if (with_low) low[2 * i + 1] = WIDE##_high_s8(low[2 * i + 1], l); \
                if (step) ks[2 * i] = WIDE##_s8(ks[2 * i], vget_low_s8(k)); \
                if (step) ks[2 * i + 1] = WIDE##_high_s8(ks[2 * i + 1], k); \
            } \
        }
        ADD(plus, last_plus, vaddw)
        ADD(minus, last_minus, vsubw)
        for (int i = 0; i < CHUNK / 8; i++) {
            found[2 * i] = vaddw_s16(vmlal_n_s16(found[2 * i], vget_low_s16(ks[i]), step), vget_low_s16(low[i]));
            found[2 * i + 1] = vaddw_high_s16(vmlal_high_n_s16(found[2 * i + 1], ks[i], step), low[i]);
        }
    }
}

/* Adds what lists say of some samples. What belongs to (i, j) may stand at (j, i): a column's lists are summed over the
   low parts of all columns, and over the ks of those up to their own. */
static void add_lists(const Lists *lists, const int16_t *samples, int64_t count, const int16_t *centre, int32_t times,
                      int64_t *gram) {
    int64_t width = lists->width, dense = lists->dense;
    write_lists(lists, samples, count, centre);
    for (int64_t at = 0; at < width; at += CHUNK) {
        int64_t here = least(CHUNK, width - at);
        write_digits(lists, samples, count, centre, at, here);
        for (int64_t column = at < dense ? 0 : at; column < width; column++) {
            int32x4_t found[CHUNK / 4];
            int64_t own = column - at, *row = gram + column * (width + 1) + at;
            int32_t weight = times * (column < dense ? STEP : COARSE), sums[CHUNK];
            if (lists->ends[2 * column + 1] == (column ? lists->ends[2 * column - 1] : 0)) continue;
            for (int i = 0; i < CHUNK / 4; i++) found[i] = vdupq_n_s32(0);
            if (own >= CHUNK && at < dense) sum_listed(lists, column, 1, STEP, found);
            else if (own >= CHUNK) sum_listed(lists, column, 0, COARSE, found);
            else if (at < dense) sum_listed(lists, column, 1, 0, found);
            for (int i = 0; i < CHUNK / 4; i++) vst1q_s32(sums + 4 * i, found[i]);
            if (own < 0 || own >= CHUNK) {
                for (int64_t i = 0; i < here; i++) row[i] += (int64_t)weight * sums[i];
                continue;
            }
            sums[own] *= 2;
            for (int64_t i = 0; i < here; i++) row[i] += (int64_t)weight * sums[i];
            for (int i = 0; i < CHUNK / 4; i++) found[i] = vdupq_n_s32(0);
            sum_listed(lists, column, 0, at < dense ? STEP : COARSE, found);
            for (int i = 0; i < CHUNK / 4; i++) vst1q_s32(sums + 4 * i, found[i]);
            for (int64_t i = 0; i <= own; i++) row[i] += (int64_t)weight * sums[i];
        }
    }
}

static int are_small(const int16_t *values, int64_t count) {
    int wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong |= values[i] > LIMIT || values[i] < -LIMIT;
    return !wrong;
}

/* The sum of |k| over the first `dense` columns. */
static int64_t count_dense(const int16_t *samples, int64_t count, int64_t width, const int16_t *centre, int64_t dense) {
    int64_t listed = 0;
    for (int64_t i = 0; i < count; i++, samples += width) {
        int32_t sum = 0;
        for (int64_t j = 0; j < dense; j++) sum += abs((samples[j] - centre[j] + STEP / 2) >> 8);
        listed += sum;
    }
    return listed;
}

/* The sum of |k| over the columns from `dense` on, or -1 where values are not coarse, or moved by the centre. */
static int64_t count_coarse(const int16_t *samples, int64_t count, int64_t width, const int16_t *centre, int64_t dense) {
    int64_t listed = 0;
    int wrong = 0;
    for (int64_t j = dense; j < width; j++) wrong |= centre[j];
    for (int64_t i = 0; i < count; i++, samples += width) {
        int32_t sum = 0;
        for (int64_t j = dense; j < width; j++) {
            wrong |= samples[j] & (COARSE - 1);
            sum += abs(samples[j]) >> 7;
        }
        listed += sum;
    }
    return wrong ? -1 : listed;
}

/* byte_products(samples, centre, gram[, times, coarse]): buffers of int16, N×h and h, and of int64, (h+1)×(h+1), to
   which so many times the products are added: for i < j, what is at (i, j) and at (j, i) belongs together. The last so many
   columns are coarse, and not moved by the centre. */
static PyObject *byte_products(PyObject *module, PyObject *args) {
    enum { SAMPLES, CENTRE, GRAM, BUFFERS };
    PyObject *object[BUFFERS], *done = NULL;
    Py_buffer view[BUFFERS];
    int held = 0;
    int16_t *columns = NULL;
    int8_t *plane = NULL;
    int32_t *sums = NULL;
    Lists lists = {0};
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
    int64_t listed = right ? count_coarse(samples, count, width, centre, dense) : -1;
    if (listed < 0) {
        PyErr_Format(PyExc_ValueError, "the samples, the centre and the gram do not fit together");
        goto end;
    }
    int64_t of_dense = count_dense(samples, count, width, centre, dense);
    int is_sparse = of_dense < count * dense / DENSE;
    int64_t stride = (count + LANE - 1) / LANE * LANE, padded = (dense + TILE - 1) / TILE * TILE;
    size_t entries = (size_t)(listed + (is_sparse ? of_dense : 0)) + 1, wide = (size_t)width;
    columns = calloc((size_t)(padded * stride) + 1, sizeof *columns);
    plane = malloc((size_t)(padded * stride) + 1);
    sums = malloc(sizeof *sums * wide);
    lists = (Lists){width, dense, is_sparse ? dense : 0, calloc(wide + 8, 1), calloc(2 * LISTED, CHUNK),
                    malloc(4 * entries), malloc(2 * entries), malloc(2 * entries), malloc(2 * 8 * wide)};
    if (!columns || !plane || !sums || !lists.ks || !lists.digits || !lists.keys || !lists.owners || !lists.samples ||
        !lists.ends) { PyErr_NoMemory(); goto end; }
    Py_BEGIN_ALLOW_THREADS
    int64_t *gram = view[GRAM].buf;
    write_columns(samples, count, width, centre, dense, stride, columns);
    for (int which = is_sparse ? BYTE : LOW; which <= (is_sparse ? BYTE : SUM); which++) {
        write_plane(columns, padded * stride, which, plane);
        add_plane(plane, stride, dense, features, (int32_t)times * weights[which], gram);
    }
    add_sums(samples, count, width, centre, sums, times, gram);
    for (int64_t at = 0; entries > 1 && at < count; at += LISTED)
        add_lists(&lists, samples + at * width, least(LISTED, count - at), centre, (int32_t)times, gram);
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
end:
    free(lists.ks); free(lists.digits); free(lists.keys); free(lists.owners); free(lists.samples); free(lists.ends);
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
