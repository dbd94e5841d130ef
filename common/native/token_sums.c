/* The rows of a router's table added up over the tokens of each text, and over the runs of letters in its words: what
   token_table.py does with numpy, without its overhead.

   Tokens and runs each count for themselves. Many runs of a text are counted by their buckets first: then each bucket's row
   is read once, however often it stands in the text.

   Safety. Every id, count, stop and bucket is checked before anything is read by it. Sums are taken in unsigned numbers of
   64 bits, which wrap; those of a few tokens, at most PART, fit into 32. Runs are counted PART_OF_RUNS at a time, so that no
   count is beyond 31 bits.

   Threads. Nothing is kept between calls, and the interpreter's lock is free while rows are added. */
#include "native.h"
#include "runs.h"

#define PART (1 << 15)           /* rows of 16 bits that are added up in 32 */
#define PART_OF_RUNS ((int64_t)1 << 30)
#define LANES 4                  /* columns that are added up together */
#define FEW_RUNS 8               /* fewer runs than one for so many buckets are not counted first */
#define MAX_SHIFT 16

typedef struct { const int16_t *rows; int64_t height, width; uint32_t *part; } Table;
/* What runs say. `counts` and `counted` have room for each bucket. */
typedef struct { const int32_t *rows, **counted; uint32_t *counts; int64_t height, width; Runs runs; } Buckets;

static inline void add_row(const int16_t *restrict row, uint32_t *restrict sums, int64_t width) {
    for (int64_t column = 0; column < width; column++) sums[column] += (uint32_t)(int32_t)row[column];
}

/* Adds the rows of tokens. */
static void add_tokens(const Table *table, const int32_t *ids, int64_t count, uint64_t *restrict sums) {
    for (int64_t first = 0; first < count; first += PART) {
        int64_t last = count - first < PART ? count : first + PART;
        memset(table->part, 0, sizeof *table->part * (size_t)table->width);
        for (int64_t i = first; i < last; i++) add_row(table->rows + ids[i] * table->width, table->part, table->width);
        for (int64_t column = 0; column < table->width; column++) sums[column] += (uint64_t)(int64_t)(int32_t)table->part[column];
    }
}

/* Adds `lanes` columns of rows, each as often as `times` says; their sums stay in registers. */
static inline void add_columns(const int32_t *const *rows, const uint32_t *times, int64_t count, int64_t first,
                               const int lanes, uint64_t *restrict sums) {
    uint64_t held[LANES] = {0};
    for (int64_t i = 0; i < count; i++)
        for (int lane = 0; lane < lanes; lane++)
            held[lane] += (uint64_t)((int64_t)(int32_t)times[i] * rows[i][first + lane]);
    for (int lane = 0; lane < lanes; lane++) sums[first + lane] += held[lane];
}

/* Counts runs by their buckets, then adds the rows of what was counted, and empties the counts. */
static void add_counted(const Buckets *buckets, const uint16_t *codes, int64_t runs, uint64_t *sums) {
    uint32_t *counts = buckets->counts;
    const int32_t *row = buckets->rows, **rows = buckets->counted;
    int64_t kept = 0, first = 0;
    for (int64_t i = 0; i < runs; i++) counts[bucket_of(codes[i])] += sign_of(codes[i]);
    for (int64_t i = 0; i < buckets->height; i++) {            /* without a branch: what was counted is as good as random */
        uint32_t times = counts[i];
        rows[kept] = row;
        counts[kept] = times;
        kept += times != 0;
        row += buckets->width;
    }
    for (; first + LANES <= buckets->width; first += LANES) add_columns(rows, counts, kept, first, LANES, sums);
    for (; first < buckets->width; first++) add_columns(rows, counts, kept, first, 1, sums);
    memset(counts, 0, sizeof *counts * (size_t)buckets->height);
}

/* Adds the row of each run by itself. */
static void add_each(const Buckets *buckets, const uint16_t *codes, int64_t runs, uint64_t *restrict sums) {
    for (int64_t i = 0; i < runs; i++) {
        const int32_t *row = buckets->rows + bucket_of(codes[i]) * buckets->width;
        int64_t sign = codes[i] & 1 ? 1 : -1;
        for (int64_t column = 0; column < buckets->width; column++) sums[column] += (uint64_t)(sign * row[column]);
    }
}

static void add_runs(const Buckets *buckets, const uint16_t *codes, int64_t runs, uint64_t *sums) {
    for (int64_t now; runs; runs -= now, codes += now) {
        now = runs < PART_OF_RUNS ? runs : PART_OF_RUNS;
        if (now < buckets->height / FEW_RUNS) add_each(buckets, codes, now, sums);
        else add_counted(buckets, codes, now, sums);
    }
}

static void add_texts(const Table *table, const Buckets *buckets, const int32_t *ids, const int64_t *counts, int64_t texts,
                      const uint8_t *shifts, uint64_t *sums) {
    for (int64_t text = 0, token = 0; text < texts; token += counts[text++], sums += table->width) {
        if (table->height) add_tokens(table, ids + token, counts[text], sums);
        if (buckets->counted && counts[text]) {
            int64_t first = first_run(&buckets->runs, token);
            int64_t last = buckets->runs.stops[token + counts[text] - 1];
            add_runs(buckets, buckets->runs.codes + first, last - first, sums);
        }
        for (int64_t column = 0; column < table->width; column++) sums[column] <<= shifts[column];
    }
}

static int are_tokens(const Table *table, const int32_t *ids, int64_t tokens, const int64_t *counts, int64_t texts) {
    int wrong = 0;
    int64_t left = tokens;
    for (int64_t i = 0; i < texts; i++) {
        if (counts[i] < 0 || counts[i] > left) return 0;
        left -= counts[i];
    }
    for (int64_t i = 0; table->height && i < tokens; i++) wrong |= ids[i] < 0 || ids[i] >= table->height;
    return !left && !wrong;
}

static int are_shifts(const uint8_t *shifts, int64_t count) {
    int wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong |= shifts[i] > MAX_SHIFT;
    return !wrong;
}

static int are_buckets(const Buckets *buckets) {
    const Runs *runs = &buckets->runs;
    return are_stops(runs->stops, runs->tokens, runs->count) && are_codes(runs->codes, runs->count, buckets->height);
}

/* token_sums(ids, counts, table, width, shifts[, buckets, codes, stops]) -> a bytearray of int64, a row for each text: the
   sum of its tokens' rows and of its runs' buckets, with their signs, shifted to the left. Of buffers of int32, int64, int16
   and uint8, then of int32, uint16 and int64, the stops of each id's runs. A table without rows says nothing of ids. */
PyObject *token_sums(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { IDS, COUNTS, TABLE, SHIFTS, ROWS, CODES, STOPS, BUFFERS };
    PyObject *object[BUFFERS] = {NULL}, *made = NULL;
    Py_buffer view[BUFFERS];
    int held = 0;
    Py_ssize_t width;
    Table table = {0};
    Buckets buckets = {0};
    if (!PyArg_ParseTuple(args, "OOOnO|OOO", &object[IDS], &object[COUNTS], &object[TABLE], &width, &object[SHIFTS],
                          &object[ROWS], &object[CODES], &object[STOPS]))
        return NULL;
    if (!hold_buffers(object, BUFFERS, BUFFERS, view, &held)) goto end;
    int right = width > 0 && width < 1 << 24 && !(view[TABLE].len % (2 * width)) && view[SHIFTS].len == width;
    right = right && !(view[IDS].len % 4) && !(view[COUNTS].len % 8) && (held == ROWS || held == BUFFERS);
    int64_t tokens = view[IDS].len / 4, texts = view[COUNTS].len / 8, height = right ? view[TABLE].len / 2 / width : 0;
    right = right && height <= INT32_MAX && texts <= INT64_MAX / 8 / width;
    if (right && held == BUFFERS) {
        right = !(view[ROWS].len % (4 * width)) && !(view[CODES].len % 2) && view[STOPS].len == 8 * tokens;
        int64_t rows = view[ROWS].len / 4 / width;
        right = right && rows <= BUCKETS_OF_CODES;
        if (right && !(buckets.counted = calloc((size_t)rows + 1, sizeof *buckets.counted + sizeof *buckets.counts)))
            goto no_memory;
        buckets.rows = view[ROWS].buf;
        buckets.counts = (uint32_t *)(buckets.counted + (right ? rows + 1 : 0));
        buckets.height = rows;
        buckets.width = width;
        buckets.runs = (Runs){view[CODES].buf, view[STOPS].buf, view[CODES].len / 2, tokens};
    }
    if (right) table = (Table){view[TABLE].buf, height, width, malloc(sizeof *table.part * (size_t)width)};
    if (right && !table.part) goto no_memory;
    made = PyByteArray_FromStringAndSize(NULL, right ? (Py_ssize_t)(8 * texts * width) : 0);
    if (!made) goto end;
    uint64_t *sums = (uint64_t *)PyByteArray_AsString(made);
    Py_BEGIN_ALLOW_THREADS
    right = right && are_tokens(&table, view[IDS].buf, tokens, view[COUNTS].buf, texts) && are_shifts(view[SHIFTS].buf, width);
    right = right && (!buckets.counted || are_buckets(&buckets));
    if (right) {
        memset(sums, 0, (size_t)(8 * texts * width));
        add_texts(&table, &buckets, view[IDS].buf, view[COUNTS].buf, texts, view[SHIFTS].buf, sums);
    }
    Py_END_ALLOW_THREADS
    if (!right) {
        Py_CLEAR(made);
        PyErr_Format(PyExc_ValueError, "the ids, the counts and the table do not fit together");
    }
    goto end;
no_memory:
    PyErr_NoMemory();
end:
    free(table.part);
    free(buckets.counted);
    release_buffers(view, held);
    return made;
}
