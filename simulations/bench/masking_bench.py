"""What masking costs: the memory of one who seals, and the seconds of cohorts.

Run as a module with a number of elements, it masks one vector in a process of its own and prints
the bytes of memory that this took.
"""

from __future__ import annotations

import secrets
import statistics
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np

from ridgeway.common.base.identity import Identity
from ridgeway.common.masking.agreement import check_agreement, threshold_for
from ridgeway.common.masking.member import open_envelope, seal, share
from ridgeway.common.masking.opening import Opening
from ridgeway.common.masking.reference_session import Step, Transcript, masked_sum
from ridgeway.common.masking.shares import ELEMENT_BYTES, Sealed
from ridgeway.common.statistics import Integers
from ridgeway.simulations.bench.measuring import (
    BenchOptions,
    Row,
    measured_apart,
    once,
    resident_bytes,
)

SUM_NAME: Final = "statistics"
LARGE = 8_390_656
MIDDLE = 1_000_000
COHORTS = (3, 5, 20, 50, 100)
_ROUNDS = 3
LARGEST = 1 << 22


def rows(options: BenchOptions) -> Iterator[Row]:
    yield memory_row(LARGE)
    for members in COHORTS:
        yield _cohort(members)


def memory_row(size: int) -> Row:
    taken = measured_apart(__name__, size)
    plain = size * ELEMENT_BYTES
    return Row(
        "memory while masking, to the vector, which counts in it",
        f"{taken / 1e6:.0f} MB",
        f"{plain / 1e6:.0f} MB",
        taken / plain,
        "≤ 3",
        timed=False,
    )


def _cohort(members: int) -> Row:
    """A tenth of the members drop out, or as many as may.

    All upload the same vector: to whoever opens, any numbers are noise.
    """
    away = min(-(-members // 10), members - threshold_for(members))
    sharing = []
    sealing = []
    opening = []
    for _ in range(_ROUNDS):
        run = bench_session(members, away)
        vector = _vector(MIDDLE)
        sealed = sealed_vector(run, 1, vector)
        uploads = dict.fromkeys(range(1, members - away + 1), sealed)
        sharing.append(once(partial(_shared, run)))
        sealing.append(once(partial(sealed_vector, run, 1, vector)))
        opening.append(once(partial(opened_sum, run, uploads)))
    shares = statistics.median(sharing) * 1e3
    seals = statistics.median(sealing) * 1e3
    opens = statistics.median(opening)
    return Row(
        f"masking, {members - away} of {members} members, {MIDDLE / 1e6:g} M numbers:"
        " seconds to open",
        f"{opens:.3f} s",
        f"a client: shares {shares:.1f} ms, sealing {seals:.0f} ms",
        opens,
        spread=(min(opening), max(opening)),
    )


def _vector(size: int) -> Integers:
    return np.random.default_rng().integers(0, LARGEST, size)


# A session


def bench_session(members: int, away: int = 0) -> Transcript:
    """A session of short vectors, whose keys, shares and envelopes are used with long ones here.

    away: as many of the last members drop out before they send.
    """
    identities = [Identity.generate() for _ in range(members)]
    dropped: dict[int, Step] = dict.fromkeys(
        range(members - away + 1, members + 1), "send"
    )
    return masked_sum(
        identities,
        [_vector(1)] * members,
        dropped,
        lambda purpose, place: secrets.token_bytes,
    )


def _shared(run: Transcript) -> None:
    """What the first member does before it seals: check everything, deal out its shares, take in
    the others'.
    """
    agreement = run.agreement
    member_secrets = run.secrets[1]
    check_agreement(
        agreement, agreement.advert(1), {advert.key for advert in agreement.adverts}
    )
    share(agreement, member_secrets, 1, secrets.token_bytes)
    for sender, dealt in run.dealt.items():
        if 1 in dealt.envelopes:
            open_envelope(agreement, member_secrets, 1, sender, dealt.envelopes[1])


def sealed_vector(run: Transcript, member: int, vector: Integers) -> Sealed:
    neighbours = {*run.holders[member], *run.held[member]}
    return seal(
        run.agreement,
        run.secrets[member],
        member,
        SUM_NAME,
        run.agreement.indices,
        neighbours,
        vector,
    )


def opened_sum(run: Transcript, sealed: Mapping[int, Sealed]) -> Integers:
    opening = Opening(run.agreement, SUM_NAME, run.holders, len(sealed[1]))
    for member, vector in sealed.items():
        opening.add(member, vector)
    return opening.total(run.reveals)


def main(size: int) -> None:
    """All that the first member does, from its keys to its sealed vector."""
    run = bench_session(5)
    before = resident_bytes("VmRSS")
    _shared(run)
    sealed_vector(run, 1, _vector(size))
    print(resident_bytes("VmHWM") - before)


if __name__ == "__main__":
    main(int(sys.argv[1]))
