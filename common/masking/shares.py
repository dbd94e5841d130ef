"""Shamir's secret sharing over a prime field: any `threshold` shares give the secret back, fewer
say nothing.

Randomness is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod

from ridgeway.common.base.errors import MaskingError

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
    if (
        not points
        or any(index < 1 for index in points)
        or any(value >= PRIME for value in points.values())
    ):
        raise MaskingError("not shares of a secret")
    weights = _weights(tuple(points))
    secret = (
        sum(
            value * weight
            for value, weight in zip(points.values(), weights, strict=True)
        )
        % PRIME
    )
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
