/* SentencePiece's unigram model: text -> normalised text -> piece ids, the very ids that the library gives.

   The characters of a text are replaced by rules, longest first; every run of spaces becomes one U+2581, of which one
   stands before the text and none after it. Of all ways to cut what comes of that into pieces, the one with the highest
   sum of scores counts; a character without a piece is unknown, and unknown characters in a row are one id. Sums are
   those of the library (EncodeOptimized), in single precision, in its order: of equal sums the first counts.

   The normalised text is made as it is read. Where no piece reaches beyond a place, what lies before it is decided, goes
   out and is forgotten: memory is that of the longest stretch that pieces overlap without a break, and a text of which
   only the first ids are wanted is read no further than they need.

   Safety. Both tables are double arrays in the form of Darts, and may come from anybody: `are_links` checks once that
   whatever byte is followed from whatever unit leads to a unit, and that values are numbers of pieces, or places in the
   row of replacements, which ends in a zero and has none farther apart than MAX_REPLACEMENT. No path is followed for more
   than LONGEST bytes, so time is linear whatever the tables say. Texts come as Python strings, so their UTF-8 is valid;
   rules that cut a character leave bytes behind, which are read as U+FFFD, and none is read behind the text's end. Every
   allocation is checked.

   Threads. A model never changes once made, and each call has its own memory. */
#include "native.h"

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;

#define LONGEST 64               /* bytes of a piece or of what a rule replaces; longer ones are never looked for */
#define MAX_REPLACEMENT 64       /* bytes of what a rule puts in their place */
#define MAX_PIECES (1 << 23)
#define MAX_BYTES (1 << 30)      /* of a text, and of all tables */
#define AT_A_TIME 2048           /* normalised bytes that are made at a time, or a few more */
#define SPACE 2                  /* what is_plain says of a space that no rule replaces */
#define UNKNOWN 0                /* the piece that stands for characters without one; its score is theirs */
#define MAX_SCORE 1e6f
#define RESET_SCORE 100000.0f    /* a sum beyond it becomes 0, and those that follow change by as much */

/* A unit of a double array: a label, where the next units are, and whether a value is among them; or a value. */
#define VALUE_BIT 0x80000000u
#define LABEL_BITS (VALUE_BIT | 0xFFu)
static inline u32 offset_of(u32 unit) { return unit >> 10 << ((unit & 512) >> 6); }
static inline int has_value(u32 unit) { return unit >> 8 & 1; }

typedef struct {
    const u32 *pieces, *rules;
    const float *scores;
    const u8 *replacements;
    u8 is_plain[128];            /* characters that stay as they are before another one of ASCII; SPACE: so does the space */
} Model;

typedef struct { u32 begin, end; } Span;               /* bytes of a text */
typedef struct { float score; u32 id : 23, size : 9; } Node;  /* the best way to a place, and its last piece; size 0: none */

/* The work on one text after the other: what is normalised, and the ways through it. */
typedef struct {
    const Model *model;
    const u8 *text, *at, *end;   /* at: what was not read yet */
    u8 *letters;                 /* normalised */
    Span *origins;               /* where each of these bytes comes from, if that is asked for */
    Node *nodes;                 /* of the places from `done` on */
    u64 done, filled, letters_room, nodes_room, spaces;  /* spaces: that wait for a letter behind them */
    Span spaces_origin;
    u32 *ids;
    Span *spans;                 /* of the ids, if they are asked for */
    u64 count, ids_room, text_first;  /* text_first: how many ids there were before this text */
    int with_spans, after_space, failed;  /* failed: memory ran out, and nothing that was written is to be used */
} Work;

/* The items with room for so many of them; if memory runs out they stay as they are, and `failed` is set. */
static void *with_room(Work *work, void *items, u64 *room, u64 wanted, u64 size) {
    if (wanted <= *room) return items;
    u64 larger = wanted + wanted / 2 + 64;
    void *grown = larger <= SIZE_MAX / 2 / size ? realloc(items, (size_t)(larger * size)) : NULL;
    work->failed |= !grown;
    if (!grown) return items;
    *room = larger;
    return grown;
}

/* Room for more normalised bytes, and for where they come from; the same of ids. */
static int make_room(Work *work, u64 more) {
    u64 room = work->letters_room, again = room, wanted = work->filled + more;
    if (wanted <= room) return 1;
    work->letters = with_room(work, work->letters, &room, wanted, 1);
    if (work->with_spans) work->origins = with_room(work, work->origins, &again, wanted, sizeof(Span));
    if (!work->failed) work->letters_room = room;
    return !work->failed;
}

static int make_room_for_ids(Work *work, u64 more) {
    u64 room = work->ids_room, again = room, wanted = work->count + more;
    work->ids = with_room(work, work->ids, &room, wanted, sizeof(u32));
    if (work->with_spans) work->spans = with_room(work, work->spans, &again, wanted, sizeof(Span));
    if (!work->failed) work->ids_room = room;
    return !work->failed;
}

static int make_room_for_nodes(Work *work, u64 wanted) {
    work->nodes = with_room(work, work->nodes, &work->nodes_room, wanted, sizeof(Node));
    return !work->failed;
}

/* The bytes of a character by its first one, of those that are left. */
static inline u32 size_of_letter(u8 first, u64 left) {
    u32 size = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    return size < left ? size : (u32)left;
}

/* Normalisation */
static inline void put(Work *work, u8 letter, Span origin) {
    if (work->with_spans) work->origins[work->filled] = origin;
    work->letters[work->filled++] = letter;
}

static void put_spaces(Work *work) {
    if (!make_room(work, 3 * work->spaces)) return;
    for (; work->spaces; work->spaces--)
        for (int i = 0; i < 3; i++) put(work, (u8)"\xE2\x96\x81"[i], work->spaces_origin);
}

/* What some of the text has become. Spaces wait, since those at the end count for nothing, and neither do those behind
   another space. U+2581 in a text is a space, of which each counts. */
static void put_all(Work *work, const u8 *letters, u64 size, Span origin) {
    while (work->after_space && size && *letters == ' ') letters++, size--;
    if (!size) return;
    work->after_space = letters[size - 1] == ' ';
    for (u64 i = 0; i < size && !work->failed; i++) {
        int is_mark = size - i >= 3 && !memcmp(letters + i, "\xE2\x96\x81", 3);
        if (is_mark || letters[i] == ' ') {
            if (!work->spaces++) work->spaces_origin.begin = origin.begin;
            work->spaces_origin.end = origin.end;
            i += is_mark ? 2 : 0;
            continue;
        }
        if (work->spaces) put_spaces(work);
        if (make_room(work, 1)) put(work, letters[i], origin);
    }
}

/* The next character, or more of them, by the longest rule for them; without one they stay. */
static void put_next(Work *work) {
    const Model *model = work->model;
    const u8 *first = work->at, *stop = work->end - first > LONGEST ? first + LONGEST : work->end, *letters = first;
    u32 at = offset_of(*model->rules);
    u64 size = 0, letters_size;
    for (const u8 *next = first; next < stop; next++) {
        at ^= *next;
        u32 unit = model->rules[at];
        if ((unit & LABEL_BITS) != *next) break;
        at ^= offset_of(unit);
        if (!has_value(unit)) continue;
        size = (u64)(next + 1 - first);
        letters = model->replacements + (model->rules[at] & ~VALUE_BIT);
    }
    if (size) {
        letters_size = strlen((const char *)letters);
    } else if ((*first & 0xC0) == 0x80) {              /* in a character of which a rule took the first bytes */
        letters = (const u8 *)"\xEF\xBF\xBD";
        size = 1;
        letters_size = 3;
    } else {
        size = letters_size = size_of_letter(*first, (u64)(work->end - first));
    }
    work->at += size;
    put_all(work, letters, letters_size, (Span){(u32)(first - work->text), (u32)(work->at - work->text)});
}

/* Normalises until there are so many bytes, or the text is at its end. */
static void fill(Work *work, u64 wanted) {
    const u8 *is_plain = work->model->is_plain;
    while (work->at < work->end && work->filled < wanted && !work->failed) {
        const u8 *first = work->at, *at = first, *last = work->end - 1;
        if (last - at > AT_A_TIME) last = at + AT_A_TIME;
        while (at < last && *at < 128 && is_plain[*at] == 1 && at[1] < 128) at++;
        u32 place = (u32)(first - work->text), size = (u32)(at - first);
        if (size) {
            if (work->spaces) put_spaces(work);
            if (!make_room(work, size)) return;
            memcpy(work->letters + work->filled, first, size);
            for (u32 i = 0; work->with_spans && i < size; i++)
                work->origins[work->filled + i] = (Span){place + i, place + i + 1};
            work->filled += size;
            work->after_space = 0;
            work->at = at;
        } else if (at < last && *at == ' ' && is_plain[' '] == SPACE && at[1] < 128 && !work->after_space) {
            if (!work->spaces++) work->spaces_origin.begin = place;
            work->spaces_origin.end = place + 1;
            work->after_space = 1;
            work->at++;
        } else {
            put_next(work);
        }
    }
}

static void begin_text(Work *work, const u8 *text, u64 size) {
    work->text = work->at = text;
    work->text_first = work->count;
    work->end = text + size;
    work->done = work->filled = 0;
    work->spaces = 1;                                  /* the one before the text */
    work->spaces_origin = (Span){0, 0};
    work->after_space = 1;
}

/* Segmentation */
/* Sends out the ids of the best way to a place. */
static void put_ids(Work *work, u64 place) {
    u64 pieces = 0;
    for (u64 at = place; at; at -= work->nodes[at].size) pieces++;
    if (!make_room_for_ids(work, pieces)) return;
    u64 stop = work->count + pieces, kept = work->count;
    for (u64 at = place, i = stop; at; at -= work->nodes[at].size) {
        work->ids[--i] = work->nodes[at].id;
        if (work->with_spans)
            work->spans[i] = (Span){work->origins[work->done + at - work->nodes[at].size].begin,
                                    work->origins[work->done + at - 1].end};
    }
    for (u64 i = kept; i < stop; i++) {                /* unknown characters in a row become one */
        int goes_on = kept > work->text_first && work->ids[i] == UNKNOWN && work->ids[kept - 1] == UNKNOWN;
        if (work->with_spans) {
            if (goes_on) work->spans[kept - 1].end = work->spans[i].end;
            else work->spans[kept] = work->spans[i];
        }
        if (!goes_on) work->ids[kept++] = work->ids[i];
    }
    work->count = kept;
}

/* Another way to a place: it counts if it is better than those before. */
static inline void consider(Node *node, float score, u32 id, u32 size) {
    if (!node->size || score > node->score) *node = (Node){score, id & (MAX_PIECES - 1), size & 511};
}

/* The ways that go on from a place by each piece that begins there, else by an unknown character; returns how far any way
   reaches. Places count from there on. */
static inline u64 go_on(const Model *model, const u8 *letters, u64 left, u32 letter_size, Node *nodes, u64 furthest) {
    float score = nodes->score;
    u32 at = offset_of(*model->pieces);
    int is_known = 0;
    if (left > LONGEST) left = LONGEST;
    for (u32 i = 0; i < left;) {
        at ^= letters[i];
        u32 unit = model->pieces[at];
        if ((unit & LABEL_BITS) != letters[i]) break;
        at ^= offset_of(unit);
        i++;
        if (!has_value(unit)) continue;
        u32 id = model->pieces[at] & ~VALUE_BIT;
        while (furthest < i) nodes[++furthest].size = 0;
        consider(&nodes[i], model->scores[id] + score, id, i);
        is_known |= i == letter_size;
    }
    if (is_known) return furthest;
    while (furthest < letter_size) nodes[++furthest].size = 0;
    consider(&nodes[letter_size], model->scores[UNKNOWN] + score, UNKNOWN, letter_size);
    return furthest;
}

/* The ids of the text that was begun, behind those that are there; if `limit` is not 0, no more than so many. */
static void put_text(Work *work, u64 limit) {
    u64 start = 0, furthest = 0;
    if (!make_room_for_nodes(work, LONGEST + 1)) return;
    work->nodes[0] = (Node){0};
    while (!work->failed) {
        if (work->filled - work->done - start < LONGEST && work->at < work->end) {
            if (work->done > work->filled / 2) {       /* what is done makes room for what comes */
                work->filled -= work->done;
                memmove(work->letters, work->letters + work->done, work->filled);
                if (work->with_spans)
                    memmove(work->origins, work->origins + work->done, work->filled * sizeof(Span));
                work->done = 0;
            }
            fill(work, work->filled + AT_A_TIME);
        }
        if (start && start == furthest) {
            put_ids(work, start);
            if (limit && work->count - work->text_first >= limit) {
                work->count = work->text_first + limit;
                return;
            }
            work->nodes[0] = (Node){work->nodes[start].score, 0, 0};
            work->done += start;
            start = furthest = 0;
        }
        u64 left = work->filled - work->done - start;
        if (!left || !make_room_for_nodes(work, start + LONGEST + 1)) return;
        Node *nodes = work->nodes + start;
        if (nodes->score < -RESET_SCORE || nodes->score > RESET_SCORE) {
            float sum = nodes->score;
            for (u64 i = 0; i <= furthest - start; i++) nodes[i].score -= sum;
        }
        const u8 *letters = work->letters + work->done + start;
        u32 size = size_of_letter(*letters, left);
        furthest = start + go_on(work->model, letters, left, size, nodes, furthest - start);
        start += size;
    }
}

/* Python's side */
typedef struct { PyObject_HEAD Model model; void *tables; } Unigram;

/* Whether every unit leads to units alone, by whatever byte, and every value is below `values`. */
static int are_links(const u32 *units, u64 count, u64 values) {
    if (!count || *units & VALUE_BIT) return 0;
    for (u64 i = 0; i < count; i++) {
        u64 next = i ^ offset_of(units[i]);
        if (units[i] & VALUE_BIT ? (units[i] & ~VALUE_BIT) >= values : (next | 0xFF) >= count) return 0;
        if (!(units[i] & VALUE_BIT) && has_value(units[i]) && !(units[next] & VALUE_BIT)) return 0;
    }
    return 1;
}

static int are_replacements(const u8 *replacements, u64 count) {
    u64 before = 0;                                    /* bytes since the last zero */
    for (u64 i = 0; i < count && before <= MAX_REPLACEMENT; i++) before = replacements[i] ? before + 1 : 0;
    return count && !before;
}

static int are_scores(const float *scores, u64 count) {
    int right = 1;
    for (u64 i = 0; i < count; i++) right &= scores[i] >= -MAX_SCORE && scores[i] <= MAX_SCORE;
    return right;
}

/* Characters of ASCII that no rule replaces, alone or before another one of ASCII. */
static void find_plain(Model *model) {
    u32 root = offset_of(*model->rules);
    for (u32 first = 0; first < 128; first++) {
        u32 at = root ^ first, unit = model->rules[at], next = at ^ offset_of(unit), plain = 1;
        if ((unit & LABEL_BITS) == first) {
            plain = !has_value(unit);
            for (u32 second = 1; second < 128; second++) plain &= (model->rules[next ^ second] & LABEL_BITS) != second;
            plain &= has_value(unit) || (model->rules[next] & LABEL_BITS) != 0;
        }
        model->is_plain[first] = (u8)(first == ' ' ? SPACE * plain : plain);
    }
}

/* Unigram(pieces, scores, rules, replacements): uint32, float32, uint32 and bytes, which are copied, so that nobody changes
   them once they are checked. */
static PyObject *new_unigram(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names)) {
    enum { PIECES, RULES, SCORES, REPLACEMENTS, TABLES };
    Py_buffer given[TABLES] = {{0}};
    const u8 *table[TABLES];
    u64 size = 0;
    Unigram *self = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*", &given[PIECES], &given[SCORES], &given[RULES], &given[REPLACEMENTS])) return NULL;
    for (int i = 0; i < TABLES; i++) size += (u64)given[i].len;
    u8 *copy = malloc(size + 1);
    if (!copy) {
        PyErr_NoMemory();
        goto end;
    }
    size = 0;
    for (int i = 0; i < TABLES; i++) {                 /* the bytes come last, so the others stay aligned */
        table[i] = memcpy(copy + size, given[i].buf, (size_t)given[i].len);
        size += (u64)given[i].len;
    }
    u64 count = (u64)given[SCORES].len / 4;
    int right = !((given[PIECES].len | given[SCORES].len | given[RULES].len) & 3) && count && count <= MAX_PIECES;
    right = right && size < MAX_BYTES && are_scores((const float *)table[SCORES], count);
    right = right && are_replacements(table[REPLACEMENTS], (u64)given[REPLACEMENTS].len);
    right = right && are_links((const u32 *)table[PIECES], (u64)given[PIECES].len / 4, count);
    right = right && are_links((const u32 *)table[RULES], (u64)given[RULES].len / 4, (u64)given[REPLACEMENTS].len);
    if (right) self = (Unigram *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    else PyErr_Format(PyExc_ValueError, "the tables of the tokenizer do not fit together");
    if (!self) {
        free(copy);
        goto end;
    }
    self->tables = copy;
    self->model = (Model){.pieces = (const u32 *)table[PIECES], .rules = (const u32 *)table[RULES],
                          .scores = (const float *)table[SCORES], .replacements = table[REPLACEMENTS]};
    find_plain(&self->model);
end:
    for (int i = 0; i < TABLES; i++) PyBuffer_Release(&given[i]);
    return (PyObject *)self;
}

static void free_unigram(Unigram *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free(self->tables);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* What is made of texts, all of it in one row, and how much of each: normalised bytes, or ids, these also with spans. */
static PyObject *make(Unigram *self, PyObject *texts, int only_normalised, u64 limit, int with_spans) {
    PyObject *rows = NULL, *counts = NULL, *spans = NULL, *made = NULL, *held = PySequence_Tuple(texts);
    Py_ssize_t texts_count = held ? PyTuple_Size(held) : 0;
    const u8 **starts = held ? malloc(sizeof *starts * ((size_t)texts_count + 1)) : NULL;
    Work work = {.model = &self->model, .with_spans = with_spans};
    if (!starts || !(counts = PyByteArray_FromStringAndSize(NULL, 8 * texts_count))) goto no_memory;
    int64_t *sizes = (int64_t *)PyByteArray_AsString(counts);
    for (Py_ssize_t i = 0, size; i < texts_count; i++) {
        if (!(starts[i] = (const u8 *)PyUnicode_AsUTF8AndSize(PyTuple_GetItem(held, i), &size))) goto end;
        if ((sizes[i] = size) >= MAX_BYTES) {
            PyErr_Format(PyExc_OverflowError, "a text is too long");
            goto end;
        }
    }
    u8 *all = NULL;                                    /* the letters of all texts */
    u64 room = 0, filled = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < texts_count && !work.failed; i++) {
        begin_text(&work, starts[i], (u64)sizes[i]);
        if (!only_normalised) {
            put_text(&work, limit);
            sizes[i] = (int64_t)(work.count - work.text_first);
            continue;
        }
        fill(&work, UINT64_MAX);
        all = with_room(&work, all, &room, filled + work.filled, 1);
        if (!work.failed && work.filled) memcpy(all + filled, work.letters, work.filled);
        filled += work.filled;
        sizes[i] = (int64_t)work.filled;
    }
    Py_END_ALLOW_THREADS
    if (!work.failed && only_normalised) rows = PyByteArray_FromStringAndSize((char *)all, (Py_ssize_t)filled);
    if (!work.failed && !only_normalised) rows = PyByteArray_FromStringAndSize((char *)work.ids, (Py_ssize_t)(4 * work.count));
    if (rows && with_spans) spans = PyByteArray_FromStringAndSize((char *)work.spans, (Py_ssize_t)(8 * work.count));
    free(all);
    if (!rows || (with_spans && !spans)) goto no_memory;
    made = with_spans ? PyTuple_Pack(3, rows, counts, spans) : PyTuple_Pack(2, rows, counts);
    goto end;
no_memory:
    if (!PyErr_Occurred()) PyErr_NoMemory();
end:
    free(work.letters);
    free(work.origins);
    free(work.nodes);
    free(work.ids);
    free(work.spans);
    free(starts);
    Py_XDECREF(held);
    Py_XDECREF(rows);
    Py_XDECREF(counts);
    Py_XDECREF(spans);
    return made;
}

/* encode_many(texts: Sequence[str][, limit]) -> (bytearray of uint32 ids, bytearray of int64 counts); the first `limit` ids
   of each text, or all if that is 0. */
static PyObject *encode_many(Unigram *self, PyObject *args) {
    PyObject *texts;
    Py_ssize_t limit = 0;
    if (!PyArg_ParseTuple(args, "O|n", &texts, &limit)) return NULL;
    return make(self, texts, 0, limit < 0 ? 0 : (u64)limit, 0);
}

/* spans(texts) -> the same, and a bytearray with two uint32 for each id: where in its text's UTF-8 it begins and ends. */
static PyObject *spans(Unigram *self, PyObject *texts) { return make(self, texts, 0, 0, 1); }

/* normalise_many(texts) -> (bytearray of UTF-8, bytearray of int64 counts). */
static PyObject *normalise_many(Unigram *self, PyObject *texts) { return make(self, texts, 1, 0, 0); }

static PyMethodDef methods[] = {
    {"encode_many", (PyCFunction)encode_many, METH_VARARGS, "The ids of texts in one row, and how many each has."},
    {"spans", (PyCFunction)spans, METH_O, "The same, and where in its text each id begins and ends."},
    {"normalise_many", (PyCFunction)normalise_many, METH_O, "The normalised texts in one row, and how long each is."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "A unigram tokenizer, made from tables. Safe to call from several threads."},
    {Py_tp_new, new_unigram}, {Py_tp_dealloc, free_unigram}, {Py_tp_methods, methods}, {0, NULL},
};
static PyType_Spec spec = {"ridgeway._native.Unigram", sizeof(Unigram), 0, Py_TPFLAGS_DEFAULT, slots};

PyObject *unigram_type(void) { return PyType_FromSpec(&spec); }
