/* Byte-level BPE: text -> token ids, the very ids that the tokenizers library gives, for the patterns named below.

   A text is cut at added tokens, each piece into words by a pattern of word_patterns.h, and each word's bytes are
   merged by rank. Words that were met before are taken from a cache.

   Safety. Texts come as Python strings, so their UTF-8 is valid, and all reads stay within it. A word of n bytes has at
   most n ids, so `ROOM` ids beyond one for each byte are enough for everything that is written. Every allocation is
   checked. The cache has a fixed size, compares whole words, and forgets: texts made to collide in it cost time (one
   merging per word, O(n log n) in the word's length), never a wrong id. The tables of merges and words hold what the
   tokenizer's definition says and are not touched by texts.

   Threads. A model never changes once made. Each call takes a cache from its encoder's list while it holds the
   interpreter's lock, and puts it back when it holds the lock again: no two calls share one. */
#include "native.h"
#include "word_patterns.h"

#define NONE UINT32_MAX
#define NO_PAIR UINT64_MAX
#define CODE_POINTS 0x110000
#define MAX_BYTES (1 << 30)      /* of a text, so that places in it fit 31 bits */
#define FEW 24                   /* symbols for which a tree takes longer than looking at all of them */
#define CACHE_BITS 16            /* the cache has 2^16 places, for words of up to so many bytes and ids: */
#define CACHED_BYTES 31
#define CACHED_IDS 7
#define AHEAD 16                 /* words that are looked for before the first of them is written */
#define ROOM (CACHED_IDS - 1)    /* ids that may be written beyond one for each byte */

typedef struct { u64 pair; u32 rank, id; } Merge;
typedef struct { u32 start, size, id; } Entry;         /* a token's bytes in a row of bytes; NONE: it leaves no id */
typedef struct { u64 part[4]; } Key;                   /* a word's first bytes, zeros behind them, and the size */
typedef struct { Key key; u32 count, ids[CACHED_IDS]; } Met;
typedef struct { const u8 *word; u64 size; Met *met; Key key; } Found;  /* met: its place, NULL if the word is too long */

typedef struct {
    int pattern, only_first;     /* only_first: the one byte that all added tokens begin with, or -1 */
    const u8 *classes;           /* a class for each code point */
    const int32_t *byte_ids;     /* -1: the vocabulary lacks the byte, and it is left out */
    Merge *merges;               /* a hash table by pairs */
    Entry *words;                /* the same of words that are tokens as they are, before any merging; or NULL */
    const Entry *added;
    const u8 *word_bytes, *added_bytes;
    u64 merge_mask, word_mask, added_count;
    u8 begins_added[256];
} Model;

typedef struct Cache {
    struct Cache *next;
    u64 *scratch, capacity;      /* three numbers for each of so many symbols */
    int failed;                  /* memory ran out; what was written is not to be used */
    Met *met;                    /* the places, none of which lies across two lines of the processor's caches */
} Cache;

static inline u64 hash_of_pair(u32 left, u32 right) {
    u64 hash = (((u64)left << 32 | right) ^ 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    return (hash ^ hash >> 32) * 0x9E3779B97F4A7C15u;
}

static inline Key key_of(const u8 *word, u64 size) {
    Key key = {{0}};
    memcpy(&key, word, size < CACHED_BYTES ? size : CACHED_BYTES);
    ((u8 *)&key)[CACHED_BYTES] = (u8)size;
    return key;
}

static inline u64 hash_of(const Key *key) {
    u64 hash = key->part[0] * 0x9E3779B97F4A7C15u + key->part[1] * 0xBF58476D1CE4E5B9u +
               key->part[2] * 0x94D049BB133111EBu + key->part[3] * 0xD6E8FEB86659FD93u;
    return (hash ^ hash >> 32) * 0x9E3779B97F4A7C15u;
}

/* Merging */
/* The place of a pair in the table, or the empty one, of rank NONE, where it would be. */
static inline Merge *merge_of(const Model *model, u32 left, u32 right) {
    u64 pair = (u64)left << 32 | right, at = hash_of_pair(left, right) >> 20 & model->merge_mask;
    while (model->merges[at].pair != pair && model->merges[at].pair != NO_PAIR) at = (at + 1) & model->merge_mask;
    return &model->merges[at];
}

static inline u32 rank_of(const Model *model, u32 left, u32 right) { return merge_of(model, left, right)->rank; }

/* The same of a word that is a token; the empty place has size 0. */
static Entry *entry_of(const Model *model, const u8 *word, u64 size) {
    Key key = key_of(word, size);
    u64 at = hash_of(&key) >> 20 & model->word_mask;
    for (const Entry *known; (known = &model->words[at])->size; at = (at + 1) & model->word_mask)
        if (known->size == size && !memcmp(model->word_bytes + known->start, word, size)) break;
    return &model->words[at];
}

/* Merge a few symbols by rank, then place: of the pairs that are left, each time the first of the lowest rank. */
static u32 merge_few(const Model *model, u32 *symbols, u32 count) {
    u32 ranks[FEW];
    for (u32 i = 0; i < count; i++) ranks[i] = i + 1 < count ? rank_of(model, symbols[i], symbols[i + 1]) : NONE;
    for (;;) {
        u32 best = 0;
        for (u32 i = 1; i < count; i++) best = ranks[i] < ranks[best] ? i : best;
        if (!count || ranks[best] == NONE) return count;
        symbols[best] = merge_of(model, symbols[best], symbols[best + 1])->id;
        count--;
        for (u32 i = best + 1; i < count; i++) {
            symbols[i] = symbols[i + 1];
            ranks[i] = ranks[i + 1];
        }
        if (best) ranks[best - 1] = rank_of(model, symbols[best - 1], symbols[best]);
        ranks[best] = best + 1 < count ? rank_of(model, symbols[best], symbols[best + 1]) : NONE;
    }
}

/* A tree of numbers, each the smaller of the two below it; the lowest row has the rank of each place, and the place. */
static inline void set_rank(u64 *tree, u64 count, u32 place, u32 rank) {
    u64 at = count + place;
    tree[at] = (u64)rank << 32 | place;
    for (; at > 1; at /= 2) tree[at / 2] = tree[at] < tree[at ^ 1] ? tree[at] : tree[at ^ 1];
}

/* The same for many symbols: each knows the next one and the one before that are left, and the first of the lowest rank
   is at the root of a tree. */
static u32 merge_many(const Model *model, Cache *cache, u32 *symbols, u32 count) {
    if (count > cache->capacity) {
        u64 *grown = realloc(cache->scratch, 2 * 3 * sizeof(u64) * (u64)count);
        cache->failed |= !grown;
        if (!grown) return 0;
        cache->scratch = grown;
        cache->capacity = 2 * (u64)count;
    }
    u64 *tree = cache->scratch;
    u32 *after = (u32 *)(tree + 2 * (u64)count), *before = after + count, kept = 0;
    for (u32 i = 0; i < count; i++) {
        after[i] = i + 1;
        before[i] = i ? i - 1 : NONE;
        tree[count + i] = (u64)(i + 1 < count ? rank_of(model, symbols[i], symbols[i + 1]) : NONE) << 32 | i;
    }
    for (u64 i = count - 1; i; i--) tree[i] = tree[2 * i] < tree[2 * i + 1] ? tree[2 * i] : tree[2 * i + 1];
    for (u32 rank; (rank = (u32)(tree[1] >> 32)) != NONE;) {
        u32 at = (u32)tree[1], gone = after[at], next = after[gone];
        symbols[at] = merge_of(model, symbols[at], symbols[gone])->id;
        after[at] = next;
        if (next < count) before[next] = at;
        set_rank(tree, count, gone, NONE);
        set_rank(tree, count, at, next < count ? rank_of(model, symbols[at], symbols[next]) : NONE);
        if (before[at] != NONE) set_rank(tree, count, before[at], rank_of(model, symbols[before[at]], symbols[at]));
    }
    for (u32 i = 0; i < count; i = after[i]) symbols[kept++] = symbols[i];
    return kept;
}

/* The ids of one word to `out`; returns how many. */
static u32 merge_word(const Model *model, Cache *cache, const u8 *word, u64 size, u32 *out) {
    const Entry *known = model->words ? entry_of(model, word, size) : NULL;
    u32 count = 0;
    if (known && known->size) {
        *out = known->id;
        return 1;
    }
    for (u64 i = 0; i < size; i++)
        if (model->byte_ids[word[i]] >= 0) out[count++] = (u32)model->byte_ids[word[i]];
    return count <= FEW ? merge_few(model, out, count) : merge_many(model, cache, out, count);
}

/* Words through the cache: a few are looked for before the first of them is written, so that the cache's memory has time
   to answer. */
static inline Found find_word(Cache *cache, const u8 *word, u64 size) {
    Found found = {.word = word, .size = size};
    if (size > CACHED_BYTES) return found;
    found.key = key_of(word, size);
    found.met = &cache->met[hash_of(&found.key) >> (64 - CACHE_BITS)];
    __builtin_prefetch(found.met);
    return found;
}

static inline u32 *write_word(const Model *model, Cache *cache, const Found *found, u32 *out) {
    Met *met = found->met;
    if (met && !memcmp(&met->key, &found->key, sizeof met->key)) {
        memcpy(out, met->ids, sizeof met->ids);        /* all, whatever the count: hence ROOM */
        return out + met->count;
    }
    u32 count = merge_word(model, cache, found->word, found->size, out);
    if (met && count <= CACHED_IDS) {
        met->key = found->key;
        met->count = count;
        memcpy(met->ids, out, sizeof(u32) * count);
    }
    return out + count;
}

static Py_ALWAYS_INLINE inline u32 *write_words(const Model *model, Cache *cache, const u8 *at, const u8 *end, u32 *out,
                                                const int pattern) {
    Found found[AHEAD];
    while (at < end && !cache->failed) {
        int count = 0;
        for (const u8 *word = at; at < end && count < AHEAD; word = at) {
            at = end_of_word(model->classes, at, end, pattern);
            found[count++] = find_word(cache, word, (u64)(at - word));
        }
        for (int i = 0; i < count; i++) out = write_word(model, cache, &found[i], out);
    }
    return out;
}

static u32 *write_piece(const Model *model, Cache *cache, const u8 *at, const u8 *end, u32 *out) {
    switch (model->pattern) {                          /* the pattern is known when each loop is compiled */
    case GPT2: return write_words(model, cache, at, end, out, GPT2);
    case GPT2_DIGITS: return write_words(model, cache, at, end, out, GPT2_DIGITS);
    case CL100K: return write_words(model, cache, at, end, out, CL100K);
    case QWEN2: return write_words(model, cache, at, end, out, QWEN2);
    default: return write_words(model, cache, at, end, out, O200K);
    }
}

/* The next added token: of those that begin first, the longest. */
static const Entry *next_added(const Model *model, const u8 *at, const u8 *end, const u8 **where) {
    for (; at < end; at++) {
        if (model->only_first >= 0 && !(at = memchr(at, model->only_first, (size_t)(end - at)))) return NULL;
        if (!model->begins_added[*at]) continue;
        const Entry *longest = NULL;
        for (const Entry *added = model->added; added < model->added + model->added_count; added++)
            if (added->size <= (u64)(end - at) && (!longest || added->size > longest->size) &&
                !memcmp(model->added_bytes + added->start, at, added->size)) longest = added;
        *where = at;
        if (longest) return longest;
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

/* Python's side */
typedef struct { PyObject_HEAD PyObject *tables; Model model; Cache *idle; } Encoder;  /* tables: what the model points to */

static int are_classes(const u8 *classes, u8 last) {
    u8 wrong = 0;
    for (u32 i = 0; i < CODE_POINTS; i++) wrong |= !classes[i] | (classes[i] > last) | ((classes[i] & (classes[i] - 1)) != 0);
    return !wrong;
}

static int are_entries(const Entry *entries, u64 count, u64 size) {
    for (u64 i = 0; i < count; i++, entries++)
        if (!entries->size || entries->start > size || entries->size > size - entries->start) return 0;
    return 1;
}

/* Makes the hash tables; 0 if memory ran out. merges: left, right and merged id of each, the first to be merged first; of
   equal pairs the last counts. */
static int fill_tables(Model *model, const u32 *merges, u64 merge_count, const Entry *words, u64 word_count) {
    model->merge_mask = model->word_mask = 1;          /* masks are one less than a power of two */
    while (model->merge_mask < 2 * merge_count) model->merge_mask += model->merge_mask + 1;
    while (model->word_mask < 3 * word_count) model->word_mask += model->word_mask + 1;
    u64 size = (model->merge_mask + 1) * sizeof(Merge);
    if (!(model->merges = malloc(size))) return 0;
    memset(model->merges, 0xFF, size);                 /* NO_PAIR, NONE */
    for (u32 rank = 0; rank < merge_count; rank++, merges += 3) {
        *merge_of(model, merges[0], merges[1]) = (Merge){(u64)merges[0] << 32 | merges[1], rank, merges[2]};
    }
    if (word_count && !(model->words = calloc(model->word_mask + 1, sizeof(Entry)))) return 0;
    for (const Entry *word = words; word < words + word_count; word++)
        *entry_of(model, model->word_bytes + word->start, word->size) = *word;
    return 1;
}

/* Encoder(pattern, tables…): bytes, and rows of 32-bit numbers as bytes, which Python aligns. */
static PyObject *new_encoder(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names)) {
    enum { CLASSES, BYTE_IDS, MERGES, WORDS, WORD_BYTES, ADDED, ADDED_BYTES, TABLES };
    int pattern, right = 1;
    PyObject *given[TABLES];
    const void *table[TABLES];
    u64 size[TABLES];
    if (!PyArg_ParseTuple(args, "iSSSSSSS", &pattern, &given[0], &given[1], &given[2], &given[3], &given[4], &given[5],
                          &given[6])) return NULL;
    for (int i = 0; i < TABLES; i++) {
        table[i] = PyBytes_AsString(given[i]);
        size[i] = (u64)PyBytes_Size(given[i]);
        right &= size[i] < MAX_BYTES;
    }
    right &= pattern >= 0 && pattern < PATTERNS && size[CLASSES] == CODE_POINTS && size[BYTE_IDS] == 256 * 4;
    right &= !(size[MERGES] % 12 || size[WORDS] % sizeof(Entry) || size[ADDED] % sizeof(Entry));
    u64 word_count = size[WORDS] / sizeof(Entry), added_count = size[ADDED] / sizeof(Entry);
    right = right && are_entries(table[WORDS], word_count, size[WORD_BYTES]);
    right = right && are_entries(table[ADDED], added_count, size[ADDED_BYTES]);
    right = right && are_classes(table[CLASSES], pattern == O200K ? MARK : SPACE);
    if (!right) return PyErr_Format(PyExc_ValueError, "the tables of the tokenizer do not fit together");
    Encoder *self = (Encoder *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->tables = Py_NewRef(args);
    self->model = (Model){
        .pattern = pattern, .only_first = -1, .classes = table[CLASSES], .byte_ids = table[BYTE_IDS],
        .word_bytes = table[WORD_BYTES], .added = table[ADDED], .added_bytes = table[ADDED_BYTES],
        .added_count = added_count};
    for (u64 i = 0; i < added_count; i++) {
        u8 first = self->model.added_bytes[self->model.added[i].start];
        self->model.only_first = !i || self->model.only_first == first ? first : -1;
        self->model.begins_added[first] = 1;
    }
    if (fill_tables(&self->model, table[MERGES], size[MERGES] / 12, table[WORDS], word_count)) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return PyErr_NoMemory();
}

static void free_encoder(Encoder *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    for (Cache *cache = self->idle, *next; cache; cache = next) {
        next = cache->next;
        free(cache->scratch);
        free(cache);
    }
    free(self->model.merges);
    free(self->model.words);
    Py_XDECREF(self->tables);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* A character beyond ASCII. */
static u8 *write_code(u8 *at, u32 code) {
    u32 size = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (u32 i = size - 1; i; i--, code >>= 6) at[i] = (u8)(0x80 | (code & 63));
    *at = (u8)(0xF00 >> size | code);                  /* as many ones as bytes */
    return at + size;
}

/* What a character becomes: as the table, `known` numbers by code points, has it, if that is a character. */
typedef struct { const u8 *table; u64 known; u8 ascii[128]; } Replacement;  /* ascii: the same in short; 128 if it is longer */

static inline u32 replaced(const Replacement *by, u32 code) {
    u32 other = code;
    if (code < by->known) memcpy(&other, by->table + 4 * (u64)code, 4);
    return other < CODE_POINTS ? other : code;
}

/* The characters of a text, each replaced; none has more than four bytes. */
static u8 *write_replaced(const u8 *at, const u8 *end, const Replacement *by, u8 *out) {
    for (u32 bytes, other; at < end; at += bytes) {
        for (; at < end && *at < 128 && by->ascii[*at] < 128; at++) *out++ = by->ascii[*at];
        if (at == end) break;
        other = replaced(by, code_at(at, &bytes));
        if (other < 0x80) *out++ = (u8)other;
        else out = write_code(out, other);
    }
    return out;
}

/* encode_many(texts: Sequence[str][, table]) -> (bytearray of uint32 ids, bytearray of int64 counts); with a table, of the
   texts with each character replaced that the table, uint32 by code points, has another one for. */
static PyObject *encode_many(Encoder *self, PyObject *args) {
    PyObject *texts, *ids = NULL, *counts = NULL, *found = NULL;
    Py_buffer table = {0};
    u8 *changed = NULL;
    if (!PyArg_ParseTuple(args, "O|y*", &texts, &table)) return NULL;
    PyObject *held = PySequence_Tuple(texts);          /* no text goes away */
    Py_ssize_t texts_count = held ? PyTuple_Size(held) : 0;
    const u8 **starts = held ? malloc(sizeof *starts * ((size_t)texts_count + 1)) : NULL;
    if (!starts || !(counts = PyByteArray_FromStringAndSize(NULL, 8 * texts_count))) goto no_memory;
    int64_t *sizes = (int64_t *)PyByteArray_AsString(counts);
    u64 total = 0;
    for (Py_ssize_t i = 0, size; i < texts_count; i++) {
        if (!(starts[i] = (const u8 *)PyUnicode_AsUTF8AndSize(PyTuple_GetItem(held, i), &size))) goto end;
        total += (u64)(sizes[i] = size);
    }
    if (table.buf) {
        Replacement by = {.table = table.buf, .known = (u64)table.len / 4};
        for (u32 code = 0; code < 128; code++) by.ascii[code] = (u8)Py_MIN(replaced(&by, code), 128);
        u8 *out = changed = malloc(4 * total + 1);
        if (!changed) goto no_memory;
        for (Py_ssize_t i = 0; i < texts_count; i++) {
            const u8 *text = starts[i];
            starts[i] = out;
            out = write_replaced(text, text + sizes[i], &by, out);
            sizes[i] = out - starts[i];
        }
        total = (u64)(out - changed);
    }
    if (total >= MAX_BYTES) {
        PyErr_Format(PyExc_OverflowError, "the texts are too long for one call");
        goto end;
    }
    if (!(ids = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(4 * (total + ROOM))))) goto end;
    Cache *cache = self->idle ? self->idle : calloc(1, sizeof *cache + sizeof(Met) * (1 + (1 << CACHE_BITS)));
    if (!cache) goto no_memory;
    cache->met = (Met *)(((uintptr_t)(cache + 1) + sizeof(Met) - 1) & ~(uintptr_t)(sizeof(Met) - 1));
    self->idle = cache->next;
    cache->failed = 0;
    u32 *first = (u32 *)PyByteArray_AsString(ids), *at = first;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < texts_count; i++) {
        u32 *before = at;
        at = write_text(&self->model, cache, starts[i], (u64)sizes[i], at);
        sizes[i] = at - before;
    }
    Py_END_ALLOW_THREADS
    cache->next = self->idle;
    self->idle = cache;
    if (cache->failed) goto no_memory;
    if (!PyByteArray_Resize(ids, 4 * (at - first))) found = PyTuple_Pack(2, ids, counts);
    goto end;
no_memory:
    if (!PyErr_Occurred()) PyErr_NoMemory();
end:
    free(starts);
    free(changed);
    PyBuffer_Release(&table);
    Py_XDECREF(held);
    Py_XDECREF(ids);
    Py_XDECREF(counts);
    return found;
}

static PyMethodDef methods[] = {
    {"encode_many", (PyCFunction)encode_many, METH_VARARGS, "The ids of texts in one row, and how many each has."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "A byte-level BPE tokenizer, made from tables. Safe to call from several threads."},
    {Py_tp_new, new_encoder}, {Py_tp_dealloc, free_encoder}, {Py_tp_methods, methods}, {0, NULL},
};
static PyType_Spec spec = {"ridgeway._native.Encoder", sizeof(Encoder), 0, Py_TPFLAGS_DEFAULT, slots};

PyObject *encoder_type(void) { return PyType_FromSpec(&spec); }
