"""What masking costs: the size of a sealed upload, the memory of one who seals, and the seconds of
cohorts.

Run as a module with a number of elements, it masks one vector in a process of its own and prints
the largest resident size that this took, beyond what there was before the vector, in bytes.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from ridgeway.common.base.identity import Identity
from ridgeway.common.cli.terminal import ticking
from ridgeway.common.masking.agreement import check_agreement, threshold_for
from ridgeway.common.masking.keystream import ELEMENT_BYTES, Sealed
from ridgeway.common.masking.member import (
    open_envelope,
    seal,
    share,
)
from ridgeway.common.masking.opening import Opening
from ridgeway.common.masking.reference import Step, Transcript, masked_sum
from ridgeway.common.protocol.messages import SealedSums
from ridgeway.common.protocol.packet import seal_packet
from ridgeway.simulations.bench.measuring import (
    Result,
    Work,
    at_most,
    figure,
    measured_apart,
    medians,
    once,
    resident_bytes,
)

LOT: Final = "statistics"
LARGE = 8_390_656
MIDDLE = 1_000_000
SMALL = 170_000
COHORTS = (3, 5, 20, 50, 100)
LARGEST = 1 << 22

Vector = NDArray[np.int64]


def bench_masking() -> list[Result]:
    results = []
    measures: list[Callable[[], Result]] = [_upload, _memory]
    measures += [partial(_cohort, members) for members in COHORTS]
    with ticking("masking", len(measures)) as tick:
        for measure in measures:
            results.append(measure())
            tick()
    return results


def _upload(members: int = 5) -> Result:
    size = _upload_bytes(bench_session(members), _vector(SMALL))
    words = f"{size / 1e6:.4f} MB", f"{SMALL / 1e3:.0f} k numbers of 8 bytes"
    return at_most(
        "a sealed upload, to its numbers", size / (SMALL * ELEMENT_BYTES), 1.02, *words
    )


def _memory() -> Result:
    measured = measured_apart("ridgeway.simulations.bench.masking_bench", LARGE)
    vectors = measured / (LARGE * ELEMENT_BYTES)
    name = "memory while masking, to the vector, which counts in it"
    return at_most(
        name,
        vectors,
        3,
        f"{vectors:.2f} vectors",
        f"{LARGE / 1e6:.1f} M numbers of 8 bytes",
    )


def _cohort(members: int) -> Result:
    """All upload the same vector: to whoever opens, any numbers are noise."""
    sent = range(1, members - _away(members) + 1)
    sizes = []

    def prepare() -> tuple[Work, ...]:
        run = bench_session(members, _away(members))
        vector = _vector(MIDDLE)
        sealed = sealed_vector(run, 1, vector)
        sizes.append(_upload_bytes(run, vector) + _other_bytes(run))
        return (
            lambda: _shared(run),
            lambda: sealed_vector(run, 1, vector),
            lambda: opened_sum(run, dict.fromkeys(sent, sealed)),
        )

    sharing, sealing, opening = _medians(3, prepare)
    ours = f"client: shares {sharing * 1e3:.1f} ms, sealing {sealing * 1e3:.0f} ms"
    name = (
        f"masking, {len(sent)} of {members} members, {MIDDLE / 1e6:.0f} M numbers:"
        " seconds to open"
    )
    return figure(name, opening, ours, f"{sizes[0] / 1e6:.3f} MB up")


def _medians(rounds: int, prepare: Callable[[], Sequence[Work]]) -> tuple[float, ...]:
    """The median seconds of each piece of work: in every round a new input, and one after
    another.
    """
    return medians([tuple(once(work) for work in prepare()) for _ in range(rounds)])


def _away(members: int) -> int:
    """A tenth of the members, or as many as may fall away."""
    return min(-(-members // 10), members - threshold_for(members))


def _vector(size: int) -> Vector:
    return np.random.default_rng().integers(0, LARGEST, size)


# A session


def bench_session(members: int, away: int = 0) -> Transcript:
    """A session of short vectors, whose keys, shares and envelopes are used with long ones here.

    away: as many of the last members fall away before they send.
    """
    identities = [Identity(Ed25519PrivateKey.generate()) for _ in range(members)]
    fallen: dict[int, Step] = dict.fromkeys(
        range(members - away + 1, members + 1), "send"
    )
    return masked_sum(
        identities,
        [_vector(1)] * members,
        fallen,
        lambda purpose, place: secrets.token_bytes,
    )


def _shared(run: Transcript) -> None:
    """What the first member does before it seals: check everything, deal out its shares, take in
    the others'.
    """
    agreement = run.agreement
    own = run.secrets[1]
    check_agreement(
        agreement, agreement.advert(1), {advert.key for advert in agreement.adverts}
    )
    share(agreement, own, 1, secrets.token_bytes)
    for sender, dealt in run.dealt.items():
        if 1 in dealt.envelopes:
            open_envelope(agreement, own, 1, sender, dealt.envelopes[1])


def sealed_vector(run: Transcript, place: int, vector: Vector) -> Sealed:
    neighbours = {*run.holders[place], *run.held[place]}
    return seal(
        run.agreement,
        run.secrets[place],
        place,
        LOT,
        run.agreement.places,
        neighbours,
        vector,
    )


def opened_sum(run: Transcript, sealed: Mapping[int, Sealed]) -> Vector:
    opening = Opening(run.agreement, LOT, run.holders, len(sealed[1]))
    for place, vector in sealed.items():
        opening.add(place, vector)
    return opening.total(run.reveals)


def _upload_bytes(run: Transcript, vector: Vector) -> int:
    message = SealedSums(session=run.agreement.id.hex(), lot=LOT)
    blob = sealed_vector(run, 1, vector).data
    request = secrets.token_hex(32)
    packet = seal_packet(
        message,
        run.members[1],
        round=run.agreement.round,
        reply_to=request,
        blobs=[blob],
    )
    return len(packet.header) + len(packet.signature) + blob.nbytes


def _other_bytes(run: Transcript) -> int:
    """What else a member sends in a session, without headers: its keys, envelopes, a signature,
    shares.
    """
    envelopes = run.dealt[1].envelopes.values()
    shares = run.reveals[1].values()
    return (
        len(run.agreement.advert(1).model_dump_json())
        + sum(map(len, [*envelopes, *shares]))
        + 64
    )


# In a process of its own


def main(size: int, members: int = 5) -> None:
    """All that the first member does, from its keys to its sealed vector."""
    run = bench_session(members)
    before = resident_bytes("VmRSS")
    _shared(run)
    sealed_vector(run, 1, _vector(size))
    print(resident_bytes("VmHWM") - before)


if __name__ == "__main__":
    main(int(sys.argv[1]))
