"""Who holds whose shares in a large cohort: a random neighbourhood of each member's own choice, and how large it is.

Up to COMPLETE members everybody deals to everybody. In larger cohorts (Bell et al. 2020, the variant against a hostile
server) a member deals its secrets out to `holders` others, and shares masks with them and with those that dealt to it.
It draws them itself, after everybody's keys are fixed, so neither the coordinator nor other members can choose them, or
try many keys until they suit. What sizes are safe follows from `log2_privacy_failure` and `log2_round_failure`; TABLE
holds such sizes, because every member must know the same ones. Pure; knows arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf, lgamma, log, log2
from typing import NamedTuple

from ridgeway.common.base.errors import Refused
from ridgeway.common.masking.shares import Random

COMPLETE = 100
GONE = 6
"""One in so many members may fall away in the middle of a round."""
PRIVACY_BITS, ROUND_BITS = 40, 30
"""The binary logarithms of how seldom a session fails: to keep a secret; to open if that many have fallen away."""


class Neighbourhood(NamedTuple):
    """holders: how many others hold shares of a member's secrets. threshold: how many of them give a secret back."""

    holders: int
    threshold: int


TABLE: tuple[tuple[int, Neighbourhood], ...] = tuple(
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
    found = next((sizes for most, sizes in TABLE if members <= most), None)
    if found is None:
        raise Refused("cohort_too_large", f"{members} members are more than a masked cohort can have")
    return found


def draw(others: Sequence[int], holders: int, random: Random) -> tuple[int, ...]:
    """So many of the others, each choice as likely as any."""
    return tuple(sorted(sorted(others, key=lambda _: random(16))[:holders]))


# How seldom it fails. Fewer than a third of the members collude with the coordinator. It sees who deals to whom, and
# then says who is there (more than two thirds) and who has fallen away.


def log2_privacy_failure(members: int, sizes: Neighbourhood) -> float:
    """A bound on the probability that anything but the sum over all honest members in it can be computed.

    An honest member's own mask comes off only with `threshold` of the shares that it dealt, and honest members give out
    theirs only for the one sum that they are in. So a group of honest members can be opened apart from the other honest
    ones in the sum only if both hold: each of the group has dealt `threshold` shares to colluders and to the group; and
    no mask joins the group to the others. Added up over all groups, of one member up to half of the honest ones, is the
    smaller of the bounds for the first (all choose so) and for the second (some set of others, as large as must be
    left, is met by no choice). A group of one is a secret that colluders alone could put together.
    """
    colluding, quorum = (members - 1) // 3, 2 * members // 3 + 1
    honest, others = members - colluding, members - 1
    terms = []
    for group in range(1, honest // 2 + 1):
        left = max(quorum - colluding - group, group)
        inside = group * _log2_at_least(others, colluding + group - 1, *sizes)
        apart = (
            _log2_choose(honest - group, left)
            + left * _log2_none_of(others, group, sizes.holders)
            + group * _log2_none_of(others, left, sizes.holders)
        )
        terms.append(_log2_choose(honest, group) + min(inside, apart))
    return _log2_sum(terms)


def log2_round_failure(members: int, sizes: Neighbourhood, gone: int) -> float:
    """A bound on the probability that too few are left of some member's holders, if so many members fall away."""
    missing = sizes.holders - sizes.threshold + 1
    return log2(members) + _log2_at_least(members - 1, gone, sizes.holders, missing)


def _log2_at_least(all_: int, marked: int, drawn: int, least: int) -> float:
    """Of `all_`, `drawn` are drawn: that at least so many are marked ones (the hypergeometric distribution's tail)."""
    ways = (_log2_choose(marked, n) + _log2_choose(all_ - marked, drawn - n) for n in range(least, drawn + 1))
    return min(0.0, _log2_sum(ways) - _log2_choose(all_, drawn))


def _log2_none_of(all_: int, marked: int, drawn: int) -> float:
    return _log2_choose(all_ - marked, drawn) - _log2_choose(all_, drawn)


@lru_cache(maxsize=1 << 16)
def _log2_choose(all_: int, chosen: int) -> float:
    if not 0 <= chosen <= all_:
        return -inf
    return (lgamma(all_ + 1) - lgamma(chosen + 1) - lgamma(all_ - chosen + 1)) / log(2)


def _log2_sum(logarithms: Iterable[float]) -> float:
    finite = [each for each in logarithms if each > -inf]
    largest = max(finite, default=-inf)
    return largest + log2(sum(2.0 ** (each - largest) for each in finite)) if finite else -inf
