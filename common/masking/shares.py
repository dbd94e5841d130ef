"""What masks are made of: a stream of random bytes, who masks with whom, and shares of secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import (
    Cipher,
    CipherContext,
    algorithms,
    modes,
)
from numpy.typing import NDArray

from ridgeway.common.base.errors import MaskingError, Refused

# Masks: a keystream of AES-128 in counter mode, added to a vector in the ring Z/2⁶⁴, block by block
# in place.
#
# A key masks one vector and is never used again. What is sealed is a type of its own, without
# arithmetic: nothing but a completed session makes numbers of it again.


Vector = NDArray[np.uint64]
Operation = Callable[..., object]

ELEMENT_BYTES = 8
KEY_BYTES = 16
"""As strong as the agreements by X25519 that keys come of, and a quarter faster than 32 would be.
"""
BLOCK = 1 << 15
"""Elements a step: a quarter of a megabyte of keystream, which stays in the cache with what it is
added to.
"""


class Sealed:
    """A vector under its masks: to be sent, stored and added up in an `Opening`, and nothing
    else.
    """

    def __init__(self, masked: Vector) -> None:
        self._masked = masked

    @classmethod
    def of_bytes(cls, content: bytes | memoryview) -> Sealed:
        """What arrived, without a copy."""
        if memoryview(content).nbytes % ELEMENT_BYTES:
            raise Refused("shape_mismatch", "a sealed vector must be whole numbers")
        return cls(np.frombuffer(content, dtype="<u8"))

    @property
    def data(self) -> memoryview:
        """What is sent, without a copy."""
        return self._masked.data.cast("B")

    def __len__(self) -> int:
        return len(self._masked)

    def add_to(self, running: Vector) -> None:
        np.add(running, self._masked, out=running)

    def take_from(self, running: Vector) -> None:
        np.subtract(running, self._masked, out=running)

    def __repr__(self) -> str:
        return f"<Sealed {len(self)} numbers>"


def apply_masks(
    vector: Vector,
    added: Iterable[bytes],
    subtracted: Iterable[bytes],
    threads: int = 1,
) -> None:
    """Add and subtract the keystreams of these keys, modulo 2⁶⁴. threads: that share the vector
    out.
    """
    keys: list[tuple[bytes, Operation]] = [(key, np.add) for key in added]
    keys += [(key, np.subtract) for key in subtracted]
    size = max(BLOCK, 2 * -(-len(vector) // (2 * threads)))

    def apply_part(first: int) -> None:
        """Apply them all to the part that begins with this number, an even one."""
        part = vector[first : first + size]
        streams = [(_stream(key, first), operation) for key, operation in keys]
        zeros = memoryview(bytes(BLOCK * ELEMENT_BYTES))
        buffer = bytearray(BLOCK * ELEMENT_BYTES + 15)
        noise = np.frombuffer(buffer, dtype="<u8", count=BLOCK)
        for start in range(0, len(part), BLOCK):
            block = part[start : start + BLOCK]
            for stream, operation in streams:
                stream.update_into(zeros[: block.nbytes], buffer)
                operation(block, noise[: len(block)], out=block)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(apply_part, range(0, len(vector), size)))


def _stream(key: bytes, first: int) -> CipherContext:
    counter = first * ELEMENT_BYTES // 16
    return Cipher(
        algorithms.AES128(key), modes.CTR(counter.to_bytes(16, "big"))
    ).encryptor()


# Shamir's secret sharing over a prime field: any `threshold` shares give the secret back, fewer say
# nothing.
#
# Randomness is passed in.


PRIME = (1 << 256) + 297
"""The smallest prime beyond 2²⁵⁶, so that any 32 bytes are a secret."""

SECRET_BYTES = 32
SHARE_BYTES = 33
INDEX_BYTES = 2

Random = Callable[[int], bytes]
"""Gives as many random bytes as it is asked for: `secrets.token_bytes`, or fixed ones in tests."""


def split(
    secret: bytes, threshold: int, indices: Sequence[int], random: Random
) -> dict[int, bytes]:
    """One share for each index. Indices are distinct and positive: a share at 0 would be the
    secret.
    """
    if len(secret) != SECRET_BYTES:
        raise MaskingError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if (
        not 1 <= threshold <= len(indices)
        or len(set(indices)) != len(indices)
        or min(indices) < 1
    ):
        raise MaskingError(
            f"a threshold of {threshold} does not fit {len(indices)} shares"
        )
    coefficients = [
        int.from_bytes(secret, "big"),
        *(_field_element(random) for _ in range(threshold - 1)),
    ]
    return {
        index: _evaluate(coefficients, index).to_bytes(SHARE_BYTES, "big")
        for index in indices
    }


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret of at least `threshold` shares; of fewer, or of wrong ones, something else or an
    error.
    """
    points = {index: int.from_bytes(share, "big") for index, share in shares.items()}
    if not points or min(points) < 1 or max(points.values()) >= PRIME:
        raise MaskingError("not shares of a secret")
    weights = _weights(tuple(points))
    secret: int = sum(map(mul, points.values(), weights)) % PRIME
    if secret >> 256:
        raise MaskingError("the shares are not of one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def pack_by_member(parts: Mapping[int, bytes]) -> bytes:
    """Parts that are sent together, in the order of the indices that stand before them."""
    return b"".join(
        index.to_bytes(INDEX_BYTES, "big") + part
        for index, part in sorted(parts.items())
    )


def unpack_by_member(content: bytes | memoryview, size: int) -> dict[int, bytes]:
    """The inverse, for parts of one size; raises MaskingError unless all are whole and in order."""
    whole = bytes(content)
    step = INDEX_BYTES + size
    entries = [whole[start : start + step] for start in range(0, len(whole), step)]
    parts = {
        int.from_bytes(entry[:INDEX_BYTES], "big"): entry[INDEX_BYTES:]
        for entry in entries
    }
    if len(whole) % step or len(parts) != len(entries) or list(parts) != sorted(parts):
        raise MaskingError(f"not parts of {size} bytes in order")
    return parts


def _evaluate(coefficients: Sequence[int], index: int) -> int:
    value = 0
    # indices are small, so one division at the end costs least
    for coefficient in reversed(coefficients):
        value = value * index + coefficient
    return value % PRIME


@lru_cache(maxsize=2048)
def _weights(indices: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's basis polynomials of these indices, at 0; the same indices come again for every
    secret of a session.
    """
    above = prod(indices)
    below = [
        index * prod(other - index for other in indices if other != index) % PRIME
        for index in indices
    ]
    before = list(accumulate(below, lambda one, other: one * other % PRIME, initial=1))
    inverse = pow(before[-1], -1, PRIME)
    weights = []
    # one inversion for all of them
    for product, factor in zip(reversed(before[:-1]), reversed(below), strict=True):
        weights.append(above * product * inverse % PRIME)
        inverse = inverse * factor % PRIME
    return tuple(reversed(weights))


def _field_element(random: Random) -> int:
    """Uniform below PRIME: 16 bytes more than needed leave no bias that could be seen."""
    return int.from_bytes(random(SHARE_BYTES + 16), "big") % PRIME


# Who holds whose shares in a large cohort: a random neighbourhood of each member's own choice, and
# how large it is.
#
# Up to COMPLETE members everybody deals to everybody. In larger cohorts (Bell et al. 2020, the
# variant against a hostile server) a member deals its secrets out to `holders` others, and shares
# masks with them and with those that dealt to it. It draws them itself, after everybody's keys are
# fixed, so neither the coordinator nor other members can choose them, or try many keys until they
# suit. TABLE holds sizes, which every member must know alike: a secret is lost once in 2⁴⁰
# sessions, and a round fails once in 2³⁰ where one in MAX_GONE members falls away, as
# tests/support/neighbourhood_failure.py computes. Pure; knows arithmetic.


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
