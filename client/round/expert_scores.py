"""A holder's scores of experts' answers to prompts of its domain: what it may tell of them is sums
and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import CorpusError
from ridgeway.common.routing.quality import (
    MAX_HOLDER_SCORES,
    DomainScore,
    QualityTable,
    quality_of,
)
from ridgeway.common.routing.score_files import read_scores

MIN_SCORES = 10
"""The fewest scores of an expert whose sum is told: fewer would show what single prompts were
worth.
"""


def own_scores(path: Path, domain: str) -> QualityTable:
    """What a file says of experts in this domain; lines of another domain are passed over."""
    scores = (
        DomainScore(domain, name, score)
        for line in read_scores(path)
        if line.domain in ("", domain)
        for name, score in line.scores.items()
    )
    table = quality_of(scores, (domain,))
    if table.counts.max() > MAX_HOLDER_SCORES:
        raise CorpusError(
            f"{path}: more than {MAX_HOLDER_SCORES:,} scores of one expert; remove some"
        )
    return table


def told_scores(
    table: QualityTable | None, experts: Sequence[str]
) -> NDArray[np.int64]:
    """The sums of these experts' scores in fixed point, then the numbers of scores: 0 for those
    with too few.
    """
    sums = np.zeros((2, len(experts)), dtype=np.int64)
    for column, name in enumerate(experts):
        if table and name in table.experts:
            column_here = table.experts.index(name)
            count = table.counts[0, column_here]
            if count >= MIN_SCORES:
                sums[:, column] = table.sums[0, column_here], count
    return sums.ravel()
