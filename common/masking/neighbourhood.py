"""Who holds whose shares in a large cohort: a random neighbourhood of each member's own choice, and
how large it is.

Up to COMPLETE members everybody deals to everybody. In larger cohorts (Bell et al. 2020, the
variant against a hostile server) a member deals its secrets out to `holders` others, and shares
masks with them and with those that dealt to it. It draws them itself, after everybody's keys are
fixed, so neither the coordinator nor other members can choose them, or try many keys until they
suit. TABLE holds sizes, which every member must know alike: a secret is lost once in 2⁴⁰ sessions,
and a round fails once in 2³⁰ where one in MAX_GONE members falls away, as
tests/support/neighbourhood_failure.py computes. Pure; knows arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ridgeway.common.base.errors import Refused
from ridgeway.common.masking.shares import Random

COMPLETE = 100
MAX_GONE = 6
"""One in so many members may fall away in the middle of a round."""


class Neighbourhood(NamedTuple):
    """holders: how many others hold shares of a member's secrets. threshold: how many of them give
    a secret back.
    """

    holders: int
    threshold: int


_TABLE: tuple[tuple[int, Neighbourhood], ...] = tuple(
    (members, Neighbourhood(holders, threshold))
    for members, holders, threshold in (
        (110, 55, 36),
        (120, 58, 38),
        (135, 65, 42),
        (150, 70, 45),
        (170, 77, 49),
        (200, 86, 54),
        (230, 92, 58),
        (260, 99, 62),
        (300, 105, 66),
        (350, 113, 71),
        (400, 120, 75),
        (500, 128, 80),
        (600, 136, 85),
        (800, 148, 92),
        (1000, 156, 97),
        (1300, 163, 101),
        (1700, 169, 105),
        (2200, 176, 109),
        (3000, 182, 113),
        (4000, 187, 116),
        (6000, 192, 119),
        (10000, 199, 123),
    )
)
"""For cohorts of up to so many members."""


def neighbourhood_for(members: int) -> Neighbourhood | None:
    """The neighbourhoods of a cohort of this size; none if everybody deals to everybody."""
    if members <= COMPLETE:
        return None
    for most, neighbourhood in _TABLE:
        if members <= most:
            return neighbourhood
    raise Refused(
        "cohort_too_large", f"{members} members are too many for a masked cohort"
    )


def draw(others: Sequence[int], holders: int, random: Random) -> tuple[int, ...]:
    """So many of the others, each choice as likely as any."""
    return tuple(sorted(sorted(others, key=lambda _: random(16))[:holders]))
