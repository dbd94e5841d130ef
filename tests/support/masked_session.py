"""Masked sessions of fixed randomness, with members that fall away where a test says so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from ridgeway.common.base.identity import Identity
from ridgeway.common.masking.reference_session import (
    ROUND,
    Step,
    Transcript,
    masked_sum,
)
from ridgeway.common.masking.shares import Neighbourhood, Random

SUM_NAMES = ("sums", "counts")
EVERYBODY_STAYS: Mapping[int, Step] = MappingProxyType({})


@contextmanager
def small_neighbourhoods(holders: int, threshold: int) -> Iterator[None]:
    """While this lasts, all cohorts are large ones, with neighbourhoods of this size, or of all
    others.
    """
    few = (
        (members, Neighbourhood(members - 1, min(threshold, members - 1)))
        for members in range(1, holders + 1)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ridgeway.common.masking.shares.COMPLETE", 0)
        patch.setattr(
            "ridgeway.common.masking.shares._TABLE",
            (*few, (1000, Neighbourhood(holders, threshold))),
        )
        yield


def fixed_random(seed: str) -> Random:
    """Bytes that depend on the seed and on how many were drawn before."""
    drawn = 0

    def draw(size: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(f"{seed} {drawn}".encode()).digest(size)

    return draw


def run_session(
    members: int,
    sum_name: str = "sums",
    vectors: Sequence[NDArray[np.int64]] | None = None,
    fallen: Mapping[int, Step] = EVERYBODY_STAYS,
    *,
    seed: str = "session",
    round_: str = ROUND,
) -> Transcript:
    """A session of members whose keys and secrets the seed gives; `fallen` names the first step
    that a member does not take.
    """

    def random(purpose: str, member: int) -> Random:
        number = member - 1 if purpose == "secrets" else member
        return fixed_random(f"{seed} {purpose} {number}")

    identities = sorted(
        (_identity(f"{seed} {index}") for index in range(members)),
        key=lambda identity: identity.public,
    )
    given = vectors or [np.zeros(4, dtype=np.int64)] * members
    return masked_sum(
        identities,
        given,
        fallen,
        random,
        sum_names=SUM_NAMES,
        sum_name=sum_name,
        round_=round_,
    )


def _identity(seed: str) -> Identity:
    return Identity(
        Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed.encode()).digest())
    )
