/* SentencePiece's unigram model: text -> normalised text -> piece ids, the very ids that the library gives.

   The characters of a text are replaced by rules, longest first; every run of spaces becomes one U+2581, of which one
   stands before the text and none after it. Of all ways to cut what comes of that into pieces, the one with the highest
   sum of scores counts; a character without a piece is unknown, and unknown characters in a row are one id. Sums are
   those of the library (EncodeOptimized), in single precision, in its order: of equal sums the first counts.

   The normalised text is made as it is read. Where no piece reaches beyond a place, what lies before it is decided, goes
   out and is forgotten: memory is that of the longest stretch that pieces overlap without a break, and a text of which
   only the first ids are wanted is read no further than they need.

   Letters. Where they are asked for, the bytes of each id go out with it: each mark as one blank, and before the first
   mark of a run of spaces a line break for each one in the text that became part of the run. The line breaks of runs that
   are not decided yet wait in a row of their own.

   Safety. Both tables are double arrays in the form of Darts, and may come from anybody: `are_links` checks once that
   whatever byte is followed from whatever unit leads to a unit, and that values are numbers of pieces, or places in the
   row of replacements, which ends in a zero and has none farther apart than MAX_REPLACEMENT. No path is followed for more
   than LONGEST bytes, so time is linear whatever the tables say. Texts come as Python strings, so their UTF-8 is valid;
   rules that cut a character leave bytes behind, which are read as U+FFFD, and none is read behind the text's end. What
   goes out never outgrows its row: room is made for all bytes of a stretch, and for its line breaks, before they are
   written. Every allocation is checked.

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
typedef struct { u64 place, count; } Breaks;           /* line breaks before a byte of a normalised text */
typedef struct { float score; u32 id : 23, size : 9; } Node;  /* the best way to a place, and its last piece; size 0: none */

/* What is made of texts. SPANS and LETTERS come with ids. */
enum { NORMALISED = 1, SPANS = 2, LETTERS = 4 };

/* The work on one text after the other: what is normalised, and the ways through it. */
typedef struct {
    const Model *model;
    int wanted;
    const u8 *text, *at, *end;   /* at: what was not read yet */
    u8 *letters;                 /* normalised */
    Span *origins;               /* where each of these bytes comes from, if that is asked for */
    Node *nodes;                 /* of the places from `done` on */
    u64 done, filled, forgotten, letters_room, nodes_room;  /* forgotten: bytes of this text that made room for others */
    u64 spaces, line_breaks;     /* that wait for a letter behind them */
    Span spaces_origin;
    Breaks *breaks;              /* those that are not written yet, if letters are asked for */
    u64 breaks_first, breaks_count, breaks_room;
    u32 *ids;
    Span *spans;                 /* of the ids, if they are asked for */
    int64_t *stops;              /* where the letters of each id end, if they are asked for */
    u64 count, ids_room, text_first;  /* text_first: how many ids there were before this text */
    u8 *written;                 /* letters of ids, or normalised texts */
    u64 written_count, written_room;
    int after_space, failed;     /* failed: memory ran out, and nothing that was written is to be used */
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
    if (work->wanted & SPANS) work->origins = with_room(work, work->origins, &again, wanted, sizeof(Span));
    if (!work->failed) work->letters_room = room;
    return !work->failed;
}

static int make_room_for_ids(Work *work, u64 more) {
    u64 room = work->ids_room, again = room, once_more = room, wanted = work->count + more;
    work->ids = with_room(work, work->ids, &room, wanted, sizeof(u32));
    if (work->wanted & SPANS) work->spans = with_room(work, work->spans, &again, wanted, sizeof(Span));
    if (work->wanted & LETTERS) work->stops = with_room(work, work->stops, &once_more, wanted, sizeof(int64_t));
    if (!work->failed) work->ids_room = room;
    return !work->failed;
}

static int make_room_for_nodes(Work *work, u64 wanted) {
    work->nodes = with_room(work, work->nodes, &work->nodes_room, wanted, sizeof(Node));
    return !work->failed;
}

static int make_room_to_write(Work *work, u64 more) {
    work->written = with_room(work, work->written, &work->written_room, work->written_count + more, 1);
    return !work->failed;
}

/* The bytes of a character by its first one, of those that are left. */
static inline u32 size_of_letter(u8 first, u64 left) {
    u32 size = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    return size < left ? size : (u32)left;
}

/* The bytes of a space or of a mark, if there is one at this place. */
static inline u32 size_of_space(const u8 *letters, u64 left) {
    return *letters == ' ' ? 1 : left >= 3 && !memcmp(letters, "\xE2\x96\x81", 3) ? 3 : 0;
}

/* Normalisation */
static inline void put(Work *work, u8 letter, Span origin) {
    if (work->wanted & SPANS) work->origins[work->filled] = origin;
    work->letters[work->filled++] = letter;
}

/* Line breaks that stand before the normalised byte which comes next. */
static void put_breaks(Work *work) {
    Breaks breaks = {work->forgotten + work->filled, work->line_breaks};
    work->breaks = with_room(work, work->breaks, &work->breaks_room, work->breaks_count + 1, sizeof(Breaks));
    if (!work->failed) work->breaks[work->breaks_count++] = breaks;
    work->line_breaks = 0;
}

static void put_spaces(Work *work) {
    if (work->line_breaks) put_breaks(work);
    if (work->failed || !make_room(work, 3 * work->spaces)) return;
    for (; work->spaces; work->spaces--)
        for (int i = 0; i < 3; i++) put(work, (u8)"\xE2\x96\x81"[i], work->spaces_origin);
}

/* What some of the text has become. Spaces wait, since those at the end count for nothing, and neither do those behind
   another space. U+2581 in a text is a space, of which each counts. The line breaks of what begins with a space wait,
   too. */
static void put_all(Work *work, const u8 *letters, u64 size, Span origin) {
    if ((work->wanted & LETTERS) && size && size_of_space(letters, size))
        for (u32 i = origin.begin; i < origin.end; i++) work->line_breaks += work->text[i] == '\n';
    while (work->after_space && size && *letters == ' ') letters++, size--;
    if (!size) return;
    work->after_space = letters[size - 1] == ' ';
    for (u64 i = 0; i < size && !work->failed; i++) {
        u32 space = size_of_space(letters + i, size - i);
        if (space) {
            if (!work->spaces++) work->spaces_origin.begin = origin.begin;
            work->spaces_origin.end = origin.end;
            i += space - 1;
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
            for (u32 i = 0; (work->wanted & SPANS) && i < size; i++)
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
    work->done = work->filled = work->forgotten = 0;
    work->breaks_first = work->breaks_count = work->line_breaks = 0;
    work->spaces = 1;                                  /* the one before the text */
    work->spaces_origin = (Span){0, 0};
    work->after_space = 1;
}

/* Segmentation */
/* Writes the line breaks that come next, and makes room for so many letters behind them. */
static int write_breaks(Work *work, u64 letters) {
    u64 count = work->breaks[work->breaks_first++].count;
    if (!make_room_to_write(work, count + letters)) return 0;
    memset(work->written + work->written_count, '\n', count);
    work->written_count += count;
    return 1;
}

/* Writes the letters of so many normalised bytes from this one on. */
static void write_letters(Work *work, u64 begin, u64 size) {
    const u8 *letters = work->letters + begin;
    if (!make_room_to_write(work, size)) return;
    for (u64 i = 0; i < size; i++) {
        int breaks_next = work->breaks_first < work->breaks_count &&
                          work->breaks[work->breaks_first].place == work->forgotten + begin + i;
        if (breaks_next && !write_breaks(work, size - i)) return;
        u32 space = size_of_space(letters + i, size - i);
        work->written[work->written_count++] = space ? ' ' : letters[i];
        i += space ? space - 1 : 0;
    }
}

/* Sends out the ids of the best way to a place. */
static void put_ids(Work *work, u64 place) {
    u64 pieces = 0, begin = work->done;
    for (u64 at = place; at; at -= work->nodes[at].size) pieces++;
    if (!make_room_for_ids(work, pieces)) return;
    u64 stop = work->count + pieces, kept = work->count;
    for (u64 at = place, i = stop; at; at -= work->nodes[at].size) {
        work->ids[--i] = work->nodes[at].id;
        if (work->wanted & SPANS)
            work->spans[i] = (Span){work->origins[work->done + at - work->nodes[at].size].begin,
                                    work->origins[work->done + at - 1].end};
        if (work->wanted & LETTERS) work->stops[i] = work->nodes[at].size;
    }
    for (u64 i = kept; i < stop; i++) {                /* unknown characters in a row become one */
        int goes_on = kept > work->text_first && work->ids[i] == UNKNOWN && work->ids[kept - 1] == UNKNOWN;
        if (!goes_on) work->ids[kept++] = work->ids[i];
        if (work->wanted & SPANS) {
            if (goes_on) work->spans[kept - 1].end = work->spans[i].end;
            else work->spans[kept - 1] = work->spans[i];
        }
        if (work->wanted & LETTERS) {
            u64 size = (u64)work->stops[i];
            write_letters(work, begin, size);
            begin += size;
            work->stops[kept - 1] = (int64_t)work->written_count;
        }
    }
    work->count = kept;
}

/* Whether this text has as many ids as are wanted, and all letters of the last one; no more are kept then. */
static int has_enough(Work *work, u64 limit) {
    u64 count = work->count - work->text_first;
    if (!limit || count < limit) return 0;
    if ((work->wanted & LETTERS) && count == limit && work->ids[work->count - 1] == UNKNOWN) return 0;
    work->count = work->text_first + limit;
    if (work->wanted & LETTERS) work->written_count = (u64)work->stops[work->count - 1];
    return 1;
}

/* What is done makes room for what comes. */
static void forget_done(Work *work) {
    work->forgotten += work->done;
    work->filled -= work->done;
    memmove(work->letters, work->letters + work->done, work->filled);
    if (work->wanted & SPANS) memmove(work->origins, work->origins + work->done, work->filled * sizeof(Span));
    work->done = 0;
    work->breaks_count -= work->breaks_first;
    if (work->breaks_count)
        memmove(work->breaks, work->breaks + work->breaks_first, work->breaks_count * sizeof(Breaks));
    work->breaks_first = 0;
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
            if (work->done > work->filled / 2) forget_done(work);
            fill(work, work->filled + AT_A_TIME);
        }
        if (start && start == furthest) {
            put_ids(work, start);
            if (work->failed || has_enough(work, limit)) return;
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

/* Reads all texts, and puts how much was made of each in the place of its size. */
static void read_texts(Work *work, const u8 *const *starts, int64_t *sizes, Py_ssize_t count, u64 limit) {
    for (Py_ssize_t i = 0; i < count && !work->failed; i++) {
        begin_text(work, starts[i], (u64)sizes[i]);
        if (work->wanted & NORMALISED) {
            fill(work, UINT64_MAX);
            if (work->failed || !make_room_to_write(work, work->filled)) return;
            if (work->filled) memcpy(work->written + work->written_count, work->letters, work->filled);
            work->written_count += work->filled;
            sizes[i] = (int64_t)work->filled;
        } else {
            put_text(work, limit);
            sizes[i] = (int64_t)(work->count - work->text_first);
        }
    }
}

static PyObject *row_of(const void *items, u64 count, u64 size) {
    return PyByteArray_FromStringAndSize(items, (Py_ssize_t)(count * size));
}

/* What was made, and `counts`, how much of it each text has. */
static PyObject *made_of(const Work *work, PyObject *counts) {
    if (work->failed) return PyErr_NoMemory();
    PyObject *row = work->wanted & NORMALISED ? row_of(work->written, work->written_count, 1)
                                              : row_of(work->ids, work->count, sizeof(u32));
    if (work->wanted & SPANS) return Py_BuildValue("NON", row, counts, row_of(work->spans, work->count, sizeof(Span)));
    if (!(work->wanted & LETTERS)) return Py_BuildValue("NO", row, counts);
    return Py_BuildValue("NONN", row, counts, row_of(work->written, work->written_count, 1),
                         row_of(work->stops, work->count, sizeof(int64_t)));
}

static PyObject *make(Unigram *self, PyObject *texts, int wanted, u64 limit) {
    PyObject *counts = NULL, *made = NULL, *held = PySequence_Tuple(texts);
    Py_ssize_t count = held ? PyTuple_Size(held) : 0;
    const u8 **starts = held ? malloc(sizeof *starts * ((size_t)count + 1)) : NULL;
    Work work = {.model = &self->model, .wanted = wanted};
    if (held && !starts) PyErr_NoMemory();
    if (!starts || !(counts = PyByteArray_FromStringAndSize(NULL, 8 * count))) goto end;
    int64_t *sizes = (int64_t *)PyByteArray_AsString(counts);
    for (Py_ssize_t i = 0, size; i < count; i++) {
        if (!(starts[i] = (const u8 *)PyUnicode_AsUTF8AndSize(PyTuple_GetItem(held, i), &size))) goto end;
        if ((sizes[i] = size) >= MAX_BYTES) {
            PyErr_Format(PyExc_OverflowError, "a text is too long");
            goto end;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    read_texts(&work, starts, sizes, count, limit);
    Py_END_ALLOW_THREADS
    made = made_of(&work, counts);
end:
    free(work.letters);
    free(work.origins);
    free(work.nodes);
    free(work.breaks);
    free(work.ids);
    free(work.spans);
    free(work.stops);
    free(work.written);
    free(starts);
    Py_XDECREF(held);
    Py_XDECREF(counts);
    return made;
}

/* The same with arguments (texts[, limit]): only the first `limit` ids of each text, or all if that is 0. */
static PyObject *make_some(Unigram *self, PyObject *args, int wanted) {
    PyObject *texts;
    Py_ssize_t limit = 0;
    if (!PyArg_ParseTuple(args, "O|n", &texts, &limit)) return NULL;
    return make(self, texts, wanted, limit < 0 ? 0 : (u64)limit);
}

/* encode_many(texts: Sequence[str][, limit]) -> (bytearray of uint32 ids, bytearray of int64 counts). */
static PyObject *encode_many(Unigram *self, PyObject *args) { return make_some(self, args, 0); }

/* letters_many(texts[, limit]) -> the same, a bytearray of the letters of all ids, and one of int64: where in it those of
   each id end. */
static PyObject *letters_many(Unigram *self, PyObject *args) { return make_some(self, args, LETTERS); }

/* spans(texts) -> ids and counts, and a bytearray with two uint32 for each id: where in its text's UTF-8 it begins and
   ends. */
static PyObject *spans(Unigram *self, PyObject *texts) { return make(self, texts, SPANS, 0); }

/* normalise_many(texts) -> (bytearray of UTF-8, bytearray of int64 counts). */
static PyObject *normalise_many(Unigram *self, PyObject *texts) { return make(self, texts, NORMALISED, 0); }

static PyMethodDef methods[] = {
    {"encode_many", (PyCFunction)encode_many, METH_VARARGS, "The ids of texts in one row, and how many each has."},
    {"letters_many", (PyCFunction)letters_many, METH_VARARGS, "The same, and the letters of each id."},
    {"spans", (PyCFunction)spans, METH_O, "Ids and counts, and where in its text each id begins and ends."},
    {"normalise_many", (PyCFunction)normalise_many, METH_O, "The normalised texts in one row, and how long each is."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "A unigram tokenizer, made from tables. Safe to call from several threads."},
    {Py_tp_new, new_unigram}, {Py_tp_dealloc, free_unigram}, {Py_tp_methods, methods}, {0, NULL},
};
static PyType_Spec spec = {"ridgeway._native.Unigram", sizeof(Unigram), 0, Py_TPFLAGS_DEFAULT, slots};

PyObject *unigram_type(void) { return PyType_FromSpec(&spec); }
