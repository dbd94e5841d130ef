"""A tokenizer's definition → the compiled encoder that gives the same ids many times as fast, where
it is known to.

Known is byte-level BPE with the pattern of GPT-2 (also with single digits, as SmolLM2 has it), of
cl100k (Llama 3), of Qwen 2 or of o200k (GPT-4o, gpt-oss); where texts are first brought to
Unicode's form NFC, as Qwen 2 does, for texts that are in that form already. Everything else is left
to the tokenizers library, and so is all text where there is no compiled module.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from unicodedata import is_normalized

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex, normalizers, pre_tokenizers

from ridgeway.common.base.files import storable
from ridgeway.common.base.machine import native
from ridgeway.common.text.characters import CODE_POINTS, character_classes

MAX_ID = 1 << 30
OTHER = 1
LETTER = 2
_NUMBER = 4
SPACE = 8
CLASS_PATTERNS = {
    OTHER: r"[^\s\p{L}\p{N}]",
    LETTER: r"\p{L}",
    _NUMBER: r"\p{N}",
    SPACE: r"\s",
}
_CASES = {16: r"[\p{Lu}\p{Lt}]", 32: r"\p{Ll}", 64: r"\p{M}"}
"""What o200k tells apart beside them."""
CASED_PLANES = (range(1, 0x20000), range(0xE0000, 0xE1000))
"""Where versions of the library that were compared have capitals, small letters and marks."""
SURROGATES = range(0xD800, 0xE000)
CHECKED_VERSIONS = frozenset({"0.22.2", "0.23.1", "0.23.2", "0.23.3"})
"""Versions of the library whose classes of characters were compared with ours; others are compared
when met. Their form NFC is of an older Unicode than that of any Python that we run on, so what
Python finds in that form stays as it is.
"""
EXTRA_DIGITS = (*range(0x11DE0, 0x11DEA), 0x16FF4, 0x16FF5, 0x16FF6)
"""Characters that the library's `Digits` takes for numbers and its expressions do not."""

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2_PATTERN = 0
GPT2_DIGITS_PATTERN = 1
CL100K_PATTERN = 2
QWEN2_PATTERN = 3
O200K_PATTERN = 4
SPLITS = {
    CL100K: CL100K_PATTERN,
    CL100K.replace("{1,3}", ""): QWEN2_PATTERN,
    O200K: O200K_PATTERN,
}

NFC = {"type": "NFC"}


class EncoderTables(NamedTuple):
    """What a compiled encoder is made of: a process that gets it has nothing to work out.

    only_nfc: whether it gives the library's ids for no other texts than those that are in Unicode's
              form NFC.
    """

    only_nfc: bool
    pattern: int
    parts: tuple[bytes, ...]


class FastEncoder:
    """The compiled encoder of a definition."""

    def __init__(self, tables: EncoderTables) -> None:
        self.tables = tables
        self.only_nfc = tables.only_nfc
        self._encoder = native.Encoder(tables.pattern, *tables.parts)

    def knows(self, texts: Iterable[str]) -> bool:
        return not self.only_nfc or all(
            text.isascii() or is_normalized("NFC", text) for text in texts
        )

    def encode_many(
        self, texts: Sequence[str], *lower: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of texts in one row, and how many each has. lower: what every code point is read
        as.
        """
        try:
            ids, lengths = self._encoder.encode_many(texts, *lower)
        except UnicodeEncodeError:  # lone surrogates
            texts = [storable(text) for text in texts]
            ids, lengths = self._encoder.encode_many(texts, *lower)
        return np.frombuffer(ids, np.int32), np.frombuffer(lengths, np.int64)


def fast_encoder(
    definition: bytes, library: tokenizers.Tokenizer
) -> FastEncoder | None:
    """The compiled encoder of a definition that the library has read, or None where the library
    must do the work.
    """
    if native is None:
        return None
    read: dict[str, Any] = json.loads(definition)
    pattern = _pattern(read.get("pre_tokenizer"))
    # the library may have given them other numbers than the definition
    tokens = library.get_added_tokens_decoder()
    if pattern is None or not _is_plain(read["model"], tokens.values()):
        return None
    normalizer = read.get("normalizer")
    if normalizer and (
        normalizer != NFC or tokenizers.__version__ not in CHECKED_VERSIONS
    ):
        return None
    vocabulary: dict[str, int] = read["model"]["vocab"]
    if max(vocabulary.values(), default=0) >= MAX_ID or not classes_are_the_library_s():
        return None
    classes = cased_classes() if pattern == O200K_PATTERN else character_classes()
    if pattern == GPT2_DIGITS_PATTERN:
        classes[list(EXTRA_DIGITS)] = _NUMBER
    letters = {letter: byte for byte, letter in byte_letters().items()}
    byte_ids = np.array(
        [vocabulary.get(letter, -1) for letter in byte_letters().values()],
        dtype=np.int32,
    )
    whole = vocabulary if read["model"].get("ignore_merges") else {}
    words = [
        (bytes(map(letters.__getitem__, word)), number)
        for word, number in whole.items()
        if word and letters.keys() >= set(word)
    ]
    added = [
        (token.content.encode(), -1 if token.special else number)
        for number, token in tokens.items()
    ]
    merges = _merges(read["model"]["merges"], vocabulary)
    parts = (
        classes.tobytes(),
        byte_ids.tobytes(),
        merges,
        *_packed(words),
        *_packed(added),
    )
    return FastEncoder(EncoderTables(bool(normalizer), pattern, parts))


def classes_are_the_library_s() -> bool:
    """Whether the file says what the installed library does: nothing of a class is left by its
    expression.
    """
    if tokenizers.__version__ in CHECKED_VERSIONS:
        return True
    classes = character_classes()
    classes[SURROGATES.start : SURROGATES.stop] = 0  # they never reach it
    same = all(
        not normalizers.Replace(Regex(pattern), "").normalize_str(
            _text(classes == number)
        )
        for number, pattern in CLASS_PATTERNS.items()
    )
    classes[list(EXTRA_DIGITS)] = _NUMBER
    digits = pre_tokenizers.Digits(individual_digits=False)
    numbers = _text(classes == _NUMBER)
    others = _text((classes == OTHER) | (classes == LETTER))
    return (
        same
        and len(digits.pre_tokenize_str(numbers))
        == len(digits.pre_tokenize_str(others))
        == 1
    )


def cased_classes() -> NDArray[np.uint8]:
    """The classes with capitals, small letters and marks told apart as the installed library
    does.
    """
    planes = (
        CASED_PLANES
        if tokenizers.__version__ in CHECKED_VERSIONS
        else (range(1, CODE_POINTS),)
    )
    places = np.array(
        [number for plane in planes for number in plane if number not in SURROGATES]
    )
    text = "".join(map(chr, places))
    classes = character_classes()
    for number, pattern in _CASES.items():
        emptied = normalizers.Replace(Regex(pattern), "\0").normalize_str(text)
        classes[
            places[np.frombuffer(emptied.encode("utf-32-le"), dtype="<u4") == 0]
        ] = number
    return classes


def byte_letters() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return {
        byte: chr(byte if byte in printable else next(others)) for byte in range(256)
    }


def _text(chosen: NDArray[np.bool_]) -> str:
    return "".join(map(chr, np.flatnonzero(chosen).tolist()))


def _pattern(split: dict[str, Any] | None) -> int | None:
    """The number of a pre-tokeniser's pattern, if the compiled encoder has it."""
    steps = [step for step in (split or {}).get("pretokenizers", [split]) if step]
    *before, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    match last.get("use_regex", True), before:
        case True, []:
            return GPT2_PATTERN
        case True, [{"type": "Digits", "individual_digits": True}]:
            return GPT2_DIGITS_PATTERN
        case False, [{"type": "Split", "pattern": {"Regex": pattern}, **how}]:
            # either leaves all text in place, since the patterns leave none out
            kept = (how.get("behavior"), bool(how.get("invert")))
            if kept in (("Isolated", False), ("Removed", True)):
                return SPLITS.get(pattern)
    return None


def _is_plain(model: dict[str, Any], added: Iterable[tokenizers.AddedToken]) -> bool:
    """Whether the model is BPE with nothing that the compiled encoder does not do, and added
    tokens stand for themselves.
    """
    off = (
        "dropout",
        "unk_token",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "fuse_unk",
        "byte_fallback",
    )
    known = {"type", "vocab", "merges", "ignore_merges", *off}
    marks = "lstrip", "rstrip", "single_word", "normalized"
    return (
        model.get("type") == "BPE"
        and model.keys() <= known
        and not any(model.get(name) for name in off)
        and all(
            token.content and not any(getattr(token, mark) for mark in marks)
            for token in added
        )
    )


def _merges(pairs: list[str | list[str]], vocabulary: dict[str, int]) -> bytes:
    """Left, right and merged id of each merge, the first to be merged first."""
    split = [pair.split(" ") if isinstance(pair, str) else pair for pair in pairs]
    rows = [
        (vocabulary[left], vocabulary[right], vocabulary[left + right])
        for left, right in split
    ]
    return np.array(rows, dtype=np.uint32).tobytes()


def _packed(entries: list[tuple[bytes, int]]) -> tuple[bytes, bytes]:
    """Strings of bytes with an id each: where each begins, its size and id, and all of them in
    one.
    """
    sizes = np.array([len(content) for content, _ in entries], dtype=np.int64)
    numbers = np.array([number for _, number in entries], dtype=np.int64)
    rows = np.stack([np.cumsum(sizes) - sizes, sizes, numbers], axis=1)
    return rows.astype(np.uint32).tobytes(), b"".join(content for content, _ in entries)
