"""Backups: taken in the middle of a round, restored to the same bytes; an older one is noticed, and
mended honestly.
"""

from __future__ import annotations

import io
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ridgeway.common.base.errors import FormatError, InputError
from ridgeway.common.deploy.backup import MANIFEST_NAME
from ridgeway.common.deploy.bundle import installed_sha256
from ridgeway.common.protocol.packet import Packet
from ridgeway.coordinator.deploy.authority import create_authority
from ridgeway.coordinator.deploy.coordinator_folder import (
    LEDGER,
    back_up,
    keep_installed,
    restore,
)
from ridgeway.coordinator.round.ask import PeerAnswer
from ridgeway.coordinator.round.federation import Federation
from tests.support.making import contents
from tests.support.simulated_federation import (
    Direct,
    Parties,
    found,
    populate,
    round_fails,
    round_of,
)

HOLDERS = {"code": "code", "code-2": "code", "law": "law", "medicine": "medicine"}


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """A masked federation of four, whose folders every test copies."""
    made = found(tmp_path_factory.mktemp("settled"), mode="masked")
    parties = populate(made, HOLDERS)
    create_authority(parties.federation.link, [])
    return parties


@pytest.fixture
def parties(settled: Parties, tmp_path: Path) -> Parties:
    return settled.copy(tmp_path / "parties")


class BackingUp(Direct):
    """A transport in whose every exchange a backup is taken."""

    def __init__(self, parties: Parties, folder: Path) -> None:
        super().__init__(parties)
        self._parties, self._folder = parties, folder
        folder.mkdir()
        self.taken: list[Path] = []

    def exchange(
        self, packets: Mapping[int, Packet], seconds: float
    ) -> Iterator[tuple[int, PeerAnswer]]:
        yield from super().exchange(packets, seconds)
        self.taken.append(self._folder / f"{len(self.taken):02}.backup")
        back_up(self._parties.federation, self.taken[-1])


def restored(source: Path, parties: Parties) -> None:
    """Put a backup in the place of the coordinator's folder, which is lost."""
    shutil.rmtree(parties.folder / "coordinator")
    restore(source, parties.folder / "coordinator")


def test_a_backup_of_every_moment_of_a_round_is_whole(
    parties: Parties, tmp_path: Path
) -> None:
    """Whatever step it was taken in, it restores to a folder that verifies; the last to the
    release's very bytes.
    """
    transport = BackingUp(parties, tmp_path / "backups")
    round_of(parties, transport)
    federation = parties.federation
    assert len(transport.taken) >= 8
    entries = []
    for number, source in enumerate(transport.taken):
        entries.append(restore(source, tmp_path / "restored" / str(number)).entries)
        Federation(tmp_path / "restored" / str(number)).verify()
    assert entries == sorted(entries) and entries[0] < entries[-1]
    back_up(federation, tmp_path / "last")
    restore(tmp_path / "last", tmp_path / "again")
    again = Federation(tmp_path / "again")
    assert again.standing == federation.standing
    made = again.release_folder(1)
    assert contents(made) == contents(federation.release_folder(1))
    assert made.with_name("latest").resolve() == made.resolve()
    assert again.identity.public == federation.identity.public


def test_a_restored_coordinator_has_its_bundles_and_its_own_code_of_each(
    parties: Parties, tmp_path: Path
) -> None:
    federation = parties.federation
    keep_installed(federation)
    back_up(federation, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    kept = {path.name: path for path in (tmp_path / "restored/link/bundles").iterdir()}
    server = f"{installed_sha256()}.server"
    assert set(kept) == {f"{installed_sha256()}.fab", server}
    assert (kept[server] / "ridgeway/coordinator/server_app.py").is_file()


def test_nobody_else_can_read_a_backup_or_what_was_restored(
    parties: Parties, tmp_path: Path
) -> None:
    back_up(parties.federation, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    secrets = [tmp_path / "backup", *(tmp_path / "restored").rglob("*.key")]
    assert len(secrets) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    assert stat.S_IMODE((tmp_path / "restored").stat().st_mode) == 0o700


def test_nothing_is_overwritten(parties: Parties, tmp_path: Path) -> None:
    """Neither an earlier backup nor a folder that holds anything."""
    (tmp_path / "backup").write_bytes(b"mine")
    with pytest.raises(InputError, match="exists already"):
        back_up(parties.federation, tmp_path / "backup")
    back_up(parties.federation, tmp_path / "other")
    with pytest.raises(InputError, match="not empty"):
        restore(tmp_path / "other", parties.folder / "coordinator")
    assert (tmp_path / "backup").read_bytes() == b"mine"


def altered(source: Path, name: str, content: bytes) -> Path:
    """A copy of an archive in which one member has another content."""
    target = source.with_name("altered")
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old:
            file = old.extractfile(member)
            assert file is not None
            data = content if member.name == name else file.read()
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    return target


def test_a_damaged_backup_is_refused_and_leaves_no_folder(
    parties: Parties, tmp_path: Path
) -> None:
    """One byte, one file less, one more, a list that is no list, half of it, none of it."""
    round_of(parties)
    source = tmp_path / "backup"
    made = back_up(parties.federation, source)
    for name in (
        LEDGER,
        "coordinator.key",
        next(name for name in made.files if name.startswith("contributions/")),
    ):
        with pytest.raises(FormatError, match="damaged"):
            restore(altered(source, name, b"x"), tmp_path / "new")
    for content in (b"{}", b"[]", b""):
        with pytest.raises(FormatError, match="not a backup"):
            restore(altered(source, MANIFEST_NAME, content), tmp_path / "new")
    whole = source.read_bytes()
    for part in (b"", b"x" * 2000, whole[: len(whole) // 2]):
        source.write_bytes(part)
        with pytest.raises(FormatError):
            restore(source, tmp_path / "new")
    with pytest.raises(InputError, match="no file"):
        restore(tmp_path / "nothing", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_after_yesterdays_backup_holders_whose_data_is_in_a_total_are_named(
    parties: Parties, tmp_path: Path
) -> None:
    """The ledger does not know the total; the holders do. The very same one may be opened again,
    and no other; the next release takes a number that nobody has.
    """
    back_up(parties.federation, tmp_path / "yesterday")
    round_of(parties)
    router = parties.router(1)
    restored(tmp_path / "yesterday", parties)
    with round_fails("sum of statistics, but 3 are needed"):
        round_of(parties, Direct(parties, ["code", "code-2", "medicine"]))
    assert round_of(parties).number == 2
    assert parties.router(2) == router
    restored(tmp_path / "yesterday", parties)
    parties.ready("law")
    with round_fails("code, code-2, medicine must open a new epoch"):
        round_of(parties)
    parties.new_epochs("code", "code-2", "medicine")
    assert round_of(parties).number == 3
    assert parties.holder("law").newest == 3


def test_a_backup_into_a_folder_that_is_not_there_says_so(
    parties: Parties, tmp_path: Path
) -> None:
    """It makes none: a name that was mistyped, or a disk that is not mounted, is no place for a
    backup.
    """
    with pytest.raises(InputError, match=r"there is no folder .*/typo; make it first"):
        back_up(parties.federation, tmp_path / "typo" / "co.backup")
    assert not (tmp_path / "typo").exists()
