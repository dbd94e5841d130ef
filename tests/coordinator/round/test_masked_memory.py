"""The coordinator's memory in a masked round: what is sent is added up as it comes, and not
kept.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ridgeway.client.round.answers import answer
from ridgeway.common.protocol.packet import Packet
from ridgeway.common.statistics import vector_size
from ridgeway.coordinator.round.progress import Event, SealedReceived, SumOpened
from tests.support.simulated_federation import (
    DOMAINS,
    Parties,
    found,
    populate,
    round_of,
)
from tests.support.tiny import tiny_encoder

WIDTH = 576
MEMBERS = {f"{domain}-{number}": domain for domain in DOMAINS for number in range(3)}
VECTOR = 8 * vector_size(WIDTH + 1, 3)


class Enough(Exception):
    """The rest of the round is not looked at."""


class OneByOne:
    """A transport that keeps nothing: a holder is there only while it answers."""

    def __init__(self, parties: Parties) -> None:
        self._parties, self._names = parties, list(parties.homes)

    def peers(self) -> list[int]:
        return list(range(len(self._names)))

    def exchange(
        self, packets: Mapping[int, Packet], seconds: float
    ) -> Iterator[tuple[int, Packet | None]]:
        for peer, packet in packets.items():
            yield peer, answer(self._parties.holder(self._names[peer]), packet)


@pytest.fixture
def parties(tmp_path: Path, haste: None) -> Parties:
    """Nine holders, and vectors as long as those of the default encoder."""
    made = found(tmp_path, encoder=tiny_encoder(WIDTH), mode="masked")
    return populate(made, MEMBERS)


def test_memory_does_not_grow_with_the_members_that_send(parties: Parties) -> None:
    """With nine vectors in the sum no more is held than with one: the running sum, and the vector
    that just came.
    """
    held: list[int] = []
    peak = 0

    def watch(event: Event) -> None:
        nonlocal peak
        match event:
            case SealedReceived(lot="statistics"):
                assert event.bytes == VECTOR
                held.append(tracemalloc.get_traced_memory()[0])
            case SumOpened(lot="statistics"):
                peak = tracemalloc.get_traced_memory()[1]
                raise Enough

    tracemalloc.start()
    try:
        with pytest.raises(Enough):
            round_of(parties, OneByOne(parties), watch)
    finally:
        tracemalloc.stop()
    assert len(held) == len(MEMBERS)
    assert max(held) < 3 * VECTOR
    assert max(held) - min(held) < VECTOR / 4
    # the making of a vector included, for holders answer in this very process
    assert peak < 16 * VECTOR
