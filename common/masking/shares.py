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
PLACE_BYTES = 2

Random = Callable[[int], bytes]
"""Gives as many random bytes as it is asked for: `secrets.token_bytes`, or fixed ones in tests."""


def split(
    secret: bytes, threshold: int, places: Sequence[int], random: Random
) -> dict[int, bytes]:
    """One share for each place. Places are distinct and positive: a share at 0 would be the
    secret.
    """
    if len(secret) != SECRET_BYTES:
        raise MaskingError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if (
        not 1 <= threshold <= len(places)
        or len(set(places)) != len(places)
        or min(places) < 1
    ):
        raise MaskingError(
            f"a threshold of {threshold} does not fit {len(places)} shares"
        )
    coefficients = [
        int.from_bytes(secret, "big"),
        *(_field_element(random) for _ in range(threshold - 1)),
    ]
    return {
        place: _evaluate(coefficients, place).to_bytes(SHARE_BYTES, "big")
        for place in places
    }


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret of at least `threshold` shares; of fewer, or of wrong ones, something else or an
    error.
    """
    points = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    if (
        not points
        or any(place < 1 for place in points)
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


def pack_by_place(parts: Mapping[int, bytes]) -> bytes:
    """Parts that are sent together, in the order of the places that stand before them."""
    return b"".join(
        place.to_bytes(PLACE_BYTES, "big") + part
        for place, part in sorted(parts.items())
    )


def unpack_by_place(content: bytes | memoryview, size: int) -> dict[int, bytes]:
    """The inverse, for parts of one size; raises MaskingError unless all are whole and in order."""
    whole = bytes(content)
    step = PLACE_BYTES + size
    entries = [whole[start : start + step] for start in range(0, len(whole), step)]
    parts = {
        int.from_bytes(entry[:PLACE_BYTES], "big"): entry[PLACE_BYTES:]
        for entry in entries
    }
    if len(whole) % step or len(parts) != len(entries) or list(parts) != sorted(parts):
        raise MaskingError(f"not parts of {size} bytes in order")
    return parts


def _evaluate(coefficients: Sequence[int], place: int) -> int:
    value = 0
    # places are small, so one division at the end costs least
    for coefficient in reversed(coefficients):
        value = value * place + coefficient
    return value % PRIME


@lru_cache(maxsize=2048)
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's basis polynomials of these places, at 0; the same places come again for every
    secret of a session.
    """
    above = prod(places)
    below = [
        place * prod(other - place for other in places if other != place) % PRIME
        for place in places
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
