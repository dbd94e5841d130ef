"""The bundles that rounds of a coordinator may run: that of the installed Ridgeway, and those
before it.

    bundles/HASH.fab      a bundle, as it was installed
    bundles/HASH.server/  the coordinator's own code of the same version
    bundles.json          their hashes, the newest first, and what the operator says of each

Rounds run the newest, unless `bundle` in coordinator.toml names another: holders approve a new
bundle in their own time.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import TypeAdapter

from ridgeway.common.base.errors import InputError, LinkError
from ridgeway.common.base.files import canonical_json, write_whole
from ridgeway.common.deploy.approved_bundle import SERVER_SUFFIX
from ridgeway.common.deploy.bundle import (
    SERVER_FILE,
    bundle_sha256,
    installed_bundle,
    installed_sha256,
    source_files,
)
from ridgeway.common.deploy.notice import AnnouncedBundle
from ridgeway.coordinator.round.federation import COORDINATOR_TOML, NEWEST, Federation

_INDEX = "bundles.json"
CHANGES = "changes.txt"
MAX_KEPT = 3
INDEX_RECORDS = TypeAdapter(tuple[AnnouncedBundle, ...])


def keep_installed(federation: Federation) -> None:
    """Keep the bundle of this very Ridgeway as the newest, a few before it, and the one that the
    settings name.
    """
    link = federation.link
    content = installed_bundle()
    digest = bundle_sha256(content)
    newest = AnnouncedBundle(sha256=digest, changes=_changes(federation.folder))
    others = [bundle for bundle in kept_bundles(link) if bundle.sha256 != digest]
    kept = [
        bundle
        for number, bundle in enumerate(others, start=1)
        if number < MAX_KEPT or bundle.sha256 == federation.settings.bundle
    ]
    for name, source in source_files([SERVER_FILE]).items():
        write_whole(server_folder(link, digest) / name, source)
    write_whole(bundle_file(link, digest), content)
    index = [bundle.model_dump(mode="json") for bundle in (newest, *kept)]
    write_whole(link / _INDEX, canonical_json(index))
    for bundle in set(others) - set(kept):
        bundle_file(link, bundle.sha256).unlink(missing_ok=True)
        shutil.rmtree(server_folder(link, bundle.sha256), ignore_errors=True)


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


def chosen_bundle(federation: Federation) -> str:
    """The hash of the bundle that rounds run."""
    kept = [bundle.sha256 for bundle in kept_bundles(federation.link)]
    named = federation.settings.bundle
    if named == NEWEST:
        return kept[0] if kept else installed_sha256()
    if named not in kept:
        raise InputError(
            f"{federation.folder / COORDINATOR_TOML}: `bundle` names {named}, which is"
            f" not kept; those that are: {', '.join(kept) or 'none'}"
        )
    return named


def _changes(folder: Path) -> tuple[str, ...]:
    """What the operator has written about the newest bundle, a line each."""
    path = folder / CHANGES
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = ["".join(filter(str.isprintable, line))[:300] for line in text.splitlines()]
    return tuple(line for line in lines if line.strip())[:50]
