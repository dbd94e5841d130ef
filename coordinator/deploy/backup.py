"""A coordinator's folder in one file, and back: taken while it runs, verified when it is written
and when it is read.

The ledger is copied at one moment; then every file that this copy names. What Flower keeps is left
out: `coordinator up` makes it anew from the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ridgeway.common.base.errors import InputError
from ridgeway.common.deploy.archive import (
    BackupManifest,
    copy_files,
    copy_journal,
    unpacked,
    write_backup,
)
from ridgeway.coordinator.round.federation import KEY, PRIOR, Federation
from ridgeway.coordinator.round.ledger import Ledger

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


def back_up(federation: Federation, target: Path) -> BackupManifest:
    """Write a backup and verify it. A round may be running meanwhile: if it erases sums while they
    are copied, they are looked for in a later ledger.
    """
    fill = partial(_fill, federation.folder)
    for _ in range(MAX_ATTEMPTS):
        try:
            return write_backup(target, fill, federation.identity.public)
        except FileNotFoundError as error:
            missing = error
    raise InputError(
        f"{missing.filename} is in the ledger, but the file is missing; run `ridgeway"
        " coordinator verify`"
    )


def restore(source: Path, folder: Path) -> BackupManifest:
    """Make a coordinator's folder of a backup, whole and verified, or nothing at all."""
    with unpacked(source, folder, "coordinator") as (draft, manifest):
        _verified(draft)
    Federation(folder).point_to_latest()
    return manifest


def _fill(folder: Path, draft: Path) -> int:
    copy_journal(folder / LEDGER, draft / LEDGER)
    copy_files(folder, _named(folder, draft), draft)
    return _verified(draft)["entries"]


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


def _verified(folder: Path) -> dict[str, int]:
    for name in ("contributions", "releases"):
        (folder / name).mkdir(exist_ok=True)
    federation = Federation(folder)
    with federation.ledger.journal:
        return federation.verify()
