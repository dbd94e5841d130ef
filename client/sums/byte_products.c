/* Σ n ψψᵀ over samples of whole numbers, where the processor multiplies bytes much faster than floats (ARM's SDOT).

   A sample less the centre, ψ = low + step·k, with step 256 and low in -128..127. Where most values are small, few k are
   not 0. With half = low + step·k/2 there is

       ψᵢψⱼ = lowᵢ·lowⱼ + stepᵢ·kᵢ·halfⱼ + stepⱼ·kⱼ·halfᵢ,

   of which the first part is a product of bytes. For the others, the k that are not 0 are listed column by column, and
   the halves of the samples that a list names are added up, instead of being multiplied by zeros. Where too many k would
   be listed, ψ = 128·high + low with low in -64..63 and high in -64..64, so that high, low and their sum fit a byte each,
   and there are three products of bytes:

       ψψᵀ = low·lowᵀ + 128·(sum·sumᵀ - high·highᵀ - low·lowᵀ) + 128²·high·highᵀ.

   Each is exact in 32 bits over MAX_SAMPLES. Only the upper triangle is taken, in tiles. On other processors the module
   has no function, and numpy multiplies floats.

   The last columns may be coarse: few of their values are not 0, and those are small multiples of COARSE. Their step is
   COARSE and their low is 0: they are listed whole, and have no part in the products of bytes.

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
#define MAX_WIDTH (1 << 20)      /* so that a column, a sign and one of LISTED samples fit 32 bits */
#define MAX_TIMES (1 << 16)      /* so that what a product of bytes counts fits 32 bits */
#define TILE 8                   /* columns of a panel; tiles are products of two panels */
#define GROUP 4                  /* samples that one step of SDOT adds up; they stand side by side, column by column */
#define STRIP 2                  /* panels that stay in the nearest cache while all others pass by */
#define LINE 64                  /* bytes between panels, so that they do not share one place of the cache */
#define STEP 256
#define COARSE 128
#define CHUNK 32                 /* columns whose sums are in registers while a list is passed through, */
#define LISTED 1024              /* and samples whose CHUNK columns stay in the nearest cache meanwhile */
#define MASKED 64                /* columns that are looked through at once for those to list */
#define AHEAD 12                 /* samples between the one that is read and the one that is asked for */
#define DENSE 6                  /* one k in so many columns is too much for lists */

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* row += weight · sums, the first so many. */
static inline void add_weighted(int64_t *row, const int32x4_t *sums, int64_t width, int32_t weight) {
    int64_t j = 0;
    for (; j + 4 <= width; j += 4) {
        vst1q_s64(row + j, vmlal_n_s32(vld1q_s64(row + j), vget_low_s32(sums[j / 4]), weight));
        vst1q_s64(row + j + 2, vmlal_high_n_s32(vld1q_s64(row + j + 2), sums[j / 4], weight));
    }
    for (; j < width; j++) row[j] += (int64_t)weight * sums[j / 4][j % 4];
}

/* gram += weight · the products of two panels, or of one with itself, whose upper triangle is taken; of columns, the
   first height and width are in use. */
WITH_SDOT static void add_tile(const int8_t *a, const int8_t *b, int64_t groups, int64_t height, int64_t width,
                               int32_t weight, int64_t features, int64_t *gram) {
    int32x4_t sums[TILE][2];
    for (int i = 0; i < TILE; i++) {
        sums[i][0] = sums[i][1] = vdupq_n_s32(0);
        for (int j = 0; i < height && j < width; j += TILE - 1) __builtin_prefetch(gram + i * features + j, 1);
    }
    const int8_t *left = a, *right = b;
    for (int64_t at = 0; at < groups; at++, left += TILE * GROUP, right += TILE * GROUP) {
        int8x16_t low = vld1q_s8(left), high = vld1q_s8(left + 16), one = vld1q_s8(right), other = vld1q_s8(right + 16);
#define ADD(I) \
        sums[I][0] = vdotq_laneq_s32(sums[I][0], one, low, I); \
        sums[I][1] = vdotq_laneq_s32(sums[I][1], other, low, I); \
        sums[I + 4][0] = vdotq_laneq_s32(sums[I + 4][0], one, high, I); \
        sums[I + 4][1] = vdotq_laneq_s32(sums[I + 4][1], other, high, I);
        ADD(0) ADD(1) ADD(2) ADD(3)
#undef ADD
    }
    for (int64_t i = 0; i < height; i++) {
        for (int j = 0; a == b && j < i; j++) sums[i][j / 4][j % 4] = 0;  /* on the diagonal, what is below it */
        add_weighted(gram + i * features, sums[i], width, weight);
    }
}

/* gram += weight · plane·planeᵀ, the upper triangle. */
static void add_plane(const int8_t *plane, int64_t panel, int64_t groups, int64_t columns, int64_t features,
                      int32_t weight, int64_t *gram) {
    for (int64_t first = 0; first < columns; first += STRIP * TILE)
        for (int64_t row = 0; row < least(columns, first + STRIP * TILE); row += TILE)
            for (int64_t column = row > first ? row : first; column < least(columns, first + STRIP * TILE); column += TILE)
                add_tile(plane + row / TILE * panel, plane + column / TILE * panel, groups, least(TILE, columns - row),
                         least(TILE, columns - column), weight, features, gram + row * features + column);
}

enum { LOW, HIGH, SUM, BYTE };
static const int32_t weights[] = {1 - 128, 128 * 128 - 128, 128, 1};

/* One digit of the first columns of all samples, less the centre, in panels. digits: GROUP rows of whole panels, with zeros
   behind the columns. */
static void write_plane(const int16_t *samples, int64_t count, int64_t width, const int16_t *centre, int64_t columns,
                        int which, int8_t *digits, int64_t panel, int8_t *plane) {
    int64_t row = (columns + TILE - 1) / TILE * TILE;
    for (int64_t first = 0; first < count; first += GROUP, plane += TILE * GROUP) {
        for (int64_t i = 0; i < GROUP; i++) {
            const int16_t *sample = samples + (first + i) * width;
            int8_t *restrict to = digits + i * row;
            if (first + i >= count) memset(to, 0, (size_t)columns);
            else for (int64_t j = 0; j < columns; j++) {
                int16_t value = (int16_t)(sample[j] - centre[j]), high = (int16_t)((value + 64) >> 7);
                int16_t low = (int16_t)(value - 128 * high);
                to[j] = (int8_t)(which == LOW ? low : which == HIGH ? high : which == SUM ? low + high : value);
            }
        }
        for (int64_t at = 0; at < row; at += TILE) {
            int8x8x4_t four = {{vld1_s8(digits + at), vld1_s8(digits + row + at), vld1_s8(digits + 2 * row + at),
                                vld1_s8(digits + 3 * row + at)}};
            vst4_s8(plane + at / TILE * panel, four);
        }
    }
}

/* What is listed: the k of the first `dense` columns, or of none of them, and the coarse ones behind.
   ks: those of one sample. found: all that are not 0, as often as k says, in the order of samples: a key, which is twice
   the column, and one more for a negative k, times LISTED, and the sample.
   samples: for each key its samples, from ends[key - 1] to ends[key].
   rows: CHUNK columns of LISTED samples. most: how many of these rows of each sign add up within 16 bits. */
typedef struct {
    int64_t width, dense, lists_dense, most;
    int8_t *ks; int16_t *rows; uint32_t *found, *ends; uint16_t *samples;
} Lists;

static void write_ks(const int16_t *restrict sample, const int16_t *restrict centre, int64_t columns, int is_dense,
                     int8_t *restrict ks) {
    for (int64_t j = 0; j < columns; j++) {
        int16_t value = (int16_t)(sample[j] - centre[j]);
        ks[j] = (int8_t)(is_dense ? (value + STEP / 2) >> 8 : value >> 7);
    }
}

/* A bit for each of MASKED bytes that is not 0. */
static inline uint64_t where_not_zero(const int8_t *bytes) {
    const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    uint8x16_t part[4];
    for (int i = 0; i < 4; i++) {
        int8x16_t some = vld1q_s8(bytes + 16 * i);
        part[i] = vandq_u8(vtstq_s8(some, some), bits);
    }
    uint8x16_t sums = vpaddq_u8(vpaddq_u8(part[0], part[1]), vpaddq_u8(part[2], part[3]));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}

static void write_lists(const Lists *lists, const int16_t *samples, int64_t count, const int16_t *centre) {
    int64_t found = 0;
    uint32_t total = 0, *ends = lists->ends;
    memset(ends, 0, sizeof *ends * 2 * (size_t)lists->width);
    for (int64_t i = 0; i < count; i++, samples += lists->width) {
        int8_t *ks = lists->ks;                        /* which has zeros behind the last column */
        write_ks(samples, centre, lists->lists_dense, 1, ks);
        write_ks(samples + lists->dense, centre + lists->dense, lists->width - lists->dense, 0, ks + lists->dense);
        for (int64_t j = 0; j < lists->width; j += MASKED)
            for (uint64_t mask = where_not_zero(ks + j); mask; mask &= mask - 1) {
                int64_t column = j + __builtin_ctzll(mask);
                int k = ks[column];
                uint32_t key = (uint32_t)(2 * column + (k < 0));
                ends[key] += (uint32_t)abs(k);
                for (int times = abs(k); times; times--) lists->found[found++] = key * LISTED + (uint32_t)i;
            }
    }
    for (int64_t key = 0; key < 2 * lists->width; key++) {
        uint32_t size = ends[key];
        ends[key] = total;
        total += size;
    }
    for (int64_t i = 0; i < found; i++) lists->samples[ends[lists->found[i] / LISTED]++] = lists->found[i] % LISTED;
}

/* The halves of some columns of a sample, or their whole values; the bits in which any of them differs from its sign. */
static inline int16_t write_row(const int16_t *restrict sample, const int16_t *restrict centre, int64_t here, int is_dense,
                                int whole, int16_t *restrict row) {
    int16_t bits = 0;
    for (int64_t j = 0; j < here; j++) {
        int16_t value = (int16_t)(sample[j] - centre[j]), low = is_dense ? (int8_t)value : 0;
        row[j] = whole ? value : (int16_t)((value + low) >> 1);
        bits |= (int16_t)(row[j] ^ row[j] >> 15);
    }
    return bits;
}

static void write_rows(Lists *lists, const int16_t *samples, int64_t count, const int16_t *centre, int64_t at, int64_t here,
                       int whole) {
    int16_t bits = 0;
    if (here < CHUNK) memset(lists->rows, 0, LISTED * CHUNK * sizeof *lists->rows);
    for (int64_t i = 0; i < count; i++) {
        const int16_t *sample = samples + i * lists->width + at;
        int16_t *row = lists->rows + CHUNK * i;
        __builtin_prefetch(sample + AHEAD * lists->width);
        __builtin_prefetch(sample + AHEAD * lists->width + here - 1);
        if (here == CHUNK && at < lists->dense) bits |= write_row(sample, centre + at, CHUNK, 1, whole, row);
        else bits |= write_row(sample, centre + at, here, at < lists->dense, whole, row);
    }
    lists->most = bits < LIMIT ? INT16_MAX / 2 / (bits + 1) : 1;  /* no value goes beyond 2 · LIMIT */
}

/* gram += Σ ±step·rows over the samples that the lists of some columns name. */
static void add_rows(const Lists *lists, int64_t at, int64_t here, int64_t first, int64_t last, int32_t times,
                     int64_t *gram) {
    for (int64_t column = first; column < last; column++) {
        const uint32_t *ends = lists->ends + 2 * column;
        const int64_t own = column - at;
        const uint16_t *plus = lists->samples + (column ? ends[-1] : 0), *minus = lists->samples + ends[0];
        const uint16_t *last_plus = minus, *last_minus = lists->samples + ends[1];
        int64_t *row = gram + column * (lists->width + 1) + at;
        int32x4_t sums[CHUNK / 4];
        if (plus == last_minus) continue;
        for (int64_t i = 0; i <= here; i += 8) __builtin_prefetch(row + lists->width + 1 + i, 1);  /* of the next column */
        for (int i = 0; i < CHUNK / 4; i++) sums[i] = vdupq_n_s32(0);
        while (plus < last_plus || minus < last_minus) {
            int16x8_t some[CHUNK / 8];
            for (int i = 0; i < CHUNK / 8; i++) some[i] = vdupq_n_s16(0);
#define ADD(AT, END, TO) \
            for (const uint16_t *end = AT + least(lists->most, END - AT); AT < end; AT++) { \
                const int16x8_t *from = (const int16x8_t *)(lists->rows + CHUNK * (size_t)*AT); \
                for (int i = 0; i < CHUNK / 8; i++) some[i] = TO(some[i], from[i]); \
            }
            ADD(plus, last_plus, vaddq_s16)
            ADD(minus, last_minus, vsubq_s16)
#undef ADD
            for (int i = 0; i < CHUNK / 8; i++) {
                sums[2 * i] = vaddw_s16(sums[2 * i], vget_low_s16(some[i]));
                sums[2 * i + 1] = vaddw_high_s16(sums[2 * i + 1], some[i]);
            }
        }
        if (own >= 0 && own < CHUNK) sums[own / 4][own % 4] *= 2;
        add_weighted(row, sums, here, times * (column < lists->dense ? STEP : COARSE));
    }
}

/* Adds what lists say of some samples. Of two columns that are listed, each adds halves of the other, except that a
   coarse one adds whole values of all that stand before its chunk, which then add nothing of it. So what belongs to (i, j)
   may stand at (j, i). */
static void add_lists(Lists *lists, const int16_t *samples, int64_t count, const int16_t *centre, int32_t times,
                      int64_t *gram) {
    int64_t width = lists->width, dense = lists->dense;
    write_lists(lists, samples, count, centre);
    for (int64_t at = 0; at < width; at += CHUNK) {
        int64_t here = least(CHUNK, width - at);
        if (lists->lists_dense || at >= dense) write_rows(lists, samples, count, centre, at, here, 0);
        add_rows(lists, at, here, at < dense ? 0 : at, at < dense ? lists->lists_dense : at + here, times, gram);
        if (dense < width) write_rows(lists, samples, count, centre, at, here, 1);
        add_rows(lists, at, here, at < dense ? dense : at + CHUNK, width, times, gram);
    }
}

/* dense, coarse: the sums of |k| over the first `dense` columns and over those behind, of all samples.
   wrong: whether a value is beyond the limit, or should be coarse and is not, or is moved by the centre. */
typedef struct { int64_t dense, coarse; int wrong; } Counts;

/* Looks through the samples before anything is multiplied. sums: of each column. */
static Counts count_all(const int16_t *restrict samples, int64_t count, int64_t width, const int16_t *restrict centre,
                        int64_t dense, int32_t *restrict sums) {
    Counts counts = {0, 0, 0};
    for (int64_t j = 0; j < width; j++) counts.wrong |= centre[j] > LIMIT || centre[j] < -LIMIT || (j >= dense && centre[j]);
    for (int64_t i = 0; i < count; i++, samples += width) {
        int32_t of_dense = 0, of_coarse = 0;
        int16_t wrong = 0;
        for (int64_t j = 0; j < width; j++) {
            wrong |= samples[j] > LIMIT || samples[j] < -LIMIT;
            sums[j] += samples[j];
        }
        for (int64_t j = 0; j < dense; j++) of_dense += abs((int16_t)(samples[j] - centre[j] + STEP / 2) >> 8);
        for (int64_t j = dense; j < width; j++) {
            wrong |= samples[j] & (COARSE - 1);
            of_coarse += abs(samples[j]) >> 7;
        }
        counts.dense += of_dense;
        counts.coarse += of_coarse;
        counts.wrong |= wrong;
    }
    return counts;
}

/* byte_products(samples, centre, gram[, times, coarse]): buffers of int16, N×h and h, and of int64, (h+1)×(h+1), to
   which so many times the products are added: for i < j, what is at (i, j) and at (j, i) belongs together. The last so many
   columns are coarse, and not moved by the centre. */
static PyObject *byte_products(PyObject *module, PyObject *args) {
    enum { SAMPLES, CENTRE, GRAM, BUFFERS };
    PyObject *object[BUFFERS], *done = NULL;
    Py_buffer view[BUFFERS];
    int held = 0;
    int8_t *plane = NULL, *digits = NULL;
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
    size_t wide = (size_t)width;
    Counts counts = {0, 0, 1};
    if (right && !(sums = calloc(wide, sizeof *sums))) { PyErr_NoMemory(); goto end; }
    Py_BEGIN_ALLOW_THREADS
    if (right && count <= MAX_SAMPLES) counts = count_all(samples, count, width, centre, dense, sums);
    Py_END_ALLOW_THREADS
    if (counts.wrong) {
        PyErr_Format(PyExc_ValueError, "the samples, the centre and the gram do not fit together");
        goto end;
    }
    int is_sparse = counts.dense < count * dense / DENSE;
    int64_t groups = (count + GROUP - 1) / GROUP, panels = (dense + TILE - 1) / TILE, panel = groups * TILE * GROUP + LINE;
    size_t entries = (size_t)(counts.coarse + (is_sparse ? counts.dense : 0)) + 1;
    plane = malloc((size_t)(panels * panel));
    digits = calloc((size_t)panels, TILE * GROUP);
    lists = (Lists){width, dense, is_sparse ? dense : 0, 0, calloc(wide + MASKED, 1), aligned_alloc(LINE, LISTED * CHUNK * 2),
                    malloc(4 * entries), malloc(2 * 4 * wide), malloc(2 * entries)};
    if (!plane || !digits || !lists.ks || !lists.rows || !lists.found || !lists.ends || !lists.samples) {
        PyErr_NoMemory();
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    int64_t *gram = view[GRAM].buf;
    for (int which = is_sparse ? BYTE : LOW; which <= (is_sparse ? BYTE : SUM); which++) {
        write_plane(samples, count, width, centre, dense, which, digits, panel, plane);
        add_plane(plane, panel, groups, dense, features, (int32_t)times * weights[which], gram);
    }
    for (int64_t j = 0; j < width; j++) gram[j * features + width] += times * (sums[j] - count * centre[j]);  /* with the 1 */
    gram[features * features - 1] += times * count;
    for (int64_t at = 0; entries > 1 && at < count; at += LISTED)
        add_lists(&lists, samples + at * width, least(LISTED, count - at), centre, (int32_t)times, gram);
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
end:
    free(lists.ks); free(lists.rows); free(lists.found); free(lists.ends); free(lists.samples);
    free(sums);
    free(digits);
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
