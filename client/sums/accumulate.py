"""Token ids → exact sums: windows in general, counts where a window is one token.

The state of an accumulator is a handful of integer arrays that add up, so that work can be divided,
kept and resumed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.machine import native, one_blas_thread
from ridgeway.common.base.settings import Sampling
from ridgeway.common.statistics import (
    MAX_SQUARE,
    Statistics,
    check_bound,
    single_domain,
    unpacked,
    upper_triangle,
)
from ridgeway.common.text.sentence_encoder import SentenceFeatures
from ridgeway.common.text.tokenizer import Ids, Integers
from ridgeway.common.text.tokens import Tokens
from ridgeway.common.text.windows import Layer, layers
from ridgeway.common.text.word_sketch import WordSketch

State = Mapping[str, Integers]

EXACT_LIMIT = 1 << 53
"""Below this, float64 holds every integer, so a float64 matrix product of integers is exact."""

NARROW_LIMIT = 1 << 24
"""The same for float32."""

BLOCK_SAMPLES = 512
"""The samples that are multiplied at once: for many more, few columns of window means stay below
float32's limit.
"""

WIDE_BLOCKS = 7
"""The blocks that go to float64 at once when one had too many columns beyond the limit."""

_DIGIT = 1 << 16
_BLOCK_BYTES = 32 << 20


class Accumulator(ABC):
    """Sums over documents. Law: the states of two accumulators, added, are the state over both
    their documents.
    """

    _sampling: Sampling

    def add(self, tokens: Tokens) -> None:
        """Take in documents."""
        self.add_layers(tokens, layers(tokens.lengths, self._sampling))

    @abstractmethod
    def add_layers(self, tokens: Tokens, samples: Sequence[Layer]) -> None:
        """Take in the samples of documents."""

    @abstractmethod
    def state(self) -> State:
        """The sums so far: in general, the upper triangle of gram."""

    def statistics(self, state: State, threads: int = 1) -> Statistics:
        """What a state means. Raises BoundExceeded if it could overflow."""
        triangle = bounded(state["gram"])
        features = (math.isqrt(8 * triangle.size + 1) - 1) // 2
        no_cross = np.zeros((features, 1), dtype=np.int64)
        return single_domain(unpacked(triangle, no_cross).gram)


def accumulators(
    table: NDArray[np.int16],
    sampling: Sampling,
    words: WordSketch | None = None,
    sentences: SentenceFeatures | None = None,
    gram: MakeGram | None = None,
) -> Callable[[], Accumulator]:
    """A maker of accumulators that share one table: for windows of one token, counting is enough.

    words, sentences: the features that stand behind those of tokens, if an encoder has any.
    gram: who multiplies, if it is not the CPU.
    """
    if only_counts(sampling, words or sentences):
        return lambda: TokenCounts(table, sampling)
    shared = WindowTable(table, words, sentences)
    return lambda: WindowSums(shared, sampling, gram or ExactGram)


def only_counts(
    sampling: Sampling, more: WordSketch | SentenceFeatures | None = None
) -> bool:
    """Whether the sums follow from how often each token occurs.

    more: features beside those of tokens, if an encoder has any.
    """
    return more is None and sampling.window == 1 and sampling.is_plain


def add_states(one: State, other: State) -> State:
    return {name: one[name] + other[name] for name in one}


class WindowTable:
    """The table, and the features of windows by it; shared by the accumulators of all threads."""

    def __init__(
        self,
        table: NDArray[np.int16],
        words: WordSketch | None = None,
        sentences: SentenceFeatures | None = None,
    ) -> None:
        self.width = int(table.shape[1])
        self.width += sum(more.width for more in (words, sentences) if more)
        self._words = words
        self._sentences = sentences
        # numpy sums in the width of the table, the compiled module in its own; a copy of numpy's
        # has large pages, read faster
        width = np.dtype(np.int16 if native else np.int32)
        self._table: NDArray[np.signedinteger[Any]] = np.array(
            table, dtype=width, order="C"
        )

    def features(self, tokens: Tokens, samples: Layer) -> NDArray[np.int16]:
        """All features of each window."""
        means = self.means(tokens, samples)
        if self._sentences is None:
            return means
        read = self._sentences.window_features(
            tokens, samples.positions, samples.bounds
        )
        return np.hstack([means, read])

    def means(self, tokens: Tokens, samples: Layer) -> NDArray[np.int16]:
        """The integer-rounded mean embedding of each window: ⌊(2·sum + n) / 2n⌋, halves rounding
        up; then its words.
        """
        words = self._words
        positions, bounds, _ = samples
        ids = tokens.ids.take(positions)
        if native:
            width = self._table.shape[1]
            features = width + (words.width if words else 0)
            means = np.empty((len(bounds) - 1, features), dtype=np.int16)
            runs = (
                (positions, *tokens.runs, words.width, words.options.amplitude)
                if words
                else ()
            )
            native.row_means(self._table, width, ids, bounds, means, *runs)
            return means
        means = means_by_numpy(self._table, ids, bounds)
        if words is None:
            return means
        counted = words.window_features(tokens.runs, positions, bounds)
        return np.hstack([means, counted])


def means_by_numpy(
    table: NDArray[np.signedinteger[Any]], ids: Ids, bounds: Integers
) -> NDArray[np.int16]:
    """The means of windows, which are the right ones by definition."""
    from scipy.sparse import csr_array

    ones = np.ones(len(ids), dtype=np.int32)
    picks = csr_array(
        (ones, ids, bounds.astype(np.int32)), shape=(len(bounds) - 1, len(table))
    )
    sums = picks @ table
    counts = np.diff(bounds).astype(np.int32)[:, None]
    sums *= 2
    sums += counts
    sums //= 2 * counts
    means: NDArray[np.int16] = sums.astype(np.int16)
    return means


class ExactGram:
    """Σ n φφᵀ over integer samples that count n times, with a constant one behind each.

    Samples wait until there are enough that count alike, and are then multiplied at once, as
    floats. Whatever the order, a partial sum of φᵢφⱼ is no larger than the larger of Σφᵢ² and Σφⱼ².
    Where both are below 2²⁴, float32 holds every partial sum, so the product is exact; and the
    computed Σφᵢ² reaches 2²⁴ just where the true one does, since rounding keeps order. The few
    columns where it does are taken again in float64.
    """

    def __init__(self, width: int, block_samples: int = BLOCK_SAMPLES) -> None:
        self._features = width + 1
        self._block_samples = block_samples
        self._blocks = defaultdict[int, NDArray[np.int16]](
            lambda: np.empty((block_samples, width), dtype=np.int16)
        )
        """The samples that wait, by how often they count."""
        self._filled = defaultdict[int, int](int)
        self._total = np.zeros((self._features, self._features), dtype=np.int64)
        self._pending = 0
        """What samples count whose products are not yet in `_total`."""
        self._wide_blocks = 0
        """How many more blocks are not worth a trial in float32."""

    def add(self, samples: NDArray[np.signedinteger[Any]], times: int = 1) -> None:
        """Take in N×h samples, none of them beyond FEATURE_LIMIT, that count `times` times each."""
        while len(samples):
            filled = self._filled[times]
            part = samples[: self._block_samples - filled]
            self._blocks[times][filled : filled + len(part)] = part
            self._filled[times] += len(part)
            samples = samples[len(part) :]
            if self._filled[times] == self._block_samples:
                self._multiply(times)

    def _multiply(self, times: int) -> None:
        """Take the product over the samples that are held and count so often."""
        block = self._blocks[times][: self._filled.pop(times)]
        if (self._pending + times * len(block)) * MAX_SQUARE >= EXACT_LIMIT:
            self._flush()
        self._pending += times * len(block)
        self._add_products(block, times)

    def _add_products(self, block: NDArray[np.int16], times: int) -> None:
        """Add the products of a block to the sum that `_take_sum` gives."""
        features = np.ones((len(block), self._features), dtype=np.float32)
        features[:, :-1] = block
        if self._wide_blocks or not self._add_narrow(features, times):
            self._wide_blocks = (
                self._wide_blocks - 1 if self._wide_blocks else WIDE_BLOCKS
            )
            wide = features.astype(np.float64)
            self._gram += times * (wide.T @ wide)

    def _add_narrow(self, features: NDArray[np.float32], times: int) -> bool:
        """Add a product in float32, unless too much of it would not be exact."""
        # Of a matrix with itself, numpy takes half the product; unlike scipy, it lets other threads
        # run meanwhile.
        product = features.T @ features
        inexact = np.flatnonzero(product.diagonal() >= NARROW_LIMIT)
        if len(inexact) * 4 > self._features:
            return False
        product[inexact] = product[:, inexact] = 0
        self._gram += (
            product if times == 1 else np.multiply(product, times, dtype=np.float64)
        )
        if len(inexact):
            wide = features.astype(np.float64)
            again = times * (wide[:, inexact].T @ wide)
            self._gram[inexact] += again
            again[:, inexact] = 0
            self._gram[:, inexact] += again.T
        return True

    @cached_property
    def _gram(self) -> NDArray[np.float64]:
        """The sum of products that are not yet in `_total`."""
        return np.zeros((self._features, self._features))

    def _take_sum(self) -> NDArray[np.float64]:
        """The sum of products since it was last taken, as whole numbers."""
        taken = self._gram.copy()
        self._gram[:] = 0
        return taken

    def _flush(self) -> None:
        self._total += self._take_sum().astype(np.int64)
        self._pending = 0

    def triangle(self) -> Integers:
        """The upper triangle of the sum so far, row by row."""
        for times in list(self._filled):
            self._multiply(times)
        self._flush()
        triangle: Integers = self._total[upper_triangle(self._features)]
        return triangle


MakeGram = Callable[[int], ExactGram]
"""Makes the sum of products of so many features."""


class WindowSums(Accumulator):
    """Sums over windows: segment sums of the integer table, then one exact product a batch."""

    def __init__(
        self, table: WindowTable, sampling: Sampling, gram: MakeGram = ExactGram
    ) -> None:
        self._table = table
        self._sampling = sampling
        self._gram = gram(table.width)

    def add_layers(self, tokens: Tokens, samples: Sequence[Layer]) -> None:
        for layer in samples:
            if len(layer.positions):
                self._gram.add(self._table.features(tokens, layer), layer.times)

    def state(self) -> State:
        return {"gram": bounded(self._gram.triangle())}


def bounded(triangle: Integers) -> Integers:
    """The triangle itself. Raises BoundExceeded if sums over so many samples could overflow."""
    check_bound(int(triangle[-1]))
    return triangle


class TokenCounts(Accumulator):
    """For w = 1 and a static table, A = Eᵀ diag(n) E: count tokens, and take one product at the
    end.
    """

    def __init__(self, table: NDArray[np.int16], sampling: Sampling) -> None:
        self._table = table
        self._sampling = sampling
        self._counts = np.zeros(len(table), dtype=np.int64)

    def add_layers(self, tokens: Tokens, samples: Sequence[Layer]) -> None:
        for layer in samples:
            ids = tokens.ids.take(layer.positions)
            counts = np.bincount(ids, minlength=len(self._counts))
            self._counts += layer.times * counts

    def state(self) -> State:
        return {"counts": self._counts.copy()}

    def statistics(self, state: State, threads: int = 1) -> Statistics:
        return single_domain(gram_of_counts(self._table, state["counts"], threads))


def gram_of_counts(
    table: NDArray[np.int16], counts: Integers, threads: int = 1
) -> Integers:
    """Σ n φφᵀ over tokens with counts n, exactly, in blocks that float64 holds."""
    check_bound(int(counts.sum()))
    features = table.shape[1] + 1
    gram = np.zeros((features, features), dtype=np.int64)
    blocks = list(exact_blocks(counts, max(1, _BLOCK_BYTES // (8 * features))))
    with one_blas_thread(), ThreadPoolExecutor(threads, "gram") as pool:
        parts = pool.map(
            lambda block: _weighted_gram(table[block.tokens], block.counts), blocks
        )
        for block, part in zip(blocks, parts, strict=True):
            gram += block.weight * part
    return gram


class CountBlock(NamedTuple):
    """Some tokens, and a part of how often each occurs: weight · counts."""

    weight: int
    tokens: Integers
    counts: Integers


def exact_blocks(counts: Integers, most: int) -> Iterator[CountBlock]:
    """Counts in blocks of at most `most` tokens, each so small that float64 products over it are
    exact.
    """
    check_bound(int(counts.sum()))
    base = _DIGIT if int(counts.sum()) * MAX_SQUARE >= EXACT_LIMIT else EXACT_LIMIT
    weight = 1
    while counts.any():
        counts, digits = np.divmod(counts, base)
        used = np.flatnonzero(digits)
        sums = np.cumsum(digits[used])
        first = 0
        while first < len(used):
            before = int(sums[first - 1]) if first else 0
            last = int(
                np.searchsorted(sums, before + EXACT_LIMIT // MAX_SQUARE, side="left")
            )
            last = min(last, first + most)
            yield CountBlock(weight, used[first:last], digits[used[first:last]])
            first = last
        weight *= base


def _weighted_gram(rows: NDArray[np.int16], weights: Integers) -> Integers:
    """Σ n φφᵀ over some rows."""
    samples = np.ones((len(rows), rows.shape[1] + 1))
    samples[:, :-1] = rows
    gram = (samples * weights[:, None]).T @ samples
    return gram.astype(np.int64)
