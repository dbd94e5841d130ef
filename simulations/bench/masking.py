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
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.common import ndarray_to_bytes
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_combine,
    factor_extract,
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_multiply,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)
from numpy.typing import NDArray

from common.identity import Identity
from common.masking.agreement import Agreement, Secrets, check_agreement, threshold_for
from common.masking.keystream import ELEMENT_BYTES, Sealed
from common.masking.member import Dealt, advertise, confirm, new_secrets, open_envelope, reveal, seal, share
from common.masking.opening import Opening
from common.messages import SealedSums, seal_packet
from simulations.bench.measuring import Result, Tick, Work, at_most, figure, once

LOT: Final = "statistics"
LARGE, MIDDLE, SMALL = 8_390_656, 1_000_000, 170_000
COHORTS = (3, 5, 20, 50, 100)
LARGEST = 1 << 22
"""What Flower quantises to, so that the very same vectors can be given to both."""
MODULUS = 1 << 32

Vector = NDArray[np.int64]
Arrays = list[NDArray[Any]]


def bench_masking(tick: Tick) -> list[Result]:
    results = []
    measures: list[Callable[[], Result]] = [_client, _server, _upload, _memory]
    for measure in measures + [partial(_cohort, members) for members in COHORTS]:
        results.append(measure())
        tick()
    return results


def ticks() -> int:
    """How often `bench_masking` will tick."""
    return 4 + len(COHORTS)


def _client(members: int = 5) -> Result:
    def prepare() -> tuple[Work, Work, Work]:
        vector = _vector(LARGE)
        quantised, floats = vector.astype(np.int32), vector.astype(np.float32)
        ours, theirs = Session(members), Flower(members)
        dealt, inbox = ours.dealt_to_first(), theirs.sent_to_first()
        return (
            lambda: ours.masked(dealt, vector),
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
        total = np.sum(vectors, axis=0)
        return _opening(members, vectors, total), _flower_opening(members, vectors, total)

    ours, theirs = _medians(3, prepare)
    name = f"opening {MIDDLE / 1e6:.0f} M numbers, {members - away} of {members} members, to Flower's"
    return at_most(name, ours / theirs, 0.2, f"{ours:.2f} s", f"{theirs:.2f} s")


def _opening(members: int, vectors: Sequence[Vector], total: Vector) -> Work:
    session = Session(members)
    sent = range(1, len(vectors) + 1)
    sealed = {place: session.sealed(place, vectors[place - 1]) for place in sent}
    reveals = session.reveals(sent)

    def work() -> None:
        if not np.array_equal(session.opened(sealed, reveals), total):
            raise ArithmeticError("the opened sum is not the plain sum")

    return work


def _flower_opening(members: int, vectors: Sequence[Vector], total: Vector) -> Work:
    flower = Flower(members)
    masked = [flower.added_masks(own, vector.astype(np.int32)) for own, vector in enumerate(vectors)]
    shares = flower.collected(len(vectors))

    def work() -> None:
        if not np.array_equal(flower.opened(masked, shares)[0], total % MODULUS):
            raise ArithmeticError("Flower's sum is not the plain sum")

    return work


def _upload(members: int = 5) -> Result:
    size = Session(members).packet_bytes(_vector(SMALL))
    words = f"{size / 1e6:.4f} MB", f"{SMALL / 1e3:.0f} k numbers of 8 bytes"
    return at_most("a sealed upload, to its numbers", size / (SMALL * ELEMENT_BYTES), 1.02, *words)


def _memory() -> Result:
    ours, theirs = (_measured(who) / (LARGE * ELEMENT_BYTES) for who in ("ours", "theirs"))
    name = "memory while masking, to the vector, which counts in it"
    return at_most(name, ours, 3, f"{ours:.2f} vectors", f"Flower {theirs:.2f} vectors")


def _measured(who: str) -> int:
    command = [sys.executable, "-m", "simulations.bench.masking", who, str(LARGE)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _cohort(members: int) -> Result:
    """Our own figures. All upload the same vector: to whoever opens, any numbers are noise."""
    sent = range(1, members - _away(members) + 1)
    sizes = []

    def prepare() -> tuple[Work, ...]:
        session, vector = Session(members), _vector(MIDDLE)
        dealt, sealed, reveals = session.dealt_to_first(), session.sealed(1, vector), session.reveals(sent)
        sizes.append(session.packet_bytes(vector) + session.other_bytes(reveals))
        return (
            lambda: session.shared(dealt),
            lambda: session.sealed(1, vector),
            lambda: session.opened(dict.fromkeys(sent, sealed), reveals),
        )

    sharing, sealing, opening = _medians(3, prepare)
    ours = f"client: shares {sharing * 1e3:.1f} ms, sealing {sealing * 1e3:.0f} ms"
    name = f"masking, {len(sent)} of {members} members, {MIDDLE / 1e6:.0f} M numbers: seconds to open"
    return figure(name, opening, ours, f"{sizes[0] / 1e6:.3f} MB up")


def _medians(rounds: int, prepare: Callable[[], Sequence[Work]]) -> list[float]:
    """The median seconds of each contender: in every round a new input, and one after another."""
    times = [[once(work) for work in prepare()] for _ in range(rounds)]
    return [statistics.median(taken) for taken in zip(*times, strict=True)]


def _away(members: int) -> int:
    """A tenth of the members, or as many as may fall away."""
    return min(-(-members // 10), members - threshold_for(members))


def _vector(size: int) -> Vector:
    return np.random.default_rng().integers(0, LARGEST, size)


# Ours


class Session:
    """Members that have advertised and agreed, each place with its identity and its secrets."""

    def __init__(self, members: int) -> None:
        made = (Identity(Ed25519PrivateKey.generate()) for _ in range(members))
        self._identities = sorted(made, key=lambda each: each.public)
        self._secrets = [new_secrets(1, secrets.token_bytes) for _ in range(members)]
        terms, round_ = secrets.token_hex(32), secrets.token_hex(16)
        self._agreement = Agreement(
            terms=terms,
            cohort=secrets.token_hex(32),
            round=round_,
            lots=(LOT,),
            threshold=threshold_for(members),
            adverts=tuple(
                advertise(own, who, terms, round_, secrets.token_hex(32))
                for own, who in zip(self._secrets, self._identities, strict=True)
            ),
        )

    def _own(self, place: int) -> Secrets:
        return self._secrets[place - 1]

    def _dealt(self, place: int) -> Dealt:
        return share(self._agreement, self._own(place), place, secrets.token_bytes)

    def dealt_to_first(self) -> dict[int, bytes]:
        return {place: self._dealt(place).envelopes[1] for place in self._agreement.places if place != 1}

    def shared(self, envelopes: Mapping[int, bytes]) -> None:
        """What the first member does before it seals: check everything, deal out its shares, take in the others'."""
        check_agreement(self._agreement, self._agreement.advert(1), {each.key for each in self._agreement.adverts})
        self._dealt(1)
        for sender, envelope in envelopes.items():
            open_envelope(self._agreement, self._own(1), 1, sender, envelope)

    def sealed(self, place: int, vector: Vector) -> Sealed:
        return seal(self._agreement, self._own(place), place, LOT, self._agreement.places, vector)

    def masked(self, envelopes: Mapping[int, bytes], vector: Vector) -> Sealed:
        self.shared(envelopes)
        return self.sealed(1, vector)

    def reveals(self, sent: Sequence[int]) -> dict[int, dict[int, bytes]]:
        """As many as are needed."""
        agreement, shared = self._agreement, self._agreement.places
        signed = {place: confirm(agreement, self._identities[place - 1], LOT, shared, sent) for place in sent}
        dealt = {place: self._dealt(place) for place in shared}
        return {
            place: reveal(agreement, place, LOT, self._held(dealt, place), shared, sent, signed)
            for place in sent[: agreement.threshold]
        }

    def _held(self, dealt: Mapping[int, Dealt], own: int) -> dict[int, bytes]:
        return {
            place: each.kept
            if place == own
            else open_envelope(self._agreement, self._own(own), own, place, each.envelopes[own])
            for place, each in dealt.items()
        }

    def opened(self, sealed: Mapping[int, Sealed], reveals: Mapping[int, Mapping[int, bytes]]) -> Vector:
        opening = Opening(self._agreement, LOT, self._agreement.places, len(next(iter(sealed.values()))))
        for place, vector in sealed.items():
            opening.add(place, vector)
        return opening.total(reveals)

    def packet_bytes(self, vector: Vector) -> int:
        """What a sealed vector weighs as it is sent."""
        message = SealedSums(session=self._agreement.id.hex(), lot=LOT)
        identity, round_, request = self._identities[0], self._agreement.round, secrets.token_hex(32)
        packet = seal_packet(message, identity, round=round_, reply_to=request, blobs=[self.sealed(1, vector).data])
        return len(packet.header) + len(packet.signature) + sum(memoryview(blob).nbytes for blob in packet.blobs)

    def other_bytes(self, reveals: Mapping[int, Mapping[int, bytes]]) -> int:
        """What else a member sends in a session, without headers: its keys, envelopes, a signature, shares."""
        envelopes = sum(map(len, self._dealt(1).envelopes.values()))
        return len(self._agreement.advert(1).model_dump_json()) + envelopes + 64 + sum(map(len, reveals[1].values()))


# Theirs


@dataclass(frozen=True)
class Keys:
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

    def _agreed(self, own: int, other: int) -> bytes:
        """The key that two members encrypt with."""
        return generate_shared_key(
            bytes_to_private_key(self._keys[own].sk2), bytes_to_public_key(self._keys[other].pk2)
        )

    def _dealt(self, own: int) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Envelopes for the others, and the keys of the envelopes."""
        seeds, keys = self._shares(own)
        agreed = {other: self._agreed(own, other) for other in range(len(self._keys)) if other != own}
        envelopes = {
            other: encrypt(key, share_keys_plaintext_concat(own, other, seeds[other], keys[other]))
            for other, key in agreed.items()
        }
        return envelopes, agreed

    def sent_to_first(self) -> dict[int, bytes]:
        return {other: self._dealt(other)[0][0] for other in range(1, len(self._keys))}

    def masked(self, inbox: Mapping[int, bytes], vector: NDArray[np.int32]) -> Arrays:
        """All that the first client does from its keys to its masked vector."""
        _, agreed = self._dealt(0)
        for sender, envelope in inbox.items():
            share_keys_plaintext_separate(decrypt(agreed[sender], envelope))
        return self.added_masks(0, vector)

    def whole(self, inbox: Mapping[int, bytes], floats: NDArray[np.float32]) -> list[bytes]:
        """The same from a client's numbers to the bytes that it sends, as Flower's mod does it."""
        (quantised,) = quantize(parameters_multiply([floats], 1.0), 8.0, LARGEST)
        return [ndarray_to_bytes(array) for array in self.masked(inbox, quantised.astype(np.int32, copy=False))]

    def added_masks(self, own: int, vector: NDArray[np.int32]) -> Arrays:
        arrays: Arrays = factor_combine(1, [vector])
        shapes = get_parameters_shape(arrays)
        arrays = parameters_addition(arrays, pseudo_rand_gen(self._keys[own].seed, MODULUS, shapes))
        for other, keys in enumerate(self._keys):
            if other != own:
                mask = _pair_mask(self._keys[own].sk1, keys.pk1, shapes)
                arrays = (parameters_addition if own > other else parameters_subtraction)(arrays, mask)
        return parameters_mod(arrays, MODULUS)

    def collected(self, sent: int) -> list[list[bytes]]:
        """For every member the shares of its seed, or of its key if it fell away, as many as are needed."""
        return [self._shares(own)[0 if own < sent else 1][: self._threshold] for own in range(len(self._keys))]

    def opened(self, masked: Sequence[Arrays], shares: Sequence[list[bytes]]) -> Arrays:
        total = masked[0]
        for arrays in masked[1:]:
            total = parameters_addition(total, arrays)
        total = parameters_mod(total, MODULUS)
        for own, collected in enumerate(shares):
            total = self._taken_off(total, own, combine_shares(collected), len(masked))
        return factor_extract(parameters_mod(total, MODULUS))[1]

    def _taken_off(self, total: Arrays, own: int, secret: bytes, sent: int) -> Arrays:
        shapes = get_parameters_shape(total)
        if own < sent:
            return parameters_subtraction(total, pseudo_rand_gen(secret, MODULUS, shapes))
        for other in range(sent):
            mask = _pair_mask(secret, self._keys[other].pk1, shapes)
            total = (parameters_addition if own > other else parameters_subtraction)(total, mask)
        return total


def _new_keys() -> Keys:
    (sk1, pk1), (sk2, pk2) = generate_key_pairs(), generate_key_pairs()
    first = private_key_to_bytes(sk1), public_key_to_bytes(pk1)
    return Keys(*first, private_key_to_bytes(sk2), public_key_to_bytes(pk2), secrets.token_bytes(32))


def _pair_mask(private: bytes, public: bytes, shapes: list[tuple[int, ...]]) -> Arrays:
    key = generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public))
    return list(pseudo_rand_gen(key, MODULUS, shapes))


# In a process of its own


def main(who: str, size: int, members: int = 5) -> None:
    ours, theirs = Session(members), Flower(members)
    dealt, inbox = ours.dealt_to_first(), theirs.sent_to_first()
    before = _resident("VmRSS")
    if who == "ours":
        ours.masked(dealt, _vector(size))
    else:
        theirs.masked(inbox, _vector(size).astype(np.int32))
    print(_resident("VmHWM") - before)


def _resident(which: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
