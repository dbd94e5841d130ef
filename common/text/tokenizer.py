"""Text → token ids by the tokenizers library, without special tokens, truncation or padding."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any
from unicodedata import combining, east_asian_width

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import sha256, storable

Ids = NDArray[np.int32]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def plain_definition(raw: bytes) -> bytes:
    """A tokenizer.json without its limits: many ship with truncation and padding set.

    The bytes depend on the definition alone, not on the version of any library, because they are
    fingerprinted.
    """
    try:
        definition = json.loads(raw)
    except ValueError as error:
        raise EncoderError(
            f"the tokenizer definition is not JSON ({error}); download its "
            "tokenizer.json again"
        ) from error
    if not isinstance(definition, dict) or "model" not in definition:
        raise EncoderError(
            "the tokenizer definition has no model; is it a tokenizer.json?"
        )
    definition["truncation"] = definition["padding"] = None
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode()


class Tokenizer:
    """A tokenizer made from its definition. Special tokens that stand in a text are dropped, never
    counted.
    """

    def __init__(self, definition: bytes) -> None:
        self.definition = definition
        try:
            self._backend = Backend.from_str(definition.decode())
        except Exception as error:  # the library raises bare Exception
            raise EncoderError(
                f"the tokenizer definition is invalid: {error}"
            ) from error
        self._backend.no_truncation()
        self._backend.no_padding()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process is made anew, from the definition."""
        return Tokenizer, (self.definition,)

    @cached_property
    def fingerprint(self) -> str:
        return sha256(self.definition)

    @cached_property
    def _special(self) -> Flags:
        """Which ids are special; the last stands for all beyond."""
        special = [
            number
            for number, token in self._backend.get_added_tokens_decoder().items()
            if token.special
        ]
        chosen = np.zeros(max(special, default=-1) + 2, dtype=bool)
        chosen[special] = True
        return chosen

    @cached_property
    def rows(self) -> int:
        """One more than the largest id, so the number of rows a table must have."""
        return 1 + max(
            self._backend.get_vocab(with_added_tokens=True).values(), default=-1
        )

    @cached_property
    def plain_ids(self) -> Ids:
        """Every id that can stand in a text, in order; special tokens are left out."""
        ids = np.array(
            sorted(self._backend.get_vocab(with_added_tokens=True).values()),
            dtype=np.int32,
        )
        return ids[~self._is_special(ids)]

    @cached_property
    def surroundings(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that the tokenizer's own model wants before and after a text."""
        encoding = self._backend.encode("a", add_special_tokens=True)
        added = encoding.special_tokens_mask
        first = added.index(0) if 0 in added else len(added)
        last = len(added) - added[::-1].index(0) if 0 in added else len(added)
        return tuple(encoding.ids[:first]), tuple(encoding.ids[last:])

    def encode(self, text: str) -> Ids:
        """The ids of one text."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> tuple[Ids, Integers]:
        """The ids of many texts in one row, and the number of ids of each text."""
        # the library has no lone surrogates
        encodings = self._backend.encode_batch_fast(
            [storable(text) for text in texts], add_special_tokens=False
        )
        ids, lengths, _ = self._ids_of(encodings)
        return ids, lengths

    def encode_with_ends(self, texts: Sequence[str]) -> tuple[Ids, Integers, Integers]:
        """The same, and the bytes of its text, in UTF-8, before which the part of each id ends.

        Each part begins where the one before it ends: none ends before that, and the last one where
        its text does.
        """
        plain = [storable(text) for text in texts]
        encodings = self._backend.encode_batch(plain, add_special_tokens=False)
        ids, lengths, kept = self._ids_of(encodings)
        stops = (stop for encoding in encodings for _, stop in encoding.offsets)
        ends = np.fromiter(stops, dtype=np.int64, count=len(kept))[kept]
        # characters become bytes: where each begins, those of all texts in one row
        raw = np.frombuffer("".join(plain).encode(), np.uint8)
        begins = np.append(np.flatnonzero((raw & 0xC0) != 0x80), len(raw))
        characters = np.array(list(map(len, plain)), np.int64)
        stops_of_texts = np.cumsum(characters)
        firsts = np.repeat(stops_of_texts - characters, lengths)
        text_stops = begins[stops_of_texts]
        sizes = np.diff(text_stops, prepend=0)
        ends = begins[firsts + ends] - begins[firsts]
        return ids, lengths, rising_ends(ends, lengths, sizes)

    def _ids_of(self, encodings: Sequence[Any]) -> tuple[Ids, Integers, Flags]:
        """The ids in one row that are not special, how many each text has, and which of all they
        are.
        """
        lengths = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        numbers = chain.from_iterable(map(attrgetter("ids"), encodings))
        ids = np.fromiter(numbers, dtype=np.int32, count=int(lengths.sum()))
        kept = ~self._is_special(ids)
        if not kept.all():
            owners = np.repeat(np.arange(len(encodings)), lengths)
            lengths = np.bincount(owners[kept], minlength=len(encodings))
            ids = ids[kept]
        return ids, lengths, kept

    def pieces(self, text: str) -> list[tuple[int, str]]:
        """Each id with the piece of text that it stands for."""
        text = storable(text)
        return [(number, text[start:stop]) for number, start, stop in self._spans(text)]

    def words(self, text: str) -> list[tuple[str, list[int]]]:
        """A text in pieces, each with its ids: words are whole, and so are characters that are
        spread over tokens.
        """
        text = storable(text)
        return whole_words(text, self._spans(text))

    def _spans(self, text: str) -> list[tuple[int, int, int]]:
        """Each id, and where the piece of text begins and ends that it stands for."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.int32)
        dropped = self._is_special(ids)
        spans = zip(encoding.ids, encoding.offsets, dropped, strict=True)
        return [
            (number, start, stop) for number, (start, stop), gone in spans if not gone
        ]

    def _is_special(self, ids: Ids) -> Flags:
        return self._special.take(ids, mode="clip")


def whole_words(
    text: str, spans: Iterable[tuple[int, int, int]]
) -> list[tuple[str, list[int]]]:
    """A text in pieces with the ids of each, of ids and where the piece of each begins and ends."""
    words: list[list[int]] = []
    ids: list[list[int]] = []
    for number, start, stop in spans:
        end = words[-1][1] if words else 0
        if start < end or (
            0 < start == end < stop
            and all(map(_is_of_a_word, text[start - 1 : start + 1]))
        ):
            words[-1][1] = max(stop, end)
            ids[-1].append(number)
        else:
            words.append([start, stop])
            ids.append([number])
    return [
        (text[start:stop], word_ids)
        for (start, stop), word_ids in zip(words, ids, strict=True)
    ]


def _is_of_a_word(letter: str) -> bool:
    """Whether words are made of such letters; wide ones, as in Chinese, stand side by side without
    being one word.
    """
    return (letter.isalnum() or combining(letter) > 0) and east_asian_width(
        letter
    ) not in "WF"


def first_tokens(ids: Ids, lengths: Integers, limit: int) -> tuple[Ids, Integers]:
    """Of texts whose ids stand in one row, each one's first `limit` ids; 0 keeps all."""
    if not limit or lengths.max(initial=0) <= limit:
        return ids, lengths
    positions = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return ids[positions < limit], np.minimum(lengths, limit)


def rising_ends(ends: Integers, lengths: Integers, sizes: Integers) -> Integers:
    """Where the parts of texts end so that each begins where the one before it ends: none ends
    before that, and the last one with its text.

    ends:    of the ids of all texts in one row, each within its text.
    lengths: how many ids each text has.
    sizes:   where each text ends.
    """
    firsts = np.repeat(np.cumsum(sizes) - sizes, lengths)
    rising = np.maximum.accumulate(firsts + ends) - firsts
    filled = lengths > 0
    rising[np.cumsum(lengths)[filled] - 1] = sizes[filled]
    return rising


@lru_cache(maxsize=4)
def shared_tokenizer(definition: bytes) -> Tokenizer:
    """The tokenizer of a definition; made once a process, since that takes longer than most of what
    it is used for.
    """
    return Tokenizer(definition)
