"""Laws of leverage: one on average over what was summed, the same in any order, and a sketch that is near it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.common.base.settings import Sampling
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.routing.drift_sketch import MAX_TOKENS, DriftSketch, trimmed_mean, usual
from ridgeway.common.statistics.sums import Integers, Statistics
from ridgeway.coordinator.solving.publish import SKETCH_RIDGE, make_sketch
from tests.support.making import one_domain
from tests.support.tiny import tiny_encoder

WINDOW = 4
ENCODER = tiny_encoder(24)
FEATURES = ENCODER.width + 1
UNITS = np.append(np.full(ENCODER.width, ENCODER.scale), 1.0)
Floats = NDArray[np.float64]


def windows(seed: int, count: int = 400) -> Ids:
    """Windows of tokens, some tokens being more usual than others."""
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.full(ENCODER.rows, 0.5))
    return rng.choice(ENCODER.rows, (count, WINDOW), p=chances).astype(np.int32)


def samples(tokens: Ids) -> Integers:
    """The features of windows: rounded means, and the constant one."""
    means = np.rint(ENCODER.table[tokens].mean(axis=1)).astype(np.int64)
    return np.hstack([means, np.ones((len(tokens), 1), dtype=np.int64)])


def plain_leverage(total: Statistics, features: Floats) -> float:
    """xᵀ(A/mass + λI)⁻¹x / F, from the definition."""
    gram, scaled = _gram(total), features * UNITS
    return float(scaled @ np.linalg.solve(gram + _ridge(gram), scaled)) / FEATURES


def _gram(total: Statistics) -> Floats:
    return np.asarray(total.gram * UNITS[:, None] * UNITS[None, :] / total.mass)


def _ridge(gram: Floats) -> Floats:
    return np.asarray(SKETCH_RIDGE.value * np.diag(gram).mean() * np.eye(len(gram)))


def sketch(total: Statistics, directions: int = FEATURES) -> DriftSketch:
    return make_sketch(total, ENCODER, Sampling(window=WINDOW), directions)


@given(seed=st.integers(0, 1000))
def test_leverage_is_one_on_average_over_the_windows_that_were_summed(seed: int) -> None:
    """It is the trace of (A + λI)⁻¹A over the number of features: 1, less the little that λ takes."""
    tokens = windows(seed)
    total = one_domain(samples(tokens))
    leverage = sketch(total)
    mean = np.mean([leverage.of(row) for row in tokens])
    gram = _gram(total)
    trace = float(np.trace(np.linalg.solve(gram + _ridge(gram), gram))) / FEATURES
    assert mean == pytest.approx(trace, abs=0.005)
    assert 0.9 < trace <= 1


@given(seed=st.integers(0, 1000))
def test_with_all_directions_a_window_has_its_leverage_by_the_definition(seed: int) -> None:
    """Up to what rounding to half precision costs."""
    tokens = windows(seed)
    total = one_domain(samples(tokens))
    leverage = sketch(total)
    for row in tokens[:5]:
        means = np.append(ENCODER.table[row].mean(axis=0), 1.0)
        assert leverage.of(row) == pytest.approx(plain_leverage(total, means), rel=0.01, abs=0.01)


@given(seed=st.integers(0, 1000), data=st.data())
def test_the_order_of_tokens_does_not_matter(seed: int, data: st.DataObject) -> None:
    """A text is as unusual as its tokens, whichever comes first."""
    ids = data.draw(st.lists(st.integers(0, ENCODER.rows - 1), min_size=2, max_size=20))
    shuffled = data.draw(st.permutations(ids))
    leverage = sketch(one_domain(samples(windows(seed))))
    first, second = (leverage.of(np.array(each, dtype=np.int32)) for each in (ids, shuffled))
    assert first == pytest.approx(second, rel=1e-4, abs=1e-4)


@given(seed=st.integers(0, 1000), times=st.integers(2, 5))
def test_more_of_the_same_text_changes_nothing(seed: int, times: int) -> None:
    """Leverage is relative to the mass of the total."""
    tokens = windows(seed)
    once, often = (sketch(one_domain(samples(np.tile(tokens, (count, 1))))) for count in (1, times))
    for row in tokens[:5]:
        assert once.of(row) == pytest.approx(often.of(row), rel=0.01, abs=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_few_tokens_are_no_more_unusual_than_many_of_the_same_kind(seed: int) -> None:
    """On average over many texts, one of two tokens has the leverage of one of thirty."""
    rng = np.random.default_rng(seed)
    leverage = sketch(one_domain(samples(windows(seed))))
    chances = rng.dirichlet(np.ones(ENCODER.rows))
    long, short = (rng.choice(ENCODER.rows, (4000, size), p=chances).astype(np.int32) for size in (30, 2))
    of_long, of_short = ([leverage.of(row) for row in rows] for rows in (long, short))
    error = math.hypot(np.std(of_long), np.std(of_short)) / math.sqrt(len(short))
    assert np.mean(of_short) == pytest.approx(np.mean(of_long), abs=5 * error)


@given(seed=st.integers(0, 1000))
def test_half_of_the_directions_tell_nearly_the_same(seed: int) -> None:
    """The sketch neither adds nor takes away on average over tokens, and errs as random directions may."""
    total = one_domain(samples(windows(seed)))
    whole, half = (np.square(sketch(total, count).rows.astype(float)).sum(axis=1) for count in (FEATURES, 12))
    errors = half / whole - 1
    assert abs(errors.mean()) < 0.3
    assert np.sqrt(np.square(errors).mean()) < 2 * math.sqrt(2 / 12)


def test_the_same_total_gives_the_same_sketch_and_another_one_another() -> None:
    """The directions are drawn from the total: not from a public seed, and not from the time of day."""
    tokens = windows(1)
    first, again, other = (sketch(one_domain(samples(each)), 8).rows for each in (tokens, tokens, tokens[1:]))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other, atol=0.05)


def test_text_of_other_tokens_is_more_unusual() -> None:
    """A router built on half of the tokens finds the other half far away."""
    rng = np.random.default_rng(3)
    half = ENCODER.rows // 2
    seen, unseen = (rng.integers(low, low + half, (300, WINDOW)).astype(np.int32) for low in (0, half))
    leverage = sketch(one_domain(samples(seen)))
    own, foreign = (trimmed_mean([leverage.of(row) for row in rows]) for rows in (seen, unseen))
    assert foreign > 2 * own


def test_what_says_too_little_is_not_measured() -> None:
    """A single token has no leverage, and of a very long text the beginning counts."""
    leverage = sketch(one_domain(samples(windows(1))))
    assert math.isnan(leverage.of(np.array([3], dtype=np.int32)))
    long = np.random.default_rng(0).integers(0, ENCODER.rows, 3 * MAX_TOKENS).astype(np.int32)
    assert leverage.of(long) == leverage.of(long[:MAX_TOKENS])
    assert math.isnan(usual(leverage, [[np.array([3, 4], dtype=np.int32)]]))


def test_the_usual_leverage_is_that_of_the_domain_where_it_is_largest() -> None:
    """So that prompts of that domain alone raise no alarm."""
    leverage = sketch(one_domain(samples(windows(1))))
    rng = np.random.default_rng(2)
    parts = [list(rng.integers(0, high, (40, 12)).astype(np.int32)) for high in (5, ENCODER.rows)]
    means = [trimmed_mean([leverage.of(ids) for ids in part]) for part in parts]
    assert usual(leverage, parts) == pytest.approx(max(means))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60))
def test_a_trimmed_mean_lies_among_its_values(values: list[float]) -> None:
    """And one wild value among many does not move it."""
    mean = trimmed_mean(values)
    assert min(values) - 1e-9 <= mean <= max(values) + 1e-9
    assert trimmed_mean([1.0] * 40 + [1e9]) == 1.0
