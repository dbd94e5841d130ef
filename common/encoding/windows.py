"""Documents → windows: where they begin, and how a model that reads one window at a time is given
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import (
    MAX_WINDOW_TOKENS,
    SHORT_DOCUMENT_TOKENS,
    UNIT_SHARES,
    Sampling,
)
from ridgeway.common.encoding.tokenizer import Ids, first_tokens

Integers = NDArray[np.int64]

ROW_LENGTH_MULTIPLE = 16
"""Windows of odd lengths are padded to multiples of this, so that there are few shapes."""

FEW_TOKENS = 64
"""Stretches of fewer tokens, on average, are gathered one by one."""


def window_starts(lengths: Integers, window: int) -> Integers:
    """Where windows begin when documents stand in one row; a rest shorter than half a window joins
    its neighbour.
    """
    whole, rest = np.divmod(lengths, window)
    counts = np.maximum(whole + (2 * rest >= window), lengths > 0)
    first = np.repeat(np.cumsum(lengths) - lengths, counts)
    place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    starts: Integers = first + place * window
    return starts


def longest_window(window: int) -> int:
    """The most tokens that a window has, with the rest that joined it."""
    return window + (window - 1) // 2


class Layer(NamedTuple):
    """Samples of one kind: windows that stand one after another in a row of ids, each counted
    `times` times.

    bounds: where windows begin, and where the last one ends.
    """

    ids: Ids
    bounds: Integers
    times: int


def layers(ids: Ids, lengths: Integers, sampling: Sampling) -> list[Layer]:
    """The samples of documents whose ids stand in one row, `lengths` of them each.

    Where mistyped copies count, as many of them stand behind the documents, in the same order.
    """
    ids, lengths = first_tokens(ids, lengths, sampling.max_tokens)
    if sampling.window == 1 and sampling.is_plain:
        return _of_tokens(ids)
    copies = []
    if sampling.mistyped:
        own = lengths[: len(lengths) // 2]
        theirs = lengths[len(own) :]
        copies = [
            _first(
                ids,
                own.sum() + _before(theirs),
                theirs,
                MAX_WINDOW_TOKENS,
                sampling.mistyped,
            )
        ]
        ids, lengths = ids[: own.sum()], own
    if sampling.units:
        return [*_of_units(ids, lengths, sampling), *copies]
    return [_layer(*_thinned(ids, lengths, sampling), sampling.window), *copies]


def _of_tokens(ids: Ids) -> list[Layer]:
    """Samples that are single tokens: each one that occurs once for every binary digit of how often
    it does.
    """
    counts = np.bincount(ids)
    there = np.flatnonzero(counts).astype(np.int32)
    digits = range(int(counts.max(initial=0)).bit_length())
    chosen = [there[counts[there] >> digit & 1 > 0] for digit in digits]
    return [
        Layer(tokens, np.arange(len(tokens) + 1), 1 << digit)
        for digit, tokens in enumerate(chosen)
    ]


def _of_units(ids: Ids, lengths: Integers, sampling: Sampling) -> Iterator[Layer]:
    """Samples that together count the same for every document that has tokens."""
    share = sampling.units // UNIT_SHARES
    begins = _before(lengths)
    is_short = lengths <= SHORT_DOCUMENT_TOKENS
    yield _first(
        ids, begins[is_short], lengths[is_short], MAX_WINDOW_TOKENS, UNIT_SHARES * share
    )
    begins, lengths = begins[~is_short], lengths[~is_short]
    for tokens in (MAX_WINDOW_TOKENS, max(sampling.stride, sampling.window)):
        yield _first(ids, begins, lengths, tokens, share)
    yield from _even_windows(ids, begins, lengths, sampling, share)


def _first(
    ids: Ids, begins: Integers, lengths: Integers, tokens: int, times: int
) -> Layer:
    """One sample a document that has tokens: its first ones."""
    begins, sizes = begins[lengths > 0], np.minimum(lengths[lengths > 0], tokens)
    return Layer(_in_one_row(ids, begins, sizes), np.append(0, np.cumsum(sizes)), times)


def _even_windows(
    ids: Ids, begins: Integers, lengths: Integers, sampling: Sampling, share: int
) -> Iterator[Layer]:
    """Windows by how often each counts: the largest power of two by which those of its document
    stay in two shares.

    Of a document with more windows than that, every so many are left out. A third share is of its
    first tokens, as many
    as a window has: where they are a window that is not left out, this one counts so much more.
    """
    window = sampling.window
    stride = max(sampling.stride, sampling.window)
    first = share
    share *= 2
    # tokens that stand in windows
    inside = lengths // stride * window + np.minimum(lengths % stride, window)
    counts = np.maximum(
        inside // window + (2 * (inside % window) >= window), lengths > 0
    )
    taken = np.minimum(counts, share)
    owners = np.repeat(np.arange(len(lengths)), taken)
    number = np.arange(len(owners)) - _before(taken)[owners]
    # all of them unless there are too many
    number = -(-(number + 1) * counts[owners] // taken[owners]) - 1
    is_last = number == counts[owners] - 1
    sizes = np.where(is_last, inside[owners] - number * window, window)
    times = np.left_shift(
        1, np.frexp(np.maximum(1, share // np.maximum(1, counts)))[1] - 1
    )[owners]
    starts = begins[owners] + number * stride
    begins_document = (number == 0) & (sizes == np.minimum(lengths, window)[owners])
    times[begins_document] += first
    apart = np.ones(len(lengths), dtype=bool)
    apart[owners[begins_document]] = False
    yield _first(ids, begins[apart], lengths[apart], window, first)
    for each in np.unique(times).tolist():
        chosen = times == each
        row = _in_one_row(ids, starts[chosen], sizes[chosen], (window, stride))
        yield Layer(row, np.append(0, np.cumsum(sizes[chosen])), each)


def _in_one_row(
    ids: Ids, starts: Integers, sizes: Integers, jump: tuple[int, int] | None = None
) -> Ids:
    """The ids of spans, one after another. jump: after so many ids, a span goes on so many behind
    its start.
    """
    apart = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
    # a few long stretches are copied as they are
    if jump is None and len(apart) * FEW_TOKENS <= sizes.sum():
        edges = zip(np.append(0, apart), np.append(apart, len(starts)), strict=True)
        stretches = (
            [ids[starts[a] : starts[b - 1] + sizes[b - 1]] for a, b in edges]
            if len(starts)
            else []
        )
        return (
            np.concatenate(stretches)
            if len(stretches) > 1
            else ids[:0]
            if not stretches
            else stretches[0]
        )
    within = np.arange(int(sizes.sum())) - np.repeat(_before(sizes), sizes)
    if jump is not None and int(sizes.max(initial=0)) > jump[0]:
        within += (within >= jump[0]) * (jump[1] - jump[0])
    row: Ids = ids[np.repeat(starts, sizes) + within]
    return row


def _before(sizes: Integers) -> Integers:
    """What stands before each of them when they stand in one row."""
    before: Integers = np.cumsum(sizes) - sizes
    return before


def _layer(ids: Ids, lengths: Integers, window: int) -> Layer:
    return Layer(ids, np.append(window_starts(lengths, window), len(ids)), 1)


def _thinned(ids: Ids, lengths: Integers, sampling: Sampling) -> tuple[Ids, Integers]:
    """The tokens that stand in windows: of every `stride` of a document the first `window`."""
    if sampling.stride <= sampling.window:
        return ids, lengths
    ends = np.cumsum(lengths)
    counts = -(-lengths // sampling.stride)
    number = np.arange(int(counts.sum())) - np.repeat(
        np.cumsum(counts) - counts, counts
    )
    begins = np.repeat(ends - lengths, counts) + number * sampling.stride
    places = begins[:, None] + np.arange(sampling.window)
    whole, rest = np.divmod(lengths, sampling.stride)
    kept = whole * sampling.window + np.minimum(rest, sampling.window)
    return ids[places[places < np.repeat(ends, counts)[:, None]]], kept


class Shape(NamedTuple):
    """length: of every row, in tokens. padded: whether every row has padding at its end, or none
    has.
    """

    length: int
    padded: bool


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Windows of one shape, a row each: what comes before a text, the window's own tokens, what
    comes after, padding.

    counts: how many tokens of its own each window has.
    places: which window each row is.
    first:  where a window's own tokens begin in its row.
    around: how many special tokens stand before and after them.
    """

    shape: Shape
    ids: NDArray[np.int32]
    counts: Integers
    places: Integers
    first: int
    around: int

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, part: slice | Integers) -> Rows:
        """Some of the rows; those that are named by their numbers, each as often as it is named."""
        return replace(
            self, ids=self.ids[part], counts=self.counts[part], places=self.places[part]
        )

    def __add__(self, other: Rows) -> Rows:
        ids = np.concatenate((self.ids, other.ids))
        counts, places = (
            np.concatenate(pair)
            for pair in ((self.counts, other.counts), (self.places, other.places))
        )
        return replace(self, ids=ids, counts=counts, places=places)

    @property
    def used(self) -> Integers:
        """How many tokens of each row are no padding."""
        return self.counts + self.around

    @property
    def own(self) -> NDArray[np.bool_]:
        """Where in the rows the windows' own tokens stand."""
        place = np.arange(self.shape.length)
        return (place >= self.first) & (place < self.first + self.counts[:, None])


@dataclass(frozen=True, slots=True)
class Frame:
    """How windows become rows.

    prefix, suffix: the special tokens that the model wants around a text.
    window:         the usual length of a window; windows of just this length are never padded.
    positions:      the longest row that the model can read.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    window: int
    positions: int

    def shape(self, count: int) -> Shape:
        """The shape of a window of `count` tokens. It depends on nothing else, so neighbours change
        nothing.
        """
        used = count + self.around
        if count == self.window:
            return Shape(used, padded=False)
        length = min(
            -(-(used + 1) // ROW_LENGTH_MULTIPLE) * ROW_LENGTH_MULTIPLE, self.positions
        )
        return Shape(length, padded=used < length)

    @property
    def around(self) -> int:
        return len(self.prefix) + len(self.suffix)

    def rows(self, ids: Ids, lengths: Integers) -> Iterator[Rows]:
        """The windows of documents whose ids stand in one row, `lengths` of them each: one piece a
        shape.
        """
        return self.rows_between(
            ids, np.append(window_starts(lengths, self.window), len(ids))
        )

    def rows_between(self, ids: Ids, bounds: Integers) -> Iterator[Rows]:
        """The same for windows whose bounds are known."""
        counts = np.diff(bounds)
        shapes = {int(count): self.shape(int(count)) for count in np.unique(counts)}
        for shape in sorted(set(shapes.values())):
            fitting = [count for count, found in shapes.items() if found == shape]
            places = np.flatnonzero(np.isin(counts, fitting))
            yield self._laid_out(shape, ids, bounds[places], counts[places], places)

    def _laid_out(
        self,
        shape: Shape,
        ids: Ids,
        starts: Integers,
        counts: Integers,
        places: Integers,
    ) -> Rows:
        laid = np.zeros((len(counts), shape.length), dtype=np.int32)
        laid[:, : len(self.prefix)] = self.prefix
        rows = Rows(shape, laid, counts, places, len(self.prefix), self.around)
        reach = np.arange(shape.length - self.around)
        found = ids.take(starts[:, None] + reach, mode="clip")
        if shape.padded:
            found[reach >= counts[:, None]] = 0
        laid[:, rows.first : rows.first + len(reach)] = found
        for place, number in enumerate(self.suffix):
            laid[np.arange(len(counts)), rows.first + counts + place] = number
        return rows
