/* USE-multilingual's network in whole numbers: what numpy does in sentence_network.py, faster.

   Numbers. Inputs of products have 16 bits and weights have 8. The sizes of a row's weights add up to less than 2^16, so
   that its products add up within 32 bits in any order. What follows is done in doubles, as numpy does it: they hold whole
   numbers of fixed point below 2^53, so that each sum and product is exact, also where a compiler joins the two.

   Processors. Only products differ: each variant has its own `multiply`, and weights are packed once in its order. The
   rest is the same code, compiled for the variant's processors.

   Safety. Sizes and values of the network are checked once, when it is made; the bounds are those under which the lines
   above hold. Every id and every length is checked before anything is read by it.

   Threads. A network never changes. Each call has memory of its own, and the interpreter's lock is free meanwhile. */
#include "native.h"
#include <math.h>

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif
#if defined(__GNUC__) && defined(__x86_64__)
#define IS_X86
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { WIDTH = 512, BRANCH = 256, BRANCHES = 3, PROJECTED = 768, FEATURES = 1280, HIDDEN = 320, GAP = 2 };
enum { CHUNKS = 17, LEVELS = 64, MAX_TOKENS = 1024 };
enum { LARGEST = 32767, LARGEST_SUMMAND = 1 << 20, LARGEST_WEIGHTS = 1 << 16, TANH_LIMIT = 8 << 10, NORM = 1 << 13 };
enum { LIMIT = 4096 };           /* of a number of a vector */
enum { LINE = 64 };              /* bytes that are read together; what is read in vectors begins with a line */
enum { BATCH_ROWS = 128 };       /* tokens and gaps that go through the layers together, unless one text is longer */
enum { HEAD_TEXTS = 128 };       /* texts that go through the dense layers together */

static const double POINT = 1 << 24;              /* scales and offsets have 24 bits after the point */
static const double UNIT = 1 << 20;               /* normalised features have 20 */
static const int64_t LARGEST_SCALE = 1 << 20, LARGEST_OFFSET = (int64_t)1 << 36;
static const int64_t LARGEST_GAIN = 1 << 21, LARGEST_GAIN_OFFSET = (int64_t)1 << 40;

enum { PROJECT, FIRST, SECOND = FIRST + BRANCHES, POOL = SECOND + BRANCHES, DENSE0, SKIP1, DENSE1, DENSE2, SKIP3, DENSE3, LAYERS };
static const int32_t shapes[LAYERS][2] = {
    {PROJECTED, WIDTH},
    {BRANCH, 2 * BRANCH}, {BRANCH, 3 * BRANCH}, {BRANCH, 5 * BRANCH},
    {BRANCH, 2 * BRANCH}, {BRANCH, 3 * BRANCH}, {BRANCH, 5 * BRANCH},
    {WIDTH, FEATURES},
    {HIDDEN, WIDTH}, {HIDDEN, WIDTH}, {HIDDEN, HIDDEN},
    {WIDTH, HIDDEN}, {WIDTH, HIDDEN}, {WIDTH, WIDTH},
};
static const int32_t before[BRANCHES] = {0, 1, 2};  /* tokens of a convolution that stand before its own */

/* weights: packed. scale, offset: of each row; the offset has a half, which rounds. */
typedef struct { int16_t *weights; double *scale, *offset; int32_t rows, columns; } Layer;

typedef struct Variant Variant;
enum { TABLE, VALUES, TANH, WEIGHTS, SCALES, GAINS, BUFFERS };
typedef struct {
    PyObject_HEAD
    const Variant *variant;
    Layer layer[LAYERS];
    double *gain, *gain_offset;  /* of both normalisations */
    void *memory;
    Py_buffer view[BUFFERS];
    int held;
} Network;

typedef struct {
    int64_t capacity;            /* rows of tokens and gaps */
    uint8_t *is_token;           /* of each row */
    int16_t *embedded, *activations[BRANCHES], *hidden;
    int32_t *features, *products;
    int32_t *sums, *dense, *more;  /* of each text */
    int16_t *inputs[3];
    double *roots;
    void *memory;
} Scratch;

/* Texts, whose vectors go out; or without lengths so many tokens, whose rows go out: what each says as a text of its own
   before the dense layers. */
typedef struct { const int32_t *ids; const int64_t *lengths; int64_t count; void *out; } Job;

struct Variant {
    const char *name;
    int (*is_here)(void);
    int32_t block;               /* rows of weights that are packed together, pair of columns by pair */
    void (*read)(const Network *, Scratch *, Job);
};

/* products[i * rows + row] = the row of weights times the input that begins at inputs + i * stride; of the weights, only
   `columns` are taken, from `first` on. */
typedef void Multiply(const Layer *layer, int32_t first, int32_t columns, const int16_t *inputs, int64_t stride,
                      int64_t count, int32_t *products);

/* Rows as they are. Compilers make widening multiplications of these loops: pmaddwd, smlal. Two inputs and four rows are
   taken at once, so that numbers are used more than once after they were read; a last input alone is taken twice. */
static void multiply_plain(const Layer *layer, int32_t first, int32_t columns, const int16_t *inputs, int64_t stride,
                           int64_t count, int32_t *products) {
    for (int32_t row = 0; row < layer->rows; row += 4) {
        const int16_t *w = layer->weights + (int64_t)row * layer->columns + first;
        const int16_t *x = w + layer->columns, *y = x + layer->columns, *z = y + layer->columns;
        for (int64_t i = 0; i < count; i += 2) {
            int64_t next = i + 1 < count ? i + 1 : i;
            const int16_t *a = inputs + i * stride, *b = inputs + next * stride;
            int32_t aw = 0, ax = 0, ay = 0, az = 0, bw = 0, bx = 0, by = 0, bz = 0;
            for (int32_t k = 0; k < columns; k++) {
                aw += a[k] * w[k]; ax += a[k] * x[k]; ay += a[k] * y[k]; az += a[k] * z[k];
                bw += b[k] * w[k]; bx += b[k] * x[k]; by += b[k] * y[k]; bz += b[k] * z[k];
            }
            int32_t *out = products + i * layer->rows + row, *beside = products + next * layer->rows + row;
            out[0] = aw; out[1] = ax; out[2] = ay; out[3] = az;
            beside[0] = bw; beside[1] = bx; beside[2] = by; beside[3] = bz;
        }
    }
}

/* The same by dot products of pairs. A block of rows fills `VECTORS` vectors, which meet up to `TILE` inputs at once: all
   those sums stay in registers. A pair of an input's numbers is the same in every place of a vector, and
   DOT(sums, weights, pair) adds its dot products with a pair of each row's weights. */
enum { TILE = 6 };
#ifdef __clang__
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif
#define TILE_OF(NAME, N) case N: NAME##_tile(weights, columns, inputs, stride, N, out, layer->rows); break;
#define DEFINE_MULTIPLY(NAME, TARGET, VECTOR, VECTORS, LOAD, FILLED, STORE, DOT)                                            \
    __attribute__((target(TARGET))) INLINE void NAME##_tile(const int16_t *weights, int32_t columns, const int16_t *inputs, \
                                                            int64_t stride, const int count, int32_t *out, int32_t rows) {  \
        VECTOR sums[TILE][VECTORS], part[VECTORS];                                                                          \
        UNROLLED for (int i = 0; i < count; i++)                                                                            \
            UNROLLED for (int v = 0; v < VECTORS; v++) sums[i][v] = FILLED(0);                                              \
        for (int32_t k = 0; k < columns; k += 2) {                                                                          \
            UNROLLED for (int v = 0; v < VECTORS; v++, weights += sizeof(VECTOR) / 2) part[v] = LOAD((void *)weights);      \
            UNROLLED for (int i = 0; i < count; i++) {                                                                      \
                int32_t two;                                                                                                \
                memcpy(&two, inputs + i * stride + k, sizeof two);                                                          \
                VECTOR pair = FILLED(two);                                                                                  \
                UNROLLED for (int v = 0; v < VECTORS; v++) sums[i][v] = DOT(sums[i][v], part[v], pair);                     \
            }                                                                                                               \
        }                                                                                                                   \
        UNROLLED for (int i = 0; i < count; i++, out += rows)                                                               \
            UNROLLED for (int v = 0; v < VECTORS; v++) STORE((void *)(out + v * sizeof(VECTOR) / 4), sums[i][v]);           \
    }                                                                                                                       \
    __attribute__((target(TARGET))) static void multiply_##NAME(                                                            \
        const Layer *layer, int32_t first, int32_t columns, const int16_t *start, int64_t stride, int64_t count,            \
        int32_t *products) {                                                                                                \
        const int32_t block = VECTORS * sizeof(VECTOR) / 4;                                                                 \
        for (int32_t row = 0; row < layer->rows; row += block) {                                                            \
            const int16_t *weights = layer->weights + (int64_t)row * layer->columns + first * block, *inputs = start;       \
            int32_t *out = products + row;                                                                                  \
            for (int64_t left = count, now; left; left -= now, inputs += now * stride, out += now * layer->rows) {          \
                int64_t tiles = (left + TILE - 1) / TILE;                                                                   \
                now = (left + tiles - 1) / tiles;  /* tiles of about one size */                                            \
                switch (now) {                                                                                              \
                    TILE_OF(NAME, 1) TILE_OF(NAME, 2) TILE_OF(NAME, 3) TILE_OF(NAME, 4) TILE_OF(NAME, 5) TILE_OF(NAME, 6)   \
                }                                                                                                           \
            }                                                                                                               \
        }                                                                                                                   \
    }

static inline int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0); }  /* b is positive */

static int64_t whole_root(int64_t square) {  /* of numbers below 2^52, whose floating root rounds down rightly; 1 of zero */
    int64_t root = (int64_t)sqrt((double)square);
    return root ? root : 1;
}

INLINE double clip(double value, double least, double most) {
    value = value < least ? least : value;
    return value > most ? most : value;
}

/* The whole number below a number of fixed point within ±2^21, by a conversion that cuts off what follows the point. */
INLINE int32_t floored(double value) { return (int32_t)(value + (1 << 21)) - (1 << 21); }

/* A row less its mean, divided by its norm, with 20 bits after the point. */
INLINE void normalise(int32_t *row, int32_t columns) {
    int32_t sum = 0;
    int64_t squares = 0;
    for (int32_t i = 0; i < columns; i++) sum += row[i];
    int32_t mean = (int32_t)floor_divide(2 * (int64_t)sum + columns, 2 * columns);
    for (int32_t i = 0; i < columns; i++) {
        row[i] -= mean;
        squares += (int64_t)row[i] * row[i];
    }
    double inverse = (double)(((int64_t)1 << 40) / whole_root(squares)) / UNIT;
    for (int32_t i = 0; i < columns; i++) row[i] = floored(row[i] * inverse);
}

INLINE void embed(const Network *net, int32_t id, int16_t *embedded) {
    const int16_t *values = (const int16_t *)net->view[VALUES].buf + id % CHUNKS * LEVELS;
    const uint8_t *row = (const uint8_t *)net->view[TABLE].buf + (int64_t)id * WIDTH;
    for (int32_t i = 0; i < WIDTH; i++) embedded[i] = values[row[i] % LEVELS];
}

INLINE void activate_projection(const Network *net, int32_t *row, int16_t *const *activations, int64_t at) {
    const Layer *layer = &net->layer[PROJECT];
    for (int32_t i = 0; i < PROJECTED; i++)
        row[i] = floored(clip(row[i] * layer->scale[i] + layer->offset[i], -LARGEST_SUMMAND, LARGEST_SUMMAND));
    normalise(row, PROJECTED);
    for (int32_t branch = 0; branch < BRANCHES; branch++, row += BRANCH) {
        const double *gain = net->gain + branch * BRANCH, *offset = net->gain_offset + branch * BRANCH;
        int16_t *out = activations[branch] + at * BRANCH;
        for (int32_t i = 0; i < BRANCH; i++) out[i] = (int16_t)floored(clip(row[i] * gain[i] + offset[i], -LARGEST, LARGEST));
    }
}

/* An input and its convolution, which is cut off below zero; what is above zero is cut off as if it were floored. */
INLINE int32_t convolved(const Layer *layer, const int32_t *products, const int16_t *inputs, int32_t i, int32_t most) {
    int32_t sum = inputs[i] + (int32_t)clip(products[i] * layer->scale[i] + layer->offset[i], 0, 2 * LARGEST_SUMMAND);
    return sum > most ? most : sum < -most ? -most : sum;
}

/* The products of a convolution with all rows but the outer gaps. Tokens that are alone meet only the weights of their own
   place: their neighbours are zero. */
INLINE void multiply_windows(Multiply *multiply, const Layer *layer, int branch, int alone, const int16_t *inputs,
                             int64_t count, int32_t *products) {
    int32_t first = alone ? before[branch] * BRANCH : 0, columns = alone ? BRANCH : layer->columns;
    const int16_t *start = inputs + (GAP - (alone ? 0 : before[branch])) * BRANCH;
    multiply(layer, first, columns, start, BRANCH, count, products);
}

/* Rows of embedded tokens, the outer ones gaps → the normalised features of each token. */
INLINE void read_rows(const Network *net, Multiply *multiply, Scratch *scratch, int64_t rows, int alone) {
    int64_t count = rows - 2 * GAP;
    int32_t *products = scratch->products;
    multiply(&net->layer[PROJECT], 0, WIDTH, scratch->embedded + GAP * WIDTH, WIDTH, count, products);
    for (int branch = 0; branch < BRANCHES; branch++)
        memset(scratch->activations[branch], 0, sizeof(int16_t) * (size_t)(rows * BRANCH));
    for (int64_t at = GAP; at < rows - GAP; at++)
        if (scratch->is_token[at]) activate_projection(net, products + (at - GAP) * PROJECTED, scratch->activations, at);
    for (int branch = 0; branch < BRANCHES; branch++) {
        const int16_t *inputs = scratch->activations[branch];
        int16_t *hidden = scratch->hidden;
        const Layer *layer = &net->layer[FIRST + branch];
        multiply_windows(multiply, layer, branch, alone, inputs, count, products);
        memset(hidden, 0, sizeof(int16_t) * (size_t)(rows * BRANCH));
        for (int64_t at = GAP; at < rows - GAP; at++) {
            const int32_t *row = products + (at - GAP) * BRANCH;
            if (!scratch->is_token[at]) continue;
            for (int32_t i = 0; i < BRANCH; i++)
                hidden[at * BRANCH + i] = (int16_t)convolved(layer, row, inputs + at * BRANCH, i, LARGEST);
        }
        layer = &net->layer[SECOND + branch];
        multiply_windows(multiply, layer, branch, alone, hidden, count, products);
        for (int64_t at = GAP; at < rows - GAP; at++) {
            int32_t *features = scratch->features + at * FEATURES + WIDTH + branch * BRANCH;
            for (int32_t i = 0; i < BRANCH; i++)
                features[i] = convolved(layer, products + (at - GAP) * BRANCH, hidden + at * BRANCH, i, LARGEST_SUMMAND);
        }
    }
    for (int64_t at = GAP; at < rows - GAP; at++) {
        int32_t *features = scratch->features + at * FEATURES;
        for (int32_t i = 0; i < WIDTH; i++) features[i] = scratch->embedded[at * WIDTH + i];
        if (scratch->is_token[at]) normalise(features, FEATURES);
    }
}

/* A layer's rounded products, each text's offsets taken `times`; those of another layer may be added. They go to `out`, and
   cut off below `least` and above LARGEST to `narrow`, the inputs of another layer. */
INLINE void dense(const Layer *layer, Multiply *multiply, const int16_t *inputs, int64_t count, const double *times,
                  const int32_t *more, int32_t *out, int32_t least, int16_t *narrow) {
    int32_t rows = layer->rows;
    multiply(layer, 0, layer->columns, inputs, layer->columns, count, out);
    for (int64_t at = 0; at < count; at++, out += rows, narrow += rows)
        for (int32_t i = 0; i < rows; i++) {
            double offset = times ? (layer->offset[i] - 0.5) * times[at] + 0.5 : layer->offset[i];
            int32_t value = (int32_t)floor(out[i] * layer->scale[i] + offset) + (more ? more[at * rows + i] : 0);
            out[i] = value;
            narrow[i] = (int16_t)(value < least ? least : value > LARGEST ? LARGEST : value);
        }
}

INLINE void finish(const Network *net, const int32_t *last, int16_t *vector) {
    const int16_t *tanh = (const int16_t *)net->view[TANH].buf + TANH_LIMIT;
    int64_t squares = 0;
    for (int32_t i = 0; i < WIDTH; i++) {
        vector[i] = tanh[last[i] < -TANH_LIMIT ? -TANH_LIMIT : last[i] > TANH_LIMIT ? TANH_LIMIT : last[i]];
        squares += vector[i] * vector[i];
    }
    double norm = (double)whole_root(squares << 12);  /* has 6 bits after its point */
    for (int32_t i = 0; i < WIDTH; i++)
        vector[i] = (int16_t)clip(floor((vector[i] * (double)(NORM << 7) + norm) / (2 * norm)), -LIMIT, LIMIT);
}

/* Sums over the tokens of texts, whose features were normalised → the inputs of the dense layers. Without lengths, each text
   has one token. */
INLINE void pool(const Network *net, Multiply *multiply, Scratch *scratch, int64_t count, const int64_t *lengths,
                 const int32_t *sums, int16_t *pooled) {
    const double *gain = net->gain + PROJECTED, *offset = net->gain_offset + PROJECTED;
    int16_t *first = scratch->inputs[0];
    for (int64_t at = 0; at < count; at++) {
        int64_t tokens = lengths ? lengths[at] : 1;
        double root = scratch->roots[at] = (double)whole_root(tokens << 20);
        for (int32_t i = 0; i < FEATURES; i++) {  /* the sum over √tokens, rounded */
            double total = sums[at * FEATURES + i] * gain[i] + (double)tokens * offset[i];
            first[at * FEATURES + i] = (int16_t)clip(floor((2 * total + root * 1024) / (root * 2048)), -LARGEST, LARGEST);
        }
    }
    dense(&net->layer[POOL], multiply, first, count, scratch->roots, NULL, scratch->dense, -LARGEST, pooled);
}

/* The same sums → the vectors of the texts. */
INLINE void head(const Network *net, Multiply *multiply, Scratch *scratch, int64_t count, const int64_t *lengths,
                 int16_t *vectors) {
    const Layer *layer = net->layer;
    int16_t *first = scratch->inputs[0], *second = scratch->inputs[1], *third = scratch->inputs[2];
    int32_t *more = scratch->more, *out = scratch->dense;
    pool(net, multiply, scratch, count, lengths, scratch->sums, second);
    dense(&layer[DENSE0], multiply, second, count, NULL, NULL, out, 0, first);
    dense(&layer[SKIP1], multiply, second, count, NULL, NULL, more, 0, third);
    dense(&layer[DENSE1], multiply, first, count, NULL, more, out, 0, second);
    dense(&layer[DENSE2], multiply, second, count, NULL, NULL, out, 0, first);
    dense(&layer[SKIP3], multiply, second, count, NULL, NULL, more, 0, third);
    dense(&layer[DENSE3], multiply, first, count, NULL, more, out, 0, third);
    for (int64_t at = 0; at < count; at++) finish(net, out + at * WIDTH, vectors + at * WIDTH);
}

/* Places a gap, or tokens, in the rows from this one on; the row behind them. */
INLINE int64_t place_gap(Scratch *scratch, int64_t row) {
    memset(scratch->is_token + row, 0, GAP);
    memset(scratch->embedded + row * WIDTH, 0, sizeof(int16_t) * GAP * WIDTH);
    return row + GAP;
}

INLINE int64_t place(const Network *net, Scratch *scratch, const int32_t *ids, int64_t count, int64_t row) {
    memset(scratch->is_token + row, 1, (size_t)count);
    for (int64_t i = 0; i < count; i++) embed(net, ids[i], scratch->embedded + (row + i) * WIDTH);
    return row + count;
}

/* The sums over each text's features. */
INLINE void sum_texts(const Network *net, Multiply *multiply, Scratch *scratch, const int32_t *ids, const int64_t *lengths,
                      int64_t texts, int32_t *sums) {
    int64_t row = place_gap(scratch, 0);
    for (int64_t text = 0; text < texts; ids += lengths[text++])
        row = place_gap(scratch, place(net, scratch, ids, lengths[text], row));
    read_rows(net, multiply, scratch, row, 0);
    memset(sums, 0, sizeof *sums * (size_t)(texts * FEATURES));
    const int32_t *features = scratch->features + GAP * FEATURES;
    for (int64_t text = 0; text < texts; text++, sums += FEATURES, features += GAP * FEATURES)
        for (int64_t token = 0; token < lengths[text]; token++, features += FEATURES)
            for (int32_t i = 0; i < FEATURES; i++) sums[i] += features[i];
}

INLINE void read_texts(const Network *net, Multiply *multiply, Scratch *scratch, Job job) {
    int16_t *out = job.out;
    for (int64_t most; job.count; job.count -= most, job.lengths += most, out += most * WIDTH) {
        most = job.count < HEAD_TEXTS ? job.count : HEAD_TEXTS;
        for (int64_t text = 0, count, tokens; text < most; text += count, job.ids += tokens) {
            const int64_t *lengths = job.lengths + text;
            for (count = tokens = 0; text + count < most; tokens += lengths[count++])
                if (tokens + lengths[count] + GAP * (count + 2) > scratch->capacity) break;
            sum_texts(net, multiply, scratch, job.ids, lengths, count, scratch->sums + text * FEATURES);
        }
        head(net, multiply, scratch, most, job.lengths, out);
    }
}

INLINE void read_pieces(const Network *net, Multiply *multiply, Scratch *scratch, Job job) {
    int32_t *out = job.out;
    int16_t *pooled = scratch->inputs[1];
    int64_t most = scratch->capacity - 2 * GAP < HEAD_TEXTS ? scratch->capacity - 2 * GAP : HEAD_TEXTS;
    for (int64_t now; job.count; job.ids += now, job.count -= now, out += now * WIDTH) {
        now = job.count < most ? job.count : most;
        int64_t rows = place_gap(scratch, place(net, scratch, job.ids, now, place_gap(scratch, 0)));
        read_rows(net, multiply, scratch, rows, 1);
        pool(net, multiply, scratch, now, NULL, scratch->features + GAP * FEATURES, pooled);
        for (int64_t i = 0; i < now * WIDTH; i++) out[i] = pooled[i];
    }
}

#define DEFINE_VARIANT(NAME, TARGET, IS_HERE)                                                                               \
    static int is_here_##NAME(void) { return IS_HERE; }                                                                     \
    TARGET static void read_##NAME(const Network *net, Scratch *scratch, Job job) {                                         \
        if (job.lengths) read_texts(net, multiply_##NAME, scratch, job);                                                    \
        else read_pieces(net, multiply_##NAME, scratch, job);                                                               \
    }

#ifdef IS_X86
#define VNNI "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
/* Whether the processor has these features now: a virtual machine may have been moved since the process began, when the
   compiler's library looked, and whether the system keeps the registers. */
static int has_now(uint32_t wanted, uint32_t wanted_more) {
    uint32_t a, features = 0, more = 0, d;
    return __get_cpuid_count(7, 0, &a, &features, &more, &d) && !(wanted & ~features) && !(wanted_more & ~more);
}
#define IS_VNNI (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") && \
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && \
                 has_now(bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL, bit_AVX512VNNI))
#define IS_AVX2 (__builtin_cpu_supports("avx2") && has_now(bit_AVX2, 0))
#define ADD_PAIRS(sums, weights, pair) _mm256_add_epi32(sums, _mm256_madd_epi16(weights, pair))
DEFINE_MULTIPLY(vnni, VNNI, __m512i, 4, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_storeu_si512, _mm512_dpwssd_epi32)
DEFINE_MULTIPLY(avx2, "avx2", __m256i, 2, _mm256_loadu_si256, _mm256_set1_epi32, _mm256_storeu_si256, ADD_PAIRS)
DEFINE_VARIANT(vnni, __attribute__((target(VNNI))), IS_VNNI)
DEFINE_VARIANT(avx2, __attribute__((target("avx2"))), IS_AVX2)
#endif
DEFINE_VARIANT(plain, , 1)

static const Variant variants[] = {  /* the fastest first */
#ifdef IS_X86
    {"vnni", is_here_vnni, 64, read_vnni},
    {"avx2", is_here_avx2, 16, read_avx2},
#endif
    {"plain", is_here_plain, 1, read_plain},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* sentence_variants() -> the names of those that this processor can run, the fastest first. */
PyObject *sentence_variants(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    PyObject *names = PyList_New(0);
    for (int i = 0; names && i < VARIANTS; i++) {
        PyObject *name = variants[i].is_here() ? PyUnicode_FromString(variants[i].name) : NULL;
        if (name ? PyList_Append(names, name) : PyErr_Occurred() != NULL) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static const Variant *find_variant(const char *name) {  /* the fastest if it has no name */
    for (int i = 0; i < VARIANTS; i++)
        if (variants[i].is_here() && (!*name || !strcmp(name, variants[i].name))) return &variants[i];
    PyErr_Format(PyExc_ValueError, "this processor cannot run the variant %s; ridgeway --version names its fastest", name);
    return NULL;
}

/* The next part of a piece of memory, from a line on. */
static void *take(char **next, size_t bytes) {
    char *part = *next;
    *next += (bytes + LINE - 1) / LINE * LINE;
    return part;
}

static char *first_line(void *memory) { return (char *)memory + (LINE - (uintptr_t)memory % LINE); }

/* Room for so many rows of tokens and gaps, and for the sums of so many texts. */
static int make_scratch(Scratch *scratch, int64_t rows, int64_t texts) {
    enum { ROW = 4 * FEATURES + 4 * PROJECTED + 2 * WIDTH + 2 * BRANCH * (BRANCHES + 1) + 1, PARTS = 16 };
    enum { TEXT = 4 * FEATURES + 4 * WIDTH + 4 * WIDTH + 2 * FEATURES + 2 * WIDTH + 2 * WIDTH + 8 };
    if (texts > HEAD_TEXTS) texts = HEAD_TEXTS;
    scratch->capacity = rows;
    if (!(scratch->memory = malloc((size_t)(rows * ROW + texts * TEXT) + PARTS * LINE))) return 0;
    char *next = first_line(scratch->memory);
    scratch->features = take(&next, 4 * FEATURES * (size_t)rows);
    scratch->products = take(&next, 4 * PROJECTED * (size_t)rows);
    scratch->embedded = take(&next, 2 * WIDTH * (size_t)rows);
    scratch->hidden = take(&next, 2 * BRANCH * (size_t)rows);
    for (int branch = 0; branch < BRANCHES; branch++) scratch->activations[branch] = take(&next, 2 * BRANCH * (size_t)rows);
    scratch->is_token = take(&next, (size_t)rows);
    scratch->sums = take(&next, 4 * FEATURES * (size_t)texts);
    scratch->dense = take(&next, 4 * WIDTH * (size_t)texts);
    scratch->more = take(&next, 4 * WIDTH * (size_t)texts);
    scratch->inputs[0] = take(&next, 2 * FEATURES * (size_t)texts);
    scratch->inputs[1] = take(&next, 2 * WIDTH * (size_t)texts);
    scratch->inputs[2] = take(&next, 2 * WIDTH * (size_t)texts);
    scratch->roots = take(&next, 8 * (size_t)texts);
    return 1;
}

static int holds(const Py_buffer *view, int64_t count, int64_t size) {
    return view->itemsize == size && view->len == count * size;
}

#define MISFIT "the ids, the lengths and the network do not fit together"

/* Texts if lengths are given, else tokens, each read alone. */
static PyObject *read_checked(Network *self, PyObject *ids, PyObject *out, PyObject *given_lengths) {
    enum { IDS, OUT, LENGTHS, GIVEN };
    PyObject *object[GIVEN] = {ids, out, given_lengths}, *done = NULL;
    Py_buffer view[GIVEN];
    Scratch scratch = {0};
    int held = 0;
    if (!hold_buffers(object, GIVEN, OUT, view, &held)) goto end;
    Job job = {view[IDS].buf, NULL, view[IDS].len / 4, view[OUT].buf};
    int64_t longest = 1, tokens = job.count, texts = 0;
    int right = holds(&view[IDS], tokens, 4);
    if (given_lengths) {
        job.lengths = view[LENGTHS].buf;
        job.count = texts = view[LENGTHS].len / 8;
        right = right && holds(&view[LENGTHS], texts, 8);
        for (int64_t i = 0; right && i < texts; i++) {
            right = job.lengths[i] > 0 && job.lengths[i] <= MAX_TOKENS;
            longest = job.lengths[i] > longest ? job.lengths[i] : longest;
            tokens -= job.lengths[i];
        }
        right = right && !tokens && holds(&view[OUT], WIDTH * texts, 2);
        tokens = view[IDS].len / 4;
    } else right = right && holds(&view[OUT], WIDTH * tokens, 4);
    for (int64_t i = 0; right && i < tokens; i++)
        right = job.ids[i] >= 0 && job.ids[i] < self->view[TABLE].len / WIDTH;
    if (!right) { PyErr_Format(PyExc_ValueError, MISFIT); goto end; }
    int64_t rows = tokens + GAP * (texts + 2), least = longest + 2 * GAP;
    if (rows > BATCH_ROWS) rows = least > BATCH_ROWS ? least : BATCH_ROWS;
    if (!make_scratch(&scratch, rows, given_lengths ? texts : tokens)) { PyErr_NoMemory(); goto end; }
    Py_BEGIN_ALLOW_THREADS
    self->variant->read(self, &scratch, job);
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
end:
    free(scratch.memory);
    release_buffers(view, held);
    return done;
}

/* vectors(ids, lengths, out): int32, int64 and, to be filled, int16, a row for each text. */
static PyObject *vectors(Network *self, PyObject *args) {
    PyObject *ids, *lengths, *out;
    return PyArg_ParseTuple(args, "OOO", &ids, &lengths, &out) ? read_checked(self, ids, out, lengths) : NULL;
}

/* pieces(ids, out): int32 and, to be filled, int32: what goes into the dense layers of each token, read alone. */
static PyObject *pieces(Network *self, PyObject *args) {
    PyObject *ids, *out;
    return PyArg_ParseTuple(args, "OO", &ids, &out) ? read_checked(self, ids, out, NULL) : NULL;
}

static int are_within(const int64_t *values, int64_t count, int64_t most) {
    for (int64_t i = 0; i < count; i++) if (values[i] < -most || values[i] > most) return 0;
    return 1;
}

/* A row's weights in their places; whether their sizes add up to little enough. */
static int pack_row(const Layer *layer, int32_t row, const int8_t *weights, int32_t block) {
    int16_t *packed = layer->weights + (int64_t)(row - row % block) * layer->columns + row % block * 2;
    int32_t sizes = 0;
    if (block == 1) packed = layer->weights + (int64_t)row * layer->columns;
    for (int32_t k = 0; k < layer->columns; k++) {
        packed[k / 2 * 2 * block + k % 2] = weights[k];
        sizes += abs(weights[k]);
    }
    return sizes < LARGEST_WEIGHTS;
}

/* Fills a network whose buffers are held; whether everything is within its bounds. */
static int fill_network(Network *net, int64_t size, int64_t rows) {
    const int8_t *weights = net->view[WEIGHTS].buf;
    const int64_t *scales = net->view[SCALES].buf, *gains = net->view[GAINS].buf;
    const int64_t normalised = PROJECTED + FEATURES;
    char *next = first_line(net->memory);
    int16_t *packed = take(&next, 2 * (size_t)size);
    double *scale = take(&next, 8 * (size_t)rows), *offset = take(&next, 8 * (size_t)rows);
    int right = are_within(scales, rows, LARGEST_SCALE) && are_within(scales + rows, rows, LARGEST_OFFSET);
    right = right && are_within(gains, normalised, LARGEST_GAIN);
    right = right && are_within(gains + normalised, normalised, LARGEST_GAIN_OFFSET);
    for (int64_t i = 0; i < rows; i++) {
        scale[i] = (double)scales[i] / POINT;
        offset[i] = (double)scales[rows + i] / POINT + 0.5;
    }
    net->gain = take(&next, 8 * (size_t)normalised);
    net->gain_offset = take(&next, 8 * (size_t)normalised);
    for (int64_t i = 0; i < normalised; i++) {  /* those of the head stay whole */
        net->gain[i] = (double)gains[i] / (i < PROJECTED ? POINT : 1);
        net->gain_offset[i] = (double)gains[normalised + i] / (i < PROJECTED ? POINT : 1);
    }
    for (int i = 0; i < LAYERS; i++) {
        Layer *layer = &net->layer[i];
        *layer = (Layer){packed, scale, offset, shapes[i][0], shapes[i][1]};
        for (int32_t row = 0; right && row < layer->rows; row++, weights += layer->columns)
            right = pack_row(layer, row, weights, net->variant->block);
        packed += (int64_t)layer->rows * layer->columns;
        scale += layer->rows;
        offset += layer->rows;
    }
    return right;
}

/* SentenceNetwork(table, values, weights, scales, gains, tanh, variant=""): arrays as in sentence_network.py. */
static PyObject *new_network(PyTypeObject *type, PyObject *args, PyObject *names) {
    static char *keywords[] = {"table", "values", "weights", "scales", "gains", "tanh", "variant", NULL};
    PyObject *object[BUFFERS];
    const char *variant = "";
    int64_t size = 0, rows = 0;
    for (int i = 0; i < LAYERS; i++) {
        size += shapes[i][0] * shapes[i][1];
        rows += shapes[i][0];
    }
    if (!PyArg_ParseTupleAndKeywords(args, names, "OOOOOO|s", keywords, &object[TABLE], &object[VALUES], &object[WEIGHTS],
                                     &object[SCALES], &object[GAINS], &object[TANH], &variant)) return NULL;
    Network *self = (Network *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    if (!(self->variant = find_variant(variant)) || !hold_buffers(object, BUFFERS, BUFFERS, self->view, &self->held))
        goto failed;
    const Py_buffer *view = self->view;
    int right = view[TABLE].len > 0 && holds(&view[TABLE], view[TABLE].len / WIDTH * WIDTH, 1);
    right = right && holds(&view[VALUES], CHUNKS * LEVELS, 2) && holds(&view[TANH], 2 * TANH_LIMIT + 1, 2);
    right = right && holds(&view[WEIGHTS], size, 1) && holds(&view[SCALES], 2 * rows, 8);
    right = right && holds(&view[GAINS], 2 * (PROJECTED + FEATURES), 8);
    if (!right) { PyErr_Format(PyExc_ValueError, MISFIT); goto failed; }
    self->memory = malloc(2 * (size_t)size + 16 * (size_t)(rows + PROJECTED + FEATURES) + 8 * LINE);
    if (!self->memory) { PyErr_NoMemory(); goto failed; }
    if (fill_network(self, size, rows)) return (PyObject *)self;
    PyErr_Format(PyExc_ValueError, "a number of the network is out of its bounds");
failed:
    Py_DECREF((PyObject *)self);
    return NULL;
}

static void free_network(Network *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    release_buffers(self->view, self->held);
    free(self->memory);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *variant_of(Network *self, void *Py_UNUSED(closure)) { return PyUnicode_FromString(self->variant->name); }

static PyMethodDef methods[] = {
    {"vectors", (PyCFunction)vectors, METH_VARARGS, "Fill the sentence vector of each text."},
    {"pieces", (PyCFunction)pieces, METH_VARARGS, "Fill what goes into the dense layers of each token, read alone."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef getters[] = {{"variant", (getter)variant_of, NULL, "Of the products.", NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "USE's network, its weights packed for a variant of products. Safe to call from several threads."},
    {Py_tp_new, new_network}, {Py_tp_dealloc, free_network}, {Py_tp_methods, methods}, {Py_tp_getset, getters}, {0, NULL},
};
static PyType_Spec spec = {"ridgeway._native.SentenceNetwork", sizeof(Network), 0, Py_TPFLAGS_DEFAULT, slots};

PyObject *sentence_network_type(void) { return PyType_FromSpec(&spec); }
