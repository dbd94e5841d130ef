"""Token ids → exact sums: windows in general, counts where a window is one token.

The state of an accumulator is a handful of integer arrays that add up, so that work can be divided, kept and resumed.
Knows numpy, and scipy once something is summed. Knows nothing of files, text or graphics cards.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import Sampling
from ridgeway.common.encoding.tokenizer import Ids, first_tokens
from ridgeway.common.encoding.windows import layers
from ridgeway.common.statistics.sums import (
    MAX_SQUARE,
    Integers,
    Statistics,
    check_bound,
    single_domain,
    unpacked,
    upper_triangle,
)

State = Mapping[str, Integers]

EXACT_LIMIT = 1 << 53
"""Below this, float64 holds every integer, so a float64 matrix product of integers is exact."""

DIGIT = 1 << 16
BLOCK_BYTES = 32 << 20
COLUMN_BLOCKS = 8
"""The blocks of columns in which a weighted product is taken; they skip most of the lower half."""


class Accumulator(Protocol):
    """Sums over documents. Law: the states of two accumulators, added, are the state over both their documents."""

    def add(self, ids: Ids, lengths: Integers) -> None:
        """Take in documents whose ids stand in one row, `lengths` of them each."""

    def state(self) -> State:
        """The sums so far."""

    def statistics(self, state: State, threads: int = 1) -> Statistics:
        """What a state means. Raises BoundExceeded if it could overflow."""


def accumulators(table: NDArray[np.int16], sampling: Sampling) -> Callable[[], Accumulator]:
    """A maker of accumulators that share one table: for windows of one token, counting is enough."""
    if only_counts(sampling):
        return lambda: TokenCounts(table, sampling)
    wide = WideTable(table)
    return lambda: WindowSums(wide, sampling)


def only_counts(sampling: Sampling) -> bool:
    """Whether the sums follow from how often each token occurs."""
    return sampling.window == 1 and sampling.is_plain


def add_states(one: State, other: State) -> State:
    return {name: one[name] + other[name] for name in one}


class WideTable:
    """The table in the width that windows are summed in; shared by the accumulators of all threads."""

    def __init__(self, table: NDArray[np.int16]) -> None:
        self.values = table.astype(np.int32)

    def window_means(self, ids: Ids, bounds: Integers) -> NDArray[np.int32]:
        """The integer-rounded mean embedding of each window: ⌊(2·sum + n) / 2n⌋, halves rounding up."""
        from scipy.sparse import csr_array

        ones = np.ones(len(ids), dtype=np.int32)
        picks = csr_array((ones, ids, bounds.astype(np.int32)), shape=(len(bounds) - 1, len(self.values)))
        sums = picks @ self.values
        counts = np.diff(bounds).astype(np.int32)[:, None]
        sums *= 2
        sums += counts
        sums //= 2 * counts
        return sums


class ExactGram:
    """Σ φφᵀ over integer samples with a constant one behind each: float64 products, kept below 2⁵³."""

    def __init__(self, width: int) -> None:
        self._features = width + 1
        self._gram = np.zeros((self._features, self._features), order="F")
        self._pending = 0
        self._total = np.zeros((self._features, self._features), dtype=np.int64)

    def add(self, samples: NDArray[np.signedinteger[Any]]) -> None:
        """Take in N×h samples, none of them beyond FEATURE_LIMIT."""
        from scipy.linalg.blas import dsyrk

        if (self._pending + len(samples)) * MAX_SQUARE >= EXACT_LIMIT:
            self._flush()
        features = np.ones((len(samples), self._features))
        features[:, :-1] = samples
        # With the features' transpose in column order, BLAS adds the upper triangle in place.
        self._gram = dsyrk(1.0, features.T, beta=1.0, c=self._gram, overwrite_c=True)
        self._pending += len(samples)

    def _flush(self) -> None:
        self._total += self._gram.astype(np.int64)
        self._gram[:] = 0
        self._pending = 0

    def triangle(self) -> Integers:
        """The upper triangle of the sum so far, row by row."""
        self._flush()
        return self._total[upper_triangle(self._features)]


class GramSums:
    """What accumulators share whose state is the upper triangle of gram."""

    def statistics(self, state: State, threads: int = 1) -> Statistics:
        return of_triangle(state["gram"])


class WindowSums(GramSums):
    """Sums over windows: segment sums of the integer table, then one exact product a batch."""

    def __init__(self, table: WideTable, sampling: Sampling) -> None:
        self._table = table
        self._sampling = sampling
        self._grams = defaultdict[int, ExactGram](partial(ExactGram, table.values.shape[1]))

    def add(self, ids: Ids, lengths: Integers) -> None:
        for layer in layers(ids, lengths, self._sampling):
            if len(layer.ids):
                self._grams[layer.times].add(self._table.window_means(layer.ids, layer.bounds))

    def state(self) -> State:
        self._grams[1]  # there is always one
        return {"gram": weighed({times: gram.triangle() for times, gram in self._grams.items()})}


def weighed(sums: Mapping[int, Integers]) -> Integers:
    """Sums over samples, by how often each sample counts, in one. Raises BoundExceeded if it could overflow."""
    check_bound(sum(times * int(triangle[-1]) for times, triangle in sums.items()))
    return sum((times * triangle for times, triangle in sums.items()), np.zeros_like(next(iter(sums.values()))))


def of_triangle(triangle: Integers) -> Statistics:
    """The statistics of one domain whose upper triangle this is. Raises BoundExceeded if it could overflow."""
    check_bound(int(triangle[-1]))
    features = (math.isqrt(8 * triangle.size + 1) - 1) // 2
    return single_domain(unpacked(triangle, np.zeros((features, 1), dtype=np.int64)).gram)


class TokenCounts:
    """For w = 1 and a static table, A = Eᵀ diag(n) E: count tokens, and take one product at the end."""

    def __init__(self, table: NDArray[np.int16], sampling: Sampling) -> None:
        self._table = table
        self._limit = sampling.max_tokens
        self._counts = np.zeros(len(table), dtype=np.int64)

    def add(self, ids: Ids, lengths: Integers) -> None:
        ids, _ = first_tokens(ids, lengths, self._limit)
        self._counts += np.bincount(ids, minlength=len(self._counts))

    def state(self) -> State:
        return {"counts": self._counts.copy()}

    def statistics(self, state: State, threads: int = 1) -> Statistics:
        return single_domain(gram_of_counts(self._table, state["counts"], threads))


def gram_of_counts(table: NDArray[np.int16], counts: Integers, threads: int = 1) -> Integers:
    """Σ n φφᵀ over tokens with counts n, exactly: digit by digit of n, over blocks that stay below 2⁵³."""
    from threadpoolctl import threadpool_limits

    features = table.shape[1] + 1
    gram = np.zeros((features, features), dtype=np.int64)
    blocks = list(exact_blocks(counts, max(1, BLOCK_BYTES // (8 * features))))
    with threadpool_limits(1), ThreadPoolExecutor(threads, "gram") as pool:
        parts = pool.map(lambda block: _weighted_gram(table[block.tokens], block.counts), blocks)
        for block, part in zip(blocks, parts, strict=True):
            gram += block.weight * part
    return np.triu(gram) + np.triu(gram, 1).T


class CountBlock(NamedTuple):
    """Some tokens, and a part of how often each occurs: weight · counts."""

    weight: int
    tokens: Integers
    counts: Integers


def exact_blocks(counts: Integers, most: int) -> Iterator[CountBlock]:
    """Counts in blocks of at most `most` tokens, each so small that float64 products over it are exact."""
    check_bound(int(counts.sum()))
    base = DIGIT if int(counts.sum()) * MAX_SQUARE >= EXACT_LIMIT else EXACT_LIMIT
    weight = 1
    while counts.any():
        counts, digits = np.divmod(counts, base)
        used = np.flatnonzero(digits)
        sums = np.cumsum(digits[used])
        first = 0
        while first < len(used):
            before = int(sums[first - 1]) if first else 0
            last = int(np.searchsorted(sums, before + EXACT_LIMIT // MAX_SQUARE, side="left"))
            last = min(last, first + most)
            yield CountBlock(weight, used[first:last], digits[used[first:last]])
            first = last
        weight *= base


def _weighted_gram(rows: NDArray[np.int16], weights: Integers) -> Integers:
    """The upper triangle of Σ n φφᵀ over some rows."""
    features = rows.shape[1] + 1
    samples = np.ones((len(rows), features))
    samples[:, :-1] = rows
    scaled = samples * weights[:, None]
    gram = np.zeros((features, features))
    edges = np.linspace(0, features, COLUMN_BLOCKS + 1).astype(int).tolist()
    for left, right in pairwise(edges):
        gram[:right, left:right] = scaled[:, :right].T @ samples[:, left:right]
    return gram.astype(np.int64)
