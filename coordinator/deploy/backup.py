"""A coordinator's folder in one file, and back: taken while it runs, verified when it is written
and when it is read.

The file is a tar archive that only its owner can read: it holds the private keys. `backup.json`,
its first member, names every other with its SHA-256. The ledger is copied by SQLite's own backup,
at one moment; then every file that this copy names. What Flower keeps is left out: `coordinator up`
makes it anew from the ledger.
"""

from __future__ import annotations

import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import ValidationError

from ridgeway.common.base.errors import FormatError, InputError, RidgewayError
from ridgeway.common.base.files import (
    canonical_json,
    check_new_folder,
    sha256_of_file,
    whole_file,
    whole_folder,
    write_whole,
)
from ridgeway.common.base.schema import Digest, PublicKey, Record
from ridgeway.coordinator.round.federation import KEY, PRIOR, Federation
from ridgeway.coordinator.round.ledger import Ledger

_MANIFEST = "backup.json"
LEDGER = "ledger.db"
SINGLE_FILES = (
    "coordinator.toml",
    KEY,
    f"{KEY}.next",
    "changes.txt",
    PRIOR,
    "link/ca.crt",
    "link/ca.key",
    "link/server.crt",
    "link/server.key",
    "link/notice.json",
    "link/bundles.json",
)
"""Those that are there are taken."""
MAX_ATTEMPTS = 5


class BackupManifest(Record):
    """What a backup holds. entries: how far its ledger goes, which is how far a restored
    coordinator remembers.
    """

    format: Literal["ridgeway.backup"] = "ridgeway.backup"
    version: Literal[1] = 1
    time: str
    coordinator: PublicKey
    entries: int
    files: dict[str, Digest]


def back_up(federation: Federation, target: Path) -> BackupManifest:
    """Write a backup and verify it as a restore would. A round may be running meanwhile."""
    if target.exists():
        raise InputError(
            f"{target} exists already, and no backup is overwritten; name a new file"
        )
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {target.parent}; make it first")
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix=f".{target.name}."
    ) as place:
        draft = _gathered(federation, Path(place))
        manifest = BackupManifest(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            coordinator=federation.identity.public,
            entries=_verified(draft)["entries"],
            files={name: sha256_of_file(draft / name) for name in _names(draft)},
        )
        with (
            whole_file(target, private=True) as file,
            tarfile.open(fileobj=file, mode="w") as archive,
        ):
            write_whole(
                draft / _MANIFEST, canonical_json(manifest.model_dump(mode="json"))
            )
            for name in (_MANIFEST, *manifest.files):
                archive.add(draft / name, name, filter=_private)
        try:
            _unpack(target, Path(place) / "read again")
            _verified(Path(place) / "read again")
        except (RidgewayError, OSError):
            target.unlink()
            raise
    return manifest


def restore(source: Path, folder: Path) -> BackupManifest:
    """Make a coordinator's folder of a backup, whole and verified, or nothing at all."""
    check_new_folder(folder)
    with whole_folder(folder, new=True) as draft:
        manifest = _unpack(source, draft)
        _verified(draft)
    folder.chmod(0o700)
    Federation(folder).point_to_latest()
    return manifest


def _gathered(federation: Federation, place: Path) -> Path:
    """A copy of all that counts. Sums that a round erases while they are copied are looked for in a
    later ledger.
    """
    for attempt in range(MAX_ATTEMPTS):
        draft = place / str(attempt)
        draft.mkdir()
        try:
            _copy_ledger(federation.folder / LEDGER, draft / LEDGER)
            for name in _named(federation.folder, draft):
                write_whole(
                    draft / name, (federation.folder / name).read_bytes(), private=True
                )
            return draft
        except FileNotFoundError as error:
            missing = error
    raise InputError(
        f"{missing.filename} is missing, though the ledger names it; see `ridgeway"
        " coordinator verify`"
    )


def _copy_ledger(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(source)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
        new.execute("pragma journal_mode = delete")


def _named(folder: Path, draft: Path) -> Iterator[str]:
    """The names of the files that belong to the copied ledger."""
    yield from (name for name in SINGLE_FILES if (folder / name).is_file())
    bundles = (folder / "link/bundles").rglob("*")
    paths = [path for path in bundles if path.suffix in (".fab", ".py")]
    ledger = Ledger(draft)
    with ledger.journal:
        yield from (f"contributions/{name}" for name in ledger.file_names())
        for made in ledger.standing().releases:
            paths += (folder / f"releases/{made.number:04}").iterdir()
    yield from (path.relative_to(folder).as_posix() for path in paths)


def _names(draft: Path) -> list[str]:
    return sorted(
        path.relative_to(draft).as_posix()
        for path in draft.rglob("*")
        if path.is_file()
    )


def _private(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode = 0o600
    member.uid = 0
    member.gid = 0
    member.uname = ""
    member.gname = ""
    return member


def _verified(folder: Path) -> dict[str, int]:
    for name in ("contributions", "releases"):
        (folder / name).mkdir(exist_ok=True)
    federation = Federation(folder)
    with federation.ledger.journal:
        return federation.verify()


def _unpack(source: Path, folder: Path) -> BackupManifest:
    """Write what the manifest names, and that only, each file held against its hash."""
    try:
        with tarfile.open(source, mode="r:") as archive:
            manifest = _manifest(archive)
            left = dict(manifest.files)
            while (member := archive.next()) is not None:
                expected = left.pop(member.name, None)
                content = archive.extractfile(member) if member.isfile() else None
                if not (content and expected and _is_inside(member.name)):
                    raise FormatError(
                        f"{source} holds {member.name!r}, which its list does not name;"
                        " it was altered"
                    )
                with whole_file(folder / member.name, private=True) as file:
                    shutil.copyfileobj(content, file)
                if sha256_of_file(folder / member.name) != expected:
                    raise FormatError(
                        f"{member.name} in {source} is damaged; take another backup"
                    )
    except FileNotFoundError:
        raise InputError(f"there is no file {source}") from None
    except (tarfile.TarError, EOFError) as error:
        raise FormatError(
            f"{source} is not a backup, or is damaged ({error}); take another one"
        ) from None
    if left:
        raise FormatError(
            f"{source} lacks {min(left)}; it was cut off, so take another backup"
        )
    return manifest


def _manifest(archive: tarfile.TarFile) -> BackupManifest:
    first = archive.next()
    content = None
    if first is not None and first.name == _MANIFEST and first.isfile():
        content = archive.extractfile(first)
    try:
        return BackupManifest.model_validate_json(content.read() if content else b"")
    except ValidationError:
        raise FormatError(
            f"{archive.name!s} is not a backup of a coordinator, or is of another"
            " version"
        ) from None


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts
