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
from ridgeway.common.text.tokenizer import Ids, Integers, first_tokens

_Number = TypeVar("_Number", int, Integers)

_FEW_TOKENS = 64
"""Stretches of fewer tokens, on average, are gathered one by one."""


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
        return _single_tokens(ids)
    copies = []
    if sampling.mistyped:
        documents = len(lengths) // 2
        copied = lengths[documents:]
        lengths = lengths[:documents]
        end = lengths.sum()
        begins = end + _before(copied)
        copies = [_first(ids, begins, copied, MAX_WINDOW_TOKENS, sampling.mistyped)]
        ids = ids[:end]
    if sampling.units:
        return [*_shared_units(ids, lengths, sampling), *copies]
    ids, lengths = _thinned(ids, lengths, sampling)
    bounds = np.append(window_starts(lengths, sampling.window), len(ids))
    return [Layer(ids, bounds, 1), *copies]


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


def _thinned(ids: Ids, lengths: Integers, sampling: Sampling) -> tuple[Ids, Integers]:
    """The tokens that stand in windows: of every `stride` of a document the first `window`."""
    window = sampling.window
    stride = sampling.stride
    if stride <= window:
        return ids, lengths
    document, number = _numbered(ceil_div(lengths, stride))
    starts = _before(lengths)[document] + number * stride
    sizes = np.minimum(lengths[document] - number * stride, window)
    return _in_one_row(ids, starts, sizes), _thinned_lengths(lengths, window, stride)


def _thinned_lengths(lengths: Integers, window: int, stride: int) -> Integers:
    """How many tokens of documents stand in windows that begin every `stride` tokens."""
    whole, rest = np.divmod(lengths, stride)
    return whole * window + np.minimum(rest, window)


def _single_tokens(ids: Ids) -> list[Layer]:
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


# Documents that count the same


def _shared_units(ids: Ids, lengths: Integers, sampling: Sampling) -> Iterator[Layer]:
    """Samples that together count `units` for every document that has tokens.

    A short document is one sample. Any other has one share of its units for the whole, one for its
    first `stride` and one for its first `window` tokens, and two for its windows. Its opening has
    one share beyond these.
    """
    share = sampling.units // UNIT_SHARES
    stride = max(sampling.stride, sampling.window)
    begins = _before(lengths)
    is_short = lengths <= SHORT_DOCUMENT_TOKENS
    short = lengths[is_short]
    yield _first(ids, begins[is_short], short, MAX_WINDOW_TOKENS, UNIT_SHARES * share)
    begins = begins[~is_short]
    lengths = lengths[~is_short]
    yield _first(ids, begins, lengths, MAX_WINDOW_TOKENS, share)
    yield _first(ids, begins, lengths, stride, share)
    if sampling.opening:
        yield _first(ids, begins, lengths, sampling.opening, share)
    yield from _even_windows(ids, begins, lengths, sampling.window, stride, share)


def _first(
    ids: Ids, begins: Integers, lengths: Integers, tokens: int, times: int
) -> Layer:
    """One sample a document that has tokens: its first ones."""
    used = lengths > 0
    sizes = np.minimum(lengths[used], tokens)
    bounds = np.append(0, np.cumsum(sizes))
    return Layer(_in_one_row(ids, begins[used], sizes), bounds, times)


def _even_windows(
    ids: Ids,
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
    yield _first(ids, begins[apart], lengths[apart], window, share)
    for count in np.unique(times).tolist():
        chosen = times == count
        row = _in_one_row(ids, starts[chosen], sizes[chosen], (window, stride))
        yield Layer(row, np.append(0, np.cumsum(sizes[chosen])), count)


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
    ids: Ids, starts: Integers, sizes: Integers, jump: tuple[int, int] | None = None
) -> Ids:
    """The ids of spans, one after another. jump: after so many ids, a span goes on so many behind
    its start.
    """
    apart = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
    # a few long stretches are copied as they are
    if jump is None and len(apart) * _FEW_TOKENS <= sizes.sum():
        if not len(starts):
            return ids[:0]
        first = starts[np.append(0, apart)].tolist()
        last = np.append(apart, len(starts)) - 1
        end = (starts[last] + sizes[last]).tolist()
        stretches = [ids[a:b] for a, b in zip(first, end, strict=True)]
        return stretches[0] if len(stretches) == 1 else np.concatenate(stretches)
    within = np.arange(int(sizes.sum())) - np.repeat(_before(sizes), sizes)
    if jump is not None and int(sizes.max(initial=0)) > jump[0]:
        within += (within >= jump[0]) * (jump[1] - jump[0])
    row: Ids = ids[np.repeat(starts, sizes) + within]
    return row
