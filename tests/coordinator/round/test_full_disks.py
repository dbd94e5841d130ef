"""Disks that fill up in the middle of a masked round, the coordinator's or a holder's, at any
write.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeway.common.base.errors import RidgewayError, RoundFailed
from ridgeway.common.protocol.messages import SealedSums
from ridgeway.common.protocol.packet import Packet
from ridgeway.coordinator.round.progress import Follower, RunFailed, progress_file
from tests.support.faults import (
    FullDisk,
    check_folders,
    check_received,
    let_steps_be_seen,
)
from tests.support.masked_faults import let_holders_fall
from tests.support.seeds import seeds
from tests.support.simulated_federation import (
    DOMAINS,
    Direct,
    Parties,
    of_kind,
    round_of,
)

NAMES = ("code-1", "code-2", "law-1", "law-2", "medicine")
FULL = "law-2"
PARTS = 4
"""The writes of a round are tried out in so many tests, each of which takes one in so many; a usual
run has half.
"""


class Answering(Direct):
    """As a holder's app does, say nothing where the answer cannot be given."""

    disk: FullDisk | None = None

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        if self.disk is None or name != FULL:
            yield from super().answers(name, peer, packet)
            return
        with pytest.MonkeyPatch.context() as patch:
            let_holders_fall(patch, self.disk)
            try:
                replies = list(super().answers(name, peer, packet))
            except Exception:
                return
        yield from replies


@pytest.mark.parametrize("part", seeds(PARTS, PARTS // 2))
def test_a_coordinator_whose_disk_is_full_says_so_and_has_lost_nothing(
    parties: Parties, tmp_path: Path, part: int
) -> None:
    """At whichever write: one sentence, a ledger that holds, no half of a release, and then the
    release as ever.
    """
    disk, undisturbed = FullDisk(), parties.copy(tmp_path / "undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        let_steps_be_seen(patch, disk)
        wanted = round_of(undisturbed, Direct(undisturbed, NAMES))
    writes = disk.taken
    assert writes > 15
    for first in range(1 + part, writes + 1, PARTS):
        tried = parties.copy(tmp_path / str(first))
        disk.taken, disk.full_from = 0, first
        said = tried.folder / "progress.jsonl"
        with pytest.MonkeyPatch.context() as patch:
            let_steps_be_seen(patch, disk)
            try:
                with progress_file(said) as watch:
                    round_of(tried, Direct(tried, NAMES), watch)
            except RidgewayError as error:
                assert "disk" in str(error) and "\n" not in str(error)
                assert list(Follower(said).events())[-1] == RunFailed(str(error))
        federation = tried.federation
        federation.ledger.verify()
        check_folders(federation)
        published = round_of(tried, Direct(tried, NAMES))
        assert tried.router(published.number) == undisturbed.router(wanted.number)


@pytest.mark.parametrize("part", seeds(PARTS, PARTS // 2))
def test_a_holder_whose_disk_is_full_sends_nothing_that_it_could_not_note(
    parties: Parties, tmp_path: Path, part: int
) -> None:
    """The others go on without it; its journal holds, and with room again it is in the next round
    or named in it.
    """
    disk, undisturbed = FullDisk(), parties.copy(tmp_path / "undisturbed")
    transport = Answering(undisturbed, NAMES)
    transport.disk = disk
    round_of(undisturbed, transport)
    assert disk.taken > 10
    for first in range(1 + part, disk.taken + 1, PARTS):
        tried = parties.copy(tmp_path / str(first))
        transport = Answering(tried, NAMES)
        transport.disk = FullDisk()
        transport.disk.full_from = first
        published = round_of(tried, transport)
        holder, federation = tried.holder(FULL), tried.federation
        noted = [entry.facts["lot"] for entry in holder.journal.entries("sent")]
        messages = [message for name, message in transport.messages if name == FULL]
        assert [message.lot for message in of_kind(SealedSums, messages)] == noted
        assert holder.journal.verify() == len(holder.journal.entries())
        federation.ledger.verify()
        assert published.domains == DOMAINS
        try:
            round_of(tried, Direct(tried, NAMES))
        except RoundFailed as error:
            assert "must open a new epoch" in str(error)
        else:
            check_received(tried.holder(FULL), federation)
