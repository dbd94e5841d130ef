"""A SentencePiece model of single pieces (unigrams) → the tables of its tokenizer: the same bytes
on every machine.

Knows the model's file format and how double arrays are made. Knows nothing of texts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.text.unigram import (
    LONGEST,
    SPACE_MARK,
    UNKNOWN,
    VALUE_BIT,
    PieceTokenizer,
)

WIRE_VARINT = 0
WIRE_64_BITS = 1
WIRE_BYTES = 2
"""Kinds of fields in a protocol buffer; the one that is left has 32 bits."""

# Fields of a model and of its parts, by their numbers.
_PIECES = 1
_TRAINER = 2
_NORMALISER = 3
_PIECE_TEXT = 1
_PIECE_SCORE = 2
_PIECE_TYPE = 3
_RULES = 2

_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4
"""Types of pieces; those that are unused or stand for bytes are not read."""
_FOUND = (_NORMAL, _USER_DEFINED)
"""Those of pieces that texts consist of."""

_UNKNOWN_PENALTY = 10
"""An unknown character costs so much more than the rarest piece."""

_MEANT = {
    "a model of unigrams": (_TRAINER, 3, 1, 1),
    "spaces before words, not behind": (_TRAINER, 24, 0, 0),
    "no pieces for bytes": (_TRAINER, 35, 0, 0),
    "a space before the text": (_NORMALISER, 3, 1, 1),
    "one space for many": (_NORMALISER, 4, 1, 1),
    "spaces as U+2581": (_NORMALISER, 5, 1, 1),
}
"""What the tokenizer does: the part of a model and the field that say so, what the field says where
it is missing, and what it must say.
"""


def piece_tokenizer(model: bytes) -> PieceTokenizer:
    """The tokenizer of a SentencePiece model's file."""
    fields = list(_fields(model))
    parts = {key: dict(_fields(content)) for key, content in fields if key != _PIECES}
    for meaning, (part, field, missing, wanted) in _MEANT.items():
        if parts.get(part, {}).get(field, missing) != wanted:
            raise EncoderError(f"the SentencePiece model is not read: not {meaning}")
    pieces = [dict(_fields(content)) for key, content in fields if key == _PIECES]
    texts: list[bytes] = [piece[_PIECE_TEXT] for piece in pieces]
    types = np.array([piece.get(_PIECE_TYPE, _NORMAL) for piece in pieces])
    numbers: list[int] = np.flatnonzero(np.isin(types, _FOUND)).tolist()
    found = {texts[number]: number for number in numbers}
    defined = np.flatnonzero(types == _USER_DEFINED)
    if (
        np.flatnonzero(types == _UNKNOWN).tolist() != [UNKNOWN]
        or not np.isin(types, (*_FOUND, _UNKNOWN, _CONTROL)).all()
        or max(map(len, found)) > LONGEST
        or any(0 in text for text in found)
    ):
        raise EncoderError("the SentencePiece model has pieces that are not read")
    scores = np.array([_score(piece) for piece in pieces], np.float32)
    penalty = np.float32(_UNKNOWN_PENALTY)
    scores[UNKNOWN] = scores[types == _NORMAL].min() - penalty
    for number in defined:
        # SentencePiece prefers them to all other pieces
        scores[number] = 0.1 * (len(texts[number]) - 1)
    rules: bytes = parts[_NORMALISER][_RULES]
    (size,) = struct.unpack_from("<I", rules)
    tokenizer = PieceTokenizer(
        double_array(found),
        scores,
        np.frombuffer(rules[4 : 4 + size], np.uint32),
        np.frombuffer(rules[4 + size :], np.uint8),
    )
    for number in defined:
        _check_defined(tokenizer, texts[number].decode())
    return tokenizer


def _score(piece: Mapping[int, Any]) -> float:
    (score,) = struct.unpack("<f", piece.get(_PIECE_SCORE, bytes(4)))
    return float(score)


def _check_defined(tokenizer: PieceTokenizer, text: str) -> None:
    """Raise unless a user-defined piece stays as it is by the rules, as SentencePiece keeps it out
    of them; a digit at its end joins no mark that may follow.
    """
    (letters, _) = tokenizer.normalise_many([text])
    if letters != SPACE_MARK + text.encode() or not text[-1].isdigit():
        raise EncoderError(f"the SentencePiece model's piece {text!r} is not read")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, position


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and contents of a protocol buffer's fields."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == WIRE_VARINT:
            content: int | bytes
            content, position = _varint(data, position)
        else:
            size = 8 if kind == WIRE_64_BITS else 4
            if kind == WIRE_BYTES:
                size, position = _varint(data, position)
            content = data[position : position + size]
            position += size
        yield key >> 3, content


# Double arrays. A key's children lie where its base says, each at base ^ label; the sets of free
# units and of free bases are the bits of numbers.

BLOCK = 1 << 8
"""A base and its units lie in one block."""
_WINDOW = BLOCK << 2
"""So many units are looked at; those before them are full enough."""
_ALL = (1 << _WINDOW) - 1
_NEWEST = _ALL >> _WINDOW - BLOCK << _WINDOW - BLOCK
_HALVES = [(1 << bit, _ALL // ((1 << (1 << bit)) + 1)) for bit in range(8)]
"""Each bit of a label, and the places in which it is 0."""
MAX_OFFSET = 1 << 21


def double_array(values: Mapping[bytes, int]) -> NDArray[np.uint32]:
    """Keys without zeros, and their values, as a double array in the form of Darts. What the first
    keys need lies together: where they are the frequent ones, few parts of it are read often.
    """
    # of every beginning of a key, the bytes that may follow; a beginning comes before longer ones
    labels: dict[bytes, set[int]] = {b"": set()}
    for key in values:
        for size, label in enumerate(key):
            labels[key[:size]].add(label)
            labels.setdefault(key[: size + 1], set())
    units = [0] + [VALUE_BIT] * (_WINDOW - 1)
    places = {b"": 0}
    first = 0
    free = _ALL - 1
    free_bases = _ALL - 1  # base 0 would lead from a zero to the root
    for key, below in labels.items():
        is_key = key in values
        while not (fits := _bases(below | {0} if is_key else below, free) & free_bases):
            first += BLOCK
            free = free >> BLOCK | _NEWEST
            free_bases = free_bases >> BLOCK | _NEWEST
            units += [VALUE_BIT] * BLOCK
        lowest = (fits & -fits).bit_length() - 1
        free_bases -= 1 << lowest
        base = first + lowest
        at = places.pop(key)
        if at ^ base >= MAX_OFFSET:
            raise ValueError("too many keys for a double array")
        units[at] |= (at ^ base) << 10 | is_key << 8
        if is_key:
            units[base] = VALUE_BIT | values[key]
            free -= 1 << lowest
        for label in sorted(below):
            units[base ^ label] = label
            free -= 1 << (lowest ^ label)
            places[key + bytes([label])] = base ^ label
    return np.array(units, np.uint32)


def _bases(labels: Iterable[int], free: int) -> int:
    """The bases from which every label leads to a free unit."""
    fits = _ALL
    for label in labels:
        led_to = free
        for bit, zeros in _HALVES:
            if label & bit:
                led_to = (led_to & zeros) << bit | led_to >> bit & zeros
        fits &= led_to
    return fits
