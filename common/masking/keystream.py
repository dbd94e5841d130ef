"""Masks: a keystream of AES-256 in counter mode, added to a vector in the ring Z/2⁶⁴, block by block in place.

Knows the cryptography package and numpy. A key masks one vector and is never used again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

Vector = NDArray[np.uint64]

BLOCK = 1 << 16
"""Elements a step: half a megabyte of keystream, which stays in the cache."""


def apply_masks(vector: Vector, added: Iterable[bytes], subtracted: Iterable[bytes]) -> None:
    """Add and subtract the keystreams of these keys, modulo 2⁶⁴."""
    streams = [(_stream(key), np.add) for key in added] + [(_stream(key), np.subtract) for key in subtracted]
    zeros = bytes(BLOCK * 8)
    buffer = bytearray(BLOCK * 8 + 15)
    for start in range(0, len(vector), BLOCK):
        part = vector[start : start + BLOCK]
        size = part.nbytes
        for stream, operation in streams:
            stream.update_into(memoryview(zeros)[:size], buffer)
            operation(part, np.frombuffer(buffer, dtype="<u8", count=len(part)), out=part)


def _stream(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
