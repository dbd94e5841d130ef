"""A folder in one file, and back: a tar archive that only its owner can read, since it holds
private keys.

`backup.json`, its first member, names every other with its SHA-256. A journal is copied by SQLite's
own backup, at one moment.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from ridgeway.common.base.errors import FormatError, InputError
from ridgeway.common.base.files import (
    canonical_json,
    check_new_folder,
    sha256_of_file,
    whole_file,
    whole_folder,
    write_whole,
)
from ridgeway.common.base.records import Digest, PublicKey, Record

MANIFEST_NAME = "backup.json"


class BackupManifest(Record):
    """What a backup holds. entries: how far its ledger or journal goes, which is how far whoever
    is restored from it remembers.

    coordinator: its key. holder: that of the holder whose folder it is; None for the coordinator's.
    """

    format: Literal["ridgeway.backup"] = "ridgeway.backup"
    version: Literal[1] = 1
    time: str
    coordinator: PublicKey
    holder: PublicKey | None = None
    entries: int
    files: dict[str, Digest]


def copy_journal(source: Path, target: Path) -> None:
    """Copy a journal, as it is at one moment, into a file of its own."""
    with (
        closing(sqlite3.connect(source)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)


def copy_files(folder: Path, names: Iterable[str], draft: Path) -> None:
    for name in names:
        write_whole(draft / name, (folder / name).read_bytes(), private=True)


def write_backup(
    target: Path,
    fill: Callable[[Path], int],
    coordinator: str,
    holder: str | None = None,
) -> BackupManifest:
    """Write a backup, and read it again.

    fill: copies all that belongs to it into a folder, and returns how many entries the journal has.
    """
    if target.exists():
        raise InputError(
            f"{target} exists already, and no backup is overwritten; name a new file"
        )
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {target.parent}; make it first")
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix=f".{target.name}."
    ) as temporary:
        draft = Path(temporary) / "draft"
        draft.mkdir()
        entries = fill(draft)
        paths = sorted(path for path in draft.rglob("*") if path.is_file())
        manifest = BackupManifest(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            coordinator=coordinator,
            holder=holder,
            entries=entries,
            files={
                path.relative_to(draft).as_posix(): sha256_of_file(path)
                for path in paths
            },
        )
        content = canonical_json(manifest.model_dump(mode="json"))
        write_whole(draft / MANIFEST_NAME, content)
        with (
            whole_file(target, private=True) as file,
            tarfile.open(fileobj=file, mode="w") as archive,
        ):
            for name in (MANIFEST_NAME, *manifest.files):
                archive.add(draft / name, name, filter=_private)
        try:
            _unpack(target, Path(temporary) / "again")
        except (FormatError, OSError):
            target.unlink()
            raise
    return manifest


def _private(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode = 0o600
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


@contextmanager
def unpacked(
    source: Path, folder: Path, side: Literal["client", "coordinator"]
) -> Iterator[tuple[Path, BackupManifest]]:
    """What a backup of this side holds, in a folder that takes the place of `folder` if the block
    ends well, else vanishes.
    """
    check_new_folder(folder)
    with whole_folder(folder, new=True) as draft:
        manifest = _unpack(source, draft)
        party = "holder" if manifest.holder else "coordinator"
        command = "client" if manifest.holder else "coordinator"
        if command != side:
            raise FormatError(
                f"{source} is a backup of a {party}'s folder; use `ridgeway {command}"
                " restore`"
            )
        yield draft, manifest
    folder.chmod(0o700)


def _unpack(source: Path, folder: Path) -> BackupManifest:
    """Write what the manifest names, and that only, each file held against its hash."""
    try:
        with tarfile.open(source, mode="r:") as archive:
            first = _content(archive, MANIFEST_NAME)
            manifest = BackupManifest.model_validate_json(first)
            for name, expected in manifest.files.items():
                content = _content(archive, name)
                path = (folder / name).resolve()
                is_inside = path.is_relative_to(folder.resolve())
                if not is_inside or hashlib.sha256(content).hexdigest() != expected:
                    raise FormatError(
                        f"{name} in {source} is damaged; take another backup"
                    )
                write_whole(path, content, private=True)
    except FileNotFoundError:
        raise InputError(f"there is no file {source}") from None
    except (tarfile.TarError, EOFError, KeyError, ValidationError):
        raise FormatError(
            f"{source} is not a backup, or is damaged; take another one"
        ) from None
    return manifest


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    return content.read() if content else b""
