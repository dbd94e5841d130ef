/* The runs of letters in a row of token ids, counted in a sketch: what word_sketch.py does with numpy, faster.

   Who calls has checked that every id has a spelling. Counts are taken in unsigned numbers, which wrap. */
#include <stdint.h>

#define WORD_BEGIN 2
#define WORD_END 3
#define SMALLEST_GRAM 3
#define LARGEST_GRAM 5

typedef struct { const uint8_t *letters; const int64_t *starts; } Spelling;
typedef struct { uint32_t *counts; uint64_t width; } Sketch;

static inline int is_word_byte(uint8_t byte) {
    return byte >= 128 || (uint8_t)(byte - '0') < 10 || (uint8_t)((byte | 32) - 'a') < 26;
}

static inline void count_gram(const Sketch *sketch, uint64_t gram) {
    gram *= 0x9E3779B97F4A7C15u;
    gram ^= gram >> 32;
    gram *= 0xD6E8FEB86659FD93u;
    gram ^= gram >> 32;
    sketch->counts[(gram >> 32) * sketch->width >> 32] += (gram & 1) ? 1u : (uint32_t)-1;
}

/* Takes in the next byte of a word; `length` bytes of it, its beginning among them, are in `last` already. */
static inline void count_byte(const Sketch *sketch, uint64_t *last, int64_t *length, uint8_t byte) {
    *last = *last << 8 | byte;
    ++*length;
    for (int size = SMALLEST_GRAM; size <= LARGEST_GRAM; size++)
        if (*length >= size) count_gram(sketch, *last & (((uint64_t)1 << 8 * size) - 1));
}

/* Counts the runs of letters of one text or window. */
static inline void count_words(const Sketch *sketch, const Spelling *spelling, const int32_t *ids, int64_t count) {
    uint64_t last = 0;
    int64_t length = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *end = spelling->letters + spelling->starts[ids[i] + 1];
        for (const uint8_t *at = spelling->letters + spelling->starts[ids[i]]; at < end; at++) {
            if (is_word_byte(*at)) {
                if (!length) { last = WORD_BEGIN; length = 1; }
                count_byte(sketch, &last, &length, *at);
            } else if (length) {
                count_byte(sketch, &last, &length, WORD_END);
                length = 0;
            }
        }
    }
    if (length) count_byte(sketch, &last, &length, WORD_END);
}
