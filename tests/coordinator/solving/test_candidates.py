"""The choice among candidates by what holders counted."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.protocol.messages import Candidate
from ridgeway.common.routing.belonging import COUNTS_SHAPE
from ridgeway.common.routing.evaluation import CONFIDENCE_EDGES, CURVES, calibration_size
from ridgeway.coordinator.solving.candidates import (
    MAX_ROUTED_COUNTS,
    Grid,
    affordable,
    bin_middles,
    choose,
    fit,
    lowest_between,
)

DOMAINS = ("code", "law")
CANDIDATES = Grid().candidates()[:4]


@given(domains=st.integers(2, 2000))
def test_many_domains_are_tried_with_fewer_candidates(domains: int) -> None:
    """The usual one always and first, those that differ by λ alone before others, in their order; all where few are."""
    every = Grid().candidates()
    tried = affordable(every, domains)
    assert tried[0] == every[0]
    assert sorted(tried, key=every.index) == list(tried)
    assert len(tried) == 1 or len(tried) * domains * (domains + 2) <= MAX_ROUTED_COUNTS
    assert tried == every or (len(tried) + 1) * domains * (domains + 2) > MAX_ROUTED_COUNTS
    alike = [each.rule == every[0].rule for each in every]
    assert sum(each.rule == every[0].rule for each in tried) == min(len(tried), sum(alike))


def test_reliability_is_that_of_what_was_fitted() -> None:
    """Nine of ten right at 90 to 95 % under the second temperature, which is taken; domains weigh the same."""
    counts = np.zeros((2, calibration_size(2)), dtype=np.int64)
    reliability = counts[:, : counts.shape[1] - prod(COUNTS_SHAPE)].reshape(2, len(CURVES), 2, len(CONFIDENCE_EDGES), 2)
    reliability[:, :, 0, 0] = (10, 9)
    reliability[:, :, 1, CONFIDENCE_EDGES.index(0.9)] = (10, 9)
    counts[1] *= 7
    fitted = fit((1.0, 2.0), dict(zip(DOMAINS, counts, strict=True)), 2)
    assert fitted is not None and fitted.temperature == 2.0
    assert [each for each in fitted.reliability if each[1]] == [(0.9, 1.0, 0.9)]


def test_a_bin_is_told_by_what_confidence_can_be_in_it() -> None:
    """Its middle, from one in so many domains on: of ten, what is below 0.2 lies at 0.15."""
    assert bin_middles(10)[:3].tolist() == pytest.approx([0.15, 0.25, 0.35])
    assert bin_middles(2)[:5].tolist() == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.55])
    assert bin_middles(1000)[[0, -1]].tolist() == pytest.approx([0.1005, 0.9995])


def test_a_temperature_lies_between_those_that_were_tried() -> None:
    """At the bottom of a parabola over their logarithms, which is found with how low it is; at an edge, the edge."""
    tried = [2.0 ** (step / 4) for step in range(-8, 9)]
    for heat in (0.9, 1.3, 2.0):
        found = lowest_between(tried, np.array([0.25 + (np.log(each) - np.log(heat)) ** 2 for each in tried]))
        assert found == pytest.approx((0.25, heat, found.nearest))
        assert abs(np.log2(tried[found.nearest] / heat)) <= 1 / 8
    assert lowest_between(tried, np.arange(17.0)) == (0.0, tried[0], 0)
    assert lowest_between(tried, -np.arange(17.0)) == (-16.0, tried[16], 16)
    assert lowest_between(tried, np.zeros(17)) == (0.0, tried[0], 0)


def counted(documents: int, *right: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Candidates × domains, for a domain whose own column is the first."""
    return np.array([[each, documents - each] for each in right], dtype=np.int64)


def chosen(documents: int, *right: int) -> Candidate:
    """The choice where both domains have as many documents and as many of them right."""
    counts = {"code": counted(documents, *right), "law": counted(documents, *right)[:, ::-1]}
    return choose(CANDIDATES, DOMAINS, counts).candidate


def test_a_lead_that_chance_explains_leaves_the_usual_choice() -> None:
    """Of 60 documents one or two more right say nothing."""
    assert chosen(60, 56, 57, 58, 56) == CANDIDATES[0]


def test_a_lead_beyond_chance_is_taken() -> None:
    """With thousands of documents the same shares are telling, and so is a great lead with few."""
    assert chosen(6000, 5600, 5700, 5800, 5600) == CANDIDATES[2]
    assert chosen(60, 30, 31, 58, 30) == CANDIDATES[2]


def test_the_first_of_several_that_are_as_good_is_taken() -> None:
    """Not the best of them, which is as likely to be the luckiest."""
    assert chosen(6000, 5000, 5795, 5800, 5790) == CANDIDATES[1]


@given(documents=st.integers(1, 500), right=st.data())
def test_nothing_is_chosen_that_is_clearly_worse_than_another(documents: int, right: st.DataObject) -> None:
    """The choice lies within two standard errors of the best, whatever was counted."""
    numbers = [right.draw(st.integers(0, documents)) for _ in CANDIDATES]
    share = numbers[CANDIDATES.index(chosen(documents, *numbers))] / documents
    best = (max(numbers) + 1) / (documents + 2)
    assert share >= max(numbers) / documents - 2 * (best * (1 - best) / documents / 2) ** 0.5 - 1e-9


def test_without_documents_the_usual_one_is_released_and_nothing_is_claimed() -> None:
    """There is no accuracy without a text to measure it on."""
    nothing = {name: np.zeros((len(CANDIDATES), 2), dtype=np.int64) for name in DOMAINS}
    choice = choose(CANDIDATES, DOMAINS, nothing)
    assert (choice.candidate, choice.evaluation, choice.to_json()) == (CANDIDATES[0], None, None)
