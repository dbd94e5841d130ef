"""The bundles that rounds of a coordinator may run: that of the installed Ridgeway, and those
before it.

    bundles/HASH.fab      a bundle, as it was installed
    bundles/HASH.server/  the coordinator's own code of the same version
    bundles.json          their hashes, the newest first, and what the operator says of each

Holders approve a new bundle in their own time. As long as more of them refuse it than the one
before, rounds run the one before.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

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

_INDEX = "bundles.json"
CHANGES = "changes.txt"
MAX_KEPT = 3
INDEX_RECORDS = TypeAdapter(tuple[AnnouncedBundle, ...])


def keep_installed(federation: Federation) -> None:
    """Keep the bundle of this very Ridgeway as the newest; those before it until everybody has
    approved it.
    """
    link = federation.link
    content = installed_bundle()
    digest = bundle_sha256(content)
    newest = AnnouncedBundle(sha256=digest, changes=_changes(federation.folder))
    others = [each for each in kept_bundles(link) if each.sha256 != digest]
    is_awaited = waiting(digest, federation.ledger.standing())
    kept = others[: MAX_KEPT - 1] if is_awaited else []
    for name, source in source_files([SERVER_FILE]).items():
        write_whole(server_folder(link, digest) / name, source)
    write_whole(bundle_file(link, digest), content)
    index = [each.model_dump(mode="json") for each in (newest, *kept)]
    write_whole(link / _INDEX, canonical_json(index))
    for each in others[len(kept) :]:
        bundle_file(link, each.sha256).unlink(missing_ok=True)
        shutil.rmtree(server_folder(link, each.sha256), ignore_errors=True)


def kept_bundles(link: Path) -> tuple[AnnouncedBundle, ...]:
    """The newest first; none before the coordinator was up for the first time."""
    path = link / _INDEX
    return INDEX_RECORDS.validate_json(path.read_bytes()) if path.exists() else ()


def bundle_file(link: Path, digest: str) -> Path:
    return link / "bundles" / f"{digest}.fab"


def server_folder(link: Path, digest: str) -> Path:
    return link / "bundles" / f"{digest}{SERVER_SUFFIX}"


def bundle_content(link: Path, digest: str) -> bytes:
    path = bundle_file(link, digest)
    content = path.read_bytes() if path.exists() else b""
    if bundle_sha256(content) != digest:
        raise LinkError(f"{path} is missing or damaged; restart `coordinator up`")
    return content


def waiting(digest: str, standing: Standing) -> list[str]:
    """The holders that rounds count on and that are not known to have approved a bundle."""
    return sorted(
        name
        for name in standing.active
        if digest not in standing.approvals.get(name, ())
    )


def ranked(kept: Sequence[AnnouncedBundle], standing: Standing) -> list[str]:
    """All of them, that first which the fewest holders are known to have refused; of several such
    the newest.
    """
    refused = Counter(
        digest
        for name in standing.active
        for digest in set(standing.refusals.get(name, ()))
    )
    return sorted((bundle.sha256 for bundle in kept), key=refused.__getitem__)


def named_bundle(kept: Sequence[AnnouncedBundle], digits: str) -> str:
    """The bundle that an operator means by the first digits of its hash."""
    found = [each.sha256 for each in kept if each.sha256.startswith(digits.lower())]
    if len(found) != 1:
        known = ", ".join(each.sha256[:12] for each in kept)
        raise InputError(
            f"{digits!r} matches {len(found)} of the available bundles; they are"
            f" {known}"
        )
    return found[0]


def _changes(folder: Path) -> tuple[str, ...]:
    """What the operator has written about the newest bundle, a line each."""
    path = folder / CHANGES
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = ["".join(filter(str.isprintable, line))[:300] for line in text.splitlines()]
    return tuple(line for line in lines if line.strip())[:50]
