"""ridgeway client bundle, approve: the code that rounds run on a holder's machine, read and allowed
by its owner.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from ridgeway.client.cli.holder_commands import HolderFolder, open_holder
from ridgeway.client.deploy.holder_folder import SHOWN_BUNDLE, approve_bundle
from ridgeway.client.deploy.notices import (
    announced_bundle,
    gate_of,
    kept_notice,
    unapproved,
)
from ridgeway.client.round.holder import Holder
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import sha256
from ridgeway.common.cli.options import Json, argument, option
from ridgeway.common.cli.terminal import TextTable, count, show
from ridgeway.common.deploy.bundle import (
    bundle_changes,
    bundle_sha256,
    installed_bundle,
    installed_sha256,
    unpacked_bundle,
    write_files,
)


def bundle(
    folder: Annotated[
        Path | None,
        argument("A holder's folder: compare with what it has approved.", "[DIR]"),
    ] = None,
    out: Annotated[
        Path | None,
        option("Write the bundle's files to this new folder, to read or compare them."),
    ] = None,
    json: Json = False,
) -> None:
    """List the code that a round runs on this machine.

    Every file of the bundle, its lines and its SHA-256.

    The bundle is the newest that the coordinator of DIR has announced and DIR has not approved,
    fetched from it and held against its hash, with what it changes beside the one that is approved;
    else that of this installation. It holds the rooms that a round needs and nothing else. A
    SuperNode runs it only if its hash stands in the holder's client.toml.
    """
    holder = open_holder(folder) if folder else None
    shown, earlier = _bundles(holder) if holder else (installed_bundle(), None)
    digest = bundle_sha256(shown)
    files = unpacked_bundle(shown)
    approved = digest in holder.settings.bundles if holder else None
    changes = bundle_changes(unpacked_bundle(earlier), files) if earlier else []
    if out is not None:
        write_files(out, files)
    if holder and approved is False:
        holder.journal.append((SHOWN_BUNDLE, {"bundle": digest}))
    listed = [
        {"name": name, "lines": content.count(b"\n"), "sha256": sha256(content)}
        for name, content in files.items()
    ]
    lines = sum(content.count(b"\n") for content in files.values())
    rows = [
        [file.change, file.name, f"+{file.added}", f"-{file.removed}", file.sha256]
        for file in changes
    ]
    before = f"beside {bundle_sha256(earlier)[:12]}" if earlier else ""
    show(
        {
            "bundle": digest,
            "approved": approved,
            "lines": lines,
            "files": listed,
            "changes": list(map(asdict, changes)),
        },
        TextTable(["file", "lines", "SHA-256"], [[*file.values()] for file in listed]),
        TextTable([before, "file", "lines", "", "SHA-256"], rows) if earlier else None,
        ("bundle", digest, count(len(files), "file"), f"{lines:,} lines"),
        ("written", str(out)) if out else None,
        json=json,
    )
    if approved is False:
        raise InputError(
            f"the client.toml in {folder} does not approve the bundle {digest}, so "
            "its rounds are refused; if you have read what changed, run: ridgeway "
            f"client approve {folder} {digest}"
        )


def _bundles(holder: Holder) -> tuple[bytes, bytes | None]:
    """The bundle to look at, and the newest approved one that can still be had, if that is
    another.
    """
    settings = holder.settings
    notice = kept_notice(holder.folder)
    waiting = unapproved(holder.folder, settings.bundles)
    if not waiting:
        return installed_bundle(), None
    gate = gate_of(holder)
    shown = announced_bundle(gate, waiting[0].sha256)
    announced = [bundle.sha256 for bundle in notice.bundles] if notice else []
    known = [*announced, installed_sha256()]
    earlier = next((digest for digest in known if digest in settings.bundles), None)
    return shown, announced_bundle(gate, earlier) if earlier else None


def approve(
    folder: HolderFolder,
    digest: Annotated[
        str | None,
        argument(
            "The bundle; left out: the one that `client bundle DIR` showed last.",
            "[HASH]",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Allow a bundle to run in DIR.

    Those that are allowed already stay so. `client bundle DIR` shows what it changes; without
    HASH, only what was shown is allowed.

    A SuperNode that is running takes this up by itself. To take an approval back, remove the hash
    from `bundles` in client.toml.
    """
    holder = open_holder(folder)
    waiting = [bundle.sha256 for bundle in unapproved(folder, holder.settings.bundles)]
    if digest is None:
        shown = holder.journal.entries(SHOWN_BUNDLE)
        if not shown:
            raise InputError(
                "no bundle was shown here that is not approved; look at it first with:"
                f" ridgeway client bundle {folder}"
            )
        chosen = str(shown[-1].facts["bundle"])
    else:
        chosen = digest.lower()
        matches = [name for name in waiting if name.startswith(chosen)]
        if len(chosen) >= 8 and len(matches) == 1:
            chosen = matches[0]
    if not re.fullmatch("[0-9a-f]{64}", chosen):
        raise InputError(
            f"{digest!r} is not the hash of a bundle that was announced; give all its"
            " 64 digits"
        )
    new = chosen not in holder.settings.bundles
    if new:
        approve_bundle(folder, chosen)
    newer = bool(waiting) and chosen != waiting[0]
    unseen = "the coordinator has announced another one that is not approved"
    show(
        {"approved": chosen, "new": new},
        ("approved", chosen, "" if new else "as before"),
        ("note", unseen, f"see: ridgeway client bundle {folder}") if newer else None,
        json=json,
    )
