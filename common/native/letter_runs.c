/* The runs of one, two and three letters in texts, as buckets of a sketch: what word_sketch.py does with numpy, faster.

   A text is its code points in lower case. A blank or another control character is a border, except for line breaks, and
   there is one before the text and one behind it. Borders begin and end runs; none stands within a run, and borders alone
   are no run. So a letter ends a run of one, a run of two, and one of three if no border stands before it; a border behind
   a letter ends a run of two and one of three.

   The key of a run of n symbols is ((n·M + s1)·M + ...)·M + sn, modulo 2^64, where a border is the symbol 2. What is hashed
   is the key times M, so its terms are kept with each symbol: s·M, s·M² and s·M³.

   Safety. `stops` and `counts` are checked before anything is read by them. Bytes are read within the text; one that begins
   no valid character there is read as U+FFFD, so every code point is within the table of lower letters. A byte ends at most
   three runs and a text two more, and there is room for as many codes.

   Threads. Nothing is kept between calls, and the interpreter's lock is free while letters are read. */
#include "native.h"
#include "runs.h"

#define M 0x9E3779B97F4A7C15u
#define M2 (M * M)
#define M3 (M2 * M)
#define LAST_MULTIPLIER 0xD6E8FEB86659FD93u
#define CODE_POINTS 0x110000
#define BORDER 2
#define REPLACEMENT 0xFFFD
#define MAX_LETTERS ((int64_t)1 << 40)
#define MAX_WIDTH (BUCKETS_OF_CODES >> 1)
#define SLACK 2                  /* codes that are written behind the last one, and do not count */

typedef struct { uint64_t times_m, times_m2, times_m3; int is_letter; } Symbol;
typedef struct { uint32_t code_point, size; } Read;
/* The last two symbols of a text, and where the next code goes. */
typedef struct { Symbol last, before; uint16_t *out; uint32_t width; } State;

static inline Symbol symbol_of(uint32_t letter) {
    int is_letter = (letter > ' ') | (letter == '\n');
    uint64_t number = is_letter ? letter : BORDER;
    return (Symbol){number * M, number * M2, number * M3, is_letter};
}

static inline uint16_t code_of(uint64_t hash, uint32_t width) {
    hash = (hash ^ hash >> 32) * LAST_MULTIPLIER;
    uint32_t high = (uint32_t)(hash >> 32);
    return (uint16_t)(((uint64_t)high * width >> 32) << 1 | (((uint32_t)hash ^ high) & 1));
}

/* Takes in the next symbol, and writes the runs that end in it. Each code is written, and stays if its run counts: without
   a branch, since words end as good as anywhere. */
static inline void add_symbol(State *state, Symbol next) {
    const Symbol last = state->last, before = state->before;
    uint16_t *out = state->out;
    *out = code_of(M2 + next.times_m, state->width);
    out += next.is_letter;
    *out = code_of(2 * (uint64_t)M3 + last.times_m2 + next.times_m, state->width);
    out += next.is_letter | last.is_letter;
    *out = code_of(3 * (uint64_t)(M3 * M) + before.times_m3 + last.times_m2 + next.times_m, state->width);
    out += last.is_letter;
    *state = (State){next, last, out, state->width};
}

static inline int continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* The character at this place, of which so many bytes are left; one byte and U+FFFD if none is valid. */
static inline Read read_wide(const uint8_t *at, int64_t left) {
    const Read wrong = {REPLACEMENT, 1};
    uint32_t size = *at < 0xC2 ? 1 : *at < 0xE0 ? 2 : *at < 0xF0 ? 3 : *at < 0xF5 ? 4 : 1;
    if (size == 1 || size > left) return wrong;
    uint32_t code_point = *at & (0x7F >> size);
    for (uint32_t i = 1; i < size; i++) {
        if (!continues(at[i])) return wrong;
        code_point = code_point << 6 | (at[i] & 0x3F);
    }
    int too_small = code_point < (size == 3 ? 0x800u : size == 4 ? 0x10000u : 0x80u);
    int is_surrogate = code_point >> 11 == 0xD800 >> 11;
    return too_small || is_surrogate || code_point >= CODE_POINTS ? wrong : (Read){code_point, size};
}

/* The runs of one text, whose letters go from `start` on, and where those of its tokens end. */
static uint16_t *read_text(const uint8_t *letters, int64_t start, const int64_t *stops, int64_t tokens, const uint32_t *lower,
                           uint32_t width, uint16_t *first, uint16_t *out, int64_t *run_stops) {
    const Symbol border = symbol_of(BORDER);
    State state = {border, border, out, width};
    int64_t token = 0, at = start, end = tokens ? stops[tokens - 1] : start;
    while (at < end) {
        Read read = letters[at] < 0x80 ? (Read){letters[at], 1} : read_wide(letters + at, end - at);
        at += read.size;
        for (; stops[token] < at; token++) run_stops[token] = state.out - first;
        add_symbol(&state, symbol_of(lower[read.code_point]));
    }
    for (; token + 1 < tokens; token++) run_stops[token] = state.out - first;
    add_symbol(&state, border);
    if (tokens) run_stops[tokens - 1] = state.out - first;
    return state.out;
}

static int are_counts(const int64_t *counts, int64_t texts, int64_t tokens) {
    for (int64_t i = 0; i < texts; i++) {
        if (counts[i] < 0 || counts[i] > tokens) return 0;
        tokens -= counts[i];
    }
    return !tokens;
}

/* letter_runs(letters, stops, counts, lower, width) -> (bytearray of uint16 codes, bytearray of int64 stops): of UTF-8,
   where in it the letters of each token end, in int64, how many tokens each text has, in int64, what each code point becomes
   in lower case, in uint32, and how many buckets there are. */
PyObject *letter_runs(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { LETTERS, STOPS, COUNTS, LOWER, BUFFERS };
    PyObject *object[BUFFERS], *codes = NULL, *run_stops = NULL, *made = NULL;
    Py_buffer view[BUFFERS];
    int held = 0;
    Py_ssize_t width;
    if (!PyArg_ParseTuple(args, "OOOOn", &object[LETTERS], &object[STOPS], &object[COUNTS], &object[LOWER], &width)) return NULL;
    if (!hold_buffers(object, BUFFERS, BUFFERS, view, &held)) goto end;
    const int64_t *stops = view[STOPS].buf, *counts = view[COUNTS].buf;
    int64_t tokens = view[STOPS].len / 8, texts = view[COUNTS].len / 8;
    int right = !(view[STOPS].len % 8) && !(view[COUNTS].len % 8) && view[LOWER].len == 4 * CODE_POINTS;
    right = right && view[LETTERS].len <= MAX_LETTERS && width > 0 && width <= MAX_WIDTH;
    right = right && are_stops(stops, tokens, view[LETTERS].len) && are_counts(counts, texts, tokens);
    if (!right) {
        PyErr_Format(PyExc_ValueError, "the letters, the tokens and the texts do not fit together");
        goto end;
    }
    int64_t read = tokens ? stops[tokens - 1] : 0, room = 3 * read + 2 * texts + SLACK, count = 0;
    codes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(room * 2));
    run_stops = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(tokens * 8));
    if (!codes || !run_stops) goto end;
    uint16_t *first = (uint16_t *)PyByteArray_AsString(codes), *out = first;
    int64_t *stops_out = (int64_t *)PyByteArray_AsString(run_stops);
    Py_BEGIN_ALLOW_THREADS
    for (int64_t text = 0, token = 0; text < texts; token += counts[text++])
        out = read_text(view[LETTERS].buf, token ? stops[token - 1] : 0, stops + token, counts[text], view[LOWER].buf,
                        (uint32_t)width, first, out, stops_out + token);
    count = out - first;
    Py_END_ALLOW_THREADS
    if (!PyByteArray_Resize(codes, (Py_ssize_t)(2 * count))) made = PyTuple_Pack(2, codes, run_stops);
end:
    Py_XDECREF(codes);
    Py_XDECREF(run_stops);
    release_buffers(view, held);
    return made;
}
