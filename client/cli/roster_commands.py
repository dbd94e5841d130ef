"""ridgeway client pin, unpin, roster: whom a holder takes part with in rounds under masks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeway.client.cli.holder_commands import Folder, open_holder
from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.options import Json
from ridgeway.common.cli.terminal import count, emit_json, step, table

if TYPE_CHECKING:
    from ridgeway.client.round.holder import Holder
    from ridgeway.common.protocol.invitation import Invite, Place


def pin(
    folder: Folder,
    cards: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[HOLDER.PUB]...", help="Cards that other holders handed over."
        ),
    ] = None,
    invite: Annotated[
        Path | None,
        typer.Option(
            help="Take the members from an invitation of the operator instead."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Pin the holders that the holder of DIR takes part with: from their own cards, or from the
    operator's invitation.

    In a masked round the other members are who keeps the sums hidden. A coordinator that made
    members up could see what is left, so their keys must be known by another way: have the cards
    from the holders themselves, or compare what `roster` prints with them.
    """
    from ridgeway.client.round.known_keys import check_members, take_handovers
    from ridgeway.client.round.roster import pin as keep
    from ridgeway.common.protocol.invitation import Card, Place, read_signed_json

    if bool(cards) == (invite is not None):
        raise InputError(
            "name the cards of other holders, or an invitation with --invite, one of"
            " them"
        )
    holder = open_holder(folder)
    if invite is not None:
        paper = _read_members(holder, invite)
        places = list(paper.roster)
        handovers = paper.handovers
    else:
        papers = [read_signed_json(path, Card) for path in cards or ()]
        places = [
            Place(name=card.domain, domain=card.domain, key=card.key) for card in papers
        ]
        handovers = tuple(link for card in papers for link in card.handovers)
    known = take_handovers(holder.journal, handovers, [place.key for place in places])
    own = known.owner(holder.identity.public)
    others = [place for place in places if known.owner(place.key) != own]
    check_members(known, holder.pinned_keys, [place.key for place in others])
    _show_roster(holder, keep(folder, others, known.owner), json)
    if invite is not None and not json:
        step(
            "note",
            "these keys are the operator's word; compare them with the holders by"
            " another way",
        )


def _read_members(holder: Holder, folder: Path) -> Invite:
    from ridgeway.client.round.known_keys import check_coordinator
    from ridgeway.common.base.errors import Refused
    from ridgeway.common.protocol.invitation import INVITE, Invite, read_signed_json

    paper = read_signed_json(folder / INVITE, Invite)
    try:
        check_coordinator(
            holder.journal,
            holder.settings.policy.coordinator,
            paper.coordinator,
            paper.handovers,
        )
    except Refused as error:
        raise InputError(
            f"the invitation is by {paper.coordinator[:12]}…, not by the coordinator"
            f" that is pinned here: {error}"
        ) from None
    if not paper.roster:
        raise InputError(
            "the invitation names no members yet; ask the operator for one that was"
            " made after holders were admitted"
        )
    return paper


def unpin(
    folder: Folder,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="The key of the member, or the first digits of it."
        ),
    ],
    json: Json = False,
) -> None:
    """Take a member off the roster of DIR: no masked round with it from now on."""
    from ridgeway.client.round.roster import load_roster
    from ridgeway.client.round.roster import unpin as take_off

    holder = open_holder(folder)
    known = holder.handovers
    found = [
        place.key
        for place in load_roster(folder)
        if any(each.startswith(key.lower()) for each in known.keys(place.key))
    ]
    if len(found) != 1 or len(key) < 8:
        raise InputError(
            f"{key!r} names {len(found)} pinned keys; give at least 8 of the first"
            " digits of one"
        )
    _show_roster(holder, take_off(folder, found), json)


def roster(folder: Folder, json: Json = False) -> None:
    """The members that the holder of DIR has pinned; compare their keys with them by another
    way.
    """
    from ridgeway.client.round.roster import load_roster

    holder = open_holder(folder)
    _show_roster(holder, load_roster(folder), json)


def _show_roster(holder: Holder, places: tuple[Place, ...], json: bool) -> None:
    """The pinned members by the keys that they have now, and the pinned ones where these are
    others.
    """
    newest = holder.handovers.newest
    if json:
        emit_json(
            [
                {**place.model_dump(mode="json"), "key": newest(place.key)}
                for place in places
            ]
        )
        return
    step(
        "pinned",
        count(len(places), "other holder"),
        f"in {holder.folder / 'roster.json'}",
    )
    rows = [
        [
            place.name,
            place.domain,
            key,
            f"{place.key[:12]}…" if key != place.key else "",
        ]
        for place, key in ((place, newest(place.key)) for place in places)
    ]
    renewed = any(row[3] for row in rows)
    headings = ["holder", "domain", "key", *(["handed over from"] if renewed else [])]
    table(headings, [row[: len(headings)] for row in rows], numbers_from=len(headings))


COMMANDS = (pin, unpin, roster)
