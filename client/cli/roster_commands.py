"""ridgeway client members, confirm: whom a holder takes part with in rounds under masks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from ridgeway.client.cli.holder_commands import (
    HolderFolder,
    open_holder,
    take_handed_notice,
)
from ridgeway.client.deploy.notices import (
    announced_roster,
    fetched_roster,
    gate_of,
    other_members,
    roster_news,
    shown_roster,
    take_notice,
)
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.known_keys import check_members
from ridgeway.client.round.roster import RosterChange, write_roster
from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.options import Json, argument, option
from ridgeway.common.cli.terminal import TextTable, count, show
from ridgeway.common.deploy.notice import (
    ANNOUNCED_ROSTER,
    MAX_NOTICE_BYTES,
    NOTICE_PATH,
)
from ridgeway.common.protocol.invitation import Roster, RosterMember
from ridgeway.common.protocol.roster_code import is_same_code, roster_code


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
        "added": [member.name for member in change.added],
        "removed": [member.name for member in change.removed],
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
        "added": [member.name for member in change.added],
        "removed": [member.name for member in change.removed],
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
    own = holder.key
    return [
        [member.name, member.domain, member.key, _state(member, own, change)]
        for member in members
    ]


def _state(place: RosterMember, own: str, change: RosterChange) -> str:
    if place.key == own:
        return "you"
    if place in change.added:
        return "new"
    return "gone" if place in change.removed else "confirmed"
