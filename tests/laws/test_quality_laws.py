"""Tables of experts' quality: sums that add up, estimates within reason, and what no scores can
give.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.common.base.errors import FormatError, InputError
from ridgeway.common.routing.quality import (
    MAX_SCORES,
    PRIOR_SCORES,
    SCORE_UNIT,
    DomainScore,
    QualityTable,
    quality_from_json,
    quality_of,
)

DOMAINS, EXPERTS = ("art", "code", "law"), ("large", "small")

scores = st.builds(
    DomainScore, st.sampled_from(DOMAINS), st.sampled_from(EXPERTS), st.floats(0, 1)
)
corpora = st.lists(scores, max_size=60)


def table(sums: object, counts: object) -> QualityTable:
    """sums: in whole scores."""
    whole = np.array(sums, dtype=np.float64) * SCORE_UNIT
    return QualityTable(
        DOMAINS, EXPERTS, whole.astype(np.int64), np.array(counts, dtype=np.int64)
    )


@given(first=corpora, second=corpora)
def test_the_sums_of_two_sets_of_scores_are_those_of_their_union(
    first: list[DomainScore], second: list[DomainScore]
) -> None:
    """Whoever measures what, and in whatever order: the table is that of all scores in one place,
    bit for bit.
    """
    one, two, both = (
        quality_of(corpus, DOMAINS, EXPERTS)
        for corpus in (first, second, [*second, *first])
    )
    assert (one.sums + two.sums == both.sums).all()
    assert (one.counts + two.counts == both.counts).all()


def plain_estimate(scored: QualityTable) -> NDArray[np.float64]:
    """The same by a dense least-squares fit over every single score, straight from the words of
    `expected`.
    """
    rows, targets = [], []
    level = scored.sums.sum() / SCORE_UNIT / scored.counts.sum()
    domains, experts = scored.counts.shape
    for cell, count in np.ndenumerate(scored.counts):
        if count:
            row = np.zeros(domains + experts)
            row[cell[0]] = row[domains + cell[1]] = np.sqrt(count)
            rows.append(row)
            targets.append(
                np.sqrt(count) * (scored.sums[cell] / SCORE_UNIT / count - level)
            )
    rows += [
        np.sqrt(PRIOR_SCORES) * np.eye(domains + experts)[domains + expert]
        for expert in range(experts)
    ]
    targets += [0.0] * experts
    fitted = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)[0]
    prior = level + fitted[:domains, None] + fitted[domains:]
    counts = scored.counts
    mixed: NDArray[np.float64] = (scored.sums / SCORE_UNIT + PRIOR_SCORES * prior) / (
        counts + PRIOR_SCORES
    )
    return mixed.clip(0, 1)


@given(given=corpora)
def test_estimates_are_those_of_the_definition(given: list[DomainScore]) -> None:
    """Levels of domains and leads of experts by least squares, then the mean of scores and
    PRIOR_SCORES of these.
    """
    scored = quality_of([*given, DomainScore("art", "large", 0.5)], DOMAINS, EXPERTS)
    assert np.abs(scored.expected - plain_estimate(scored)).max() < 1e-9


def test_an_expert_of_easy_domains_is_not_taken_for_a_good_one() -> None:
    """Where both were scored the large one is better, so it is expected to be better where it alone
    was not.
    """
    sums, counts = [[80, 60], [0, 95], [70, 50]], [[100, 100], [0, 100], [100, 100]]
    scored = table(sums, counts)
    assert scored.expected[1, 0] > scored.expected[1, 1] > 0.9


def test_no_scores_give_these_tables() -> None:
    """Negative or too many counts, sums beyond them, names twice, other shapes or types: all are
    refused.
    """
    good = table([[1, 0], [0, 1], [2, 2]], [[1, 1], [1, 1], [2, 2]])
    facts = good.to_json()
    assert quality_from_json(facts).to_json() == facts
    bad: list[dict[str, Any]] = [
        {"counts": [[-1, 1], [1, 1], [2, 2]]},
        {"counts": [[MAX_SCORES + 1, 1], [1, 1], [2, 2]]},
        {"sums": [[SCORE_UNIT + 1, 0], [0, 1], [2, 2]]},
        {"sums": [[-1, 0], [0, 1], [2, 2]]},
        {"sums": [[0.5, 0], [0, 1], [2, 2]]},
        {"sums": [[1 << 70, 0], [0, 1], [2, 2]]},
        {"sums": [[1, 0], [0, 1]]},
        {"sums": [[1, 0], [0], [2, 2]]},
        {"sums": "x"},
        {"domains": ["art", "art", "law"]},
        {"domains": ["art", 1, "law"]},
        {"experts": ["large", "large"]},
        {"experts": ["large", ""]},
        {"experts": ["large", "sm\x1ball"]},
        {"experts": [], "sums": [[], [], []], "counts": [[], [], []]},
        {"unit": 1000},
    ]
    for change in bad:
        with pytest.raises(FormatError):
            quality_from_json({**facts, **change})
    for name in facts:
        without = {key: value for key, value in facts.items() if key != name}
        with pytest.raises(FormatError):
            quality_from_json(without)


def test_without_any_score_there_is_no_table() -> None:
    """An empty file is no evidence for anything."""
    with pytest.raises(InputError, match="no scores"):
        quality_of([], DOMAINS)
