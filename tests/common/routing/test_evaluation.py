"""Accuracy, temperature and calibration, held against counting by hand and trying everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.base.settings import MAX_HELD_OUT_DOCUMENTS, Confidence, Selector
from ridgeway.common.protocol.cohort import MAX_HOLDERS
from ridgeway.common.routing.decision import confidences, log_odds
from ridgeway.common.routing.evaluation import (
    _BEGINNING_TOKENS,
    CURVES,
    Evaluation,
    calibrate,
    confidence_gap,
    evaluate,
    paired,
    unpaired,
)
from ridgeway.common.routing.router import Router
from ridgeway.common.text.table_encoder import TableEncoder
from tests.support.making import letter_router

DOMAINS = ("x", "y", "z")


@pytest.fixture
def router(encoder: TableEncoder) -> Router:
    """a speaks for x, b for y, c for z."""
    return letter_router(
        encoder.tokenizer, {"a": (1, 0, 0), "b": (0, 1, 0), "c": (0, 0, 1)}, DOMAINS
    )


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


def test_the_gap_of_an_evaluation_is_that_of_its_decisions(router: Router) -> None:
    """Every domain weighs the same, however many texts it has; without calibration there is
    none.
    """
    texts = {"x": ["a", "ab", "b"], "y": ["b"], "z": []}
    calibrated = router.with_confidence(calibrated=True)
    sure, right, weights = [], [], []
    for name, domain_texts in texts.items():
        for decision in map(calibrated.route, domain_texts):
            sure.append(decision.confidence)
            right.append(decision.best == name)
            weights.append(1 / len(domain_texts))
    result = evaluate(calibrated, texts)
    gap = confidence_gap(*map(np.array, (sure, right, weights)))
    assert result.gap == pytest.approx(gap)
    assert result.to_json()["gap"] == result.gap
    plain = evaluate(router, texts)
    assert plain.gap is None and "gap" not in plain.to_json()
    assert evaluate(calibrated, {name: [] for name in texts}).gap is None


def test_abstention_does_not_change_accuracy(router: Router) -> None:
    """A text counts for the domain that is ahead, whether or not the router would act on it."""
    texts = {"x": ["a", "ab"], "y": ["b"], "z": ["c"]}
    shy = router.with_confidence(threshold=1.0, fallback="general")
    assert shy.route("ab").domain == "general"
    assert evaluate(shy, texts) == evaluate(router, texts)


def test_a_text_without_tokens_counts_for_the_first_domain(router: Router) -> None:
    """As it is routed, so it is counted."""
    assert evaluate(router, {"x": [""], "y": [""], "z": ["c"]}).confusion == (
        (1, 0, 0),
        (1, 0, 0),
        (0, 0, 1),
    )


# Calibration


def test_the_gap_is_what_counting_by_hand_gives() -> None:
    """Per tenth of confidence, how far confidence and accuracy lie apart, weighted and in
    percent.
    """
    confidence = np.array([0.95, 0.91, 0.65, 0.62, 0.55])
    right = np.array([True, False, False, True, True])
    weights = np.array([1.0, 1.0, 2.0, 2.0, 4.0])
    nines = 1 * (0.95 - 1) + 1 * (0.91 - 0)
    sixes = 2 * (0.65 - 0) + 2 * (0.62 - 1)
    fives = 4 * (0.55 - 1)
    expected = 100 * (abs(nines) + abs(sixes) + abs(fives)) / 10
    for shares in (weights, 7 * weights):
        assert confidence_gap(confidence, right, shares) == pytest.approx(expected)


def test_certainty_falls_into_the_last_tenth() -> None:
    """A confidence of one that is right is no gap; one that is wrong is all of it."""
    assert [
        confidence_gap(np.ones(1), np.array([right]), np.ones(1))
        for right in (True, False)
    ] == [0.0, 100.0]


def test_a_calibrated_router_is_as_sure_as_it_is_right(router: Router) -> None:
    """Three of four texts right in every domain: fitted, the confidence is 75 % and the gap is
    gone.
    """
    texts = {
        "x": ["a", "a", "a", "b"],
        "y": ["b", "b", "b", "c"],
        "z": ["c", "c", "c", "a"],
    }
    fitted = calibrate(router, texts)
    sure = router.with_confidence(
        temperature=fitted.temperature, half=fitted.half, tail=fitted.tail
    )
    assert fitted.texts == 12
    assert sure.route("a").confidence == pytest.approx(0.75, abs=1e-6)
    assert fitted.gap_before == pytest.approx(100 * abs(math.e / (math.e + 2) - 0.75))
    assert fitted.gap_after == pytest.approx(0, abs=1e-4)
    assert [row for row in fitted.reliability if row[1]] == [(0.7, 1.0, 0.75)]


def test_calibrating_again_changes_nothing(router: Router) -> None:
    """The temperature is fitted to scores, not to the confidence of before; only the gap before
    is.
    """
    texts = {"x": ["a", "a", "b"], "y": ["b", "b", "c"], "z": ["c", "c", "a"]}
    once = calibrate(router, texts)
    fitted = router.with_confidence(
        temperature=once.temperature, half=once.half, tail=once.tail
    )
    again = calibrate(fitted, texts)
    assert again.temperature == once.temperature
    assert again.gap_before == again.gap_after == once.gap_after


def beginnings(text: str) -> list[str]:
    """A text and its first 4, 8, … 256 letters, where it is longer."""
    limits = [limit for limit in (4, 8, 16, 32, 64, 128, 256) if len(text) > limit]
    return [*(text[:limit] for limit in limits), text]


@given(
    tail=st.sampled_from([0.0, 1 / 2, 1 / 4, 1 / 8]) | st.floats(1e-3, 1),
    row=st.lists(st.floats(0, 1e6), max_size=5),
)
def test_the_chance_of_the_domain_ahead_is_that_of_the_definition(
    tail: float, row: list[float]
) -> None:
    """One over the sum of odds, whichever way powers are taken."""
    distances = np.array([[0.0, *row]])
    logs = [
        -math.log1p(tail * distance) / tail if tail else -distance
        for distance in distances[0]
    ]
    curve = Confidence(half=4, tail=tail)
    assert log_odds(curve, distances)[0].tolist() == pytest.approx(logs, rel=1e-12)
    assert confidences(curve, distances).tolist() == pytest.approx(
        [1 / sum(map(math.exp, logs))], rel=1e-9
    )


def surprise(
    temperature: float,
    curve: Confidence,
    rows: list[tuple[int, list[int]]],
    weights: list[float],
) -> float:
    """The weighted negative log-likelihood of domains, by its definition, from how often each one's
    letter is there.
    """
    total = 0.0
    for (label, counts), weight in zip(rows, weights, strict=True):
        size = sum(counts)
        distances = [
            (max(counts) - count) / size * size / (size + curve.half) / temperature
            for count in counts
        ]
        logs = [
            -math.log1p(curve.tail * distance) / curve.tail if curve.tail else -distance
            for distance in distances
        ]
        total -= weight * (logs[label] - math.log(sum(map(math.exp, logs))))
    return total


@pytest.mark.parametrize("seed", range(3))
def test_nothing_else_that_is_tried_makes_texts_and_their_beginnings_more_likely(
    router: Router, seed: int
) -> None:
    """Every domain weighs the same, whatever the number and length of its texts."""
    rng = np.random.default_rng(seed)
    texts = {
        name: [
            "".join(rng.choice([*"abc", frequent, frequent], size))
            for size in rng.integers(1, 40, count)
        ]
        for name, frequent, count in (("x", "a", 4), ("y", "b", 7), ("z", "c", 10))
    }
    parts = [
        (label, part)
        for label, name in enumerate(DOMAINS)
        for text in texts[name]
        for part in beginnings(text)
    ]
    rows = [(label, [part.count(letter) for letter in "abc"]) for label, part in parts]
    sizes = np.bincount([label for label, _ in rows])
    weights = [1 / sizes[label] / 3 for label, _ in rows]
    fitted = calibrate(router, texts)
    least = surprise(
        fitted.temperature,
        Confidence(half=fitted.half, tail=fitted.tail),
        rows,
        weights,
    )
    heats = np.logspace(-3, 2, 100).tolist()
    others = [
        surprise(heat, curve, rows, weights) for heat in heats for curve in CURVES
    ]
    assert least <= min(others) + 1e-9
    assert fitted.texts == 21


def test_texts_that_are_all_right_or_all_wrong_have_a_finite_temperature(
    router: Router,
) -> None:
    """Where the best would be infinitely sharp or flat, the search ends at its edge; without
    differences it is 1.
    """
    right, wrong = (
        {name: [letter] for name, letter in zip(DOMAINS, letters, strict=True)}
        for letters in ("abc", "bca")
    )
    assert 0 < calibrate(router, right).temperature < 0.1
    assert 100 < calibrate(router, wrong).temperature < math.inf


def test_texts_without_tokens_cannot_calibrate(router: Router) -> None:
    """There is nothing to fit, and no gap to tell: an error, not a NaN in a manifest."""
    with pytest.raises(RidgewayError):
        calibrate(router, {"x": [""], "y": [""], "z": ["", ""]})


@pytest.mark.parametrize("name", ["entropy", "all"])
def test_votes_are_calibrated_too(router: Router, name: str) -> None:
    """Every selector's scores can be fitted."""
    selector = Selector("entropy", 2) if name == "entropy" else Selector("all")
    texts = {
        "x": ["aaa", "aab", "abb"],
        "y": ["bbb", "bbc", "bcc"],
        "z": ["ccc", "cca", "caa"],
    }
    fitted = calibrate(router.with_selector(selector), texts)
    assert fitted.gap_after <= fitted.gap_before


COUNTS = st.lists(
    st.integers(0, MAX_HELD_OUT_DOCUMENTS * (len(_BEGINNING_TOKENS) + 1)), min_size=1
)


@given(
    counts=COUNTS,
    holders=st.integers(1, MAX_HOLDERS - 1),
    others=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_sums_of_paired_counts_are_the_pairs_of_the_sums(
    counts: list[int], holders: int, others: tuple[int, int]
) -> None:
    """However many holders count as much as may be: nothing of the one count runs over into the
    other.
    """
    row = np.array(counts, dtype=np.int64)
    more = np.resize(np.array(others, dtype=np.int64), row.shape)
    sums = unpaired(paired(row) * holders + paired(more))
    assert (sums[: row.size] == row * holders + more).all()
    assert not sums[row.size :].any()
