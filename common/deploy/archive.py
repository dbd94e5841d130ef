"""A folder in one file, and back: a tar archive that only its owner can read, since it holds
private keys.

`backup.json`, its first member, names every other with its SHA-256. A journal is copied by SQLite's
own backup, at one moment.
"""

from __future__ import annotations

import shutil
import sqlite3
import tarfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import ValidationError

from ridgeway.common.base.errors import FormatError, InputError
from ridgeway.common.base.files import (
    canonical_json,
    sha256_of_file,
    whole_file,
    write_whole,
)
from ridgeway.common.base.schema import Digest, PublicKey, Record

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


def check_target(target: Path) -> None:
    if target.exists():
        raise InputError(
            f"{target} exists already, and no backup is overwritten; name a new file"
        )
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {target.parent}; make it first")


def copy_journal(source: Path, target: Path) -> None:
    """Copy a journal, as it is at one moment, into a file of its own."""
    with (
        closing(sqlite3.connect(source)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
        new.execute("pragma journal_mode = delete")


def pack(
    draft: Path, target: Path, coordinator: str, entries: int, holder: str | None = None
) -> BackupManifest:
    """Write all files of a folder into one."""
    names = sorted(
        path.relative_to(draft).as_posix()
        for path in draft.rglob("*")
        if path.is_file()
    )
    manifest = BackupManifest(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        coordinator=coordinator,
        holder=holder,
        entries=entries,
        files={name: sha256_of_file(draft / name) for name in names},
    )
    with (
        whole_file(target, private=True) as file,
        tarfile.open(fileobj=file, mode="w") as archive,
    ):
        content = canonical_json(manifest.model_dump(mode="json"))
        write_whole(draft / MANIFEST_NAME, content)
        for name in (MANIFEST_NAME, *names):
            archive.add(draft / name, name, filter=_private)
    return manifest


def _private(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode = 0o600
    member.uid = 0
    member.gid = 0
    member.uname = ""
    member.gname = ""
    return member


def unpack(source: Path, folder: Path) -> BackupManifest:
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
    if first is not None and first.name == MANIFEST_NAME and first.isfile():
        content = archive.extractfile(first)
    try:
        return BackupManifest.model_validate_json(content.read() if content else b"")
    except ValidationError:
        raise FormatError(
            f"{archive.name!s} is not a backup, or is of another version"
        ) from None


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts
