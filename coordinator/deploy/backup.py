"""A coordinator's folder in one file, and back: taken while it runs, verified when it is written
and when it is read.

The ledger is copied at one moment; then every file that this copy names. What Flower keeps is left
out: `coordinator up` makes it anew from the ledger.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from ridgeway.common.base.errors import FormatError, InputError, RidgewayError
from ridgeway.common.base.files import check_new_folder, whole_folder, write_whole
from ridgeway.common.deploy.archive import (
    BackupManifest,
    check_target,
    copy_journal,
    pack,
    unpack,
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
    """Write a backup and verify it as a restore would. A round may be running meanwhile."""
    check_target(target)
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix=f".{target.name}."
    ) as place:
        draft = _gathered(federation, Path(place))
        entries = _verified(draft)["entries"]
        manifest = pack(draft, target, federation.identity.public, entries)
        try:
            unpack(target, Path(place) / "read again")
            _verified(Path(place) / "read again")
        except (RidgewayError, OSError):
            target.unlink()
            raise
    return manifest


def restore(source: Path, folder: Path) -> BackupManifest:
    """Make a coordinator's folder of a backup, whole and verified, or nothing at all."""
    check_new_folder(folder)
    with whole_folder(folder, new=True) as draft:
        manifest = unpack(source, draft)
        if manifest.holder is not None:
            raise FormatError(
                f"{source} is a backup of a holder's folder; use `ridgeway client"
                " restore`"
            )
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
            copy_journal(federation.folder / LEDGER, draft / LEDGER)
            for name in _named(federation.folder, draft):
                write_whole(
                    draft / name, (federation.folder / name).read_bytes(), private=True
                )
            return draft
        except FileNotFoundError as error:
            missing = error
    raise InputError(
        f"{missing.filename} is in the ledger, but the file is missing; run `ridgeway"
        " coordinator verify`"
    )


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
