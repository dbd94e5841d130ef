"""The sums against a plain, slow way to take them: lists, loops and Python's own integers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import ridgeway.client.sums.accumulate
from ridgeway.client.sums.accumulate import (
    BLOCK_SAMPLES,
    EXACT_LIMIT,
    NARROW_LIMIT,
    Accumulator,
    ExactGram,
    State,
    TokenCounts,
    WindowSums,
    WindowTable,
    accumulators,
    add_states,
    gram_of_counts,
    means_by_numpy,
)
from ridgeway.common.base.errors import BoundExceeded
from ridgeway.common.base.machine import native
from ridgeway.common.base.settings import FEATURE_LIMIT, Sampling, WordFeatures
from ridgeway.common.statistics import MAX_SQUARE, SUM_BOUND, Integers
from ridgeway.common.text.tokenizer import Ids, first_tokens
from ridgeway.common.text.tokens import NO_RUNS, Tokens
from ridgeway.common.text.windows import Layer, layers, window_starts
from ridgeway.common.text.word_sketch import Runs, WordSketch
from tests.support.native import needs_native, without_native

Table = NDArray[np.int16]
Document = list[int]
Gram = list[list[int]]

ROWS = 6


# The slow way


def slow_windows(document: Document, window: int) -> list[Document]:
    """Windows of one document; a rest shorter than half a window joins its neighbour."""
    windows = [
        document[start : start + window] for start in range(0, len(document), window)
    ]
    if len(windows) > 1 and 2 * len(windows[-1]) < window:
        rest = windows.pop()
        windows[-1] = windows[-1] + rest
    return windows


def slow_feature(table: Table, tokens: Document) -> list[int]:
    """The rounded mean of each column, halves rounding up, and the constant 1."""
    columns = zip(
        *([int(value) for value in table[token]] for token in tokens), strict=True
    )
    return [
        (2 * sum(column) + len(tokens)) // (2 * len(tokens)) for column in columns
    ] + [1]


def slow_gram(features: Sequence[tuple[int, list[int]]], size: int) -> Gram:
    """The sum of n φφᵀ over (n, φ)."""
    gram = [[0] * size for _ in range(size)]
    for times, feature in features:
        for row, left in enumerate(feature):
            for column, right in enumerate(feature):
                gram[row][column] += times * left * right
    return gram


def slow_thinned(document: Document, window: int, stride: int) -> Document:
    """The first `window` of every `stride` tokens."""
    return [
        token
        for index, token in enumerate(document)
        if index % (stride or window) < window
    ]


def slow_samples(
    documents: Sequence[Document],
    sampling: Sampling,
    given_copies: Sequence[Document] | None = None,
) -> list[tuple[int, Document]]:
    """How often each sample counts, and its tokens."""
    if given_copies is None:
        given_copies = [copy_of(document) for document in documents]
    cut, copies = (
        [document[: sampling.max_tokens or None] for document in row]
        for row in (documents, given_copies)
    )
    mistyped = [(sampling.mistyped, copy) for copy in copies if copy]
    if sampling.units:
        return [
            sample
            for document in cut
            if document
            for sample in slow_units(document, sampling)
        ] + mistyped
    thinned = [
        slow_thinned(document, sampling.window, sampling.stride) for document in cut
    ]
    windows = [
        (1, tokens)
        for document in thinned
        for tokens in slow_windows(document, sampling.window)
    ]
    return windows + mistyped


def slow_units(document: Document, sampling: Sampling) -> list[tuple[int, Document]]:
    """One document's samples where every document has the same mass."""
    if len(document) <= 20:
        return [(sampling.units, document)]
    fifth, window = sampling.units // 5, sampling.window
    sizes = [
        None,
        max(window, sampling.stride),
        window,
        *([sampling.opening] if sampling.opening else []),
    ]
    longer = [(fifth, document[:size]) for size in sizes]
    windows = slow_windows(slow_thinned(document, window, sampling.stride), window)
    left_out = max(0, len(windows) - 2 * fifth)
    kept = [
        tokens
        for n, tokens in enumerate(windows)
        if left_out == 0 or is_one_of(2 * fifth, len(windows), n)
    ]
    times = max(2**k for k in range(12) if len(kept) * 2**k <= 2 * fifth)
    assert len(windows) - len(kept) == left_out
    return longer + [(times, tokens) for tokens in kept]


def is_one_of(some: int, of: int, number: int) -> bool:
    """Whether a number is one of `some` that lie evenly among `of`."""
    return any(
        of * (step + 1) <= some * (number + 1) < of * (step + 1) + some
        for step in range(some)
    )


def copy_of(document: Document) -> Document:
    """What stands for a mistyped copy here."""
    return document[1::2]


def slow_sums(table: Table, documents: Sequence[Document], sampling: Sampling) -> Gram:
    samples = slow_samples(documents, sampling)
    return slow_gram(
        [(times, slow_feature(table, tokens)) for times, tokens in samples],
        table.shape[1] + 1,
    )


# The way under test


class Spelt(NamedTuple):
    """A sketch of words, and the letters of each token."""

    words: WordSketch
    letters: list[bytes]

    def runs(self, ids: Ids, lengths: Integers) -> Runs:
        letters = [self.letters[token] for token in ids.tolist()]
        stops = np.cumsum(list(map(len, letters)), dtype=np.int64)
        row = np.frombuffer(b"".join(letters), dtype=np.uint8)
        return self.words.runs(row, stops, lengths)


def in_one_row(documents: Sequence[Document], spelt: Spelt | None = None) -> Tokens:
    ids = np.array(
        [token for document in documents for token in document], dtype=np.int32
    )
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    runs = spelt.runs(ids, lengths) if spelt else NO_RUNS
    return Tokens(ids, lengths, runs, ids[:0], lengths[:0])


def with_copies(
    documents: Sequence[Document], sampling: Sampling | None
) -> list[Document]:
    """The documents, and behind them their mistyped copies where those count."""
    copies = map(copy_of, documents) if sampling and sampling.mistyped else ()
    return [*documents, *copies]


def state_of(
    accumulator: Accumulator,
    batches: Sequence[Sequence[Document]],
    sampling: Sampling | None = None,
    spelt: Spelt | None = None,
) -> State:
    for batch in batches:
        accumulator.add(in_one_row(with_copies(batch, sampling), spelt))
    return accumulator.state()


def all_windows(tokens: Tokens, window: int) -> Layer:
    """Windows that follow one another."""
    bounds = np.append(window_starts(tokens.lengths, window), len(tokens.ids))
    return Layer(np.arange(len(tokens.ids), dtype=np.int32), bounds, 1)


def gram_of(table: Table, sampling: Sampling, documents: Sequence[Document]) -> Gram:
    accumulator = accumulators(table, sampling)()
    gram: Gram = accumulator.statistics(
        state_of(accumulator, [documents], sampling)
    ).gram.tolist()
    return gram


def tables(rows: int = ROWS) -> st.SearchStrategy[Table]:
    """Small tables whose values reach the public bound on both sides."""
    value = st.integers(-FEATURE_LIMIT, FEATURE_LIMIT) | st.sampled_from(
        [-FEATURE_LIMIT, FEATURE_LIMIT, 0, 1, -1]
    )

    def filled(width: int) -> st.SearchStrategy[Table]:
        row = st.lists(value, min_size=width, max_size=width)
        return st.lists(row, min_size=rows, max_size=rows).map(
            lambda values: np.array(values, dtype=np.int16)
        )

    return st.integers(1, 4).flatmap(filled)


def corpora() -> st.SearchStrategy[list[Document]]:
    """Documents, some of them without a token."""
    return st.lists(st.lists(st.integers(0, ROWS - 1), max_size=40), max_size=8)


def sketches(rows: int = ROWS) -> st.SearchStrategy[Spelt]:
    """Sketches over tokens of a few letters, parts of words and what parts them."""
    letters = st.lists(
        st.text("abc 1,é\n", max_size=6).map(str.encode), min_size=rows, max_size=rows
    )
    options = st.builds(
        WordFeatures, st.integers(1, 9), st.sampled_from([1, 1000, FEATURE_LIMIT])
    )
    return st.builds(Spelt, options.map(WordSketch), letters)


windows = st.integers(1, 12)


def spaced(window: int, apart: int, **others: int) -> Sampling:
    """Windows that begin so many tokens after the end of the one before."""
    return Sampling(window=window, stride=window + apart if apart else 0, **others)


samplings = st.builds(
    spaced,
    window=windows,
    apart=st.integers(0, 9),
    max_tokens=st.integers(0, 30),
    mistyped=st.sampled_from([0, 0, 3]),
) | st.builds(
    spaced,
    window=windows,
    apart=st.integers(0, 9),
    max_tokens=st.sampled_from([0, 0, 30]),
    units=st.sampled_from([5, 10, 20, 40, 320]),
    mistyped=st.sampled_from([0, 3]),
    opening=st.sampled_from([0, 3]),
)


@given(lengths=st.lists(st.integers(0, 100), max_size=12), window=st.integers(1, 30))
def test_windows_begin_where_a_slow_count_says(lengths: list[int], window: int) -> None:
    """Every window lies in one document and they follow each other without a gap; short rests join
    a neighbour.
    """
    expected, first = [], 0
    for length in lengths:
        for tokens in slow_windows([0] * length, window):
            expected.append(first)
            first += len(tokens)
    assert window_starts(np.array(lengths, dtype=np.int64), window).tolist() == expected


@given(length=st.integers(1, 400), window=st.integers(1, 50))
def test_no_window_is_shorter_than_half_or_longer_than_one_and_a_half(
    length: int, window: int
) -> None:
    """Samples weigh about the same: only a document shorter than half a window makes a shorter
    one.
    """
    starts = window_starts(np.array([length]), window).tolist()
    sizes = [
        right - left for left, right in zip(starts, [*starts[1:], length], strict=True)
    ]
    assert sum(sizes) == length
    assert all(size < 1.5 * window for size in sizes)
    assert all(size >= window / 2 for size in sizes) or sizes == [length]


@given(table=tables(), documents=corpora(), window=windows)
def test_the_mean_of_a_window_is_rounded_as_python_integers_are(
    table: Table, documents: list[Document], window: int
) -> None:
    """⌊(2·sum + n) / 2n⌋ for negative sums and for halves too, compiled or not."""
    tokens = in_one_row(documents)
    samples = all_windows(tokens, window)
    expected = [
        slow_feature(table, sample)[:-1]
        for document in documents
        for sample in slow_windows(document, window)
    ]
    assert WindowTable(table).means(tokens, samples).tolist() == expected
    again = means_by_numpy(table.astype(np.int32), tokens.ids, samples.bounds)
    assert again.tolist() == expected


@given(table=tables(), documents=corpora(), window=windows, spelt=sketches())
def test_words_stand_behind_the_means(
    table: Table, documents: list[Document], window: int, spelt: Spelt
) -> None:
    """As the sketch itself gives them, compiled or not."""
    tokens = in_one_row(documents, spelt)
    samples = all_windows(tokens, window)
    positions, bounds, _ = samples
    expected = np.hstack(
        [
            means_by_numpy(table.astype(np.int32), tokens.ids, bounds),
            spelt.words.window_features(tokens.runs, positions, bounds),
        ]
    )
    made = WindowTable(table, spelt.words).means(tokens, samples)
    np.testing.assert_array_equal(made, expected)
    with without_native():
        again = WindowTable(table, spelt.words).means(tokens, samples)
    np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("amplitude", [1, 1000, FEATURE_LIMIT])
@pytest.mark.parametrize("size", [1, 3, 128, 999, 98303])
def test_compiled_words_are_the_sketch_s_at_every_rounding_and_at_the_limit(
    amplitude: int, size: int
) -> None:
    """Long and short windows, few and many of one run of letters."""
    words = WordSketch(WordFeatures(9, amplitude))
    ids = np.random.default_rng(size).integers(0, 3, 98303)
    ids[: 98303 // 2] = 2
    tokens = in_one_row([ids.tolist()], Spelt(words, [b"aab", b" ", b"aaaaaa"]))
    positions = np.arange(98303, dtype=np.int32)
    bounds = np.arange(98303 // size + 1) * size
    table = WindowTable(np.zeros((3, 1), dtype=np.int16), words)
    features = table.means(tokens, Layer(positions, bounds, 1))
    expected = words.window_features(tokens.runs, positions, bounds)
    np.testing.assert_array_equal(features[:, 1:], expected)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 127, 128, 129, 1000])
def test_compiled_means_are_numpy_s_around_every_half(size: int) -> None:
    """Sums next to those at which a mean rounds up, from the smallest to the largest, give the same
    whole number.
    """
    near = np.arange(-FEATURE_LIMIT, FEATURE_LIMIT + 1, dtype=np.int16)
    table = np.stack([near, np.clip(near + 1, -FEATURE_LIMIT, FEATURE_LIMIT)]).astype(
        np.int16
    )
    windows = [
        [1] * ones + [0] * (size - ones)
        for ones in {0, 1, size // 2, (size + 1) // 2, size - 1, size}
    ]
    tokens = in_one_row(windows)
    bounds = np.arange(len(windows) + 1) * size
    samples = Layer(np.arange(len(tokens.ids), dtype=np.int32), bounds, 1)
    expected = means_by_numpy(table.astype(np.int32), tokens.ids, bounds)
    np.testing.assert_array_equal(WindowTable(table).means(tokens, samples), expected)


@pytest.mark.parametrize(
    ("width", "ids", "bounds", "rows"),
    [
        (2, [0, 3], [0, 2], 1),
        (2, [0, -1], [0, 2], 1),
        (2, [0, 1], [0, 3], 1),
        (2, [0, 1], [-1, 2], 1),
        (2, [0, 1], [0, 0, 2], 2),
        (2, [0, 1], [0, 2, 1], 2),
        (2, [0, 1], [0, 2], 2),
        (2, [0, 1], [], 0),
        (0, [0, 1], [0, 2], 1),
        (4, [0, 1], [0, 2], 1),
        (5, [0, 1], [0, 2], 1),
        (2, [0] * 98305, [0, 98305], 1),
    ],
    ids=lambda value: (
        None if isinstance(value, list) and len(value) > 9 else str(value)
    ),
)
@needs_native
def test_compiled_means_refuse_what_does_not_fit_together(
    width: int, ids: list[int], bounds: list[int], rows: int
) -> None:
    """No id, bound or length leads outside what was handed over."""
    given = np.array(ids, dtype=np.int32), np.array(bounds, dtype=np.int64)
    with pytest.raises(ValueError, match="do not fit together"):
        native.row_means(
            np.zeros((3, 2), dtype=np.int16),
            width,
            *given,
            np.zeros((rows, 2), dtype=np.int16),
        )


@pytest.mark.parametrize("value", [FEATURE_LIMIT, -FEATURE_LIMIT, FEATURE_LIMIT - 1])
def test_the_largest_window_of_the_largest_values_does_not_overflow(value: int) -> None:
    """A window of 98,303 tokens, the most there can be, has the mean of its tokens."""
    table = np.array([[value]], dtype=np.int16)
    tokens = in_one_row([[0] * (65536 + 32767)])
    samples = all_windows(tokens, 65536)
    assert WindowTable(table).means(tokens, samples).tolist() == [[value]]


@pytest.mark.parametrize(
    ("length", "samples"), [(65536 + 32767, 1), (65536 + 32768, 2), (3 * 65536, 3)]
)
def test_a_document_of_more_tokens_than_a_window_may_have_is_several_samples(
    length: int, samples: int
) -> None:
    """So that no sum over a whole document can overflow."""
    [layer] = layers(np.array([length]), Sampling(65536))
    assert len(layer.bounds) - 1 == samples


@given(table=tables(), documents=corpora(), sampling=samplings)
def test_gram_is_the_sum_of_outer_products(
    table: Table, documents: list[Document], sampling: Sampling
) -> None:
    """Bit for bit what Python's own integers give, with and without a limit of tokens, and without
    the compiled module, where numpy takes the means.
    """
    expected = slow_sums(table, documents, sampling)
    assert gram_of(table, sampling, documents) == expected
    with without_native():
        assert gram_of(table, sampling, documents) == expected


@given(table=tables(), documents=corpora(), sampling=samplings, spelt=sketches())
def test_sums_with_words_are_those_of_their_features(
    table: Table, documents: list[Document], sampling: Sampling, spelt: Spelt
) -> None:
    """Windows of one token too: words are more than their tokens' counts. A run that begins in one
    sample and ends in the next is the next one's.
    """
    accumulator = accumulators(table, sampling, spelt.words)()
    batches = [documents[:2], documents[2:]]
    sums = accumulator.statistics(state_of(accumulator, batches, sampling, spelt))
    row = with_copies(documents, sampling)
    tokens = in_one_row(row, spelt)
    stops = np.cumsum(tokens.lengths).tolist()
    places = [list(range(first, last)) for first, last in pairwise([0, *stops])]

    def feature(sample: list[int]) -> list[int]:
        positions = np.array(sample, dtype=np.int32)
        bounds = np.array([0, len(sample)])
        counted = spelt.words.window_features(tokens.runs, positions, bounds)[0]
        means = slow_feature(table, tokens.ids[positions].tolist())[:-1]
        return [*means, *counted.tolist(), 1]

    of_documents, of_copies = places[: len(documents)], places[len(documents) :]
    samples = slow_samples(of_documents, sampling, of_copies)
    features = [(times, feature(sample)) for times, sample in samples]
    size = table.shape[1] + spelt.words.width + 1
    assert sums.gram.tolist() == slow_gram(features, size)


@given(table=tables(), documents=corpora(), sampling=samplings)
def test_mass_is_the_number_of_samples_and_cross_their_sum(
    table: Table, documents: list[Document], sampling: Sampling
) -> None:
    """The constant feature counts the samples, and its column is the domain's own."""
    accumulator = accumulators(table, sampling)()
    statistics = accumulator.statistics(state_of(accumulator, [documents], sampling))
    assert statistics.mass == sum(
        times for times, _ in slow_samples(documents, sampling)
    )
    assert statistics.cross.tolist() == [
        [row[-1]] for row in slow_sums(table, documents, sampling)
    ]


@given(documents=corpora(), sampling=samplings)
def test_with_units_every_document_has_one_mass(
    documents: list[Document], sampling: Sampling
) -> None:
    """At most its units, and more than four fifths of them, whatever its length; an opening comes
    on top.
    """
    assume(sampling.units)
    for document in filter(None, documents):
        row = in_one_row(with_copies([document], sampling))
        samples = layers(row.lengths, sampling)
        mass = sum(layer.times * (len(layer.bounds) - 1) for layer in samples)
        mistyped = sampling.mistyped if sampling.mistyped and copy_of(document) else 0
        read = min(len(document), sampling.max_tokens or len(document))
        opening = sampling.units // 5 if sampling.opening and read > 20 else 0
        assert sampling.units * 4 / 5 < mass - mistyped - opening <= sampling.units


@given(table=tables(), documents=corpora(), limit=st.integers(0, 30))
def test_counting_tokens_equals_windows_of_one(
    table: Table, documents: list[Document], limit: int
) -> None:
    """The shortcut of w = 1 takes the same sums as the general way and as the slow one."""
    sampling = Sampling(window=1, max_tokens=limit)
    counting, summing = (
        TokenCounts(table, sampling),
        WindowSums(WindowTable(table), sampling),
    )
    counted = counting.statistics(state_of(counting, [documents]))
    summed = summing.statistics(state_of(summing, [documents]))
    samples = layers(in_one_row(documents).lengths, sampling)
    for layer in samples:
        assert len(set(layer.positions.tolist())) == len(layer.positions)
    assert counted.equals(summed)
    assert counted.gram.tolist() == slow_sums(table, documents, sampling)


@given(table=tables(), documents=corpora(), sampling=samplings, data=st.data())
def test_dividing_documents_over_batches_and_threads_leaves_the_sums_unchanged(
    table: Table, documents: list[Document], sampling: Sampling, data: st.DataObject
) -> None:
    """Any order, any batches, empty ones too, any number of accumulators: the added states are, bit
    for bit, the state of the whole.
    """
    new = accumulators(table, sampling)
    shuffled = data.draw(st.permutations(documents))
    seats = [
        data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in shuffled
    ]
    workers = [
        [
            [
                document
                for document, seat in zip(shuffled, seats, strict=True)
                if seat == (worker, batch)
            ]
            for batch in range(3)
        ]
        for worker in range(3)
    ]
    divided = reduce(
        add_states, (state_of(new(), batches, sampling) for batches in workers)
    )
    whole = state_of(new(), [documents], sampling)
    assert divided.keys() == whole.keys()
    assert all((divided[name] == whole[name]).all() for name in whole)
    assert all(value.dtype == np.int64 for value in divided.values())


@given(documents=corpora(), limit=st.integers(1, 50))
def test_a_limit_keeps_the_first_tokens_of_each_document(
    documents: list[Document], limit: int
) -> None:
    """What is cut off is the end of a document and never its neighbour's beginning."""
    row = in_one_row(documents)
    ids, lengths = first_tokens(row.ids, row.lengths, limit)
    assert ids.tolist() == [
        token for document in documents for token in document[:limit]
    ]
    assert lengths.tolist() == [min(len(document), limit) for document in documents]


def test_asking_for_the_state_does_not_end_the_sums() -> None:
    """A part may be looked at while work goes on: what comes later is added to it."""
    table = np.array([[3, -5], [7, 11]], dtype=np.int16)
    sums = WindowSums(WindowTable(table), Sampling(2))
    halves = [state_of(sums, [[[0, 1]]]), state_of(sums, [[[1, 1, 0, 0]]])]
    assert halves[0]["gram"][-1] == 1
    assert halves[1]["gram"][-1] == 3


def test_sums_in_floats_move_to_integers_before_they_could_round() -> None:
    """At the limit of 2⁵³ the sums so far are put aside as integers, so that not a unit is lost."""
    odd, most = FEATURE_LIMIT - 1, EXACT_LIMIT - MAX_SQUARE
    sums, samples = ExactGram(1), np.array([[odd], [-odd], [1]])
    sums._gram[0, 0] = most  # as if almost all the samples that fit had been summed
    sums._pending = EXACT_LIMIT // MAX_SQUARE - 1
    sums.add(samples)
    assert int(sums.triangle()[0]) == most + 2 * odd**2 + 1
    assert float(EXACT_LIMIT) + 1 != EXACT_LIMIT + 1, (
        "an odd sum beyond the limit would show a lost unit"
    )


def test_sums_in_floats_never_reach_the_limit() -> None:
    """However long the work lasts, no more samples are pending than float64 holds exactly."""
    sums, samples, fitting = (
        ExactGram(1),
        np.full((3, 1), FEATURE_LIMIT),
        EXACT_LIMIT // MAX_SQUARE,
    )
    for pending in (fitting - 4, fitting - 3, fitting - 2):
        sums._pending = pending
        sums.add(samples)
        sums._multiply(1)
        assert sums._pending * MAX_SQUARE < EXACT_LIMIT
        assert sums._pending in (3, pending + 3)


@given(
    sizes=st.lists(
        st.sampled_from([1, 50, 310, 320, 400, FEATURE_LIMIT - 1]),
        min_size=1,
        max_size=20,
    ),
    counts=st.lists(
        st.sampled_from(
            [
                1,
                100,
                *(BLOCK_SAMPLES + more for more in (-1, 0, 1)),
                4 * BLOCK_SAMPLES + 1,
            ]
        ),
        max_size=3,
    ),
    seed=st.integers(0, 1 << 20),
)
def test_products_are_exact_for_columns_of_any_size(
    sizes: list[int], counts: list[int], seed: int
) -> None:
    """Columns whose squares add up to more than float32 holds, some or all, lose not a unit."""
    rolls = np.random.default_rng(seed)
    pieces = [
        np.column_stack([rolls.integers(-size, size + 1, count) | 1 for size in sizes])
        for count in counts
    ]
    sums = ExactGram(len(sizes))
    for piece in pieces:
        sums.add(piece.astype(np.int16))
    whole = np.concatenate([np.zeros((0, len(sizes)), dtype=np.int64), *pieces])
    whole = np.column_stack([whole, np.ones(len(whole), dtype=np.int64)])
    expected = (whole.T @ whole)[np.triu_indices(len(sizes) + 1)]
    np.testing.assert_array_equal(sums.triangle(), expected)


@pytest.mark.parametrize("beyond", [-1, 0, 1, 2])
def test_a_column_is_taken_again_just_where_its_squares_reach_the_limit(
    beyond: int,
) -> None:
    """One below 2²⁴ is exact in float32; from there on a unit could be lost, and none is."""
    column = [FEATURE_LIMIT - 1, 90]  # squares of 16,769,025 and 8,100
    column += [1] * (NARROW_LIMIT + beyond - sum(value**2 for value in column))
    samples = np.zeros((len(column), 30), dtype=np.int16)
    samples[:, 3] = column
    sums = ExactGram(30)
    sums.add(samples)
    gram = np.zeros((31, 31), dtype=np.int64)
    gram[np.triu_indices(31)] = sums.triangle()
    assert int(gram[3, 3]) == NARROW_LIMIT + beyond
    assert int(gram[3, 30]) == sum(column)


@given(
    table=tables(4),
    counts=st.lists(
        st.integers(0, 1 << 30) | st.integers(0, 1 << 35), min_size=4, max_size=4
    ),
)
def test_the_gram_of_counts_is_exact_for_huge_counts(
    table: Table, counts: list[int]
) -> None:
    """Billions of tokens give the same integers as Python's own."""
    features = [
        (times, [*map(int, row), 1]) for times, row in zip(counts, table, strict=True)
    ]
    expected = slow_gram(features, table.shape[1] + 1)
    assert gram_of_counts(table, np.array(counts, dtype=np.int64)).tolist() == expected
    assert (
        gram_of_counts(table, np.array(counts, dtype=np.int64), 2).tolist() == expected
    )


def test_the_gram_of_counts_is_exact_up_to_the_bound_and_refused_beyond() -> None:
    """One token fewer than the bound is summed to the unit; at the bound the sums are refused, not
    clipped.
    """
    table = np.array(
        [[FEATURE_LIMIT, -FEATURE_LIMIT], [FEATURE_LIMIT - 1, 1]], dtype=np.int16
    )
    most = SUM_BOUND // MAX_SQUARE - 1
    counts = [most - 12345, 12345]
    expected = slow_gram([(counts[0], [4096, -4096, 1]), (counts[1], [4095, 1, 1])], 3)
    assert gram_of_counts(table, np.array(counts)).tolist() == expected
    with pytest.raises(BoundExceeded, match="could overflow"):
        gram_of_counts(table, np.array([most, 1]))


@pytest.mark.parametrize("block_bytes", [64 << 20, 1 << 16])
def test_the_gram_of_counts_is_exact_over_many_blocks_of_rows(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vocabulary whose products go beyond 2⁵³, each token as often as a digit allows and once
    more.
    """
    monkeypatch.setattr(ridgeway.client.sums.accumulate, "_BLOCK_BYTES", block_bytes)
    values = np.random.default_rng(1).integers(
        -FEATURE_LIMIT, FEATURE_LIMIT, (20_000, 3), endpoint=True
    )
    values[:, 0] = FEATURE_LIMIT - 1  # odd, so that a rounded sum would show
    counts = np.where(np.arange(20_000) % 3, 65_535, 65_536)
    features = [
        (int(times), [*map(int, row), 1])
        for times, row in zip(counts, values, strict=True)
    ]
    expected = slow_gram(features, 4)
    assert expected[0][0] > 2 * EXACT_LIMIT
    assert gram_of_counts(values.astype(np.int16), counts).tolist() == expected


def test_windows_beyond_the_bound_are_refused() -> None:
    """A state that could overflow has no statistics."""
    sums = WindowSums(WindowTable(np.array([[1]], dtype=np.int16)), Sampling(2))
    most = SUM_BOUND // MAX_SQUARE - 1
    assert sums.statistics({"gram": np.array([most, most, most])}).mass == most
    with pytest.raises(BoundExceeded, match="could overflow"):
        sums.statistics({"gram": np.array([most, most, most + 1])})
