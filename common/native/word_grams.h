/* The runs of letters in a row of token ids, counted in a sketch: what word_sketch.py does with numpy, faster.

   Who calls has checked that every id has a spelling. Counts are taken in unsigned numbers, which wrap. */

#define WORD_BEGIN 2
#define WORD_END 3
#define SHORTEST_RUN 2
#define LONGEST_RUN 5
#define USUAL_SIZES 2, 3         /* known when the code is compiled, so that there are no loops over sizes */

typedef struct { const uint8_t *letters; const int64_t *starts; } Spelling;
typedef struct { uint32_t *counts; uint32_t width; int shortest, longest; } Sketch;

static inline int is_word_byte(uint8_t byte) {
    return byte >= 128 || (uint8_t)(byte - '0') < 10 || (uint8_t)((byte | 32) - 'a') < 26;
}

/* Counts a run of letters by its bytes, the last the lowest, times the first multiplier: products are made byte by byte. */
static inline void count_gram(const Sketch *sketch, uint64_t product) {
    product = (product ^ product >> 32) * 0xD6E8FEB86659FD93u;
    uint32_t high = (uint32_t)(product >> 32);
    sketch->counts[(uint64_t)high * sketch->width >> 32] += (((uint32_t)product ^ high) & 1) * 2 - 1;
}

/* The products of the last bytes of a word, `of[n]` of the last n + 1, and how many bytes it has so far. */
typedef struct { uint64_t of[LONGEST_RUN]; int64_t length; } Run;

static inline void add_byte(Run *run, uint8_t byte, int longest) {
    uint64_t product = byte * 0x9E3779B97F4A7C15u;
    for (int last = longest - 1; last; last--) run->of[last] = (run->of[last - 1] << 8) + product;
    run->of[0] = product;
    run->length++;
}

/* Takes in the next byte of a word, and counts the runs that end in it. */
static inline void count_byte(const Sketch *sketch, Run *run, uint8_t byte, int shortest, int longest) {
    add_byte(run, byte, longest);
    for (int size = shortest; size <= longest; size++)
        if (run->length >= size) count_gram(sketch, run->of[size - 1]);
}

static inline void end_word(const Sketch *sketch, Run *run, int shortest, int longest) {
    if (run->length) count_byte(sketch, run, WORD_END, shortest, longest);
    run->length = 0;
}

/* Takes in the letters of the next token. */
static inline void count_token(const Sketch *sketch, Run *run, const Spelling *spelling, int32_t id, int shortest,
                               int longest) {
    const uint8_t *end = spelling->letters + spelling->starts[id + 1];
    for (const uint8_t *at = spelling->letters + spelling->starts[id]; at < end; at++) {
        if (is_word_byte(*at)) {
            if (!run->length) add_byte(run, WORD_BEGIN, longest);
            count_byte(sketch, run, *at, shortest, longest);
        } else end_word(sketch, run, shortest, longest);
    }
}

static inline int has_usual_sizes(const Sketch *sketch) { return sketch->shortest == 2 && sketch->longest == 3; }

static inline int are_sizes(int64_t shortest, int64_t longest) {
    return SHORTEST_RUN <= shortest && shortest <= longest && longest <= LONGEST_RUN;
}
