"""The attacks find what the mathematics says they can, and the measures count what they say they
count.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.client.sums.accumulate import accumulators, gram_of_counts
from ridgeway.common.base.errors import ShapeMismatch
from ridgeway.common.base.settings import EQUAL_MASS, Sampling
from ridgeway.common.statistics import Integers, Statistics, single_domain
from ridgeway.common.text.tokens import NO_RUNS, Tokens
from ridgeway.simulations.attacks import (
    attribution,
    column,
    histogram,
    measure,
    named_shares,
    unweighted,
)

ROWS, WIDTH = 300, 40
"""More equations (41 · 42 / 2) than tokens, as with the default encoder."""


def random_table() -> NDArray[np.int16]:
    """A table whose rows share a direction and whose directions differ in size, as real ones do."""
    sizes = np.geomspace(30, 600, WIDTH)
    rows = np.random.default_rng(0).standard_normal((ROWS, WIDTH)) * sizes + 300
    return np.rint(rows).astype(np.int16)


TABLE = random_table()


def zipf_counts(seed: int, distinct: int = 150, tokens: int = 20_000) -> Integers:
    """Counts as language has them: few frequent tokens, many that occur once or twice, many that do
    not occur.
    """
    numbers = np.random.default_rng(seed)
    shares = 1 / np.arange(1, distinct + 1)
    counts = np.zeros(ROWS, dtype=np.int64)
    counts[numbers.permutation(ROWS)[:distinct]] = np.maximum(
        1, tokens * shares / shares.sum() / 10
    )
    return counts


def statistics_of(counts: Integers, window: int) -> Statistics:
    """The statistics of one document with these tokens in a random order."""
    ids = (
        np.random.default_rng(1)
        .permutation(np.repeat(np.arange(len(counts)), counts))
        .astype(np.int32)
    )
    sums = accumulators(TABLE, Sampling(window=window))()
    lengths = np.array([len(ids)])
    sums.add(Tokens(ids, lengths, NO_RUNS, ids[:0], lengths[:0]))
    return sums.statistics(sums.state())


# Histograms


@given(seed=st.integers(0, 30), distinct=st.integers(1, ROWS))
def test_single_tokens_give_the_histogram_exactly(seed: int, distinct: int) -> None:
    """Where there are more equations than tokens, the counts come back to the last one."""
    counts = zipf_counts(seed, distinct=distinct)
    estimate = histogram(TABLE, gram_of_counts(TABLE, counts), window=1)
    assert np.array_equal(estimate, counts)


def test_windows_do_not_give_the_histogram() -> None:
    """The same attack on windows finds frequent tokens, and not the counts."""
    counts = zipf_counts(3)
    estimate = histogram(TABLE, statistics_of(counts, 16).gram, window=16)
    result = measure(estimate, counts)
    assert result.exact is not None
    assert result.exact < 0.5
    frequent = np.argsort(-counts)[:10]
    assert (estimate[frequent] > 0).sum() >= 8


def test_fewer_windows_than_features_are_attacked_as_well() -> None:
    """A small corpus is not safe for being small: most of what is found in it is there, and much is
    found.
    """
    counts = zipf_counts(5, distinct=60, tokens=3_000)
    statistics = statistics_of(counts, 16)
    assert statistics.mass < WIDTH
    result = measure(histogram(TABLE, statistics.gram, 16), counts)
    assert result.recovered is not None
    assert result.precision is not None
    assert result.recovered > 0.3
    assert result.precision > 1.5 * 60 / ROWS


def test_a_difference_of_totals_is_the_holders_statistics() -> None:
    """Two weighted totals that differ by one holder give it away, whatever the others hold."""
    parts = [
        statistics_of(zipf_counts(seed), 4).weighted(EQUAL_MASS) for seed in range(3)
    ]
    seen = single_domain(
        (parts[0] + parts[1] + parts[2]).gram - (parts[1] + parts[2]).gram
    )
    raw = unweighted(seen)
    assert raw is not None
    assert raw.equals(statistics_of(zipf_counts(0), 4))


@given(samples=st.integers(1, 3000), seed=st.integers(0, 10))
def test_equal_weighting_is_undone(samples: int, seed: int) -> None:
    """The raw sums and the number of samples follow from the weighted ones while samples are few
    beside the mass.
    """
    rows = np.random.default_rng(seed).integers(-4096, 4096, (samples, 8))
    rows[:, -1] = 1
    raw = single_domain(rows.T @ rows)
    undone = unweighted(raw.weighted(1 << 20))
    assert undone is not None
    assert undone.equals(raw)


def test_weighting_to_a_small_mass_hides_the_raw_sums() -> None:
    """With fewer samples in the public mass than in the corpus, rounding has thrown something
    away.
    """
    raw = statistics_of(zipf_counts(0), 1)
    undone = unweighted(raw.weighted(raw.mass // 3))
    assert undone is None or not undone.equals(raw)


@pytest.mark.parametrize("window", [1, 16])
def test_a_corpus_of_one_sample_can_be_attacked(window: int) -> None:
    """The least that can be summed is no special case: at w = 1 the one token comes back."""
    counts = np.zeros(ROWS, dtype=np.int64)
    counts[7] = window
    estimate = histogram(TABLE, statistics_of(counts, window).gram, window)
    assert estimate[7] == window
    assert np.all(estimate >= 0)


def test_sums_of_another_width_are_refused() -> None:
    """A gram that the table cannot have made."""
    with pytest.raises(ShapeMismatch, match="was not made with a table of width 40"):
        histogram(TABLE, np.eye(7, dtype=np.int64), 1)


# Columns and attribution


@given(seed=st.integers(0, 20), distinct=st.integers(1, 6))
def test_a_column_of_few_tokens_gives_them(seed: int, distinct: int) -> None:
    """Fewer distinct tokens than a sixth of the features: the domain's own column is enough."""
    counts = zipf_counts(seed, distinct=distinct)
    cross = gram_of_counts(TABLE, counts)[:, -1]
    assert np.array_equal(column(TABLE, cross, 1), counts)


def test_a_column_of_many_tokens_does_not() -> None:
    """With more distinct tokens than features, most counts cannot be told."""
    counts = zipf_counts(0, distinct=200)
    estimate = column(TABLE, gram_of_counts(TABLE, counts)[:, -1], 1)
    assert measure(estimate, counts).found <= WIDTH + 1
    assert not np.array_equal(estimate, counts)


def test_tokens_are_attributed_to_the_domain_whose_column_they_are_in() -> None:
    """Two domains of few tokens each: the total says whose is whose."""
    parts = [
        np.where(np.isin(np.arange(ROWS), ids), 50, 0)
        for ids in (np.arange(12), np.arange(12, 24))
    ]
    placed = [
        single_domain(gram_of_counts(TABLE, counts)).placed(index, 2)
        for index, counts in enumerate(parts)
    ]
    domains = attribution(TABLE, placed[0] + placed[1])
    assert domains[:24].tolist() == [0] * 12 + [1] * 12


# Measures


def test_measures_by_hand() -> None:
    """Five true tokens, two of them rare; three are found, one of those wrongly, and one count is
    right.
    """
    truth = np.array([5, 9, 3, 1, 2, 0, 0, 0])
    estimate = np.array([5, 8, 0, 0, 0, 4, 0, 0])
    result = measure(estimate, truth)
    assert (result.tokens, result.rare, result.found) == (5, 2, 3)
    assert result.recovered == pytest.approx(2 / 5)
    assert result.rare_recovered == 0
    assert result.exact == pytest.approx(1 / 5)
    assert result.precision == pytest.approx(2 / 3)
    assert result.chance == pytest.approx(3 / 8)


def test_a_perfect_attack_measures_one() -> None:
    """And nothing found measures zero, with no precision to speak of."""
    truth = np.array([1, 0, 7])
    perfect = measure(truth, truth)
    assert (
        perfect.recovered,
        perfect.rare_recovered,
        perfect.exact,
        perfect.precision,
    ) == (1, 1, 1, 1)
    nothing = measure(np.zeros(3, dtype=np.int64), truth)
    assert (nothing.recovered, nothing.precision, nothing.chance) == (0, None, 0)
    assert measure(truth, np.array([3, 4, 5])).rare_recovered is None


def test_histograms_of_different_tables_are_not_compared() -> None:
    """A token is a place in the table."""
    with pytest.raises(ShapeMismatch):
        measure(np.zeros(3, dtype=np.int64), np.zeros(4, dtype=np.int64))


def test_shares_of_named_buckets_by_hand() -> None:
    """Of four right buckets three are named, and one that is wrong; naming none is no error."""
    right = np.array([True, True, True, True, False, False, False, False])
    named = np.array([True, True, True, False, True, False, False, False])
    shares = named_shares(named, right)
    assert (shares.buckets, shares.found, shares.chance) == (4, 4, 0.5)
    assert shares.recovered == shares.precision == 3 / 4
    nothing = named_shares(~right & False, right)
    assert (nothing.recovered, nothing.precision, nothing.chance) == (0, None, 0)
