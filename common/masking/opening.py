"""Secure aggregation, the coordinator's side: sealed vectors in, their sum out, and nothing in
between.

Pure but for the running sum.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import MaskingError, Refused
from ridgeway.common.base.operating_system import cores
from ridgeway.common.masking.agreement import (
    Agreement,
    MemberIndex,
    Members,
    Shares,
    pair_key,
    private_key,
    public_half,
    seed_digest,
    self_key,
)
from ridgeway.common.masking.shares import Sealed, Vector, apply_masks, combine

Part = TypeVar("Part")


class Opening:
    """Adds up sealed vectors and takes the masks off. Until `total` returns it holds nothing but
    noise.

    holders: for every member that has shared its secrets, those that hold the shares.
    """

    def __init__(
        self,
        agreement: Agreement,
        sum_name: str,
        holders: Mapping[MemberIndex, Members],
        size: int,
    ) -> None:
        self._agreement = agreement
        self._sum_name = sum_name
        self._holders = {member: frozenset(some) for member, some in holders.items()}
        self._sum: Vector = np.zeros(size, dtype="<u8")
        self.sent: set[MemberIndex] = set()

    def add(self, member: MemberIndex, sealed: Sealed) -> None:
        """Take in one member's sealed vector; a second one, or one of another size, is refused."""
        if member not in self._holders or member in self.sent:
            raise Refused(
                "duplicate",
                f"member {member} has sent already, or has not shared its secrets",
            )
        if len(sealed) != len(self._sum):
            raise Refused(
                "shape_mismatch",
                f"a sealed vector has {len(sealed)} numbers, not {len(self._sum)}",
            )
        sealed.add_to(self._sum)
        self.sent.add(member)

    def remove(self, member: MemberIndex, sealed: Sealed) -> None:
        """Take one member's vector out again: the member fell away before it signed the sum."""
        sealed.take_from(self._sum)
        self.sent.remove(member)

    def out_of_reach(self) -> list[MemberIndex]:
        """The members whose secrets cannot be put together any more, because too few of their
        holders are left.
        """
        needed = self._agreement.share_threshold
        return [
            member
            for member, holders in sorted(self._holders.items())
            if len(holders & self.sent) < needed
        ]

    def total(self, reveals: Mapping[MemberIndex, Shares]) -> NDArray[np.int64]:
        """The sum of what was sent; raises Refused if too few shares came, or wrong ones."""
        agreement = self._agreement
        added: list[bytes] = []
        subtracted: list[bytes] = []
        given = by_owner(reveals)
        for member in sorted(self._holders):
            secret = self._secret(member, given.get(member, {}))
            if member in self.sent:
                subtracted.append(self_key(agreement, self._sum_name, member, secret))
                continue
            private = private_key(secret)
            # undo the masks with the one who fell away
            for other in sorted(self._neighbours(member) & self.sent):
                key = pair_key(agreement, self._sum_name, member, other, private)
                (added if member < other else subtracted).append(key)
        opened = self._sum.copy()
        apply_masks(opened, added, subtracted, cores())
        return opened.view("<i8").astype(np.int64, copy=False)

    def _neighbours(self, member: MemberIndex) -> set[MemberIndex]:
        """Those with whom a member shares masks: who holds its shares, and whose it holds."""
        return {
            *self._holders[member],
            *(other for other, holders in self._holders.items() if member in holders),
        }

    def _secret(self, member: MemberIndex, given: Shares) -> bytes:
        """A member's seed or mask key, of the shares that others gave out, held against what it
        advertised.
        """
        needed = self._agreement.share_threshold
        if len(given) < needed:
            raise Refused(
                "too_few_shares",
                f"{len(given)} shares are too few; {needed} are needed",
            )
        for chosen in _selections(list(given), needed):
            with contextlib.suppress(MaskingError):
                secret = combine({giver: given[giver] for giver in chosen})
                if self._is_as_advertised(member, secret):
                    return secret
        raise Refused(
            "wrong_shares",
            f"the shares of member {member} do not match its advertised key",
        )

    def _is_as_advertised(self, member: MemberIndex, secret: bytes) -> bool:
        advert = self._agreement.advert(member)
        index = self._agreement.lots.index(self._sum_name)
        if member in self.sent:
            return hmac.compare_digest(seed_digest(secret), advert.seeds[index])
        return hmac.compare_digest(public_half(secret).hex(), advert.masks[index])


def by_owner(
    parts: Mapping[MemberIndex, Mapping[MemberIndex, Part]],
) -> dict[MemberIndex, dict[MemberIndex, Part]]:
    """What lies by giver and then by whom it is of or for, the other way round; givers in their
    order.
    """
    turned: dict[MemberIndex, dict[MemberIndex, Part]] = {}
    for giver, given in sorted(parts.items()):
        for owner, part in given.items():
            turned.setdefault(owner, {})[giver] = part
    return turned


def _selections(
    givers: Sequence[MemberIndex], threshold: int
) -> Iterator[Sequence[MemberIndex]]:
    """Some of those who gave shares, as many as are needed: the first, then the first but one, so
    that one may lie.
    """
    yield givers[:threshold]
    if len(givers) > threshold:
        more = givers[: threshold + 1]
        yield from ([giver for giver in more if giver != liar] for liar in more[:-1])
