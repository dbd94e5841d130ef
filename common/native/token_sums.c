/* The rows of a router's table added up over the tokens of each text, and over the runs of letters in its words: what
   token_table.py and word_table.py do with numpy, without its overhead.

   Safety. Every id, count, length and place of a letter is checked before anything is read by it. Sums are taken in
   unsigned numbers, which wrap; with rows of 32 bits that takes 2^32 tokens, more than a text can have. Runs of letters
   are counted in 32 bits; a text of more than MAX_LETTERS letters is refused, since it could have more of a kind.

   Threads. Nothing is kept between calls, and the interpreter's lock is free while rows are added. */
#include "native.h"
#include "word_grams.h"

#define MAX_LETTERS ((int64_t)1 << 27)    /* each ends at most eight runs, so that counts stay below 2^31 */
#define MAX_BUCKETS (1 << 24)
#define BEGINS_APART 1                    /* no word goes on from the token before */
#define ENDS_APART 2                      /* no word goes on into the token behind */
#define LANES 4                           /* columns that are added up together */

typedef enum { FITS, WRONG, TOO_LONG } Verdict;
typedef struct { const int32_t *rows; int64_t height, width; } Table;
/* What words say; without them, `buckets` has no rows. `alone` has, if it is there, the row of each token with its own
   letters' rows added as if it stood alone, and `borders` where words end at its borders. `counted` has room for a row of
   each bucket. */
typedef struct {
    Table buckets;
    Spelling spelling;
    int64_t letters;
    Sketch sketch;
    const int32_t *alone, **counted;
    const uint8_t *borders;
} Words;

static inline void add_row(const int32_t *restrict row, uint64_t *restrict sums, int64_t width) {
    for (int64_t column = 0; column < width; column++) sums[column] += (uint64_t)(int64_t)row[column];
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

/* Adds the rows of what was counted, and empties the sketch. */
static void add_counted(const Words *words, uint64_t *sums) {
    uint32_t *counts = words->sketch.counts;
    const int32_t *row = words->buckets.rows, **rows = words->counted;
    int64_t kept = 0, first = 0;
    for (int64_t i = 0; i < words->buckets.height; i++) {      /* without a branch: what was counted is as good as random */
        uint32_t times = counts[i];
        rows[kept] = row;
        counts[kept] = times;
        kept += times != 0;
        row += words->buckets.width;
    }
    for (; first + LANES <= words->buckets.width; first += LANES) add_columns(rows, counts, kept, first, LANES, sums);
    for (; first < words->buckets.width; first++) add_columns(rows, counts, kept, first, 1, sums);
    memset(counts, 0, sizeof *counts * (size_t)words->buckets.height);
}

/* Adds the rows of a text's tokens, and of the runs of letters in its words. Where rows of tokens that stand alone are
   known, those that share no word with their neighbours add theirs, and only the others are spelt out. */
static Py_ALWAYS_INLINE inline Verdict add_sizes(const Table *table, const Words *words, const int32_t *ids, int64_t count,
                                                 uint64_t *sums, const int shortest, const int longest) {
    const Spelling spelling = words->spelling;        /* copies, which no count that is written can change */
    const Sketch sketch = words->sketch;
    const uint8_t *borders = words->borders;
    int64_t letters = 0;
    int begins_apart = 1, ends_apart;
    Run run = {{0}, 0};
    for (int64_t i = 0; i < count; i++, begins_apart = ends_apart) {
        int32_t id = ids[i];
        ends_apart = i + 1 == count || (borders && (borders[id] & ENDS_APART || borders[ids[i + 1]] & BEGINS_APART));
        int alone = borders && begins_apart && ends_apart;
        add_row((alone ? words->alone : table->rows) + id * table->width, sums, table->width);
        if (alone) continue;
        int64_t start = spelling.starts[id], end = spelling.starts[id + 1];
        if (start < 0 || end < start || end > words->letters) return WRONG;
        if ((letters += end - start) > MAX_LETTERS) return TOO_LONG;
        count_token(&sketch, &run, &spelling, id, shortest, longest);
        if (ends_apart) end_word(&sketch, &run, shortest, longest);
    }
    if (letters) add_counted(words, sums);
    return FITS;
}

static Verdict add_text(const Table *table, const Words *words, const int32_t *ids, int64_t count, uint64_t *sums) {
    int wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong |= ids[i] < 0 || ids[i] >= table->height;
    if (wrong) return WRONG;
    if (words->buckets.height && has_usual_sizes(&words->sketch))
        return add_sizes(table, words, ids, count, sums, USUAL_SIZES);
    if (words->buckets.height)
        return add_sizes(table, words, ids, count, sums, words->sketch.shortest, words->sketch.longest);
    for (int64_t i = 0; i < count; i++) add_row(table->rows + ids[i] * table->width, sums, table->width);
    return FITS;
}

static Verdict add_texts(const Table *table, const Words *words, const int32_t *ids, int64_t left,
                         const int64_t *counts, int64_t texts, uint64_t *sums) {
    for (int64_t i = 0; i < texts; i++, sums += table->width) {
        if (counts[i] < 0 || counts[i] > left) return WRONG;
        Verdict verdict = add_text(table, words, ids, counts[i], sums);
        if (verdict != FITS) return verdict;
        ids += counts[i];
        left -= counts[i];
    }
    return left ? WRONG : FITS;
}

/* token_sums(ids, counts, table, width[, buckets, letters, starts, shortest, longest[, alone, borders]]) -> a bytearray of
   int64, the sums of each text: of buffers of int32, int64 and int32, then of int32, bytes and int64, then of int32 and
   bytes. */
PyObject *token_sums(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { IDS, COUNTS, TABLE, BUCKETS, LETTERS, STARTS, ALONE, BORDERS, BUFFERS };
    PyObject *object[BUFFERS] = {NULL}, *made = NULL;
    Py_buffer view[BUFFERS] = {{0}};
    Py_ssize_t width, shortest = 0, longest = 0;
    int held = 0;
    Words words = {0};
    Verdict verdict = WRONG;
    if (!PyArg_ParseTuple(args, "OOOn|OOOnnOO", &object[IDS], &object[COUNTS], &object[TABLE], &width, &object[BUCKETS],
                          &object[LETTERS], &object[STARTS], &shortest, &longest, &object[ALONE], &object[BORDERS]))
        return NULL;
    if (!hold_buffers(object, BUFFERS, BUFFERS, view, &held)) goto end;
    int right = width > 0 && width < 1 << 24 && !(view[TABLE].len % (4 * width)) && !(view[IDS].len % 4);
    right = right && !(view[COUNTS].len % 8) && (held == BUCKETS || held == ALONE || held == BUFFERS);
    int64_t height = right ? view[TABLE].len / 4 / width : 0, texts = view[COUNTS].len / 8;
    right = right && height <= INT32_MAX;
    if (right && held > BUCKETS) {
        int64_t buckets = view[BUCKETS].len / 4 / width;
        right = buckets && buckets <= MAX_BUCKETS && view[BUCKETS].len == 4 * width * buckets;
        right = right && view[STARTS].len == 8 * (height + 1) && are_sizes(shortest, longest);
        right = right && (held == ALONE || (view[ALONE].len == view[TABLE].len && view[BORDERS].len == height));
        if (right && !(words.counted = calloc((size_t)buckets, sizeof *words.counted + sizeof(uint32_t)))) goto no_memory;
        words.buckets = (Table){view[BUCKETS].buf, buckets, width};
        words.spelling = (Spelling){view[LETTERS].buf, view[STARTS].buf};
        words.letters = view[LETTERS].len;
        words.sketch = (Sketch){(uint32_t *)(words.counted + buckets), (uint32_t)buckets, (int)shortest, (int)longest};
        words.alone = view[ALONE].buf;
        words.borders = view[BORDERS].buf;
    }
    made = PyByteArray_FromStringAndSize(NULL, right ? (Py_ssize_t)(8 * texts * width) : 0);
    if (!made) goto no_memory;
    uint64_t *sums = (uint64_t *)PyByteArray_AsString(made);
    Py_BEGIN_ALLOW_THREADS
    if (right) {
        Table table = {view[TABLE].buf, height, width};
        memset(sums, 0, (size_t)(8 * texts * width));
        verdict = add_texts(&table, &words, view[IDS].buf, view[IDS].len / 4, view[COUNTS].buf, texts, sums);
    }
    Py_END_ALLOW_THREADS
    if (verdict != FITS) Py_CLEAR(made);
    if (verdict == WRONG) PyErr_Format(PyExc_ValueError, "the ids, the counts and the table do not fit together");
    if (verdict == TOO_LONG) PyErr_Format(PyExc_OverflowError, "a text has more letters than can be counted");
    goto end;
no_memory:
    PyErr_NoMemory();
end:
    free(words.counted);
    release_buffers(view, held);
    return made;
}
