"""Laws of coverage against accuracy: what a threshold leaves unanswered, and what the proposed one
reaches.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import InputError
from ridgeway.common.routing.coverage import (
    Outcomes,
    at,
    equal_domains,
    proposal,
    wilson,
)

LEAST = 3


@st.composite
def outcomes(draw: st.DrawFn) -> Outcomes:
    """Texts with confidences that are often equal, and weights that are not."""
    size = draw(st.integers(1, 40))
    shares = st.one_of(st.sampled_from((0.2, 0.5, 0.9, 1.0)), st.floats(0, 1))
    confidence = draw(st.lists(shares, min_size=size, max_size=size))
    right = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    weight = draw(st.lists(st.floats(0.125, 8), min_size=size, max_size=size))
    return Outcomes(np.array(confidence), np.array(right), np.array(weight))


def plainly(given_: Outcomes, threshold: float) -> tuple[float, float, int]:
    """Coverage, accuracy and texts, from the definition."""
    rows = list(
        zip(
            given_.confidence.tolist(),
            given_.right.tolist(),
            given_.weight.tolist(),
            strict=True,
        )
    )
    kept = [row for row in rows if row[0] >= threshold]
    mass = sum(weight for _, _, weight in kept)
    right = sum(weight for _, good, weight in kept if good)
    return (
        mass / sum(weight for _, _, weight in rows),
        right / mass if mass else -1.0,
        len(kept),
    )


@given(measured=outcomes(), threshold=st.just(0.0) | st.floats(0, 1))
def test_a_point_is_what_counting_gives(measured: Outcomes, threshold: float) -> None:
    """Coverage, accuracy and texts are those of the definition, and the accuracy lies where it may
    truly lie.

    Without a threshold everything is answered.
    """
    assert at(measured, 0.0).coverage == 1.0
    point = at(measured, threshold)
    coverage, accuracy, texts = plainly(measured, threshold)
    assert point.coverage == pytest.approx(coverage)
    assert point.texts == texts
    if point.accuracy is None:
        assert texts == 0
    else:
        assert point.accuracy == pytest.approx(accuracy)
        assert point.low - 1e-9 <= point.accuracy <= point.high + 1e-9


@given(measured=outcomes(), wish=st.sampled_from((0.01, 0.5, 0.75, 0.9, 0.99, 1.0)))
def test_the_proposal_is_the_smallest_threshold_that_reaches_the_wish(
    measured: Outcomes, wish: float
) -> None:
    """Trying every threshold that could matter finds none that answers more texts and is as
    right.
    """
    chosen = proposal(measured, wish, LEAST)
    tried = [
        plainly(measured, threshold)
        for threshold in (0.0, *measured.confidence.tolist())
    ]
    good = [
        texts
        for _, accuracy, texts in tried
        if texts >= LEAST and accuracy >= wish - 1e-9
    ]
    if chosen is None:
        assert not [
            texts
            for _, accuracy, texts in tried
            if texts >= LEAST and accuracy >= wish + 1e-9
        ]
        return
    assert chosen.accuracy is not None
    assert chosen.accuracy >= wish - 1e-9
    assert chosen.texts >= LEAST
    assert chosen.texts == max(good)


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4), data=st.data())
def test_every_domain_weighs_the_same(sizes: list[int], data: st.DataObject) -> None:
    """However many texts each has, the accuracy without a threshold is the mean over domains."""
    rights = [
        np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
        for size in sizes
    ]
    measured = equal_domains([(np.ones(len(right)), right) for right in rights])
    assert at(measured, 0.0).accuracy == pytest.approx(
        np.mean([right.mean() for right in rights])
    )


@given(share=st.floats(0, 1), count=st.floats(1, 1e6))
def test_more_texts_make_a_share_more_certain(share: float, count: float) -> None:
    """The interval holds the share, stays between 0 and 1, and narrows."""
    low, high = wilson(share, count)
    narrower = wilson(share, 4 * count)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1
    assert narrower[1] - narrower[0] < high - low


def test_a_threshold_can_be_typed() -> None:
    """It is the shortest decimal that answers just the texts that it should."""
    measured = Outcomes(
        np.array([0.9912345, 0.99, 0.7123, 0.6]),
        np.array([True, True, True, False]),
        np.ones(4),
    )
    chosen = proposal(measured, 1.0, LEAST)
    assert chosen is not None
    assert (chosen.threshold, chosen.texts) == (0.7, 3)


def test_no_text_is_an_error_that_says_so() -> None:
    """Neither a curve nor a proposal is made of nothing."""
    with pytest.raises(InputError, match="no text"):
        equal_domains([(np.array([]), np.array([], dtype=bool))])
