"""ridgeway client pin, unpin, roster: whom a holder takes part with in masked rounds.

Knows options and how results are shown; the work is done elsewhere and imported when it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.cli import Json
from common.errors import InputError
from common.terminal import count, emit_json, step, table

if TYPE_CHECKING:
    from common.invite import Place

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The holder's folder.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of the roster to `ridgeway client`."""
    for command in (pin, unpin, roster):
        app.command(command.__name__)(command)


def pin(
    folder: Folder,
    cards: Annotated[
        list[Path] | None, typer.Argument(metavar="[HOLDER.PUB]...", help="Cards that other holders handed over.")
    ] = None,
    invite: Annotated[
        Path | None, typer.Option(help="Take the members from an invitation of the operator instead.")
    ] = None,
    json: Json = False,
) -> None:
    """Pin the holders that the holder of DIR takes part with: from their own cards, or from the operator's invitation.

    In a masked round the other members are who keeps the sums hidden. A coordinator that made members up could see
    what is left, so their keys must be known by another way: have the cards from the holders themselves, or compare
    what `roster` prints with them.
    """
    from client.federation_cli import open_holder
    from client.roster import pin as keep

    if bool(cards) == (invite is not None):
        raise InputError("name the cards of other holders, or an invitation with --invite, one of them")
    holder = open_holder(folder)
    places = _of_invitation(invite, holder.settings.policy.coordinator) if invite else _of_cards(cards or [])
    others = [place for place in places if place.key != holder.identity.public]
    _show(folder, keep(folder, others), json)
    if invite is not None and not json:
        step("note", "these keys are the operator's word; compare them with the holders by another way")


def _of_cards(paths: list[Path]) -> list[Place]:
    from common.invite import Card, Place, read_paper

    cards = [read_paper(path, Card) for path in paths]
    return [Place(name=card.domain, domain=card.domain, key=card.key) for card in cards]


def _of_invitation(folder: Path, coordinator: str) -> list[Place]:
    from common.invite import INVITE, Invite, read_paper

    paper = read_paper(folder / INVITE, Invite)
    if paper.coordinator != coordinator:
        raise InputError(f"the invitation is by {paper.coordinator[:12]}…, not by the coordinator that is pinned here")
    if not paper.roster:
        raise InputError(
            "the invitation names no members yet; ask the operator for one that was made after holders were admitted"
        )
    return list(paper.roster)


def unpin(
    folder: Folder,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the member, or the first digits of it.")],
    json: Json = False,
) -> None:
    """Take a member off the roster of DIR: no masked round with it from now on."""
    from client.federation_cli import open_holder
    from client.roster import load_roster
    from client.roster import unpin as take_off

    open_holder(folder)
    found = [place.key for place in load_roster(folder) if place.key.startswith(key.lower())]
    if len(found) != 1 or len(key) < 8:
        raise InputError(f"{key!r} names {len(found)} pinned keys; give at least 8 of the first digits of one")
    _show(folder, take_off(folder, found), json)


def roster(folder: Folder, json: Json = False) -> None:
    """The members that the holder of DIR has pinned."""
    from client.federation_cli import open_holder
    from client.roster import load_roster

    open_holder(folder)
    _show(folder, load_roster(folder), json)


def _show(folder: Path, places: tuple[Place, ...], json: bool) -> None:
    if json:
        emit_json([place.model_dump(mode="json") for place in places])
        return
    step("pinned", count(len(places), "other holder"), f"in {folder / 'roster.json'}")
    table(["holder", "domain", "key"], [[place.name, place.domain, place.key] for place in places], numbers_from=3)
