"""How seldom neighbourhoods of some size fail, in a cohort of some size: to keep a secret, and to
open a sum.

Fewer than a third of the members collude with the coordinator. It sees who deals to whom, and then
says who is there (more than two thirds) and who has fallen away. Knows arithmetic.
"""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
from scipy.special import gammaln

from ridgeway.common.masking.shares import Neighbourhood

PRIVACY_BITS, ROUND_BITS = 40, 30
"""The binary logarithms of how seldom a session fails: to keep a secret; to open if that many have
fallen away.
"""


def log2_privacy_failure(members: int, sizes: Neighbourhood) -> float:
    """A bound on the probability that anything but the sum over all honest members in it can be
    computed.

    An honest member's own mask comes off only with `threshold` of the shares that it dealt, and
    honest members give out theirs only for the one sum that they are in. So a group of honest
    members can be opened apart from the other honest ones in the sum only if both hold: each of the
    group has dealt `threshold` shares to colluders and to the group; and no mask joins the group to
    the others. Added up over all groups, of one member up to half of the honest ones, is the
    smaller of the bounds for the first (all choose so) and for the second (some set of others, as
    large as must be left, is met by no choice). A group of one is a secret that colluders alone
    could put together.
    """
    colluding, quorum = (members - 1) // 3, 2 * members // 3 + 1
    honest, others = members - colluding, members - 1
    group = np.arange(1, honest // 2 + 1)
    left = np.maximum(quorum - colluding - group, group)
    inside = group * _log2_at_least(others, colluding + group - 1, *sizes)
    apart = (
        _log2_choose(honest - group, left)
        + left * _log2_none_of(others, group, sizes.holders)
        + group * _log2_none_of(others, left, sizes.holders)
    )
    return float(
        np.logaddexp2.reduce(_log2_choose(honest, group) + np.minimum(inside, apart))
    )


def log2_round_failure(members: int, sizes: Neighbourhood, gone: int) -> float:
    """A bound on the probability that too few are left of some member's holders, if so many members
    fall away.
    """
    missing = sizes.holders - sizes.threshold + 1
    return log2(members) + float(
        _log2_at_least(members - 1, np.asarray(gone), sizes.holders, missing)
    )


def _log2_at_least(all_: int, marked: Any, drawn: int, least: int) -> Any:
    """Of `all_`, `drawn` are drawn: that at least so many are marked ones (the hypergeometric
    distribution's tail).
    """
    n = np.arange(least, drawn + 1)
    ways = _log2_choose(marked[..., None], n) + _log2_choose(
        all_ - marked[..., None], drawn - n
    )
    return np.minimum(
        0.0, np.logaddexp2.reduce(ways, axis=-1) - _log2_choose(all_, drawn)
    )


def _log2_none_of(all_: int, marked: Any, drawn: int) -> Any:
    return _log2_choose(all_ - marked, drawn) - _log2_choose(all_, drawn)


def _log2_choose(all_: Any, chosen: Any) -> Any:
    possible = (chosen >= 0) & (chosen <= all_)
    chosen = np.where(possible, chosen, 0)
    return np.where(
        possible,
        (gammaln(all_ + 1) - gammaln(chosen + 1) - gammaln(all_ - chosen + 1))
        / np.log(2),
        -np.inf,
    )
