/* The mean table row of each window of token ids, rounded to whole numbers, and behind it the features of its words:
   what numpy does in accumulate.py and word_sketch.py, faster.

   Safety. Every id, every bound, every place of a token, every stop and every bucket is checked before anything is read or
   written by it, and nothing is written outside `means`. Values of the table lie within ±LIMIT, which its maker has checked; for other values, which no
   encoder has, results are of no use, but nothing else happens: sums are taken in unsigned numbers, which wrap.

   Threads. Nothing is kept between calls, and the interpreter's lock is free while rows are added. */
#include "native.h"
#include "runs.h"

#define LIMIT 4096               /* of the table's values, so that GROUP of them add up within 16 bits */
#define GROUP 4                  /* rows that are added at once */
#define LINES 4                  /* of 64 bytes, of each row that comes next, which are asked for ahead of time */
#define MAX_WINDOW (3 << 15)     /* tokens of a window, so that twice a sum fits 32 bits */

typedef struct { const int16_t *table; const int32_t *ids; int64_t width; } Rows;
/* The runs of all tokens, of which `positions` are those of the windows; `counts` has a number for each bucket. */
typedef struct { Runs runs; const int32_t *positions; int32_t *counts; int64_t width; int32_t amplitude; } Words;

static inline void add_group(const int16_t *restrict a, const int16_t *restrict b, const int16_t *restrict c,
                             const int16_t *restrict d, uint32_t *restrict sums, int64_t width) {
    for (int64_t i = 0; i < width; i++) {
        int16_t sum = (int16_t)((uint16_t)a[i] + (uint16_t)b[i] + (uint16_t)c[i] + (uint16_t)d[i]);
        sums[i] += (uint32_t)(int32_t)sum;
    }
}

static inline void add_row(const int16_t *restrict row, uint32_t *restrict sums, int64_t width) {
    for (int64_t i = 0; i < width; i++) sums[i] += (uint32_t)(int32_t)row[i];
}

/* floor((2·sum + n) / 2n): a half more in the numerator changes no floor, and keeps the quotient at least 1/4n away
   from whole numbers, which is more than its rounding: 2^-10 in float for n up to 128, 2^-38 in double for all.
   It is shifted to be positive, where cutting off is the floor. */
#define ROUNDED(NUMBER, SUM) \
    ((int32_t)(((NUMBER)(int32_t)(2 * (uint32_t)(SUM) + (uint32_t)n) + (NUMBER)0.5) * ((NUMBER)0.5 / (NUMBER)n) \
               + (NUMBER)(2 * LIMIT)) - 2 * LIMIT)
#define ROUND_MEANS(NUMBER) \
    for (int64_t i = 0; i < width; i++) means[i] = (int16_t)ROUNDED(NUMBER, sums[i]);

static inline void round_means(const uint32_t *restrict sums, int16_t *restrict means, int64_t width, int64_t n) {
    if (n <= 128) ROUND_MEANS(float) else ROUND_MEANS(double)
}

static void mean_of(const Rows *rows, int64_t first, int64_t last, uint32_t *sums, int16_t *means) {
    int64_t width = rows->width, at = first;
    memset(sums, 0, sizeof *sums * (size_t)width);
    for (; at + GROUP <= last; at += GROUP) {
        const int16_t *row[GROUP];
        for (int i = 0; i < GROUP; i++) row[i] = rows->table + rows->ids[at + i] * width;
        for (int64_t next = at + GROUP; next < last && next < at + 2 * GROUP; next++)
            for (int line = 0; line < LINES; line++) __builtin_prefetch(rows->table + rows->ids[next] * width + 32 * line);
        add_group(row[0], row[1], row[2], row[3], sums, width);
    }
    for (; at < last; at++) add_row(rows->table + rows->ids[at] * width, sums, width);
    round_means(sums, means, width, last - first);
}

/* The same of amplitude · count, cut off at ±LIMIT: counts that lead beyond it are first made smaller, so that nothing
   overflows, and how they round is of no matter. */
#define ROUND_COUNTS(NUMBER) \
    for (int64_t i = 0; i < width; i++) { \
        int32_t count = counts[i] < most ? counts[i] : most; \
        count = amplitude * (count > -most ? count : -most); \
        int32_t mean = ROUNDED(NUMBER, count); \
        mean = mean < LIMIT ? mean : LIMIT; \
        features[i] = (int16_t)(mean > -LIMIT ? mean : -LIMIT); \
    }

static void words_of(const Words *words, const int32_t *positions, int64_t n, int16_t *restrict features) {
    int32_t *counts = words->counts, amplitude = words->amplitude;
    int32_t most = amplitude ? (int32_t)((LIMIT + 1) * n / amplitude + 1) : 0;
    int64_t width = words->width;
    memset(counts, 0, sizeof *counts * (size_t)width);
    for (int64_t i = 0; i < n; i++)
        for (int64_t run = first_run(&words->runs, positions[i]); run < words->runs.stops[positions[i]]; run++)
            counts[bucket_of(words->runs.codes[run])] += (int32_t)sign_of(words->runs.codes[run]);
    if (n <= 128) ROUND_COUNTS(float) else ROUND_COUNTS(double)
}

/* Whether each of the windows' tokens has runs, and only of buckets that there are, and no window has so many that their
   counts would be beyond 31 bits. */
static int are_words(const Words *words, const int64_t *bounds, int64_t windows) {
    const Runs *runs = &words->runs;
    if (!are_stops(runs->stops, runs->tokens, runs->count)) return 0;
    for (int64_t window = 0; window < windows; window++) {
        int64_t left = INT32_MAX;
        for (int64_t i = bounds[window]; i < bounds[window + 1]; i++) {
            int32_t position = words->positions[i];
            if (position < 0 || position >= runs->tokens) return 0;
            int64_t first = first_run(runs, position), count = runs->stops[position] - first;
            if (count > left || !are_codes(runs->codes + first, count, words->width)) return 0;
            left -= count;
        }
    }
    return 1;
}

static int are_windows(const int64_t *bounds, int64_t windows, int64_t count) {
    if (bounds[0] < 0 || bounds[windows] > count) return 0;
    for (int64_t i = 0; i < windows; i++)
        if (bounds[i + 1] <= bounds[i] || bounds[i + 1] - bounds[i] > MAX_WINDOW) return 0;
    return 1;
}

static int are_ids(const int32_t *ids, int64_t count, int64_t rows) {
    int wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong |= ids[i] < 0 || ids[i] >= rows;
    return !wrong;
}

/* row_means(table, width, ids, bounds, means[, positions, codes, stops, words, amplitude]): buffers of int16, int32, int64
   and, to be filled, int16; then in int32 the places of the same tokens among those whose runs are given, in uint16 and
   int64, and how many buckets words add to each row of `means`. */
PyObject *row_means(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { TABLE, IDS, BOUNDS, MEANS, POSITIONS, CODES, STOPS, BUFFERS };
    PyObject *object[BUFFERS] = {NULL}, *done = NULL;
    Py_buffer view[BUFFERS];
    int held = 0;
    Py_ssize_t width, more = 0, amplitude = 0;
    uint32_t *sums = NULL;
    if (!PyArg_ParseTuple(args, "OnOOO|OOOnn", &object[TABLE], &width, &object[IDS], &object[BOUNDS], &object[MEANS],
                          &object[POSITIONS], &object[CODES], &object[STOPS], &more, &amplitude))
        return NULL;
    if (!hold_buffers(object, BUFFERS, MEANS, view, &held)) goto end;
    int64_t windows = view[BOUNDS].len / 8 - 1, count = view[IDS].len / 4, whole = width + more, rows = 0;
    int right = width > 0 && width < 1 << 24 && windows >= 0 && !(view[IDS].len % 4) && !(view[BOUNDS].len % 8);
    right = right && !(view[TABLE].len % (2 * width)) && (held == BUFFERS ? more > 0 : held == POSITIONS && !more);
    right = right && more <= BUCKETS_OF_CODES && amplitude >= 0 && amplitude <= LIMIT;
    right = right && view[MEANS].len / whole == 2 * windows && !(view[MEANS].len % whole);
    if (right) rows = view[TABLE].len / 2 / width;
    right = right && (!more || (view[POSITIONS].len == 4 * count && !(view[CODES].len % 2) && !(view[STOPS].len % 8)));
    if (right && !(sums = malloc(sizeof *sums * (size_t)whole))) { PyErr_NoMemory(); goto end; }
    Rows table = {view[TABLE].buf, view[IDS].buf, width};
    Words words = {.counts = (int32_t *)sums + (right ? width : 0), .width = more, .amplitude = (int32_t)amplitude};
    if (right && more) {
        words.runs = (Runs){view[CODES].buf, view[STOPS].buf, view[CODES].len / 2, view[STOPS].len / 8};
        words.positions = view[POSITIONS].buf;
    }
    Py_BEGIN_ALLOW_THREADS
    const int64_t *bounds = view[BOUNDS].buf;
    right = right && are_windows(bounds, windows, count) && are_ids(table.ids, count, rows);
    right = right && (!more || are_words(&words, bounds, windows));
    int16_t *means = view[MEANS].buf;
    for (int64_t i = 0; right && i < windows; i++)
        mean_of(&table, bounds[i], bounds[i + 1], sums, means + i * whole);
    for (int64_t i = 0; right && more && i < windows; i++)  /* apart, for rows of the table push the runs out of the cache */
        words_of(&words, words.positions + bounds[i], bounds[i + 1] - bounds[i], means + i * whole + width);
    Py_END_ALLOW_THREADS
    if (right) done = Py_NewRef(Py_None);
    else PyErr_Format(PyExc_ValueError, "the windows, the ids and the table do not fit together");
end:
    free(sums);
    release_buffers(view, held);
    return done;
}
