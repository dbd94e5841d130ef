"""Documents → samples: windows, beginnings and wholes, and how often each counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from ridgeway.common.base.settings import (
    MAX_WINDOW_TOKENS,
    SHORT_DOCUMENT_TOKENS,
    UNIT_SHARES,
    Sampling,
)
from ridgeway.common.text.tokenizer import Ids, Integers

_Number = TypeVar("_Number", int, Integers)

_FEW_TOKENS = 64
"""Stretches of fewer tokens, on average, are gathered one by one."""


class Layer(NamedTuple):
    """Samples of one kind: windows that stand one after another, each counted `times` times.

    positions: the places of their tokens among those of all documents.
    bounds: where windows begin among the positions, and where the last one ends.
    """

    positions: Ids
    bounds: Integers
    times: int


def layers(lengths: Integers, sampling: Sampling) -> list[Layer]:
    """The samples of documents that have so many tokens, and stand in one row.

    Where mistyped copies count, as many of them stand behind the documents, in the same order.
    """
    row = np.arange(int(lengths.sum()), dtype=np.int32)
    begins = _before(lengths)
    if sampling.max_tokens:
        lengths = np.minimum(lengths, sampling.max_tokens)
    copies = []
    if sampling.mistyped:
        documents = len(lengths) // 2
        copied = begins[documents:], lengths[documents:]
        copies = [_first(row, *copied, MAX_WINDOW_TOKENS, sampling.mistyped)]
        begins = begins[:documents]
        lengths = lengths[:documents]
    if sampling.units:
        return [*_shared_units(row, begins, lengths, sampling), *copies]
    return [_windows(row, begins, lengths, sampling), *copies]


# Windows that follow one another


def window_starts(lengths: Integers, window: int) -> Integers:
    """Where windows begin when documents stand in one row; a rest shorter than half a window joins
    its neighbour.
    """
    document, number = _numbered(_window_counts(lengths, window))
    starts: Integers = _before(lengths)[document] + number * window
    return starts


def _window_counts(lengths: Integers, window: int) -> Integers:
    """How many windows documents have: length / window, rounded, and one at least of any token."""
    whole, rest = np.divmod(lengths, window)
    counts: Integers = np.maximum(whole + (2 * rest >= window), lengths > 0)
    return counts


def _windows(
    row: Ids, begins: Integers, lengths: Integers, sampling: Sampling
) -> Layer:
    """All windows of documents: of every `stride` tokens the first `window`."""
    window = sampling.window
    stride = max(sampling.stride, window)
    document, number = _numbered(ceil_div(lengths, stride))
    starts = begins[document] + number * stride
    sizes = np.minimum(lengths[document] - number * stride, window)
    positions = _in_one_row(row, starts, sizes)
    thinned = _thinned_lengths(lengths, window, stride)
    return Layer(
        positions, np.append(window_starts(thinned, window), len(positions)), 1
    )


def _thinned_lengths(lengths: Integers, window: int, stride: int) -> Integers:
    """How many tokens of documents stand in windows that begin every `stride` tokens."""
    whole, rest = np.divmod(lengths, stride)
    return whole * window + np.minimum(rest, window)


# Documents that count the same


def _shared_units(
    row: Ids, begins: Integers, lengths: Integers, sampling: Sampling
) -> Iterator[Layer]:
    """Samples that together count `units` for every document that has tokens.

    A short document is one sample. Any other has one share of its units for the whole, one for its
    first `stride` and one for its first `window` tokens, and two for its windows. Its opening has
    one share beyond these.
    """
    share = sampling.units // UNIT_SHARES
    stride = max(sampling.stride, sampling.window)
    is_short = lengths <= SHORT_DOCUMENT_TOKENS
    short = lengths[is_short]
    yield _first(row, begins[is_short], short, MAX_WINDOW_TOKENS, UNIT_SHARES * share)
    begins = begins[~is_short]
    lengths = lengths[~is_short]
    yield _first(row, begins, lengths, MAX_WINDOW_TOKENS, share)
    yield _first(row, begins, lengths, stride, share)
    if sampling.opening:
        yield _first(row, begins, lengths, sampling.opening, share)
    yield from _even_windows(row, begins, lengths, sampling.window, stride, share)


def _first(
    row: Ids, begins: Integers, lengths: Integers, tokens: int, times: int
) -> Layer:
    """One sample a document that has tokens: its first ones."""
    used = lengths > 0
    sizes = np.minimum(lengths[used], tokens)
    bounds = np.append(0, np.cumsum(sizes))
    return Layer(_in_one_row(row, begins[used], sizes), bounds, times)


def _even_windows(
    row: Ids,
    begins: Integers,
    lengths: Integers,
    window: int,
    stride: int,
    share: int,
) -> Iterator[Layer]:
    """Windows and first tokens of documents that have more than a few tokens.

    Of its n windows a document takes m = min(n, 2 · share), evenly: sample k is window
    ceil((k + 1) · n / m) − 1, so that the last one is among them. Each counts the largest power of
    two by which n windows count no more than 2 · share, and 1 at least. The first `window` tokens
    count one share more: where they are a window that is taken, it counts so much more.
    """
    # how many windows there are, and how many are taken
    thinned = _thinned_lengths(lengths, window, stride)
    windows = _window_counts(thinned, window)
    taken = np.minimum(windows, 2 * share)
    times_of = _power_of_two_within(2 * share // windows)
    # which window of which document each sample is
    document, sample = _numbered(taken)
    number = ceil_div((sample + 1) * windows[document], taken[document]) - 1
    # where it begins, and how many tokens it has: the last window has the rest, too
    starts = begins[document] + number * stride
    is_last = number == windows[document] - 1
    sizes = np.where(is_last, thinned[document] - number * window, window)
    # how often it counts: the one that is the first `window` tokens has their share
    times = times_of[document]
    is_first = (number == 0) & (sizes == np.minimum(lengths, window)[document])
    times[is_first] += share
    apart = np.ones(len(lengths), dtype=bool)
    apart[document[is_first]] = False
    yield _first(row, begins[apart], lengths[apart], window, share)
    for count in np.unique(times).tolist():
        chosen = times == count
        jump = window, stride
        positions = _in_one_row(row, starts[chosen], sizes[chosen], jump)
        yield Layer(positions, np.append(0, np.cumsum(sizes[chosen])), count)


# Places in a row


def ceil_div(dividend: _Number, divisor: _Number | int) -> _Number:
    """The quotient, rounded up."""
    return -(-dividend // divisor)


def _power_of_two_within(numbers: Integers) -> Integers:
    """The largest power of two that is no larger than each number, and 1 at least."""
    exponents = np.frexp(np.maximum(1, numbers))[1] - 1
    powers: Integers = np.left_shift(1, exponents)
    return powers


def _before(sizes: Integers) -> Integers:
    """What stands before each of them when they stand in one row."""
    before: Integers = np.cumsum(sizes) - sizes
    return before


def _numbered(counts: Integers) -> tuple[Integers, Integers]:
    """For counts[d] things of each document d, in one row: d, and the thing's number in it."""
    document = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(document)) - _before(counts)[document]
    return document, number


def _in_one_row(
    row: Ids, starts: Integers, sizes: Integers, jump: tuple[int, int] | None = None
) -> Ids:
    """The places of spans, one after another. jump: after so many, a span goes on so many behind
    its start.
    """
    apart = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
    # a few long stretches are copied as they are
    if jump is None and len(apart) * _FEW_TOKENS <= sizes.sum():
        if not len(starts):
            return row[:0]
        first = starts[np.append(0, apart)].tolist()
        last = np.append(apart, len(starts)) - 1
        end = (starts[last] + sizes[last]).tolist()
        stretches = [row[a:b] for a, b in zip(first, end, strict=True)]
        return stretches[0] if len(stretches) == 1 else np.concatenate(stretches)
    within = np.arange(int(sizes.sum())) - np.repeat(_before(sizes), sizes)
    if jump is not None and int(sizes.max(initial=0)) > jump[0]:
        within += (within >= jump[0]) * (jump[1] - jump[0])
    places: Ids = (np.repeat(starts, sizes) + within).astype(np.int32)
    return places
