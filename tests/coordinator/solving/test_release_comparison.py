"""Whether a router is worse than the last release: by more than chance explains, and by more than a
little.
"""

from __future__ import annotations

import pytest

from ridgeway.coordinator.solving.solve import DomainChange, worse


def change(lost: int, won: int, documents: int = 1000) -> DomainChange:
    return DomainChange("law", lost, won, documents)


@pytest.mark.parametrize(
    ("lost", "won", "documents", "is_worse"),
    [
        (0, 0, 1000, False),
        (9, 0, 100, False),  # one in 512: chance
        (11, 0, 100, True),  # one in 2048
        (60, 50, 1000, False),
        (60, 5, 1000, True),
        (100, 82, 1000, False),  # less than a fiftieth of the documents
        (0, 200, 1000, False),
    ],
)
def test_a_loss_counts_if_it_is_neither_chance_nor_small(
    lost: int, won: int, documents: int, is_worse: bool
) -> None:
    """Only documents on which the two differ matter."""
    assert bool(worse([change(lost, won, documents)])) is is_worse


def test_many_domains_share_the_alarm() -> None:
    """What would be called worse alone is not among a hundred: one of them is that bad by
    chance.
    """
    bad, good = change(11, 0, 100), DomainChange("code", 0, 0, 100)
    assert worse([bad]) == [bad]
    assert worse([bad, *[good] * 99]) == []
