/* Runs of letters as letter_runs.c gives them: the code of each, and where the runs of each token end.

   A code is twice a bucket, and one more if the run counts +1 instead of -1. */

#define BUCKETS_OF_CODES (1 << 15)   /* no code has a bucket beyond */

typedef struct { const uint16_t *codes; const int64_t *stops; int64_t count, tokens; } Runs;

static inline uint32_t bucket_of(uint16_t code) { return code >> 1; }

/* +1 or -1 in an unsigned number, which wraps. */
static inline uint32_t sign_of(uint16_t code) { return 2 * (uint32_t)(code & 1) - 1; }

static inline int64_t first_run(const Runs *runs, int64_t token) { return token ? runs->stops[token - 1] : 0; }

/* Whether stops rise from 0 to no more than `most`. */
static inline int are_stops(const int64_t *stops, int64_t count, int64_t most) {
    int64_t before = 0;
    for (int64_t i = 0; i < count; i++) {
        if (stops[i] < before || stops[i] > most) return 0;
        before = stops[i];
    }
    return 1;
}

/* Whether all buckets of these runs are below `buckets`. */
static inline int are_codes(const uint16_t *codes, int64_t count, int64_t buckets) {
    int wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong |= bucket_of(codes[i]) >= buckets;
    return !wrong;
}
