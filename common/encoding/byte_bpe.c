/* Byte-level BPE: text -> token ids, the very ids that the tokenizers library gives, for the patterns named below.

   A text is cut at added tokens, each piece into words by a pattern that is written out by hand, and each word's bytes
   are merged by rank. Words that were met before are taken from a cache.

   Safety. Texts come as Python strings, so their UTF-8 is valid, and all reads stay within it. A word of n bytes has at
   most n ids, so `ROOM` ids beyond one for each byte are enough for everything that is written. Every allocation is
   checked. The cache has a fixed size, compares whole words, and forgets: texts made to collide in it cost time (one
   merging per word, O(n log n) in the word's length), never a wrong id. The tables of merges and words hold what the
   tokenizer's definition says and are not touched by texts.

   Threads. A model never changes once made. Each call takes a cache from its encoder's list while it holds the
   interpreter's lock, and puts it back when it holds the lock again: no two calls share one. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8; typedef uint32_t u32; typedef uint64_t u64; typedef int32_t i32;

enum { OTHER, LETTER, NUMBER, SPACE };                 /* classes of code points */
enum { GPT2, GPT2_DIGITS, CL100K, QWEN2, PATTERNS };   /* how texts are cut into words */
#define NONE UINT32_MAX
#define NO_PAIR UINT64_MAX
#define CODE_POINTS 0x110000
#define MAX_BYTES (1 << 30)      /* of a text, so that places in it fit 31 bits */
#define FEW 24                   /* symbols for which a heap takes longer than looking at all of them */
#define CACHE_BITS 15            /* the cache has 2^15 places, for words of up to so many bytes and ids: */
#define CACHED_BYTES 31
#define CACHED_IDS 7
#define ROOM (CACHED_IDS - 1)    /* ids that may be written beyond one for each byte */

typedef struct { u64 pair; u32 rank, id; } Merge;
typedef struct { u32 start, size, id; } Entry;         /* a token's bytes in a row of bytes; NONE: it leaves no id */
typedef struct { u64 key[4]; u32 count, ids[CACHED_IDS]; } Met;  /* key: the bytes, zeros behind them, and the size */

typedef struct {
    int pattern;
    u8 *classes;                 /* a class for each code point */
    i32 byte_ids[256];           /* -1: the vocabulary lacks the byte, and it is left out */
    Merge *merges; u64 merge_mask;
    u8 *word_bytes; Entry *words; u64 word_mask;       /* words that are tokens as they are, before any merging */
    u8 *added_bytes; Entry *added; u64 added_count;
    u8 begins_added[256]; int only_first;              /* the one byte that all added tokens begin with, or -1 */
} Model;

typedef struct Cache {
    struct Cache *next;
    Met *met;
    u32 *symbols, *ranks; i32 *after, *before; u64 capacity;
    u64 *heap; u64 heap_size, heap_capacity;
    int failed;                  /* memory ran out; what was written is not to be used */
} Cache;

static inline u64 mix(u64 a, u64 b) {
    u64 hash = ((a ^ 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u) ^ ((b + 0x94D049BB133111EBu) * 0xD6E8FEB86659FD93u);
    return (hash ^ hash >> 32) * 0x9E3779B97F4A7C15u;
}

static u64 hash_bytes(const u8 *bytes, u64 size) {
    u64 hash = size;
    for (u64 i = 0; i < size; i += 8) {
        u64 part = 0;
        memcpy(&part, bytes + i, size - i < 8 ? size - i : 8);
        hash = mix(hash, part);
    }
    return hash;
}

/* Merging */
static inline const Merge *find_merge(const Model *model, u32 left, u32 right) {
    u64 pair = (u64)left << 32 | right;
    for (u64 at = mix(pair, 0) >> 20 & model->merge_mask;; at = (at + 1) & model->merge_mask) {
        if (model->merges[at].pair == pair) return &model->merges[at];
        if (model->merges[at].pair == NO_PAIR) return NULL;
    }
}

static inline u32 rank_of(const Model *model, u32 left, u32 right) {
    const Merge *merge = find_merge(model, left, right);
    return merge ? merge->rank : NONE;
}

static int grow(void **array, u64 count, u64 size) {
    void *grown = realloc(*array, count * size);
    if (!grown) return 0;
    *array = grown;
    return 1;
}

static int reserve(Cache *cache, u64 symbols) {
    if (symbols <= cache->capacity) return 1;
    u64 capacity = 2 * symbols + 64;
    if (!grow((void **)&cache->symbols, capacity, 4) || !grow((void **)&cache->ranks, capacity, 4) ||
        !grow((void **)&cache->after, capacity, 4) || !grow((void **)&cache->before, capacity, 4)) return 0;
    cache->capacity = capacity;
    return 1;
}

static void push(Cache *cache, u32 rank, u32 place) {
    if (cache->heap_size == cache->heap_capacity) {
        u64 capacity = 2 * cache->heap_capacity + 1024;
        if (!grow((void **)&cache->heap, capacity, sizeof(u64))) { cache->failed = 1; return; }
        cache->heap_capacity = capacity;
    }
    u64 value = (u64)rank << 32 | place, at = cache->heap_size++, *heap = cache->heap;
    for (; at && heap[(at - 1) / 2] > value; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = value;
}

static u64 pop(Cache *cache) {
    u64 *heap = cache->heap, top = heap[0], value = heap[--cache->heap_size], at = 0, child;
    for (; (child = 2 * at + 1) < cache->heap_size; at = child) {
        if (child + 1 < cache->heap_size && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
    return top;
}

/* Merge a few symbols by rank, then place: of the pairs that are left, each time the first of the lowest rank. */
static u32 merge_few(const Model *model, u32 *symbols, u32 *ranks, u32 count) {
    for (u32 i = 0; i < count; i++) ranks[i] = i + 1 < count ? rank_of(model, symbols[i], symbols[i + 1]) : NONE;
    for (;;) {
        u32 best = 0;
        for (u32 i = 1; i < count; i++) best = ranks[i] < ranks[best] ? i : best;
        if (!count || ranks[best] == NONE) return count;
        symbols[best] = find_merge(model, symbols[best], symbols[best + 1])->id;
        count--;
        for (u32 i = best + 1; i < count; i++) { symbols[i] = symbols[i + 1]; ranks[i] = ranks[i + 1]; }
        if (best) ranks[best - 1] = rank_of(model, symbols[best - 1], symbols[best]);
        ranks[best] = best + 1 < count ? rank_of(model, symbols[best], symbols[best + 1]) : NONE;
    }
}

/* Merge symbols by rank, then place: a heap, in which entries about pairs that are gone are passed over. */
static u32 merge_symbols(const Model *model, Cache *cache, u32 count) {
    u32 *symbols = cache->symbols, *ranks = cache->ranks;
    i32 *after = cache->after, *before = cache->before;
    cache->heap_size = 0;
    for (u32 i = 0; i < count; i++) {
        after[i] = i + 1 < count ? (i32)i + 1 : -1;
        before[i] = (i32)i - 1;
        ranks[i] = i + 1 < count ? rank_of(model, symbols[i], symbols[i + 1]) : NONE;
        if (ranks[i] != NONE) push(cache, ranks[i], i);
    }
    while (cache->heap_size && !cache->failed) {
        u64 top = pop(cache);
        u32 at = (u32)top;
        if (ranks[at] != top >> 32) continue;
        i32 gone = after[at], next = after[gone], last = before[at];
        symbols[at] = find_merge(model, symbols[at], symbols[gone])->id;
        ranks[gone] = NONE;
        after[at] = next;
        if (next >= 0) before[next] = (i32)at;
        ranks[at] = next >= 0 ? rank_of(model, symbols[at], symbols[next]) : NONE;
        if (ranks[at] != NONE) push(cache, ranks[at], at);
        if (last < 0) continue;
        ranks[last] = rank_of(model, symbols[last], symbols[at]);
        if (ranks[last] != NONE) push(cache, ranks[last], (u32)last);
    }
    u32 kept = 0;
    for (i32 i = 0; i >= 0; i = after[i]) symbols[kept++] = symbols[i];
    return kept;
}

/* The ids of one word, in cache->symbols; returns how many. */
static u32 merge_word(const Model *model, Cache *cache, const u8 *word, u64 size) {
    if (!reserve(cache, size)) { cache->failed = 1; return 0; }
    u32 count = 0;
    for (u64 at = hash_bytes(word, size) >> 20 & model->word_mask; model->words[at].size;
         at = (at + 1) & model->word_mask) {
        const Entry *known = &model->words[at];
        if (known->size != size || memcmp(model->word_bytes + known->start, word, size)) continue;
        cache->symbols[0] = known->id;
        return 1;
    }
    for (u64 i = 0; i < size; i++)
        if (model->byte_ids[word[i]] >= 0) cache->symbols[count++] = (u32)model->byte_ids[word[i]];
    if (count <= FEW) return merge_few(model, cache->symbols, cache->ranks, count);
    return merge_symbols(model, cache, count);
}

/* Cutting into words */
/* The character at `at`, whose size in bytes goes to *size. */
static inline u32 code_at(const u8 *at, u32 *size) {
    u32 lead = *at;
    if (lead < 0x80) { *size = 1; return lead; }
    if (lead < 0xE0) { *size = 2; return (lead & 31) << 6 | (at[1] & 63); }
    if (lead < 0xF0) { *size = 3; return (lead & 15) << 12 | (at[1] & 63) << 6 | (at[2] & 63); }
    *size = 4;
    return (lead & 7) << 18 | (at[1] & 63) << 12 | (at[2] & 63) << 6 | (at[3] & 63);
}

static inline u32 class_of(const Model *model, const u8 *at, u32 *size) { return model->classes[code_at(at, size)]; }

static inline const u8 *end_of_run(const Model *model, const u8 *at, const u8 *end, u32 class) {
    u32 size;
    while (at < end && class_of(model, at, &size) == class) at += size;
    return at;
}

/* The size of 's 't 're 've 'm 'll 'd at an apostrophe, or 0; where case is folded, the long s is an s. */
static inline u32 contraction(const u8 *at, const u8 *end, int folds) {
    if (end - at < 2) return 0;
    u8 first = at[1], second = end - at > 2 ? at[2] : 0;
    if (folds) {
        if (first == 0xC5 && second == 0xBF) return 3;
        if (first >= 'A' && first <= 'Z') first |= 32;
        if (second >= 'A' && second <= 'Z') second |= 32;
    }
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    return ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+ : all spaces but the last, if something follows; where digits stand alone, none is kept for them. */
static inline const u8 *end_of_spaces(const Model *model, const u8 *start, const u8 *end, int digits) {
    const u8 *at = start, *last = start;
    u32 size, class = SPACE;
    while (at < end && (class = class_of(model, at, &size)) == SPACE) last = at, at += size;
    return at == end || (digits && class == NUMBER) || last == start ? at : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
   and with digits, each number stands alone, before all else */
static inline const u8 *gpt2_word(const Model *model, const u8 *at, const u8 *end, int digits) {
    u32 size, next_size, class = class_of(model, at, &size), short_form;
    if (class == LETTER) return end_of_run(model, at + size, end, LETTER);
    if (*at == ' ' && at + 1 < end) {
        u32 next = class_of(model, at + 1, &next_size);
        if (next == LETTER || next == OTHER || (next == NUMBER && !digits))
            return end_of_run(model, at + 1 + next_size, end, next);
    }
    if (*at == '\'' && (short_form = contraction(at, end, 0))) return at + short_form;
    if (class == OTHER) return end_of_run(model, at + size, end, OTHER);
    if (class == NUMBER) return digits ? at + size : end_of_run(model, at + size, end, NUMBER);
    return end_of_spaces(model, at, end, digits);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+
   |\s+(?!\S)|\s+ */
static inline const u8 *cl100k_word(const Model *model, const u8 *at, const u8 *end, int most) {
    u32 size, next_size, class = class_of(model, at, &size), short_form;
    if (*at == '\'' && (short_form = contraction(at, end, 1))) return at + short_form;
    if (class == LETTER) return end_of_run(model, at + size, end, LETTER);
    if (class == NUMBER) {
        for (int i = 0; i < most && at < end && class_of(model, at, &size) == NUMBER; i++) at += size;
        return at;
    }
    u32 next = at + size < end ? class_of(model, at + size, &next_size) : SPACE;
    if (*at != '\r' && *at != '\n' && next == LETTER) return end_of_run(model, at + size + next_size, end, LETTER);
    if (class == OTHER || (*at == ' ' && next == OTHER)) {
        at = end_of_run(model, at + size, end, OTHER);
        while (at < end && (*at == '\r' || *at == '\n')) at++;
        return at;
    }
    const u8 *newline = NULL;
    for (const u8 *seen = at; seen < end && class_of(model, seen, &size) == SPACE;) {
        seen += size;
        if (seen[-1] == '\n' || seen[-1] == '\r') newline = seen;
    }
    return newline ? newline : end_of_spaces(model, at, end, 0);
}

/* Words through the cache */
static inline u32 *write_word(const Model *model, Cache *cache, const u8 *word, u64 size, u32 *out) {
    Met *met = NULL;
    u64 key[4] = {0};
    if (size <= CACHED_BYTES) {
        memcpy(key, word, size);
        ((u8 *)key)[CACHED_BYTES] = (u8)size;
        met = &cache->met[mix(mix(key[0], key[1]), mix(key[2], key[3])) >> (64 - CACHE_BITS)];
        if (!memcmp(met->key, key, sizeof key)) {
            memcpy(out, met->ids, sizeof met->ids);    /* all, whatever the count: hence ROOM */
            return out + met->count;
        }
    }
    u32 count = merge_word(model, cache, word, size);
    memcpy(out, cache->symbols, sizeof(u32) * count);
    if (met && count <= CACHED_IDS) {
        memcpy(met->key, key, sizeof key);
        met->count = count;
        memcpy(met->ids, out, sizeof(u32) * count);
    }
    return out + count;
}

#define WRITE_WORDS(END_OF_WORD) \
    for (const u8 *word = at; at < end && !cache->failed; word = at) { \
        at = END_OF_WORD; \
        out = write_word(model, cache, word, (u64)(at - word), out); \
    }

static u32 *write_piece(const Model *model, Cache *cache, const u8 *at, const u8 *end, u32 *out) {
    switch (model->pattern) {                          /* the pattern is known when each loop is compiled */
    case GPT2: WRITE_WORDS(gpt2_word(model, at, end, 0)) break;
    case GPT2_DIGITS: WRITE_WORDS(gpt2_word(model, at, end, 1)) break;
    case CL100K: WRITE_WORDS(cl100k_word(model, at, end, 3)) break;
    default: WRITE_WORDS(cl100k_word(model, at, end, 1))
    }
    return out;
}

/* The next added token: of those that begin first, the longest. */
static const Entry *next_added(const Model *model, const u8 *at, const u8 *end, const u8 **where) {
    for (; at < end; at++) {
        if (model->only_first >= 0) {
            if (!(at = memchr(at, model->only_first, (size_t)(end - at)))) return NULL;
        } else if (!model->begins_added[*at]) continue;
        const Entry *longest = NULL;
        for (u64 i = 0; i < model->added_count; i++) {
            const Entry *added = &model->added[i];
            if (added->size <= (u64)(end - at) && (!longest || added->size > longest->size) &&
                !memcmp(model->added_bytes + added->start, at, added->size)) longest = added;
        }
        if (longest) { *where = at; return longest; }
    }
    return NULL;
}

/* The ids of one text to `out`, which has room for one a byte and ROOM more; returns where they end. */
static u32 *write_text(const Model *model, Cache *cache, const u8 *at, u64 size, u32 *out) {
    const u8 *end = at + size, *where = NULL;
    const Entry *added;
    while (model->added_count && (added = next_added(model, at, end, &where))) {
        out = write_piece(model, cache, at, where, out);
        if (added->id != NONE) *out++ = added->id;
        at = where + added->size;
    }
    return write_piece(model, cache, at, end, out);
}

/* Making and freeing */
static void free_cache(Cache *cache) {
    if (!cache) return;
    free(cache->met); free(cache->symbols); free(cache->ranks); free(cache->after); free(cache->before);
    free(cache->heap); free(cache);
}

static Cache *new_cache(void) {
    Cache *cache = calloc(1, sizeof *cache);
    if (cache && reserve(cache, CACHED_BYTES) && (cache->met = calloc(1 << CACHE_BITS, sizeof(Met)))) return cache;
    free_cache(cache);
    return NULL;
}

static void *copied(const void *bytes, u64 size) {
    void *copy = malloc(size + 1);
    return copy ? memcpy(copy, bytes, size) : NULL;
}

static u64 table_mask(u64 entries) {
    u64 size = 2;
    while (size < 3 * entries) size *= 2;
    return size - 1;
}

/* rows: left, right and merged id of each merge, the first to be merged first; of equal pairs the last counts. */
static int read_merges(Model *model, const u32 *rows, u64 count) {
    u64 mask = model->merge_mask = table_mask(count);
    if (!(model->merges = malloc((mask + 1) * sizeof(Merge)))) return 0;
    for (u64 i = 0; i <= mask; i++) model->merges[i] = (Merge){NO_PAIR, NONE, 0};
    for (u64 i = 0; i < count; i++, rows += 3) {
        u64 pair = (u64)rows[0] << 32 | rows[1], at = mix(pair, 0) >> 20 & mask;
        while (model->merges[at].pair != NO_PAIR && model->merges[at].pair != pair) at = (at + 1) & mask;
        model->merges[at] = (Merge){pair, (u32)i, rows[2]};
    }
    return 1;
}

static int read_words(Model *model, const Entry *entries, u64 count, const u8 *bytes, u64 size) {
    u64 mask = model->word_mask = table_mask(count);
    if (!(model->word_bytes = copied(bytes, size)) || !(model->words = calloc(mask + 1, sizeof(Entry)))) return 0;
    for (u64 i = 0; i < count; i++) {
        u64 at = hash_bytes(bytes + entries[i].start, entries[i].size) >> 20 & mask;
        while (model->words[at].size) at = (at + 1) & mask;
        model->words[at] = entries[i];
    }
    return 1;
}

static int read_added(Model *model, const Entry *entries, u64 count, const u8 *bytes, u64 size) {
    model->added_bytes = copied(bytes, size);
    model->added = copied(entries, count * sizeof(Entry));
    model->added_count = count;
    for (u64 i = 0; i < count; i++) {
        u8 first = bytes[entries[i].start];
        model->only_first = !i || model->only_first == first ? first : -1;
        model->begins_added[first] = 1;
    }
    return model->added_bytes && model->added;
}

static int are_entries(const Entry *entries, u64 count, u64 size) {
    for (u64 i = 0; i < count; i++, entries++)
        if (!entries->size || entries->start > size || entries->size > size - entries->start) return 0;
    return 1;
}

/* Python's side */
typedef struct { PyObject_HEAD Model model; Cache *idle; } Encoder;

/* Encoder(pattern, tables…): bytes, and rows of 32-bit numbers as bytes, which Python aligns. */
static PyObject *new_encoder(PyTypeObject *type, PyObject *args, PyObject *names) {
    enum { CLASSES, BYTE_IDS, MERGES, WORDS, WORD_BYTES, ADDED, ADDED_BYTES, TABLES };
    int pattern, right = 1;
    const u8 *table[TABLES];
    Py_ssize_t size[TABLES];
    (void)names;
    if (!PyArg_ParseTuple(args, "iy#y#y#y#y#y#y#", &pattern, &table[0], &size[0], &table[1], &size[1], &table[2],
                          &size[2], &table[3], &size[3], &table[4], &size[4], &table[5], &size[5], &table[6],
                          &size[6])) return NULL;
    for (int i = 0; i < TABLES; i++) right &= size[i] < MAX_BYTES;
    right &= pattern >= 0 && pattern < PATTERNS && size[CLASSES] == CODE_POINTS && size[BYTE_IDS] == 256 * 4;
    right &= !(size[MERGES] % 12 || size[WORDS] % sizeof(Entry) || size[ADDED] % sizeof(Entry));
    const Entry *words = (const Entry *)table[WORDS], *added = (const Entry *)table[ADDED];
    u64 merge_count = (u64)size[MERGES] / 12, word_count = (u64)size[WORDS] / 12, added_count = (u64)size[ADDED] / 12;
    right = right && are_entries(words, word_count, (u64)size[WORD_BYTES]);
    right = right && are_entries(added, added_count, (u64)size[ADDED_BYTES]);
    for (u32 i = 0; right && i < CODE_POINTS; i++) right = table[CLASSES][i] <= SPACE;
    if (!right) return PyErr_Format(PyExc_ValueError, "the tables of the tokenizer do not fit together");
    Encoder *self = (Encoder *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    Model *model = &self->model;
    model->pattern = pattern;
    model->only_first = -1;
    memcpy(model->byte_ids, table[BYTE_IDS], sizeof model->byte_ids);
    if ((model->classes = copied(table[CLASSES], CODE_POINTS)) &&
        read_merges(model, (const u32 *)table[MERGES], merge_count) &&
        read_words(model, words, word_count, table[WORD_BYTES], (u64)size[WORD_BYTES]) &&
        read_added(model, added, added_count, table[ADDED_BYTES], (u64)size[ADDED_BYTES])) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return PyErr_NoMemory();
}

static void free_encoder(Encoder *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    for (Cache *cache = self->idle, *next; cache; cache = next) { next = cache->next; free_cache(cache); }
    Model *model = &self->model;
    free(model->classes); free(model->merges); free(model->word_bytes); free(model->words);
    free(model->added_bytes); free(model->added);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static Cache *take_cache(Encoder *self) {
    Cache *cache = self->idle;
    if (cache) self->idle = cache->next;
    else if (!(cache = new_cache())) PyErr_NoMemory();
    return cache;
}

/* Puts a cache back; 0, with MemoryError set, if memory ran out in it. */
static int give_back(Encoder *self, Cache *cache) {
    int failed = cache->failed;
    cache->failed = 0;
    cache->next = self->idle;
    self->idle = cache;
    if (failed) PyErr_NoMemory();
    return !failed;
}

static u8 *write_code(u8 *at, u32 code) {
    if (code < 0x80) { *at++ = (u8)code; return at; }
    if (code < 0x800) *at++ = (u8)(0xC0 | code >> 6);
    else {
        if (code < 0x10000) *at++ = (u8)(0xE0 | code >> 12);
        else { *at++ = (u8)(0xF0 | code >> 18); *at++ = (u8)(0x80 | (code >> 12 & 63)); }
        *at++ = (u8)(0x80 | (code >> 6 & 63));
    }
    *at++ = (u8)(0x80 | (code & 63));
    return at;
}

/* The characters of a text, each as the table, `known` numbers by code points, has it, if that is a character; none has
   more than four bytes. */
static u8 *write_replaced(const u8 *at, const u8 *end, const u8 *table, u64 known, u8 *out) {
    for (u32 bytes, code, other; at < end; at += bytes) {
        other = code = code_at(at, &bytes);
        if (code < known) memcpy(&other, table + 4 * (u64)code, 4);
        out = write_code(out, other < CODE_POINTS ? other : code);
    }
    return out;
}

/* encode_many(texts: Sequence[str][, table]) -> (bytearray of uint32 ids, bytearray of int64 counts); with a table, of the
   texts as `replaced` makes them. */
static PyObject *encode_many(Encoder *self, PyObject *args) {
    PyObject *texts, *ids = NULL, *counts = NULL, *found = NULL;
    Py_buffer table = {0};
    u8 *changed = NULL;
    if (!PyArg_ParseTuple(args, "O|y*", &texts, &table)) return NULL;
    PyObject *held = PySequence_Tuple(texts);          /* no text goes away */
    if (!held) { PyBuffer_Release(&table); return NULL; }
    Py_ssize_t texts_count = PyTuple_Size(held);
    const u8 **starts = malloc(sizeof *starts * ((size_t)texts_count + 1));
    if (!starts || !(counts = PyByteArray_FromStringAndSize(NULL, 8 * texts_count))) { PyErr_NoMemory(); goto end; }
    int64_t *sizes = (int64_t *)PyByteArray_AsString(counts);
    u64 total = 0;
    for (Py_ssize_t i = 0, size; i < texts_count; i++) {
        if (!(starts[i] = (const u8 *)PyUnicode_AsUTF8AndSize(PyTuple_GetItem(held, i), &size))) goto end;
        total += (u64)(sizes[i] = size);
        if (total >= MAX_BYTES) { PyErr_Format(PyExc_OverflowError, "the texts are too long for one call"); goto end; }
    }
    if (table.buf) {
        if (!(changed = malloc(4 * total + 1))) { PyErr_NoMemory(); goto end; }
        u8 *out = changed;
        for (Py_ssize_t i = 0; i < texts_count; i++) {
            u8 *first = out;
            out = write_replaced(starts[i], starts[i] + sizes[i], table.buf, (u64)table.len / 4, out);
            starts[i] = first;
            sizes[i] = out - first;
        }
        if ((total = (u64)(out - changed)) >= MAX_BYTES) {
            PyErr_Format(PyExc_OverflowError, "the texts are too long for one call");
            goto end;
        }
    }
    Cache *cache;
    if (!(ids = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(4 * (total + ROOM)))) || !(cache = take_cache(self)))
        goto end;
    u32 *first = (u32 *)PyByteArray_AsString(ids), *at = first;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < texts_count; i++) {
        u32 *before = at;
        at = write_text(&self->model, cache, starts[i], (u64)sizes[i], at);
        sizes[i] = at - before;
    }
    Py_END_ALLOW_THREADS
    if (give_back(self, cache) && !PyByteArray_Resize(ids, 4 * (at - first)))
        found = Py_BuildValue("(OO)", ids, counts);
end:
    free(starts);
    free(changed);
    PyBuffer_Release(&table);
    Py_DECREF(held);
    Py_XDECREF(ids);
    Py_XDECREF(counts);
    return found;
}

/* replaced(text, table) -> the text with each character that the table, uint32 by code points, has another one for. */
static PyObject *replaced(PyObject *module, PyObject *args) {
    PyObject *text, *made = NULL;
    Py_buffer table;
    Py_ssize_t size;
    (void)module;
    if (!PyArg_ParseTuple(args, "Uy*", &text, &table)) return NULL;
    const u8 *at = (const u8 *)PyUnicode_AsUTF8AndSize(text, &size), *end = at + size;
    u8 *first = at ? malloc(4 * (size_t)size + 1) : NULL, *out = first;  /* no character has more than four bytes */
    if (at && !first) PyErr_NoMemory();
    if (first) out = write_replaced(at, end, table.buf, (u64)table.len / 4, first);
    if (first) made = PyUnicode_DecodeUTF8((const char *)first, out - first, NULL);
    free(first);
    PyBuffer_Release(&table);
    return made;
}

static PyMethodDef functions[] = {
    {"replaced", replaced, METH_VARARGS, "A text with characters replaced, one by one."},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef methods[] = {
    {"encode_many", (PyCFunction)encode_many, METH_VARARGS, "The ids of texts in one row, and how many each has."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "A byte-level BPE tokenizer, made from tables. Safe to call from several threads."},
    {Py_tp_new, new_encoder}, {Py_tp_dealloc, free_encoder}, {Py_tp_methods, methods}, {0, NULL},
};
static PyType_Spec spec = {"ridgeway.common.encoding.byte_bpe.Encoder", sizeof(Encoder), 0, Py_TPFLAGS_DEFAULT, slots};

static int fill(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    int failed = PyModule_AddObjectRef(module, "Encoder", type);  /* fails, with the error that is set, on no type */
    Py_XDECREF(type);
    return failed;
}
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "byte_bpe", NULL, 0, functions, module_slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_byte_bpe(void) { return PyModuleDef_Init(&module); }
