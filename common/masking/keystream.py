"""Masks: a keystream of AES-128 in counter mode, added to a vector in the ring Z/2⁶⁴, block by
block in place.

A key masks one vector and is never used again. What is sealed is a type of its own, without
arithmetic: nothing but a completed session makes numbers of it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cryptography.hazmat.primitives.ciphers import (
    Cipher,
    CipherContext,
    algorithms,
    modes,
)
from numpy.typing import NDArray

from ridgeway.common.base.errors import Refused

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
