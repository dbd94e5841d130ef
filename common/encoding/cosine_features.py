"""Features of a sample that are no sums over its tokens: cosines of random directions through its
mean, in integers.

These are random Fourier features (Rahimi & Recht, 2007): their products approximate a Gaussian
kernel between the directions of two means. Signs and phases come from a hash, cosines from a table
that is worked out in whole numbers, and every step between is exact, so that a sample has the same
cosines on every machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import FEATURE_LIMIT, CosineFeatures

Integers = NDArray[np.int64]

TURN = 1 << 12
"""The steps of a full turn, in which angles are counted."""
UNIT = 1 << 64
PI = 0x3243F6A8885A308D3
"""1 and π, with 64 binary digits behind the point."""
MAX_ORDER = 24
"""Taylor's series of a cosine up to here is right to 60 binary digits within a quarter of a turn.
"""

NARROW_LIMIT = 1 << 24
"""Below this, float32 holds every integer."""
SAMPLES_AT_ONCE = 1024


@dataclass(frozen=True, eq=False, repr=False)
class Cosines:
    """The cosines of samples of `inputs` whole numbers, none beyond FEATURE_LIMIT.

    With each of `options.width` rows of signs s, a sample x has the angle ⌊frequency · (x·s) /
    ⌊|x|⌋⌋ + phase, in steps of a turn; its feature is amplitude · cos(angle), rounded. Law: a
    sample's cosines depend on the sample alone.
    """

    options: CosineFeatures
    inputs: int

    @property
    def width(self) -> int:
        return self.options.width

    @cached_property
    def signs(self) -> NDArray[np.floating[Any]]:
        """inputs × width, +1 or −1, in a type that holds every partial sum of a sample's product
        with them.
        """
        kind = np.float32 if self.inputs * FEATURE_LIMIT < NARROW_LIMIT else np.float64
        drawn = np.frombuffer(
            self._drawn(b"signs", -(-self.inputs // 8) * self.width), dtype=np.uint8
        )
        bits = np.unpackbits(drawn.reshape(self.width, -1), axis=1, count=self.inputs)
        return np.ascontiguousarray(2 * bits.T.astype(kind) - 1)

    @cached_property
    def phases(self) -> Integers:
        return (
            np.frombuffer(self._drawn(b"phases", 2 * self.width), dtype="<u2").astype(
                np.int64
            )
            % TURN
        )

    @cached_property
    def table(self) -> NDArray[np.int16]:
        """What every angle gives."""
        return np.array(cosine_table(self.options.amplitude), dtype=np.int16)

    def _drawn(self, what: bytes, size: int) -> bytes:
        return hashlib.shake_256(
            b"ridgeway cosines, %s of %d" % (what, self.inputs)
        ).digest(size)

    def of(self, samples: NDArray[np.int16]) -> NDArray[np.int16]:
        """The cosines of N×inputs samples, N×width."""
        found = np.empty((len(samples), self.width), dtype=np.int16)
        for start in range(0, len(samples), SAMPLES_AT_ONCE):
            block = slice(start, start + SAMPLES_AT_ONCE)
            exact = samples[block].astype(self.signs.dtype)
            products = (exact @ self.signs).astype(np.int64)
            squares = np.square(exact, dtype=np.float64).sum(axis=1).astype(np.int64)
            angles = (
                self.options.frequency * products // whole_roots(squares)[:, None]
                + self.phases
            )
            self.table.take(angles & TURN - 1, out=found[block])
        return found


@lru_cache(maxsize=4)
def shared_cosines(options: CosineFeatures, inputs: int) -> Cosines:
    """The same object for the same cosines, since drawing signs takes some time."""
    return Cosines(options, inputs)


def whole_roots(squares: Integers) -> Integers:
    """The whole part of each square root, at least 1."""
    roots = np.rint(np.sqrt(squares.astype(np.float64))).astype(np.int64)
    return np.maximum(roots - (roots * roots > squares), 1)


def cosine_table(amplitude: int) -> list[int]:
    """amplitude · cos(2πk / TURN) for every k, rounded to the nearest whole number."""
    quarter = [
        (2 * amplitude * _cosine(step) + UNIT) // (2 * UNIT)
        for step in range(TURN // 4 + 1)
    ]
    half = [*quarter, *(-value for value in quarter[-2::-1])]
    return [*half, *half[-2:0:-1]]


def _cosine(step: int) -> int:
    """Of an angle within a quarter of a turn, times UNIT."""
    square = (2 * PI * step // TURN) ** 2 // UNIT
    total = term = UNIT
    for order in range(2, MAX_ORDER + 1, 2):
        term = -term * square // (UNIT * order * (order - 1))
        total += term
    return total
