"""The bundles that rounds of a coordinator may run: that of the installed Ridgeway, and those
before it.

    bundles/HASH.fab      a bundle, as it was installed
    bundles/HASH.server/  the coordinator's own code of the same version
    bundles.json          their hashes, the newest first, and what the operator says of each

Holders approve a new bundle in their own time. As long as more of them refuse it than the one
before, rounds run the one before.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from ridgeway.common.base.errors import InputError, LinkError
from ridgeway.common.base.files import canonical_json, write_whole
from ridgeway.common.deploy.approved_bundle import SERVER_SUFFIX
from ridgeway.common.deploy.bundle import (
    SERVER_FILE,
    bundle_sha256,
    installed_bundle,
    source_files,
)
from ridgeway.common.deploy.notice import AnnouncedBundle
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.ledger import Standing

INDEX = "bundles.json"
CHANGES = "changes.txt"
MAX_KEPT = 3


def keep_installed(federation: Federation) -> None:
    """Keep the bundle of this very Ridgeway as the newest; those before it until everybody has
    approved it.
    """
    link = federation.link
    content = installed_bundle()
    newest = AnnouncedBundle(
        sha256=bundle_sha256(content), changes=_changes(federation.folder)
    )
    others = [each for each in kept_bundles(link) if each.sha256 != newest.sha256]
    standing = federation.ledger.standing()
    wanted = [newest, *(others if waiting(newest.sha256, standing) else ())][:MAX_KEPT]
    server = server_folder(link, newest.sha256)
    for name, source in source_files([SERVER_FILE]).items():
        write_whole(server / name, source)
    write_whole(bundle_file(link, newest.sha256), content)
    write_whole(
        link / INDEX, canonical_json([each.model_dump(mode="json") for each in wanted])
    )
    for each in others:
        if each not in wanted:
            bundle_file(link, each.sha256).unlink(missing_ok=True)
            shutil.rmtree(server_folder(link, each.sha256), ignore_errors=True)


def kept_bundles(link: Path) -> tuple[AnnouncedBundle, ...]:
    """The newest first; none before the coordinator was up for the first time."""
    path = link / INDEX
    found = json.loads(path.read_bytes()) if path.exists() else []
    return tuple(
        AnnouncedBundle.model_validate_json(json.dumps(each)) for each in found
    )


def bundle_file(link: Path, digest: str) -> Path:
    return link / "bundles" / f"{digest}.fab"


def server_folder(link: Path, digest: str) -> Path:
    return link / "bundles" / f"{digest}{SERVER_SUFFIX}"


def bundle_content(link: Path, digest: str) -> bytes:
    try:
        content = bundle_file(link, digest).read_bytes()
    except FileNotFoundError:
        content = b""
    if bundle_sha256(content) != digest:
        raise LinkError(
            f"{bundle_file(link, digest)} is missing or damaged; start `coordinator up`"
            " again"
        )
    return content


def waiting(digest: str, standing: Standing) -> list[str]:
    """The holders that rounds count on and that are not known to have approved a bundle."""
    return sorted(
        name
        for name in standing.active
        if digest not in standing.approvals.get(name, ())
    )


def preferred(kept: Sequence[AnnouncedBundle], standing: Standing) -> str:
    """The bundle that the fewest holders are known to have refused; of several such the newest."""
    return ranked(kept, standing)[0]


def ranked(kept: Sequence[AnnouncedBundle], standing: Standing) -> list[str]:
    """All of them, the preferred one first."""

    def refused(each: AnnouncedBundle) -> int:
        return sum(
            each.sha256 in standing.refusals.get(name, ()) for name in standing.active
        )

    return [each.sha256 for each in sorted(kept, key=refused)]


def named_bundle(kept: Sequence[AnnouncedBundle], digits: str) -> str:
    """The bundle that an operator means by the first digits of its hash."""
    found = [each.sha256 for each in kept if each.sha256.startswith(digits.lower())]
    if len(found) != 1:
        known = ", ".join(each.sha256[:12] for each in kept)
        raise InputError(
            f"{digits!r} names {len(found)} of the bundles that can run here, which are"
            f" {known}"
        )
    return found[0]


def _changes(folder: Path) -> tuple[str, ...]:
    """What the operator has written about the newest bundle, a line each."""
    path = folder / CHANGES
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return tuple(
        "".join(filter(str.isprintable, line))[:300] for line in lines if line.strip()
    )[:50]
