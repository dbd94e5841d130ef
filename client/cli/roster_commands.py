"""ridgeway client pin: whom a holder takes part with in rounds under masks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ridgeway.client.cli.holder_commands import HolderFolder, check_pinned, open_holder
from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.options import Json, argument, option
from ridgeway.common.cli.terminal import TextTable, count, show

if TYPE_CHECKING:
    from ridgeway.client.round.holder import Holder
    from ridgeway.common.base.identity import HandOver
    from ridgeway.common.protocol.invitation import Place

OPERATORS_WORD = (
    "these keys come from the operator; verify them with the holders over another "
    "channel"
)


def pin(
    folder: HolderFolder,
    cards: Annotated[
        list[Path] | None,
        argument("Cards from other holders.", "[HOLDER.PUB]..."),
    ] = None,
    invite: Annotated[
        Path | None,
        option("Pin the members of the operator's invitation instead."),
    ] = None,
    remove: Annotated[
        str | None,
        option("Unpin a member: its key, or the first digits.", metavar="KEY"),
    ] = None,
    json: Json = False,
) -> None:
    """Pin the other members of DIR, unpin one, or list them.

    In a masked round the other members are who keeps the sums hidden. A coordinator that made
    members up could see what is left, so their keys must be known by another way: have the cards
    from the holders themselves, or compare the list with them.
    """
    from ridgeway.client.round.roster import load_roster

    if sum(map(bool, (cards, invite, remove is not None))) > 1:
        raise InputError("give either cards, --invite or --remove")
    holder = open_holder(folder)
    if remove is not None:
        places = _unpin(holder, remove)
    elif cards or invite:
        places = _pin(holder, cards or [], invite)
    else:
        places = load_roster(folder)
    newest = holder.handovers.newest
    rows = [(place, newest(place.key)) for place in places]
    cells = [
        [
            place.name,
            place.domain,
            key,
            f"{place.key[:12]}…" if key != place.key else "",
        ]
        for place, key in rows
    ]
    show(
        [{**place.model_dump(mode="json"), "key": key} for place, key in rows],
        ("pinned", count(len(places), "other holder"), f"in {folder / 'roster.json'}"),
        TextTable(["holder", "domain", "key", "handed over from"], cells),
        ("note", OPERATORS_WORD) if invite else None,
        json=json,
    )


def _pin(holder: Holder, cards: list[Path], invite: Path | None) -> tuple[Place, ...]:
    from ridgeway.client.round.known_keys import check_members, take_handovers
    from ridgeway.client.round.roster import pin as keep
    from ridgeway.common.protocol.invitation import Card, Place, read_signed_json

    handovers: tuple[HandOver, ...]
    if invite is not None:
        places, handovers = _invited(holder, invite)
    else:
        papers = [read_signed_json(path, Card) for path in cards]
        places = [
            Place(name=card.domain, domain=card.domain, key=card.key) for card in papers
        ]
        handovers = tuple(link for card in papers for link in card.handovers)
    known = take_handovers(holder.journal, handovers, [place.key for place in places])
    own = known.owner(holder.identity.public)
    others = [place for place in places if known.owner(place.key) != own]
    check_members(known, holder.pinned_keys, [place.key for place in others])
    return keep(holder.folder, others, known.owner)


def _invited(holder: Holder, folder: Path) -> tuple[list[Place], tuple[HandOver, ...]]:
    from ridgeway.common.protocol.invitation import INVITE, Invite, read_signed_json

    paper = read_signed_json(folder / INVITE, Invite)
    check_pinned(holder, paper)
    if not paper.roster:
        raise InputError(
            "the invitation has no members yet; ask the operator for a newer one, "
            "made after holders were admitted"
        )
    return list(paper.roster), paper.handovers


def _unpin(holder: Holder, key: str) -> tuple[Place, ...]:
    """Take a member off the roster: no masked round with it from now on."""
    from ridgeway.client.round.roster import load_roster, unpin

    known = holder.handovers
    found = [
        place.key
        for place in load_roster(holder.folder)
        if any(each.startswith(key.lower()) for each in known.keys(place.key))
    ]
    if len(found) != 1 or len(key) < 8:
        raise InputError(
            f"{key!r} matches {len(found)} pinned keys; give at least the first 8 "
            "digits of one"
        )
    return unpin(holder.folder, found)
