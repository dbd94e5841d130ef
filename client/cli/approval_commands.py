"""The commands by which an owner approves members and bundles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from ridgeway.client.cli.holder_commands import (
    HolderFolder,
    open_holder,
    take_handed_notice,
)
from ridgeway.client.deploy.holder_folder import SHOWN_BUNDLE, approve_bundle
from ridgeway.client.deploy.notices import (
    announced_bundle,
    announced_roster,
    fetched_roster,
    gate_of,
    kept_notice,
    other_members,
    roster_news,
    shown_roster,
    take_notice,
    unapproved,
)
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.policy import RosterChange, check_members, write_roster
from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.terminal import Json, TextTable, argument, count, option, show
from ridgeway.common.deploy.bundle import (
    bundle_changes,
    bundle_sha256,
    installed_bundle,
    installed_sha256,
    listed_files,
    unpacked_bundle,
    write_files,
)
from ridgeway.common.protocol.cohort import (
    ANNOUNCED_ROSTER,
    MAX_NOTICE_BYTES,
    NOTICE_PATH,
    Roster,
    RosterMember,
    is_same_code,
    roster_code,
)

# ridgeway client bundle, approve: the code that rounds run on a holder's machine, read and allowed
# by its owner.


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
    listed = listed_files(files)
    lines = sum(file["lines"] for file in listed)
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
    notice = kept_notice(holder.folder)
    waiting = unapproved(holder)
    if not waiting:
        return installed_bundle(), None
    gate = gate_of(holder)
    shown = announced_bundle(gate, waiting[0].sha256)
    announced = [bundle.sha256 for bundle in notice.bundles] if notice else []
    known = [*announced, installed_sha256()]
    approved = holder.settings.bundles
    earlier = next((digest for digest in known if digest in approved), None)
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
    waiting = [bundle.sha256 for bundle in unapproved(holder)]
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


# ridgeway client members, confirm: whom a holder takes part with in rounds under masks.


def members(
    folder: HolderFolder,
    invite: Annotated[
        Path | None,
        option("Take the list from a folder that the operator handed over."),
    ] = None,
    json: Json = False,
) -> None:
    """Show the members that the coordinator of DIR names, and a code to compare.

    In a masked round the other members are who keeps the sums hidden. A coordinator that made
    members up could see what is left. So all holders read the code to each other, by telephone for
    example, and each confirms it with `ridgeway client confirm`.
    """
    holder = open_holder(folder)
    roster = _announced(holder, invite)
    change = roster_news(holder, roster)
    code = roster_code(roster.members)
    shown = [*roster.members, *change.removed]
    facts = {
        "members": [member.model_dump(mode="json") for member in roster.members],
        **change.names(),
        "code": code,
        "confirmed": not change,
    }
    number = count(len(roster.members), "member")
    compare = (
        f"read it to the other holders, all of them; if each has the same: ridgeway"
        f" client confirm {folder} {code}"
    )
    show(
        facts,
        ("members", number, "all confirmed" if not change else "not confirmed"),
        TextTable(["holder", "domain", "key", ""], _rows(holder, shown, change)),
        ("code", code),
        ("next", compare) if change else None,
        json=json,
    )


def confirm(
    folder: HolderFolder,
    code: Annotated[
        list[str],
        argument("The code that the other holders have, too.", "CODE"),
    ],
    json: Json = False,
) -> None:
    """Confirm the members of DIR that `ridgeway client members` has shown.

    From now on these keys, and no others, count in rounds under masks.
    """
    holder = open_holder(folder)
    roster = shown_roster(folder)
    if roster is None:
        raise InputError(
            f"no members were shown yet; run: ridgeway client members {folder}"
        )
    shown = roster_code(roster.members)
    if not is_same_code("".join(code), shown):
        raise InputError(
            f"the members that were shown here have the code {shown}; whoever has"
            " another one was shown other members, or earlier ones: look again with"
            f" `ridgeway client members {folder}`, and if the codes still differ, take"
            " part in nothing and ask the operator"
        )
    change = roster_news(holder, roster)
    known = holder.take_handovers(roster.handovers, of=_keys(roster.members))
    others = other_members(holder, roster, holder.handovers.owner)
    check_members(known, _keys(others), _keys(others))
    write_roster(folder, others)
    holder.journal.append(("roster", {"code": shown, "members": _keys(others)}))
    facts = {
        "code": shown,
        "members": [member.name for member in others],
        **change.names(),
    }
    show(facts, ("confirmed", count(len(others), "other holder"), shown), json=json)


def _announced(holder: Holder, invite: Path | None) -> Roster:
    """The members that the coordinator names, which this holder must be one of."""
    folder = holder.folder
    if invite is not None:
        take_handed_notice(holder, invite)
        path = invite / ANNOUNCED_ROSTER
        roster = announced_roster(folder, path.read_bytes)
    else:
        gate = gate_of(holder)
        content = gate.fetch(NOTICE_PATH, MAX_NOTICE_BYTES)
        key = holder.policy.coordinator
        take_notice(folder, content, key, datetime.now(UTC))
        roster = announced_roster(folder, lambda: fetched_roster(gate))
    if holder.key not in _keys(roster.members):
        raise InputError(
            "the coordinator's list of members has not got this holder's key; its"
            " operator admits it with `ridgeway coordinator admit`"
        )
    return roster


def _keys(members: Sequence[RosterMember]) -> list[str]:
    return [member.key for member in members]


def _rows(
    holder: Holder, members: Sequence[RosterMember], change: RosterChange
) -> list[list[str]]:
    return [
        [member.name, member.domain, member.key, _state(member, holder.key, change)]
        for member in members
    ]


def _state(member: RosterMember, key: str, change: RosterChange) -> str:
    """key: the holder's own."""
    if member.key == key:
        return "you"
    if member in change.added:
        return "new"
    return "gone" if member in change.removed else "confirmed"
