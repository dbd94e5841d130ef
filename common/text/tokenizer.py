"""Text → token ids, without special tokens, truncation or padding.

The tokenizers library says what the ids of a text are; where a compiled encoder is known to give
the same, it does the work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache, partial
from itertools import chain
from operator import attrgetter
from threading import Lock
from typing import Any
from unicodedata import combining, east_asian_width

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import storable
from ridgeway.common.text.characters import lower_case, lower_letters
from ridgeway.common.text.fast_bpe import EncoderTables, FastEncoder, fast_encoder

Ids = NDArray[np.int32]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

CHARACTERS_BEFORE_FAST = 1 << 16
"""The library takes about as long for so much text as the compiled encoder takes to make."""


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

    lower:  whether texts are read in lower case.
    tables: those of another process's compiled encoder of the same definition, which is then read
            once it is needed.
    """

    def __init__(
        self,
        definition: bytes,
        *,
        lower: bool = False,
        tables: EncoderTables | None = None,
    ) -> None:
        self._definition = definition
        self.lower = lower
        self._fast = FastEncoder(tables) if tables else None
        self._decided = tables is not None
        self._deciding = Lock()
        self._characters = 0
        if tables is None:
            _ = self._backend  # a definition that cannot be used is told of at once

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process is made anew, from the definition."""
        definition = self._definition or self._backend.to_str().encode()
        return partial(Tokenizer, lower=self.lower), (definition,)

    @cached_property
    def _backend(self) -> Backend:
        try:
            backend = Backend.from_str(self._definition.decode())
        except Exception as error:  # the library raises bare Exception
            raise EncoderError(
                f"the tokenizer definition is invalid: {error}"
            ) from error
        backend.no_truncation()
        backend.no_padding()
        return backend

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

    @property
    def tables(self) -> EncoderTables | None:
        """What the compiled encoder is made of, if there is one."""
        return self._fast.tables if self.make_fast() and self._fast else None

    def make_fast(self) -> bool:
        """Make the compiled encoder, if there is one and it was not made yet; whether it does the
        work from now on.
        """
        with self._deciding:
            if not self._decided:
                self._fast = fast_encoder(self._definition, self._backend)
                self._decided = True
                self._definition = b""
        return self._fast is not None

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
        if not self._decided:
            self._characters += sum(map(len, texts))
            if self._characters >= CHARACTERS_BEFORE_FAST:
                self.make_fast()
        if self.lower and self._fast and not self._fast.only_nfc:
            return self._fast.encode_many(texts, lower_letters())
        if self.lower:
            texts = [lower_case(text) for text in texts]
        if self._fast is None:
            return self._by_the_library(texts)
        if self._fast.knows(texts):
            return self._fast.encode_many(texts)
        if len(texts) == 1:
            return self._by_the_library(texts)
        rows = [self.encode(text) for text in texts]
        return np.concatenate(rows), np.array([len(ids) for ids in rows])

    def _by_the_library(self, texts: Sequence[str]) -> tuple[Ids, Integers]:
        """The same by the tokenizers library, whose ids are the right ones by definition."""
        # the library has no lone surrogates
        encodings = self._backend.encode_batch_fast(
            [storable(text) for text in texts], add_special_tokens=False
        )
        lengths = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        numbers = chain.from_iterable(map(attrgetter("ids"), encodings))
        ids = np.fromiter(numbers, dtype=np.int32, count=int(lengths.sum()))
        dropped = self._is_special(ids)
        if dropped.any():
            owners = np.repeat(np.arange(len(encodings)), lengths)
            lengths = lengths - np.bincount(owners[dropped], minlength=len(encodings))
            ids = ids[~dropped]
        return ids, lengths

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
        read = lower_case(text) if self.lower else text
        encoding = self._backend.encode(read, add_special_tokens=False)
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


@lru_cache(maxsize=4)
def shared_tokenizer(definition: bytes, *, lower: bool = False) -> Tokenizer:
    """The tokenizer of a definition; made once a process, since that takes longer than most of what
    it is used for.
    """
    return Tokenizer(definition, lower=lower)
