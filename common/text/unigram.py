"""Text → normalised text → ids of pieces, as SentencePiece makes them by a model of single pieces
(unigrams), without those that it can put before and after a text.

Characters are replaced by the model's rules, longest first; every run of spaces becomes one
U+2581, of which one stands before the text and none after it. Of all ways to cut what comes of that
into pieces, the one with the highest sum of scores counts.

What is done here in Python says what the compiled module gives. It knows no files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import sha256, storable
from ridgeway.common.base.machine import native
from ridgeway.common.text.tokenizer import (
    Floats,
    Ids,
    Integers,
    first_tokens,
    rising_ends,
    whole_words,
)

UNKNOWN = 0
"""The piece of characters that are in no other; many in a row are one id."""

SPACE_MARK = "▁".encode()
REPLACEMENT = "\ufffd".encode()

LONGEST = 64
"""Bytes of a piece, or of what a rule replaces; longer ones are never looked for."""
MAX_REPLACEMENT = 64
"""Bytes of what a rule puts in their place."""
MAX_PIECES = 1 << 23
MAX_SCORE = 10**6

RESET_SCORE = 100_000
"""A sum of scores beyond it becomes 0, and those that follow change by as much."""

VALUE_BIT = 1 << 31
LABEL_BITS = VALUE_BIT | 0xFF
"""Of a double array's units: a label, where the next units are, and whether a value is among them;
or a value.
"""

_LETTERS = re.compile(rb"\xe2\x96\x81|.", re.DOTALL)


class Normalised(NamedTuple):
    """A normalised text, and the bytes of the text that each of its own bytes comes from.

    breaks: how many line breaks became part of a run of spaces, by the place where the run begins.
    """

    letters: bytes
    origins: list[tuple[int, int]]
    breaks: dict[int, int]


class Piece(NamedTuple):
    """An id, and where its piece of a normalised text begins and ends."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False, repr=False)
class PieceTokenizer:
    """The tokenizer of a model's pieces.

    piece_links:  the pieces as a double array in the form of Darts, whose values are their ids.
    scores:       of each id; that of `UNKNOWN` is what a character costs that is in no piece.
    rule_links:   the same of what is replaced, whose values are places among the replacements.
    replacements: in UTF-8, each with a zero behind it.

    Raises EncoderError where they do not fit together, whoever made them.
    """

    piece_links: NDArray[np.uint32]
    scores: NDArray[np.float32]
    rule_links: NDArray[np.uint32]
    replacements: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if not self._fits():
            raise EncoderError(
                "the tables of the tokenizer of pieces do not fit together; get the "
                "files that they come from again"
            )

    def _fits(self) -> bool:
        kinds = "<u4", "<f4", "<u4", "u1"
        if not all(
            array.dtype == kind and array.ndim == 1 and array.flags.c_contiguous
            for array, kind in zip(self.arrays().values(), kinds, strict=True)
        ):
            return False
        if native is not None:
            # it looks at them before anything else
            try:
                return self._compiled is not None
            except ValueError:
                return False
        return (
            0 < len(self.scores) <= MAX_PIECES
            and bool((np.abs(self.scores) <= MAX_SCORE).all())
            and _are_replacements(self.replacements)
            and _are_links(self.piece_links, len(self.scores))
            and _are_links(self.rule_links, len(self.replacements))
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process is made anew, from the tables."""
        return PieceTokenizer, tuple(self.arrays().values())

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def fingerprint(self) -> str:
        return sha256(*(array.data for array in self.arrays().values()))

    @cached_property
    def definition(self) -> bytes:
        """All of it, as encoders and releases keep it."""
        return save(self.arrays())

    @classmethod
    def of_definition(cls, definition: bytes) -> PieceTokenizer:
        """As it was kept. Raises EncoderError for anything else."""
        try:
            arrays = load(definition)
            return cls(**{field.name: arrays[field.name] for field in fields(cls)})
        except (SafetensorError, KeyError) as error:
            raise EncoderError(
                f"the tables of the tokenizer of pieces are corrupt ({error}); get the "
                "files that they come from again"
            ) from error

    @property
    def rows(self) -> int:
        """One more than the largest id."""
        return len(self.scores)

    @cached_property
    def frequencies(self) -> Floats:
        """How frequent each piece is, as the scores say; they add up to 1."""
        scores = self.scores.astype(np.float64)
        # pieces of no text have a score of 0
        shares = np.where(scores < 0, np.exp(np.minimum(scores, 0)), 0.0)
        shares[UNKNOWN] = 0
        return np.asarray(shares / shares.sum())

    def vocabulary(self) -> list[bytes]:
        """The piece of each id, in UTF-8 with marks for blanks; empty where an id has none."""
        units = self.piece_links
        places = np.flatnonzero(units < VALUE_BIT)
        labels = (units[places] & 0xFF).astype(np.int64)
        # a unit is reached from where its label leads to its place
        origins = places ^ labels
        order = np.argsort(origins, kind="stable")
        origins = origins[order]
        pieces = [b""] * self.rows
        prefixes = [b""]
        at = _offsets(units[:1])
        for _ in range(LONGEST):
            first = np.searchsorted(origins, at)
            counts = np.searchsorted(origins, at, "right") - first
            before = np.cumsum(counts) - counts
            within = np.arange(counts.sum()) - np.repeat(before, counts)
            chosen = order[np.repeat(first, counts) + within]
            owners = np.repeat(np.arange(len(at)), counts)
            letters = zip(owners.tolist(), labels[chosen].tolist(), strict=True)
            prefixes = [prefixes[owner] + bytes([label]) for owner, label in letters]
            links = units[places[chosen]]
            at = places[chosen] ^ _offsets(links)
            ends = np.flatnonzero(links >> 8 & 1)
            numbers = (units[at[ends]] - VALUE_BIT).tolist()
            for end, number in zip(ends.tolist(), numbers, strict=True):
                pieces[number] = prefixes[end]
            # what is reached in two ways is followed once
            at, kept = np.unique(at, return_index=True)
            prefixes = [prefixes[place] for place in kept.tolist()]
        return pieces

    def encode(self, text: str) -> Ids:
        """The ids of one text."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str], limit: int = 0) -> tuple[Ids, Integers]:
        """The ids of many texts in one row, and the number of ids of each text.

        limit: how many ids of each text are wanted, the first ones; 0 is all.
        """
        if native is not None:
            ids, lengths = self._compiled.encode_many(_plain(texts), limit)
            return np.frombuffer(ids, np.int32), np.frombuffer(lengths, np.int64)
        rows = [
            [piece.number for piece in _joined(self._segmented(letters))]
            for letters, _, _ in map(self._normalised, _in_bytes(texts))
        ]
        row = np.array([number for ids in rows for number in ids], np.int32)
        return first_tokens(row, np.array(list(map(len, rows)), np.int64), limit)

    def letters_many(
        self, texts: Sequence[str], limit: int = 0
    ) -> tuple[Ids, Integers, NDArray[np.uint8], Integers]:
        """The same ids and numbers of ids; the letters of all ids in UTF-8, and where in this row
        those of each id end.

        Letters are the normalised text. A blank stands for each of its marks, and before the first
        blank of a run a line break for each one in the text that became part of the run.
        """
        if native is not None:
            made = self._compiled.letters_many(_plain(texts), limit)
            kinds = np.int32, np.int64, np.uint8, np.int64
            ids, lengths, letters, stops = map(np.frombuffer, made, kinds)
            return ids, lengths, letters, stops
        rows = [self._ids_with_letters(text) for text in _in_bytes(texts)]
        chosen = [row[:limit] if limit else row for row in rows]
        pairs = [pair for row in chosen for pair in row]
        parts = [part for _, part in pairs]
        return (
            np.array([number for number, _ in pairs], np.int32),
            np.array(list(map(len, chosen)), np.int64),
            np.frombuffer(b"".join(parts), np.uint8),
            np.cumsum(list(map(len, parts)), dtype=np.int64),
        )

    def encode_with_ends(self, texts: Sequence[str]) -> tuple[Ids, Integers, Integers]:
        """The ids and numbers of ids of texts, and the bytes of its text, in UTF-8, before which
        the part of each id ends.

        Each part begins where the one before it ends: none ends before that, and the last one where
        its text does.
        """
        plain = _plain(texts)
        ids, lengths, bounds = self._byte_spans(plain)
        sizes = np.array([len(text.encode()) for text in plain], np.int64)
        return ids, lengths, rising_ends(bounds[:, 1], lengths, sizes)

    def normalise_many(self, texts: Sequence[str]) -> tuple[bytes, Integers]:
        """The normalised texts in UTF-8, all in one row, and how many bytes each has."""
        if native is not None:
            letters, lengths = self._compiled.normalise_many(_plain(texts))
            return bytes(letters), np.frombuffer(lengths, np.int64)
        made = [self._normalised(text).letters for text in _in_bytes(texts)]
        return b"".join(made), np.array(list(map(len, made)), np.int64)

    def pieces(self, text: str) -> list[tuple[int, str]]:
        """Each id with the piece of the text that it stands for."""
        text = storable(text)
        return [(number, text[start:stop]) for number, start, stop in self._spans(text)]

    def words(self, text: str) -> list[tuple[str, list[int]]]:
        """A text in pieces, each with its ids: words are whole, and so are characters that are
        spread over ids.
        """
        text = storable(text)
        return whole_words(text, self._spans(text))

    def _spans(self, text: str) -> list[tuple[int, int, int]]:
        """Each id, and where the piece of the text begins and ends that it stands for."""
        raw = text.encode()
        ids, _, bounds = self._byte_spans([text])
        # how many characters begin before each byte
        firsts = (np.frombuffer(raw, np.uint8) & 0xC0) != 0x80
        characters = np.append(0, np.cumsum(firsts))[bounds]
        # a mark of its own before the text belongs to what follows
        if len(ids) > 1 and not characters[0].any():
            characters[0] = characters[1]
        return [
            (number, start, stop)
            for number, (start, stop) in zip(
                ids.tolist(), characters.tolist(), strict=True
            )
        ]

    def _byte_spans(self, texts: Sequence[str]) -> tuple[Ids, Integers, Integers]:
        """The ids and numbers of ids of texts, and where in its text's UTF-8 each id begins and
        ends.
        """
        if native is not None:
            made, counts, spans = self._compiled.spans(texts)
            bounds = np.frombuffer(spans, np.uint32).reshape(-1, 2).astype(np.int64)
            return (
                np.frombuffer(made, np.int32),
                np.frombuffer(counts, np.int64),
                bounds,
            )
        rows = []
        for letters, origins, _ in map(self._normalised, _in_bytes(texts)):
            rows.append(
                [
                    (number, origins[start][0], origins[stop - 1][1])
                    for number, start, stop in _joined(self._segmented(letters))
                ]
            )
        row = [span for spans in rows for span in spans]
        bounds = np.array([bounds for _, *bounds in row], np.int64).reshape(-1, 2)
        lengths = np.array(list(map(len, rows)), np.int64)
        return np.array([number for number, *_ in row], np.int32), lengths, bounds

    @cached_property
    def _compiled(self) -> Any:
        return native.Unigram(*self.arrays().values())

    # The reference

    @cached_property
    def _pieces(self) -> memoryview:
        return self.piece_links.data

    @cached_property
    def _rules(self) -> memoryview:
        return self.rule_links.data

    def _replaced(self, text: bytes) -> Iterator[tuple[bytes, int, int]]:
        """What the parts of a text become, and where each part begins and ends."""
        start = 0
        while start < len(text):
            stop = start
            for stop, place in _values(self._rules, text, start):  # noqa: B007, the longest
                pass
            if stop > start:
                rest = self.replacements[place : place + MAX_REPLACEMENT + 1].tobytes()
                letters = rest[: rest.index(0)]
            elif text[start] & 0xC0 == 0x80:  # a rule took the character's first bytes
                stop = start + 1
                letters = REPLACEMENT
            else:
                stop = start + _size_of_letter(text[start])
                letters = text[start:stop]
            yield letters, start, stop
            start = stop

    def _normalised(self, text: bytes) -> Normalised:
        letters = bytearray()
        origins: list[tuple[int, int]] = []
        breaks: dict[int, int] = {}
        # those that wait for a letter behind them; the first stands before the text
        spaces = 1
        spaces_start = spaces_stop = 0
        line_breaks = 0
        after_space = True
        for part, start, stop in self._replaced(text):
            if part.startswith((b" ", SPACE_MARK)):
                line_breaks += text.count(b"\n", start, stop)
            kept = part.lstrip(b" ") if after_space else part
            if not kept:
                continue
            after_space = kept.endswith(b" ")
            for letter in _LETTERS.findall(kept):
                if letter in (b" ", SPACE_MARK):
                    spaces_start = spaces_start if spaces else start
                    spaces_stop = stop
                    spaces += 1
                    continue
                if spaces and line_breaks:
                    breaks[len(letters)] = line_breaks
                    line_breaks = 0
                letters += spaces * SPACE_MARK + letter
                origins += 3 * spaces * [(spaces_start, spaces_stop)]
                origins.append((start, stop))
                spaces = 0
        return Normalised(bytes(letters), origins, breaks)

    def _ids_with_letters(self, text: bytes) -> list[tuple[int, bytes]]:
        """The ids of a text, and the letters of each."""
        normalised = self._normalised(text)
        made: list[tuple[int, bytes]] = []
        for piece in self._segmented(normalised.letters):
            letters = _letters_of(piece, normalised)
            if made and made[-1][0] == piece.number == UNKNOWN:
                made[-1] = UNKNOWN, made[-1][1] + letters
            else:
                made.append((piece.number, letters))
        return made

    def _segmented(self, letters: bytes) -> list[Piece]:
        """The pieces of a normalised text; unknown characters are apart."""
        # of the best way to each place: its score, its last piece, and where that begins
        scores = [np.float32(0)] * (len(letters) + 1)
        ids = [UNKNOWN] * len(scores)
        starts = [-1] * len(scores)
        furthest = 0
        start = 0
        while start < len(letters):
            before = scores[start]
            if abs(before) > RESET_SCORE:
                for place in range(start, furthest + 1):
                    scores[place] -= before
                before = np.float32(0)
            next_start = min(start + _size_of_letter(letters[start]), len(letters))
            found = list(_values(self._pieces, letters, start))
            if all(stop != next_start for stop, _ in found):
                found.append((next_start, UNKNOWN))
            for stop, number in found:
                score = self.scores[number] + before
                if starts[stop] < 0 or score > scores[stop]:
                    scores[stop] = score
                    ids[stop] = number
                    starts[stop] = start
                furthest = max(furthest, stop)
            start = next_start
        pieces: list[Piece] = []
        stop = len(letters)
        while stop:
            pieces.append(Piece(ids[stop], starts[stop], stop))
            stop = starts[stop]
        return pieces[::-1]


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of ids: unknown characters in a row are one id."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].number == piece.number == UNKNOWN:
            joined[-1] = joined[-1]._replace(stop=piece.stop)
        else:
            joined.append(piece)
    return joined


def _letters_of(piece: Piece, normalised: Normalised) -> bytes:
    """The letters of a piece, with blanks and line breaks."""
    letters, _, breaks = normalised
    places = [place for place in breaks if piece.start <= place < piece.stop]
    parts: list[bytes] = []
    start = piece.start
    for place in places:
        parts += [letters[start:place], b"\n" * breaks[place]]
        start = place
    return b"".join([*parts, letters[start : piece.stop]]).replace(SPACE_MARK, b" ")


def _plain(texts: Sequence[str]) -> list[str]:
    """The texts without lone surrogates."""
    return [storable(text) for text in texts]


def _in_bytes(texts: Sequence[str]) -> Iterator[bytes]:
    return (storable(text).encode() for text in texts)


def _size_of_letter(first: int) -> int:
    """The bytes of a character, by its first one."""
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


# Double arrays: a unit's next one by a byte is where the unit's offset and the byte say, if it has
# this byte as its label.


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 1 << 9) >> 6)


def _has_value(unit: int) -> int:
    return unit >> 8 & 1


def _values(units: memoryview, text: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Where each key ends that a text has at a place, and its value; the shortest comes first."""
    at = _offset(units[0])
    for place in range(start, min(start + LONGEST, len(text))):
        at ^= text[place]
        unit = units[at]
        if unit & LABEL_BITS != text[place]:
            return
        at ^= _offset(unit)
        if _has_value(unit):
            yield place + 1, units[at] & ~VALUE_BIT


def _are_links(units: NDArray[np.uint32], values: int) -> bool:
    """Whether every unit leads to units alone, by whatever byte, and every value is below
    `values`.
    """
    if not len(units) or units[0] & VALUE_BIT:
        return False
    is_value = units >= VALUE_BIT
    if (units[is_value] - VALUE_BIT >= values).any():
        return False
    links = units[~is_value]
    next_units = np.flatnonzero(~is_value) ^ _offsets(links)
    if (next_units | 0xFF).max() >= len(units):
        return False
    return bool(is_value[next_units[links >> 8 & 1 == 1]].all())


def _offsets(units: NDArray[np.uint32]) -> Integers:
    numbers = units.astype(np.int64)
    return (numbers >> 10) << ((numbers & 1 << 9) >> 6)


def _are_replacements(replacements: NDArray[np.uint8]) -> bool:
    zeros = np.flatnonzero(replacements == 0)
    gaps = np.diff(zeros, prepend=-1) - 1
    return (
        zeros.size > 0
        and zeros[-1] == len(replacements) - 1
        and bool(gaps.max() <= MAX_REPLACEMENT)
    )
