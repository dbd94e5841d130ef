/* Where the words of a text end, by the patterns named below, which are written out by hand.

   Who calls has valid UTF-8, and a class for each code point; all reads stay within the text. */
#include <limits.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;

/* Classes of code points: O200K tells apart Lu and Lt (UPPER), Ll (LOWER), other letters, and M (MARK), elsewhere OTHER. */
enum { OTHER = 1, LETTER = 2, NUMBER = 4, SPACE = 8, UPPER = 16, LOWER = 32, MARK = 64 };
enum { LETTERS = LETTER | UPPER | LOWER | MARK };
enum { GPT2, GPT2_DIGITS, CL100K, QWEN2, O200K, PATTERNS };  /* how texts are cut into words */

/* A character at `at`: its size in bytes goes to *size. */
static inline u32 code_at(const u8 *at, u32 *size) {
    u32 lead = *at;
    *size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead < 0x80) return lead;
    if (lead < 0xE0) return (lead & 31) << 6 | (at[1] & 63);
    if (lead < 0xF0) return (lead & 15) << 12 | (at[1] & 63) << 6 | (at[2] & 63);
    return (lead & 7) << 18 | (at[1] & 63) << 12 | (at[2] & 63) << 6 | (at[3] & 63);
}

static inline u32 class_of(const u8 *classes, const u8 *at, u32 *size) { return classes[code_at(at, size)]; }

static inline const u8 *end_of_run(const u8 *classes, const u8 *at, const u8 *end, u32 wanted) {
    u32 size;
    while (at < end && class_of(classes, at, &size) & wanted) at += size;
    return at;
}

static inline int ends_line(u8 byte) { return byte == '\r' || byte == '\n'; }

/* The size of 's 't 're 've 'm 'll 'd at an apostrophe, or 0; where case is folded, the long s is an s. */
static inline u32 contraction(const u8 *at, const u8 *end, int folds) {
    u8 fold = folds ? 'a' - 'A' : 0, first = end - at > 1 ? at[1] | fold : 0, second = end - at > 2 ? at[2] | fold : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if (folds && second && at[1] == 0xC5 && at[2] == 0xBF) return 3;
    return ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l') ? 3 : 0;
}

/* The letters of O200K, a contraction among them: [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ or else
   [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+. Where no small letter follows, the first gives back the capitals at its end; the second
   takes them if there is nothing else. */
static inline const u8 *end_of_cased(const u8 *classes, const u8 *at, const u8 *end) {
    const u8 *uncased = NULL;
    u32 size, class = 0;
    for (; at < end && (class = class_of(classes, at, &size)) & (LETTERS ^ LOWER); at += size)
        if (class != UPPER) uncased = at + size;
    if (at < end && class == LOWER) at = end_of_run(classes, at, end, LETTERS ^ UPPER);
    else if (uncased) at = uncased;
    return at < end && *at == '\'' ? at + contraction(at, end, 1) : at;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line's end, else all spaces but the last, if something follows; GPT-2 does not
   look for line ends, and where digits stand alone, no space is kept for them. */
static inline const u8 *end_of_spaces(const u8 *classes, const u8 *start, const u8 *end, const int pattern) {
    const u8 *at = start, *last = start, *line = NULL;
    u32 size, class = SPACE;
    while (at < end && (class = class_of(classes, at, &size)) == SPACE) {
        last = at;
        at += size;
        if (pattern > GPT2_DIGITS && ends_line(*last)) line = at;
    }
    if (line) return line;
    return at == end || (pattern == GPT2_DIGITS && class == NUMBER) || last == start ? at : last;
}

/* The patterns. In GPT2_DIGITS, each number stands alone, before all else; in QWEN2, \p{N} is without {1,3}.
   GPT2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
   CL100K: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+
           |\s+(?!\S)|\s+
   O200K:  [^\r\n\p{L}\p{N}]?(as in `end_of_cased`)|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
           A mark that begins a word needs no second look: as one of its letters, it gives the same end. */
static Py_ALWAYS_INLINE inline const u8 *end_of_word(const u8 *classes, const u8 *at, const u8 *end, const int pattern) {
    const int old = pattern == GPT2 || pattern == GPT2_DIGITS;
    const int most_numbers = pattern == GPT2 ? INT_MAX : pattern == CL100K || pattern == O200K ? 3 : 1;
    u32 size, next_size, class = class_of(classes, at, &size), short_form;
    if (*at == '\'' && pattern != O200K && (short_form = contraction(at, end, !old))) return at + short_form;
    if (class & (SPACE | OTHER) && at + size < end) {          /* it may go with what follows */
        u32 next = class_of(classes, at + size, &next_size);
        int with_space = next & (LETTERS | OTHER | (pattern == GPT2 ? NUMBER : 0));
        if (*at == ' ' ? with_space : !old && next & LETTERS && !ends_line(*at)) {
            at += size;
            size = next_size;
            class = next;
        }
    }
    if (pattern == O200K && class & LETTERS) return end_of_cased(classes, at, end);
    if (class == LETTER) return end_of_run(classes, at + size, end, LETTER);
    if (class == SPACE) return end_of_spaces(classes, at, end, pattern);
    if (class == OTHER) {
        at = end_of_run(classes, at + size, end, OTHER | MARK);
        while (at < end && ((!old && ends_line(*at)) || (pattern == O200K && *at == '/'))) at++;
        return at;
    }
    for (int i = 0; i < most_numbers && at < end && class_of(classes, at, &size) == NUMBER; i++) at += size;
    return at;
}
