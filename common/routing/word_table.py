"""The router of an encoder that knows words by their letters: what tokens say, and what runs of
letters say.

A text's points are those of its tokens and of the runs of letters in its words. Where tokens are
looked at one by one, a run of letters speaks with the token that it ends in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import FormatError, ShapeMismatch
from ridgeway.common.base.machine import native
from ridgeway.common.routing.decision import Flags, Floats, Integers
from ridgeway.common.routing.token_table import (
    Arrays,
    Lengths,
    Steps,
    TokenTable,
    exact_logits,
    in_steps,
    largest,
    of_rows,
    step_for,
    sums_by_reading,
    sums_in_memory,
)
from ridgeway.common.text.tokenizer import Ids
from ridgeway.common.text.word_sketch import WORD_BYTES, Spelling, WordSketch

CALLS_BEFORE_FAST = 256
"""Adding up letters costs as much in as many calls as making the rows with which most letters need
no adding up.
"""

_TOKENS_AT_ONCE = 1 << 14
"""Of a long row of tokens about as many are spelt out at a time."""


@dataclass(frozen=True, eq=False, repr=False)
class WordTable:
    """logits, buckets: V×C and D×C int32, in units of `step`: what tokens say, and runs of letters
    by their bucket.

    Law: a text's logits depend on the text alone, and fit 32 bits for each of its tokens.
    """

    logits: Steps
    buckets: Steps
    step: float
    words: WordSketch

    def __post_init__(self) -> None:
        for name, table in (("tokens", self.logits), ("runs of letters", self.buckets)):
            if table.dtype != np.int32 or table.ndim != 2 or 0 in table.shape:
                raise FormatError(
                    f"a router's table of {name} must be int32, with a column per "
                    "domain"
                )
        if self.buckets.shape != (self.words.width, self.domains):
            raise FormatError(
                f"expected a table of {self.words.width} buckets and {self.domains} "
                "domains"
            )
        _check_spelling(self.words.spelling, len(self.logits))
        if self.largest_row >= 1 << 31:
            raise FormatError("the logits of a token and its letters overflow 32 bits")

    @property
    def domains(self) -> int:
        return int(self.logits.shape[1])

    @property
    def largest_row(self) -> int:
        """No token says more of a domain, its letters included."""
        return largest(self.logits) + most_grams(self.words) * largest(self.buckets)

    @cached_property
    def _begins_apart(self) -> Flags:
        """Whether no word can go on from another token into this one."""
        return self._is_apart(self.words.spelling.starts[:-1])

    @cached_property
    def _ends_apart(self) -> Flags:
        """Whether no word can go on from this token into another one."""
        return self._is_apart(self.words.spelling.starts[1:] - 1)

    def __getstate__(self) -> dict[str, Any]:
        """What it is made of; the rest is worked out anew where it is used."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _is_apart(self, positions: Integers) -> Flags:
        """Whether each token has letters, and that at its place is of no word."""
        spelling = self.words.spelling
        spelt = np.diff(spelling.starts) > 0
        apart = np.zeros(len(spelt), dtype=bool)
        apart[spelt] = ~WORD_BYTES[spelling.letters[positions[spelt]]]
        return apart

    def token_sums(self, ids: Ids, lengths: Lengths) -> Integers:
        """N×C, the summed logits of texts whose ids stand in one row, `lengths` of them each."""
        if native:
            fast = next(self._calls) >= CALLS_BEFORE_FAST
            operands = self._with_rows if fast else self._with_words
            try:
                sums = native.token_sums(ids, lengths, *operands)
                return sums_in_memory(sums, self.domains)
            except OverflowError:  # more letters than its counters hold
                pass
        return sums_by_reading(self, ids, lengths)

    def make_fast(self) -> None:
        """Work out at once what is otherwise worked out after some use."""
        vars(self)["_calls"] = count(CALLS_BEFORE_FAST)
        if native:
            _ = self._with_rows

    @cached_property
    def _calls(self) -> Iterator[int]:
        return count()

    @cached_property
    def _with_words(self) -> tuple[Any, ...]:
        """Views take less time to hand on than arrays."""
        words = self.words.options
        spelling = self.words.spelling
        spelt = (
            spelling.letters.data,
            spelling.starts.data,
            words.shortest,
            words.longest,
        )
        return self.logits.data, self.domains, self.buckets.data, *spelt

    @cached_property
    def _with_rows(self) -> tuple[Any, ...]:
        """The same, and the rows of tokens with those of their own letters: most words are single
        tokens.
        """
        ids = np.arange(len(self.logits), dtype=np.int32)
        ones = np.ones(len(ids), dtype=np.int64)
        sums = native.token_sums(ids, ones, *self._with_words)
        alone = sums_in_memory(sums, self.domains).astype(np.int32)
        borders = self._begins_apart + np.uint8(2) * self._ends_apart
        return *self._with_words, alone.data, borders.data

    def read(self, ids: Ids, lengths: Lengths) -> tuple[TokenTable, Ids]:
        """A table of these very tokens, each with the runs of letters that end in it, and their
        places in it.
        """
        ends = np.cumsum(lengths)
        rows = [np.zeros((0, self.domains), dtype=np.int64)]
        rows += [
            self._rows(ids[first:last], ends - first)
            for first, last in self._cuts(ids, ends)
        ]
        return of_rows(np.concatenate(rows), self.step)

    def _cuts(self, ids: Ids, ends: Integers) -> list[tuple[int, int]]:
        """Where a long row of tokens can be cut without cutting a word, so that memory is
        bounded.
        """
        if len(ids) <= _TOKENS_AT_ONCE:
            return [(0, len(ids))] if len(ids) else []
        apart = self._begins_apart[ids]
        apart[ends[ends < len(ids)]] = True
        starts = np.append(np.flatnonzero(apart), len(ids))
        wanted = np.arange(_TOKENS_AT_ONCE, len(ids), _TOKENS_AT_ONCE)
        cuts = np.unique(
            np.concatenate(([0, len(ids)], starts[np.searchsorted(starts, wanted)]))
        ).tolist()
        return list(pairwise(cuts))

    def _rows(self, ids: Ids, ends: Integers) -> Integers:
        """What each token says. Counts, products and sums lie within 32 bits, so float64 holds them
        exactly.
        """
        inside = ends[(ends > 0) & (ends < len(ids))]
        owners, buckets, signs = self.words.grams(
            ids, np.concatenate(([0], inside, [len(ids)]))
        )
        shape = len(ids), len(self.buckets)
        counts = np.bincount(
            owners * shape[1] + buckets, signs, shape[0] * shape[1]
        ).reshape(shape)
        rows: Integers = (counts @ self.buckets).astype(np.int64)
        rows += self.logits.take(ids, axis=0)
        return rows

    def arrays(self) -> Arrays:
        """What a release keeps of it: how tokens are spelt, too, since working that out takes
        long.
        """
        spelling = self.words.spelling
        return {
            "logits": self.logits,
            "buckets": self.buckets,
            "letters": spelling.letters,
            "starts": spelling.starts,
        }

    def without(self, position: int) -> WordTable:
        """The table with one domain's column dropped."""
        logits, buckets = (
            np.ascontiguousarray(np.delete(table, position, 1))
            for table in (self.logits, self.buckets)
        )
        return replace(self, logits=logits, buckets=buckets)


def compile_words(
    table: NDArray[np.int16],
    scale: float,
    words: WordSketch,
    weights: Floats,
    least_step: float = 0.0,
) -> WordTable:
    """The logits of every token and of every bucket: features φW, of which a run of letters has
    scale · amplitude.

    least_step: the step is no smaller.
    """
    width = table.shape[1]
    constant = weights[-1:]
    if weights.shape[0] != width + words.width + 1:
        raise ShapeMismatch(
            f"weights over {weights.shape[0]} features do not fit an encoder of"
            f" {width + words.width}"
        )
    tokens = exact_logits(table, scale, np.concatenate([weights[:width], constant]))
    buckets = weights[width:-1] * (scale * words.options.amplitude)
    largest_gram = float(np.abs(buckets).max())
    bound = float(np.abs(tokens).max()) + most_grams(words) * largest_gram
    step = max(step_for(bound), least_step)
    return WordTable(in_steps(step, tokens), in_steps(step, buckets), step, words)


def _check_spelling(spelling: Spelling, rows: int) -> None:
    """Raise unless every token has its letters."""
    letters = spelling.letters
    starts = spelling.starts
    if (
        letters.dtype != np.uint8
        or starts.dtype != np.int64
        or letters.ndim != 1
        or starts.shape != (rows + 1,)
    ):
        raise FormatError(f"expected the spelling of {rows:,} tokens")
    if starts[0] != 0 or starts[-1] != len(letters) or (np.diff(starts) < 0).any():
        raise FormatError("token spellings do not match their letters")


def most_grams(words: WordSketch) -> int:
    """How many runs of letters can end in one token, at most.

    A letter ends one run of each size, and if a word ends with it, the border behind it ends as
    many.
    """
    spelling = words.spelling
    before = np.concatenate(
        ([0], np.cumsum(WORD_BYTES[spelling.letters], dtype=np.int64))
    )
    return (
        2
        * len(words.options.sizes)
        * int(np.diff(before[spelling.starts]).max(initial=0))
    )
