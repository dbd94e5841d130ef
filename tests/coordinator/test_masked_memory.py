"""The coordinator's memory in a masked round: what is sent is added up as it comes, and not kept."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from client.answers import answer
from common.messages import Packet
from common.statistics import vector_size
from coordinator.rounds import run_round
from tests.coordinator.faults import make_haste
from tests.tiny import tiny_encoder
from tests.village import Village, found, populate

WIDTH = 576
MEMBERS = {f"{domain}-{place}": domain for domain in ("code", "law", "medicine") for place in range(3)}
VECTOR = 8 * vector_size(WIDTH + 1, 3)


class Enough(Exception):
    """The rest of the round is not looked at."""


class OneByOne:
    """A transport that keeps nothing: a holder is there only while it answers."""

    def __init__(self, village: Village) -> None:
        self._village, self._names = village, list(village.homes)

    def peers(self) -> list[int]:
        return list(range(len(self._names)))

    def exchange(self, packets: Mapping[int, Packet], seconds: float) -> Iterator[tuple[int, Packet | None]]:
        for peer, packet in packets.items():
            yield peer, answer(self._village.holder(self._names[peer]), packet)


@pytest.fixture
def village(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Village:
    """Nine holders, and vectors as long as those of the default encoder."""
    make_haste(monkeypatch)
    village = found(tmp_path, encoder=tiny_encoder(WIDTH), mode="masked")
    populate(village, MEMBERS)
    for name in MEMBERS:  # what holders keep between two messages is made before anything is measured
        village.holder(name).ready(village.federation().terms)
    return village


def test_memory_does_not_grow_with_the_members_that_send(village: Village) -> None:
    """With nine vectors in the sum no more is held than with one: the running sum, and the vector that just came."""
    held: list[int] = []
    peak = 0

    def watch(event: str, facts: Mapping[str, Any]) -> None:
        nonlocal peak
        if event == "sealed" and facts["lot"] == "statistics":
            assert facts["bytes"] == VECTOR
            held.append(tracemalloc.get_traced_memory()[0])
        if event == "opened_sum" and facts["lot"] == "statistics":
            peak = tracemalloc.get_traced_memory()[1]
            raise Enough

    tracemalloc.start()
    try:
        with pytest.raises(Enough):
            run_round(village.federation(), OneByOne(village), watch)
    finally:
        tracemalloc.stop()
    assert len(held) == len(MEMBERS)
    assert max(held) < 3 * VECTOR
    assert max(held) - min(held) < VECTOR / 4
    assert peak < 16 * VECTOR  # the making of a vector included, for holders answer in this very process
