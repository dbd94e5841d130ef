"""Masking beside Flower's own SecAgg+ on the same vectors, and what it costs in cohorts of several sizes.

Flower's primitives are called in the order of its client mod and its server workflow, with all members as neighbours,
the same threshold and the same members falling away. Not counted on either side is the packing for the wire. Not
charged to Flower is what its code does beyond the need: quantising, shares beyond the threshold, masks between two who
fell away. Its masks have 32 bits, the most that it offers, and ours have 64. Counted for us alone are the signatures of
all members, which Flower does not have.

Run as a module with `ours` or `theirs` and a number of elements, it masks one vector in a process of its own and prints
the largest resident size that this took, beyond what there was before the vector, in bytes.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.common import ndarray_to_bytes
from flwr.common.secure_aggregation import ndarrays_arithmetic as arithmetic
from flwr.common.secure_aggregation import secaggplus_utils as secagg
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.quantization import quantize
from flwr.supercore.primitives import asymmetric
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
LARGE, MIDDLE, SMALL = 8_390_656, 1_000_000, 170_000
COHORTS = (3, 5, 20, 50, 100)
LARGEST = 1 << 22
"""What Flower quantises to, so that the very same vectors can be given to both."""
MODULUS = 1 << 32

Vector = NDArray[np.int64]
Arrays = list[NDArray[Any]]


def bench_masking() -> list[Result]:
    results = []
    measures: list[Callable[[], Result]] = [_client, _server, _upload, _memory]
    measures += [partial(_cohort, members) for members in COHORTS]
    with ticking("masking", len(measures)) as tick:
        for measure in measures:
            results.append(measure())
            tick()
    return results


def _client(members: int = 5) -> Result:
    def prepare() -> tuple[Work, Work, Work]:
        vector = _vector(LARGE)
        quantised, floats = vector.astype(np.int32), vector.astype(np.float32)
        run, theirs = bench_session(members), Flower(members)
        inbox = theirs.sent_to_first()
        return (
            lambda: _masked(run, vector),
            lambda: theirs.masked(inbox, quantised),
            lambda: theirs.whole(inbox, floats),
        )

    ours, theirs, whole = (seconds * 1e3 for seconds in _medians(9, prepare))
    name = f"masking {LARGE / 1e6:.1f} M numbers, a client of {members}, to Flower's"
    words = f"{theirs:.0f} ms ({whole:.0f} ms with quantising and packing)"
    return at_most(name, ours / theirs, 0.6, f"{ours:.0f} ms", words)


def _server(members: int = 20) -> Result:
    away = _away(members)

    def prepare() -> tuple[Work, Work]:
        vectors = [_vector(MIDDLE) for _ in range(members - away)]
        run, flower, total = bench_session(members, away), Flower(members), np.sum(vectors, axis=0)
        sealed = {place: sealed_vector(run, place, vector) for place, vector in enumerate(vectors, start=1)}
        masked = [flower.added_masks(own, vector.astype(np.int32)) for own, vector in enumerate(vectors)]
        shares = flower.collected(len(vectors))
        return (
            lambda: _must_be(opened_sum(run, sealed), total, "the opened sum"),
            lambda: _must_be(flower.opened(masked, shares)[0], total % MODULUS, "Flower's sum"),
        )

    ours, theirs = _medians(3, prepare)
    name = f"opening {MIDDLE / 1e6:.0f} M numbers, {members - away} of {members} members, to Flower's"
    return at_most(name, ours / theirs, 0.2, f"{ours:.2f} s", f"{theirs:.2f} s")


def _must_be(opened: NDArray[Any], total: Vector, what: str) -> None:
    if not np.array_equal(opened, total):
        raise ArithmeticError(f"{what} is not the plain sum")


def _upload(members: int = 5) -> Result:
    size = _upload_bytes(bench_session(members), _vector(SMALL))
    words = f"{size / 1e6:.4f} MB", f"{SMALL / 1e3:.0f} k numbers of 8 bytes"
    return at_most("a sealed upload, to its numbers", size / (SMALL * ELEMENT_BYTES), 1.02, *words)


def _memory() -> Result:
    measured = partial(measured_apart, "ridgeway.simulations.bench.masking_bench")
    ours, theirs = (measured(who, LARGE) / (LARGE * ELEMENT_BYTES) for who in ("ours", "theirs"))
    name = "memory while masking, to the vector, which counts in it"
    return at_most(name, ours, 3, f"{ours:.2f} vectors", f"Flower {theirs:.2f} vectors")


def _cohort(members: int) -> Result:
    """Our own figures. All upload the same vector: to whoever opens, any numbers are noise."""
    sent = range(1, members - _away(members) + 1)
    sizes = []

    def prepare() -> tuple[Work, ...]:
        run, vector = bench_session(members, _away(members)), _vector(MIDDLE)
        sealed = sealed_vector(run, 1, vector)
        sizes.append(_upload_bytes(run, vector) + _other_bytes(run))
        return (
            lambda: _shared(run),
            lambda: sealed_vector(run, 1, vector),
            lambda: opened_sum(run, dict.fromkeys(sent, sealed)),
        )

    sharing, sealing, opening = _medians(3, prepare)
    ours = f"client: shares {sharing * 1e3:.1f} ms, sealing {sealing * 1e3:.0f} ms"
    name = f"masking, {len(sent)} of {members} members, {MIDDLE / 1e6:.0f} M numbers: seconds to open"
    return figure(name, opening, ours, f"{sizes[0] / 1e6:.3f} MB up")


def _medians(rounds: int, prepare: Callable[[], Sequence[Work]]) -> tuple[float, ...]:
    """The median seconds of each contender: in every round a new input, and one after another."""
    return medians([tuple(once(work) for work in prepare()) for _ in range(rounds)])


def _away(members: int) -> int:
    """A tenth of the members, or as many as may fall away."""
    return min(-(-members // 10), members - threshold_for(members))


def _vector(size: int) -> Vector:
    return np.random.default_rng().integers(0, LARGEST, size)


# Ours


def bench_session(members: int, away: int = 0) -> Transcript:
    """A session of short vectors, whose keys, shares and envelopes are used with long ones here.

    away: as many of the last members fall away before they send.
    """
    identities = [Identity(Ed25519PrivateKey.generate()) for _ in range(members)]
    fallen: dict[int, Step] = dict.fromkeys(range(members - away + 1, members + 1), "send")
    return masked_sum(identities, [_vector(1)] * members, fallen, lambda purpose, place: secrets.token_bytes)


def _shared(run: Transcript) -> None:
    """What the first member does before it seals: check everything, deal out its shares, take in the others'."""
    agreement, own = run.agreement, run.secrets[1]
    check_agreement(agreement, agreement.advert(1), {advert.key for advert in agreement.adverts})
    share(agreement, own, 1, secrets.token_bytes)
    for sender, dealt in run.dealt.items():
        if 1 in dealt.envelopes:
            open_envelope(agreement, own, 1, sender, dealt.envelopes[1])


def sealed_vector(run: Transcript, place: int, vector: Vector) -> Sealed:
    neighbours = {*run.holders[place], *run.held[place]}
    return seal(run.agreement, run.secrets[place], place, LOT, run.agreement.places, neighbours, vector)


def _masked(run: Transcript, vector: Vector) -> Sealed:
    """All that the first member does from its keys to its sealed vector."""
    _shared(run)
    return sealed_vector(run, 1, vector)


def opened_sum(run: Transcript, sealed: Mapping[int, Sealed]) -> Vector:
    opening = Opening(run.agreement, LOT, run.holders, len(sealed[1]))
    for place, vector in sealed.items():
        opening.add(place, vector)
    return opening.total(run.reveals)


def _upload_bytes(run: Transcript, vector: Vector) -> int:
    message, blob = SealedSums(session=run.agreement.id.hex(), lot=LOT), sealed_vector(run, 1, vector).data
    request = secrets.token_hex(32)
    packet = seal_packet(message, run.members[1], round=run.agreement.round, reply_to=request, blobs=[blob])
    return len(packet.header) + len(packet.signature) + blob.nbytes


def _other_bytes(run: Transcript) -> int:
    """What else a member sends in a session, without headers: its keys, envelopes, a signature, shares."""
    envelopes, shares = run.dealt[1].envelopes.values(), run.reveals[1].values()
    return len(run.agreement.advert(1).model_dump_json()) + sum(map(len, [*envelopes, *shares])) + 64


# Theirs


class Keys(NamedTuple):
    """The secrets of one of Flower's clients, as its mod keeps them."""

    sk1: bytes
    pk1: bytes
    sk2: bytes
    pk2: bytes
    seed: bytes


class Flower:
    """Members of Flower's protocol, from 0 on, that have made their keys."""

    def __init__(self, members: int) -> None:
        self._keys = [_new_keys() for _ in range(members)]
        self._threshold = threshold_for(members)

    def _shares(self, own: int) -> tuple[list[bytes], list[bytes]]:
        seed, key = self._keys[own].seed, self._keys[own].sk1
        members = len(self._keys)
        return create_shares(seed, self._threshold, members), create_shares(key, self._threshold, members)

    def _dealt(self, own: int) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Envelopes for the others, and the keys of the envelopes."""
        seeds, keys = self._shares(own)
        private = self._keys[own].sk2
        agreed = {other: _agreed(private, keys.pk2) for other, keys in enumerate(self._keys) if other != own}
        envelopes = {
            other: encrypt(key, secagg.share_keys_plaintext_concat(own, other, seeds[other], keys[other]))
            for other, key in agreed.items()
        }
        return envelopes, agreed

    def sent_to_first(self) -> dict[int, bytes]:
        return {other: self._dealt(other)[0][0] for other in range(1, len(self._keys))}

    def masked(self, inbox: Mapping[int, bytes], vector: NDArray[np.int32]) -> Arrays:
        """All that the first client does from its keys to its masked vector."""
        _, agreed = self._dealt(0)
        for sender, envelope in inbox.items():
            secagg.share_keys_plaintext_separate(decrypt(agreed[sender], envelope))
        return self.added_masks(0, vector)

    def whole(self, inbox: Mapping[int, bytes], floats: NDArray[np.float32]) -> list[bytes]:
        """The same from a client's numbers to the bytes that it sends, as Flower's mod does it."""
        (quantised,) = quantize(arithmetic.parameters_multiply([floats], 1.0), 8.0, LARGEST)
        return [ndarray_to_bytes(array) for array in self.masked(inbox, quantised.astype(np.int32, copy=False))]

    def added_masks(self, own: int, vector: NDArray[np.int32]) -> Arrays:
        arrays: Arrays = arithmetic.factor_combine(1, [vector])
        shapes = arithmetic.get_parameters_shape(arrays)
        arrays = arithmetic.parameters_addition(arrays, secagg.pseudo_rand_gen(self._keys[own].seed, MODULUS, shapes))
        for other, keys in enumerate(self._keys):
            if other != own:
                mask = _pair_mask(self._keys[own].sk1, keys.pk1, shapes)
                arrays = (arithmetic.parameters_addition if own > other else arithmetic.parameters_subtraction)(
                    arrays, mask
                )
        return arithmetic.parameters_mod(arrays, MODULUS)

    def collected(self, sent: int) -> list[list[bytes]]:
        """For every member the shares of its seed, or of its key if it fell away, as many as are needed."""
        return [self._shares(own)[0 if own < sent else 1][: self._threshold] for own in range(len(self._keys))]

    def opened(self, masked: Sequence[Arrays], shares: Sequence[list[bytes]]) -> Arrays:
        total = masked[0]
        for arrays in masked[1:]:
            total = arithmetic.parameters_addition(total, arrays)
        total = arithmetic.parameters_mod(total, MODULUS)
        for own, collected in enumerate(shares):
            total = self._taken_off(total, own, combine_shares(collected), len(masked))
        return arithmetic.factor_extract(arithmetic.parameters_mod(total, MODULUS))[1]

    def _taken_off(self, total: Arrays, own: int, secret: bytes, sent: int) -> Arrays:
        shapes = arithmetic.get_parameters_shape(total)
        if own < sent:
            return arithmetic.parameters_subtraction(total, secagg.pseudo_rand_gen(secret, MODULUS, shapes))
        for other in range(sent):
            mask = _pair_mask(secret, self._keys[other].pk1, shapes)
            total = (arithmetic.parameters_addition if own > other else arithmetic.parameters_subtraction)(total, mask)
        return total


def _new_keys() -> Keys:
    pairs = [asymmetric.generate_key_pairs() for _ in range(2)]
    halves = [(asymmetric.private_key_to_bytes(own), asymmetric.public_key_to_bytes(public)) for own, public in pairs]
    return Keys(*halves[0], *halves[1], secrets.token_bytes(32))


def _agreed(private: bytes, public: bytes) -> bytes:
    return generate_shared_key(asymmetric.bytes_to_private_key(private), asymmetric.bytes_to_public_key(public))


def _pair_mask(private: bytes, public: bytes, shapes: list[tuple[int, ...]]) -> Arrays:
    return list(secagg.pseudo_rand_gen(_agreed(private, public), MODULUS, shapes))


# In a process of its own


def main(who: str, size: int, members: int = 5) -> None:
    run, theirs = bench_session(members), Flower(members)
    inbox = theirs.sent_to_first()
    before = resident_bytes("VmRSS")
    if who == "ours":
        _masked(run, _vector(size))
    else:
        theirs.masked(inbox, _vector(size).astype(np.int32))
    print(resident_bytes("VmHWM") - before)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
