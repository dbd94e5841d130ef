"""ridgeway coordinator admit, invite, retire, remove, rollback: who takes part, and what a release
holds of whom.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeway.common.base.errors import LinkDown
from ridgeway.common.cli.options import Json
from ridgeway.common.cli.terminal import emit_json, step
from ridgeway.coordinator.cli.federation_commands import (
    Folder,
    open_federation,
    tell_too_few,
)

if TYPE_CHECKING:
    from ridgeway.coordinator.round.federation import Federation
    from ridgeway.coordinator.round.membership import Change


def admit(
    folder: Folder,
    card: Annotated[
        Path,
        typer.Argument(
            metavar="HOLDER.PUB", help="The card that the holder handed over."
        ),
    ],
    name: Annotated[str, typer.Option(help="What to call the holder.")],
    json: Json = False,
) -> None:
    """Put the holder with the card HOLDER.PUB on the roster of DIR."""
    from ridgeway.common.base.settings import check_domain_name
    from ridgeway.common.deploy.node_key import check_public_line
    from ridgeway.common.protocol.invitation import Card, read_signed_json

    check_domain_name(name, "holder")
    federation = open_federation(folder)
    paper = read_signed_json(card, Card)
    check_public_line(paper.node)
    holder = federation.ledger.admit(name, paper)
    registered = _register(federation)
    if json:
        emit_json(
            {
                "name": holder.name,
                "domain": holder.domain,
                "key": holder.key,
                "registered": registered,
            }
        )
        return
    step("admitted", holder.name, f"domain {holder.domain}", f"key {holder.key[:12]}")
    tell_too_few(federation)
    if not registered:
        step("note", "the coordinator is not up; the holder can connect once it is")


def _register(federation: Federation) -> bool:
    """Bring the SuperLink's list of nodes up to date, if it is up; else `up` will."""
    from ridgeway.coordinator.deploy.superlink_client import SuperLinkClient
    from ridgeway.coordinator.deploy.supervisor import register

    client = SuperLinkClient(federation.link)
    try:
        if client.is_up():
            register(federation, client, lambda words: step("note", words))
            return True
    except LinkDown:
        pass
    return False


def invite(folder: Folder, json: Json = False) -> None:
    """Write DIR/invite, the folder to hand to holders: addresses, keys, hashes, no secrets."""
    from ridgeway.common.base.schema import MODE_SENTENCES
    from ridgeway.coordinator.deploy.supervisor import write_invite

    federation = open_federation(folder)
    made = write_invite(federation)
    if json:
        emit_json({"folder": str(folder / "invite"), **made.model_dump(mode="json")})
        return
    step("wrote", str(folder / "invite"), "hand this folder to holders")
    step("address", made.address)
    step("key", made.coordinator, "tell it to holders by another way too")
    step("encoder", made.terms.encoder_name, made.terms.encoder[:12])
    step("mode", made.terms.mode, MODE_SENTENCES[made.terms.mode])
    step("bundle", made.bundle, "the code that rounds run on holders' machines")


def retire(
    folder: Folder,
    domain: Annotated[
        str,
        typer.Argument(metavar="DOMAIN", help="The domain whose column is dropped."),
    ],
    json: Json = False,
) -> None:
    """Drop DOMAIN from the router of DIR at once, without a round; later rounds leave it out."""
    from ridgeway.coordinator.round.membership import retire as change

    federation = open_federation(folder)
    _show_change("retired", domain, change(federation, domain), json)


def remove(
    folder: Folder,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The holder to take off the roster.")
    ],
    json: Json = False,
) -> None:
    """Take the holder NAME off the roster of DIR, subtract its sums exactly, erase them, and solve
    again.
    """
    from ridgeway.coordinator.round.membership import remove as change

    federation = open_federation(folder)
    done = change(federation, name)
    _register(federation)
    _show_change("removed", name, done, json)
    if not json:
        tell_too_few(federation)


def rollback(
    folder: Folder,
    number: Annotated[
        int,
        typer.Argument(
            metavar="NUMBER", help="The earlier release that is to count again."
        ),
    ],
    json: Json = False,
) -> None:
    """Publish the router of the earlier release NUMBER of DIR anew, under the next number;
    `deliver` brings it out.
    """
    from ridgeway.coordinator.round.membership import rollback as change

    federation = open_federation(folder)
    _show_change("rolled back", f"to {number:04}", change(federation, number), json)


def _show_change(verb: str, subject: str, done: Change, json: bool) -> None:
    published = done.published
    if done.note:
        step("note", done.note)
    if json:
        release = (
            {"number": published.number, "release": published.release}
            if published
            else None
        )
        facts = {
            "unbalanced": list(done.unbalanced),
            "newest_release_is_as_it_was": done.names_it,
        }
        facts |= {"hidden_in_a_masked_total": done.hidden}
        emit_json({verb: subject, "release": release, **facts})
        return
    step(verb, subject)
    if published is not None:
        step(
            "release",
            f"{published.number:04}",
            published.release[:12],
            ", ".join(published.domains),
        )
    if done.hidden:
        step(
            "note",
            "its sums are hidden in a masked total, so nobody can take them out of the"
            " newest release",
        )
        step(
            "next",
            "drop its domain at once with `retire`; the next total, of new epochs, is"
            " without them",
        )
    elif done.names_it:
        step(
            "note",
            "fewer than two domains are left, so no release was made: the newest one"
            " still holds its sums",
        )
    if done.unbalanced:
        step(
            "note",
            f"{', '.join(done.unbalanced)} will take over the whole mass of the domain"
            " in the next round",
        )
