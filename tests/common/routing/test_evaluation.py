"""Accuracy, temperature and calibration, held against counting by hand and trying everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.base.settings import Selector
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.protocol.cohort import MAX_HOLDERS
from ridgeway.common.routing.evaluation import (
    BEGINNING_TOKENS,
    MAX_HELD_OUT_DOCUMENTS,
    Evaluation,
    calibrate,
    calibrated_together,
    calibration_gap,
    evaluate,
    fit_temperature,
    paired,
    softmax,
    unpaired,
)
from ridgeway.common.routing.router import Router
from tests.support.making import letter_router

DOMAINS = ("x", "y", "z")


@pytest.fixture
def router(encoder: TableEncoder) -> Router:
    """a speaks for x, b for y, c for z."""
    return letter_router(encoder.tokenizer, {"a": (1, 0, 0), "b": (0, 1, 0), "c": (0, 0, 1)}, DOMAINS)


# Accuracy


def test_accuracy_is_the_mean_over_domains_in_percent(router: Router) -> None:
    """A domain with many texts counts as much as one with few."""
    texts = {"x": ["a"] * 3 + ["b"], "y": ["b"] * 100, "z": ["a", "c"]}
    result = evaluate(router, texts)
    assert result.confusion == ((3, 1, 0), (0, 100, 0), (1, 0, 1))
    assert result.by_domain == {"x": 75.0, "y": 100.0, "z": 50.0}
    assert result.accuracy == 75.0
    assert result.accuracy != 100 * 104 / 106


def test_an_evaluation_says_its_unit() -> None:
    """A number without a unit is no result."""
    assert Evaluation(("x", "y"), ((1, 1), (0, 4))).to_json() == {
        "accuracy": 75.0,
        "domains": {"x": 50.0, "y": 100.0},
        "confusion": [[1, 1], [0, 4]],
        "order": ["x", "y"],
        "unit": "percent",
    }


def test_abstention_does_not_change_accuracy(router: Router) -> None:
    """A text counts for the domain that is ahead, whether or not the router would act on it."""
    texts = {"x": ["a", "ab"], "y": ["b"], "z": ["c"]}
    shy = router.with_confidence(threshold=1.0, fallback="general")
    assert shy.route("ab").domain == "general"
    assert evaluate(shy, texts) == evaluate(router, texts)


def test_a_text_without_tokens_counts_for_the_first_domain(router: Router) -> None:
    """As it is routed, so it is counted."""
    assert evaluate(router, {"x": [""], "y": [""], "z": ["c"]}).confusion == ((1, 0, 0), (1, 0, 0), (0, 0, 1))


# Temperature


def loss(
    temperature: float, scores: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray[np.float64]
) -> float:
    """The weighted negative log-likelihood, by its definition."""
    total = 0.0
    for row, label, weight in zip(scores.tolist(), labels.tolist(), weights.tolist(), strict=True):
        largest = max(row)
        total -= weight * (
            (row[label] - largest) / temperature
            - math.log(sum(math.exp((score - largest) / temperature) for score in row))
        )
    return total


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 32), size=st.sampled_from([1e-6, 1.0, 1e6]))
def test_the_fitted_temperature_is_the_best_of_all(seed: int, size: float) -> None:
    """No temperature on a fine grid makes the texts more likely, whatever the size of the scores."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 12)
    scores = size * (rng.standard_normal((12, 3)) + 1.5 * np.eye(3)[labels])
    weights = rng.uniform(0.5, 2, 12)
    fitted = fit_temperature(scores, labels, weights)
    grid = float(np.ptp(scores, axis=1).max()) * np.logspace(-4, 3, 400)
    best = min(loss(float(temperature), scores, labels, weights) for temperature in grid)
    assert loss(fitted, scores, labels, weights) <= best + 1e-9


def test_a_known_temperature_is_found() -> None:
    """Three texts of four at odds of three to one: the odds are e^(2/T), so T = 2 / log 3."""
    scores = np.array([[2.0, 0.0]] * 4)
    labels = np.array([0, 0, 0, 1])
    assert fit_temperature(scores, labels, np.ones(4)) == pytest.approx(2 / math.log(3), rel=1e-6)


def test_weights_move_the_temperature() -> None:
    """A text that counts threefold is as good as three."""
    scores = np.array([[2.0, 0.0], [2.0, 0.0]])
    assert fit_temperature(scores, np.array([0, 1]), np.array([3.0, 1.0])) == pytest.approx(2 / math.log(3), rel=1e-6)


def test_texts_that_are_all_right_or_all_wrong_have_a_finite_temperature() -> None:
    """Where the best would be infinitely sharp or flat, the search ends at its edge."""
    scores = np.array([[1.0, 0.0]] * 3)
    sharp, flat = (fit_temperature(scores, np.array([label] * 3), np.ones(3)) for label in (0, 1))
    assert 0 < sharp < 0.1
    assert 500 < flat < math.inf


def test_scores_without_any_difference_leave_the_temperature_at_one() -> None:
    """There is nothing to fit."""
    assert fit_temperature(np.zeros((3, 2)), np.array([0, 1, 0]), np.ones(3)) == 1.0


# Calibration


def test_the_calibration_gap_is_what_counting_by_hand_gives() -> None:
    """Per tenth of confidence, how far confidence and accuracy lie apart, weighted and in percent."""
    logits = np.log(np.array([[0.95, 0.05], [0.91, 0.09], [0.65, 0.35], [0.38, 0.62], [0.45, 0.55]]))
    labels = np.array([0, 1, 1, 1, 1])
    weights = np.array([1.0, 1.0, 2.0, 2.0, 4.0])
    nines = 1 * (0.95 - 1) + 1 * (0.91 - 0)
    sixes = 2 * (0.65 - 0) + 2 * (0.62 - 1)
    fives = 4 * (0.55 - 1)
    expected = 100 * (abs(nines) + abs(sixes) + abs(fives)) / 10
    assert calibration_gap(logits, labels, weights) == pytest.approx(expected)
    assert calibration_gap(logits, labels, 7 * weights) == pytest.approx(expected), "weights are shares"


def test_certainty_falls_into_the_last_tenth() -> None:
    """A confidence of one that is right is no gap; one that is wrong is all of it."""
    logits = np.array([[1000.0, 0.0]])
    assert calibration_gap(logits, np.array([0]), np.ones(1)) == 0.0
    assert calibration_gap(logits, np.array([1]), np.ones(1)) == 100.0


def test_softmax_is_that_of_the_definition() -> None:
    """However large the values."""
    assert softmax(np.array([[0.0, math.log(3)], [1e6, 1e6 + math.log(3)]])) == pytest.approx(
        np.array([[0.25, 0.75]] * 2), rel=1e-9
    )


def test_a_calibrated_router_is_as_sure_as_it_is_right(router: Router) -> None:
    """Three of four texts right in every domain: fitted, the confidence is 75 % and the gap is gone."""
    texts = {"x": ["a", "a", "a", "b"], "y": ["b", "b", "b", "c"], "z": ["c", "c", "c", "a"]}
    fitted = calibrate(router, texts)
    sure = router.with_confidence(temperature=fitted.temperature)
    assert fitted.texts == 12
    assert sure.route("a").confidence == pytest.approx(0.75, abs=1e-6)
    assert fitted.gap_before == pytest.approx(100 * abs(math.e / (math.e + 2) - 0.75))
    assert fitted.gap_after == pytest.approx(0, abs=1e-4)
    assert [each for each in fitted.reliability if each[1]] == [(0.7, 1.0, 0.75)]


def test_domains_weigh_the_same_in_calibration(router: Router) -> None:
    """A domain whose texts are there ten times over does not pull the temperature."""
    texts = {"x": ["a", "b"], "y": ["b", "b", "b", "c"], "z": ["c", "c", "c", "a"]}
    more = {**texts, "x": texts["x"] * 10}
    assert calibrate(router, more).temperature == pytest.approx(calibrate(router, texts).temperature, rel=1e-9)
    assert calibrate(router, more).gap_before == pytest.approx(calibrate(router, texts).gap_before, rel=1e-9)


def test_calibrating_again_changes_nothing(router: Router) -> None:
    """The temperature is fitted to scores, not to the confidence of before; only the gap before is."""
    texts = {"x": ["a", "a", "b"], "y": ["b", "b", "c"], "z": ["c", "c", "a"]}
    once = calibrate(router, texts)
    again = calibrate(router.with_confidence(temperature=once.temperature), texts)
    assert again.temperature == once.temperature
    assert again.gap_before == again.gap_after == once.gap_after


def beginnings(text: str) -> list[str]:
    """A text and its first 2, 4, 8, … 256 letters, where it is longer."""
    return [text[:limit] for limit in (2, 4, 8, 16, 32, 64, 128, 256) if len(text) > limit] + [text]


@pytest.mark.parametrize("seed", range(3))
def test_no_other_temperature_and_growth_make_texts_and_their_beginnings_more_likely(router: Router, seed: int) -> None:
    """Every domain weighs the same, whatever the number and length of its texts."""
    rng = np.random.default_rng(seed)
    texts = {
        name: ["".join(rng.choice([*"abc", own, own], size)) for size in rng.integers(1, 40, count)]
        for name, own, count in (("x", "a", 4), ("y", "b", 7), ("z", "c", 10))
    }
    rows = [(place, part) for place, name in enumerate(DOMAINS) for text in texts[name] for part in beginnings(text)]
    labels = np.array([place for place, _ in rows])
    counts = np.array([[part.count(letter) for letter in "abc"] for _, part in rows])
    weights = 1 / np.bincount(labels)[labels] / 3
    lengths = counts.sum(axis=1).astype(np.float64)

    def surprise(temperature: float, growth: float) -> float:
        return loss(temperature, counts * (lengths ** (growth - 1))[:, None], labels, weights)

    fitted = calibrate(router, texts)
    grid = [surprise(float(heat), growth) for heat in np.logspace(-2, 2, 60) for growth in (0, 0.2, 0.5, 0.9, 1)]
    assert surprise(fitted.temperature, fitted.growth) <= min(grid) + 1e-9
    assert fitted.texts == 21


def test_texts_without_tokens_cannot_calibrate(router: Router) -> None:
    """There is nothing to fit, and no gap to tell: an error, not a NaN in a manifest."""
    with pytest.raises(RidgewayError):
        calibrate(router, {"x": [""], "y": [""], "z": ["", ""]})


@pytest.mark.parametrize("name", ["entropy", "all"])
def test_votes_are_calibrated_too(router: Router, name: str) -> None:
    """Every selector's scores can be fitted."""
    selector = Selector("entropy", 2) if name == "entropy" else Selector("all")
    texts = {"x": ["aaa", "aab", "abb"], "y": ["bbb", "bbc", "bcc"], "z": ["ccc", "cca", "caa"]}
    fitted = calibrate(router.with_selector(selector), texts)
    assert fitted.gap_after <= fitted.gap_before


COUNTS = st.lists(st.integers(0, MAX_HELD_OUT_DOCUMENTS * (len(BEGINNING_TOKENS) + 1)), min_size=1)


@given(counts=COUNTS, holders=st.integers(1, MAX_HOLDERS - 1), others=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_sums_of_paired_counts_are_the_pairs_of_the_sums(
    counts: list[int], holders: int, others: tuple[int, int]
) -> None:
    """However many holders count as much as may be: nothing of the one count runs over into the other."""
    row = np.array(counts, dtype=np.int64)
    more = np.resize(np.array(others, dtype=np.int64), row.shape)
    found = unpaired(paired(row) * holders + paired(more))
    assert (found[: row.size] == row * holders + more).all()
    assert not found[row.size :].any()


@given(domains=st.integers(1, 40), places=st.lists(st.integers(0, 39), max_size=8))
def test_the_row_that_domains_share_holds_each_count_once(domains: int, places: list[int]) -> None:
    """Whether rows are added up by holders, by the coordinator or by both, and in whatever order."""
    rows = [np.eye(domains, dtype=np.int64)[[place % domains]].T * np.arange(1, 4) for place in places]
    whole = calibrated_together(sum(rows, np.zeros((domains, 3), dtype=np.int64)))
    assert (whole.sum(axis=0) == len(places) * np.arange(1, 4)).all()
    assert not whole[1:].any()
    assert (whole == sum(map(calibrated_together, rows), np.zeros_like(whole))).all()
    assert (whole == calibrated_together(whole)).all()
