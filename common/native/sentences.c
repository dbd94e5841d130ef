/* USE-multilingual's network in whole numbers: what numpy does in sentence_network.py, faster.

   Safety. Every id and every length is checked before anything is read by it. The maker of the weights has checked that
   the sizes of a row's weights add up to less than 2^16, so that its products with 16-bit numbers add up within 32 bits.

   Threads. Nothing is kept between calls, and the interpreter's lock is free while vectors are made. */
#include "native.h"
#include <math.h>

/* Loops are compiled for several kinds of processors where the loader can choose among them. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define CLONED __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#elif defined(__x86_64__) && defined(__GLIBC__) && (!defined(__clang__) || __clang_major__ >= 14)
#define CLONED __attribute__((target_clones("avx2", "default")))
#else
#define CLONED
#endif

enum { WIDTH = 512, BRANCH = 256, BRANCHES = 3, PROJECTED = 768, FEATURES = 1280, HIDDEN = 320, GAP = 2 };
enum { CHUNKS = 17, LEVELS = 64, MAX_TOKENS = 1024 };
enum { LARGEST = 32767, LARGEST_SUMMAND = 1 << 20, TANH_LIMIT = 8 << 10, NORM = 1 << 13, LIMIT = 4096 };
enum { BLOCK = 4 };              /* rows of weights that are multiplied at once; every layer has a multiple of them */
enum { LINE = 64 };              /* bytes that are read together */
enum { BATCH_ROWS = 192 };       /* tokens and gaps that go through the layers together, unless one text is longer */

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

typedef struct { const int8_t *weights; const int64_t *scale, *offset; int32_t rows, columns; } Layer;
typedef struct {
    const uint8_t *table; const int16_t *values, *tanh; const int64_t *gain, *offset; Layer layer[LAYERS];
} Network;
typedef struct {
    uint8_t *is_token;           /* of each row, which is a token or a gap between texts */
    int16_t *embedded, *activations[BRANCHES], *hidden;
    int32_t *features, *products;
    int32_t *sums, *more;        /* of each text */
    int16_t *inputs[2];
    int64_t *roots;
    void *memory;
} Scratch;

static inline int64_t clip(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

static inline int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0); }  /* b is positive */

static int64_t whole_root(int64_t square) {  /* of numbers below 2^52, whose floating root rounds down rightly; 1 of zero */
    int64_t root = (int64_t)sqrt((double)square);
    return root ? root : 1;
}

static inline int64_t scaled(int32_t product, int64_t scale, int64_t offset) {
    return (product * scale + offset + (1 << 23)) >> 24;
}

/* products[i][row] = the row of weights times the input that begins at inputs + i * stride. Two inputs are taken at once,
   and four rows, so that numbers are used more than once after they were read. */
CLONED static void multiply(const Layer *layer, const int16_t *inputs, int64_t stride, int64_t count, int32_t *products) {
    _Alignas(LINE) int16_t wide[BLOCK][FEATURES];
    int32_t rows = layer->rows, columns = layer->columns;
    for (int32_t row = 0; row < rows; row += BLOCK) {
        for (int32_t i = 0; i < BLOCK; i++)
            for (int32_t k = 0; k < columns; k++) wide[i][k] = layer->weights[(row + i) * columns + k];
        const int16_t *w = wide[0], *x = wide[1], *y = wide[2], *z = wide[3], *a = inputs;
        int32_t *out = products + row;
        int64_t left = count;
        for (; left > 1; left -= 2, a += 2 * stride, out += 2 * rows) {
            const int16_t *b = a + stride;
            int32_t aw = 0, ax = 0, ay = 0, az = 0, bw = 0, bx = 0, by = 0, bz = 0;
            for (int32_t k = 0; k < columns; k++) {
                aw += a[k] * w[k]; ax += a[k] * x[k]; ay += a[k] * y[k]; az += a[k] * z[k];
                bw += b[k] * w[k]; bx += b[k] * x[k]; by += b[k] * y[k]; bz += b[k] * z[k];
            }
            out[0] = aw; out[1] = ax; out[2] = ay; out[3] = az;
            out[rows] = bw; out[rows + 1] = bx; out[rows + 2] = by; out[rows + 3] = bz;
        }
        if (left) {
            int32_t aw = 0, ax = 0, ay = 0, az = 0;
            for (int32_t k = 0; k < columns; k++) {
                aw += a[k] * w[k]; ax += a[k] * x[k]; ay += a[k] * y[k]; az += a[k] * z[k];
            }
            out[0] = aw; out[1] = ax; out[2] = ay; out[3] = az;
        }
    }
}

/* A row less its mean, divided by its norm, with 20 bits after the point. */
CLONED static void normalise(int32_t *row, int64_t columns) {
    int64_t sum = 0, squares = 0;
    for (int64_t i = 0; i < columns; i++) sum += row[i];
    int32_t mean = (int32_t)floor_divide(2 * sum + columns, 2 * columns);
    for (int64_t i = 0; i < columns; i++) row[i] -= mean;
    for (int64_t i = 0; i < columns; i++) squares += (int64_t)row[i] * row[i];
    int64_t inverse = ((int64_t)1 << 40) / whole_root(squares);
    for (int64_t i = 0; i < columns; i++) row[i] = (int32_t)((row[i] * inverse) >> 20);
}

CLONED static void activate_projection(const Network *net, int32_t *row, int64_t at, Scratch *scratch) {
    const Layer *layer = &net->layer[PROJECT];
    for (int64_t i = 0; i < PROJECTED; i++)
        row[i] = (int32_t)clip(scaled(row[i], layer->scale[i], layer->offset[i]), -LARGEST_SUMMAND, LARGEST_SUMMAND);
    normalise(row, PROJECTED);
    for (int64_t i = 0; i < PROJECTED; i++)
        row[i] = (int32_t)clip((row[i] * net->gain[i] + net->offset[i]) >> 24, -LARGEST, LARGEST);
    for (int branch = 0; branch < BRANCHES; branch++)
        for (int64_t i = 0; i < BRANCH; i++)
            scratch->activations[branch][at * BRANCH + i] = (int16_t)row[branch * BRANCH + i];
}

/* outputs = inputs + the convolution's products, which are cut off below zero. */
CLONED static void add_convolved(const Layer *layer, const int32_t *products, const int16_t *inputs, int64_t most,
                                 int32_t *outputs) {
    for (int64_t i = 0; i < BRANCH; i++) {
        int64_t convolved = scaled(products[i], layer->scale[i], layer->offset[i]);
        outputs[i] = (int32_t)clip(inputs[i] + (convolved > 0 ? convolved : 0), -most, most);
    }
}

/* Both convolutions of a branch over all rows; the activations of gaps are zero. */
static void convolve(const Network *net, Scratch *scratch, int branch, int64_t rows) {
    const int16_t *inputs = scratch->activations[branch];
    int64_t count = rows - 2 * GAP;
    int32_t hidden[BRANCH];
    const Layer *layer = &net->layer[FIRST + branch];
    multiply(layer, inputs + (GAP - before[branch]) * BRANCH, BRANCH, count, scratch->products);
    memset(scratch->hidden, 0, sizeof(int16_t) * (size_t)(rows * BRANCH));
    for (int64_t at = GAP; at < rows - GAP; at++) {
        if (!scratch->is_token[at]) continue;
        add_convolved(layer, scratch->products + (at - GAP) * BRANCH, inputs + at * BRANCH, LARGEST, hidden);
        for (int64_t i = 0; i < BRANCH; i++) scratch->hidden[at * BRANCH + i] = (int16_t)hidden[i];
    }
    layer = &net->layer[SECOND + branch];
    multiply(layer, scratch->hidden + (GAP - before[branch]) * BRANCH, BRANCH, count, scratch->products);
    for (int64_t at = GAP; at < rows - GAP; at++)
        add_convolved(layer, scratch->products + (at - GAP) * BRANCH, scratch->hidden + at * BRANCH, LARGEST_SUMMAND,
                      scratch->features + at * FEATURES + WIDTH + branch * BRANCH);
}

static void embed(const Network *net, int32_t id, int16_t *embedded) {
    const int16_t *values = net->values + id % CHUNKS * LEVELS;
    const uint8_t *row = net->table + (int64_t)id * WIDTH;
    for (int64_t i = 0; i < WIDTH; i++) embedded[i] = values[row[i] % LEVELS];
}

/* A layer's rounded products, to which those of another layer may be added. */
CLONED static void dense(const Layer *layer, const int16_t *inputs, int64_t count, const int64_t *times, int32_t *more,
                         int32_t *products) {
    int64_t rows = layer->rows;
    multiply(layer, inputs, layer->columns, count, products);
    for (int64_t at = 0; at < count; at++)
        for (int64_t i = 0; i < rows; i++) {
            int64_t offset = times ? layer->offset[i] * times[at] : layer->offset[i];
            int64_t value = scaled(products[at * rows + i], layer->scale[i], offset);
            products[at * rows + i] = (int32_t)value + (more ? more[at * rows + i] : 0);
        }
}

static void narrow(const int32_t *values, int64_t count, int32_t least, int32_t most, int16_t *narrowed) {
    for (int64_t i = 0; i < count; i++) narrowed[i] = (int16_t)clip(values[i], least, most);
}

static void finish(const Network *net, const int32_t *last, int16_t *vector) {
    int64_t squares = 0;
    for (int64_t i = 0; i < WIDTH; i++) {
        vector[i] = net->tanh[clip(last[i], -TANH_LIMIT, TANH_LIMIT) + TANH_LIMIT];
        squares += vector[i] * vector[i];
    }
    int64_t norm = whole_root(squares << 12);  /* has 6 bits after its point */
    for (int64_t i = 0; i < WIDTH; i++)
        vector[i] = (int16_t)clip(floor_divide(vector[i] * ((int64_t)NORM << 7) + norm, 2 * norm), -LIMIT, LIMIT);
}

/* Sums over the tokens of `count` texts → their vectors. */
static void head(const Network *net, Scratch *scratch, int64_t count, const int64_t *lengths, int16_t *vectors) {
    const int64_t *gain = net->gain + PROJECTED, *offset = net->offset + PROJECTED;
    const Layer *layer = net->layer;
    int16_t *first = scratch->inputs[0], *second = scratch->inputs[1];
    for (int64_t at = 0; at < count; at++) {
        int64_t tokens = lengths[at], root = scratch->roots[at] = whole_root(tokens << 20);
        for (int64_t i = 0; i < FEATURES; i++) {
            int64_t total = scratch->sums[at * FEATURES + i] * gain[i] + tokens * offset[i];
            first[at * FEATURES + i] = (int16_t)clip(floor_divide(total + (root << 9), root << 10), -LARGEST, LARGEST);
        }
    }
    dense(&layer[POOL], first, count, scratch->roots, NULL, scratch->products);
    narrow(scratch->products, count * WIDTH, -LARGEST, LARGEST, second);
    dense(&layer[DENSE0], second, count, NULL, NULL, scratch->products);
    narrow(scratch->products, count * HIDDEN, 0, LARGEST, first);
    dense(&layer[SKIP1], second, count, NULL, NULL, scratch->more);
    dense(&layer[DENSE1], first, count, NULL, scratch->more, scratch->products);
    narrow(scratch->products, count * HIDDEN, 0, LARGEST, first);
    dense(&layer[DENSE2], first, count, NULL, NULL, scratch->products);
    narrow(scratch->products, count * WIDTH, 0, LARGEST, second);
    dense(&layer[SKIP3], first, count, NULL, NULL, scratch->more);
    dense(&layer[DENSE3], second, count, NULL, scratch->more, scratch->products);
    for (int64_t at = 0; at < count; at++) finish(net, scratch->products + at * WIDTH, vectors + at * WIDTH);
}

/* The vectors of `count` texts, whose tokens stand in rows with gaps before, between and behind them. */
static void read_texts(const Network *net, Scratch *scratch, const int32_t *ids, const int64_t *lengths, int64_t count,
                       int16_t *vectors) {
    int64_t rows = GAP;
    memset(scratch->is_token, 0, GAP);
    for (int64_t text = 0; text < count; text++) {
        for (int64_t i = 0; i < lengths[text]; i++) embed(net, *ids++, scratch->embedded + (rows + i) * WIDTH);
        memset(scratch->is_token + rows, 1, (size_t)lengths[text]);
        rows += lengths[text];
        memset(scratch->embedded + rows * WIDTH, 0, sizeof(int16_t) * GAP * WIDTH);
        memset(scratch->is_token + rows, 0, GAP);
        rows += GAP;
    }
    multiply(&net->layer[PROJECT], scratch->embedded + GAP * WIDTH, WIDTH, rows - 2 * GAP, scratch->products);
    for (int branch = 0; branch < BRANCHES; branch++)
        memset(scratch->activations[branch], 0, sizeof(int16_t) * (size_t)(rows * BRANCH));
    for (int64_t at = GAP; at < rows - GAP; at++)
        if (scratch->is_token[at]) activate_projection(net, scratch->products + (at - GAP) * PROJECTED, at, scratch);
    for (int branch = 0; branch < BRANCHES; branch++) convolve(net, scratch, branch, rows);

    int32_t *sums = scratch->sums;
    memset(sums, 0, sizeof *sums * (size_t)(count * FEATURES));
    int64_t at = GAP;
    for (int64_t text = 0; text < count; text++, at += GAP, sums += FEATURES)
        for (int64_t end = at + lengths[text]; at < end; at++) {
            int32_t *features = scratch->features + at * FEATURES;
            for (int64_t i = 0; i < WIDTH; i++) features[i] = scratch->embedded[at * WIDTH + i];
            normalise(features, FEATURES);
            for (int64_t i = 0; i < FEATURES; i++) sums[i] += features[i];
        }
    head(net, scratch, count, lengths, vectors);
}

static void read_all(const Network *net, Scratch *scratch, int64_t capacity, const int32_t *ids, const int64_t *lengths,
                     int64_t texts, int16_t *vectors) {
    for (int64_t first = 0; first < texts;) {
        int64_t count = 0, tokens = 0;
        while (first + count < texts && tokens + lengths[first + count] + GAP * (count + 2) <= capacity)
            tokens += lengths[first + count++];
        read_texts(net, scratch, ids, lengths + first, count, vectors + first * WIDTH);
        ids += tokens;
        first += count;
    }
}

/* Room for so many rows, and for as many texts. */
static int make_scratch(Scratch *scratch, size_t rows) {
    const size_t sizes[] = {4 * FEATURES, 4 * PROJECTED, 4 * FEATURES, 4 * WIDTH, 2 * WIDTH, 2 * BRANCH, 2 * BRANCH,
                            2 * BRANCH, 2 * BRANCH, 2 * FEATURES, 2 * FEATURES, 8, 1};
    size_t whole = LINE, part = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) whole += rows * sizes[i];
    void *parts[sizeof sizes / sizeof *sizes];
    if (!(scratch->memory = malloc(whole))) return 0;
    char *next = (char *)scratch->memory + (LINE - (uintptr_t)scratch->memory % LINE);
    for (; part < sizeof sizes / sizeof *sizes; next += rows * sizes[part++]) parts[part] = next;
    scratch->features = parts[0];
    scratch->products = parts[1];
    scratch->sums = parts[2];
    scratch->more = parts[3];
    scratch->embedded = parts[4];
    scratch->hidden = parts[5];
    for (int branch = 0; branch < BRANCHES; branch++) scratch->activations[branch] = parts[6 + branch];
    scratch->inputs[0] = parts[9];
    scratch->inputs[1] = parts[10];
    scratch->roots = parts[11];
    scratch->is_token = parts[12];
    return 1;
}

static int make_layers(Network *net, const Py_buffer *weights, const Py_buffer *scales) {
    int64_t rows = 0, size = 0;
    for (int i = 0; i < LAYERS; i++) {
        net->layer[i] = (Layer){(const int8_t *)weights->buf + size, (const int64_t *)scales->buf + rows, NULL,
                                shapes[i][0], shapes[i][1]};
        rows += shapes[i][0];
        size += shapes[i][0] * shapes[i][1];
    }
    for (int i = 0; i < LAYERS; i++) net->layer[i].offset = net->layer[i].scale + rows;
    return weights->len == size && scales->len == 16 * rows;
}

/* sentence_vectors(table, values, weights, scales, gains, tanh, ids, lengths, vectors): buffers as in sentence_network.py,
   int32, int64 and, to be filled, int16. */
PyObject *sentence_vectors(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { TABLE, VALUES, WEIGHTS, SCALES, GAINS, TANH, IDS, LENGTHS, VECTORS, BUFFERS };
    PyObject *object[BUFFERS] = {NULL}, *done = NULL;
    Py_buffer view[BUFFERS];
    Network net;
    Scratch scratch = {0};
    int held = 0;
    if (!PyArg_ParseTuple(args, "OOOOOOOOO", &object[TABLE], &object[VALUES], &object[WEIGHTS], &object[SCALES],
                          &object[GAINS], &object[TANH], &object[IDS], &object[LENGTHS], &object[VECTORS]))
        return NULL;
    if (!hold_buffers(object, BUFFERS, VECTORS, view, &held)) goto end;
    int64_t texts = view[LENGTHS].len / 8, longest = 0, tokens = 0;
    const int64_t *lengths = view[LENGTHS].buf;
    const int32_t *ids = view[IDS].buf;
    int right = make_layers(&net, &view[WEIGHTS], &view[SCALES]) && view[VALUES].len == 2 * CHUNKS * LEVELS;
    right = right && view[GAINS].len == 16 * (PROJECTED + FEATURES) && view[TANH].len == 2 * (2 * TANH_LIMIT + 1);
    right = right && view[VECTORS].len == 2 * WIDTH * texts && !(view[LENGTHS].len % 8);
    for (int64_t i = 0; right && i < texts; i++) {
        right = lengths[i] > 0 && lengths[i] <= MAX_TOKENS;
        longest = lengths[i] > longest ? lengths[i] : longest;
        tokens += right ? lengths[i] : 0;
    }
    right = right && view[IDS].len == 4 * tokens;
    for (int64_t i = 0; right && i < tokens; i++) right = ids[i] >= 0 && ids[i] < view[TABLE].len / WIDTH;
    if (!right) { PyErr_Format(PyExc_ValueError, "the ids, the lengths and the network do not fit together"); goto end; }
    int64_t capacity = tokens + GAP * (texts + 1);
    if (capacity > BATCH_ROWS) capacity = longest + 2 * GAP > BATCH_ROWS ? longest + 2 * GAP : BATCH_ROWS;
    if (!make_scratch(&scratch, (size_t)capacity)) { PyErr_NoMemory(); goto end; }
    net.table = view[TABLE].buf;
    net.values = view[VALUES].buf;
    net.tanh = view[TANH].buf;
    net.gain = view[GAINS].buf;
    net.offset = net.gain + PROJECTED + FEATURES;
    Py_BEGIN_ALLOW_THREADS
    read_all(&net, &scratch, capacity, ids, lengths, texts, view[VECTORS].buf);
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
end:
    free(scratch.memory);
    release_buffers(view, held);
    return done;
}
