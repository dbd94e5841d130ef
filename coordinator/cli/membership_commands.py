"""ridgeway coordinator admit, invite, retire, remove, rollback: who takes part, and what a release
holds of whom.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ridgeway.common.base.errors import LinkDown
from ridgeway.common.base.identity import check_public_line
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.base.settings import check_domain_name
from ridgeway.common.cli.terminal import Json, argument, option, show, step
from ridgeway.common.protocol.invitation import AUTHORITY, Card, read_signed_json
from ridgeway.coordinator.cli.federation_commands import (
    CoordinatorFolder,
    open_federation,
    tell_too_few,
)
from ridgeway.coordinator.deploy.superlink import SuperLinkClient
from ridgeway.coordinator.deploy.supervisor import announce, register, write_invite
from ridgeway.coordinator.round import membership
from ridgeway.coordinator.round.federation import Federation

HIDDEN = (
    "its sums are hidden in a masked total, so they cannot be removed from the newest"
    " release"
)
_RETIRE = "drop its domain now with `retire`; the next total will not contain its sums"
TOO_FEW_DOMAINS = (
    "fewer than two domains are left, so no release was made: the newest one still"
    " contains its sums"
)


def admit(
    folder: CoordinatorFolder,
    card: Annotated[Path, argument("The holder's card.", "HOLDER.PUB")],
    name: Annotated[str, option("Name of the holder.")],
    json: Json = False,
) -> None:
    """Add the holder with the card HOLDER.PUB to the roster of DIR."""
    check_domain_name(name, "holder")
    federation = open_federation(folder)
    paper = read_signed_json(card, Card)
    check_public_line(paper.node)
    holder = federation.ledger.admit(name, paper)
    registered = _register(federation)
    down = (
        "the coordinator is not running; the holder can connect after `coordinator up`"
    )
    show(
        {
            "name": holder.name,
            "domain": holder.domain,
            "key": holder.key,
            "registered": registered,
        },
        ("admitted", holder.name, f"domain {holder.domain}", f"key {holder.key[:12]}"),
        None if registered else ("note", down),
        json=json,
    )
    if not json:
        tell_too_few(federation)


def _register(federation: Federation) -> bool:
    """Let holders know the members, and bring the SuperLink's list of nodes up to date, if it is
    up; else `up` will.
    """
    if (federation.link / AUTHORITY).exists():  # not in a simulated federation
        announce(federation)
    client = SuperLinkClient(federation.link)
    try:
        if client.is_up():
            register(federation, client, lambda words: step("note", words))
            return True
    except LinkDown:
        pass
    return False


def invite(folder: CoordinatorFolder, json: Json = False) -> None:
    """Write DIR/invite, the folder to send to holders.

    It holds addresses, keys and hashes, and no secrets.
    """
    federation = open_federation(folder)
    made = write_invite(federation)
    target = str(folder / "invite")
    mode = made.terms.mode
    show(
        {"folder": target, **made.model_dump(mode="json")},
        ("wrote", target, "send this folder to holders"),
        ("address", made.address),
        ("key", made.coordinator, "also send it to holders over another channel"),
        ("encoder", made.terms.encoder_name, made.terms.encoder[:12]),
        ("mode", mode, MODE_SENTENCES[mode]),
        ("bundle", made.bundle, "the code that rounds run on holders' machines"),
        json=json,
    )


def retire(
    folder: CoordinatorFolder,
    domain: Annotated[str, argument("Domain to drop.", "DOMAIN")],
    json: Json = False,
) -> None:
    """Drop DOMAIN from the router of DIR now, without a round.

    Later rounds leave it out.
    """
    federation = open_federation(folder)
    done = membership.retire(federation, domain)
    _register(federation)
    _show_change("retired", domain, done, json)


def remove(
    folder: CoordinatorFolder,
    name: Annotated[str, argument("Holder to remove from the roster.", "NAME")],
    json: Json = False,
) -> None:
    """Remove the holder NAME from the roster of DIR.

    Its sums are subtracted exactly and erased, and the router is solved again.
    """
    federation = open_federation(folder)
    done = membership.remove(federation, name)
    _register(federation)
    _show_change("removed", name, done, json)
    if not json:
        tell_too_few(federation)


def rollback(
    folder: CoordinatorFolder,
    number: Annotated[
        int, argument("Number of the earlier release to publish again.", "NUMBER")
    ],
    json: Json = False,
) -> None:
    """Publish the earlier release NUMBER of DIR again.

    It gets the next number; `deliver` sends it to holders. Rounds publish nothing until you run one
    with --end-rollback.
    """
    federation = open_federation(folder)
    done = membership.rollback(federation, number)
    _show_change("rolled", f"back to {number:04}", done, json)
    if not json and federation.standing.rolled_back is not None:
        words = "rounds publish nothing until you run one with --end-rollback"
        step("note", words)


def _show_change(verb: str, subject: str, done: membership.Change, json: bool) -> None:
    published = done.published
    if done.note:
        step("note", done.note)
    release = published and {"number": published.number, "release": published.release}
    facts = {
        verb: subject,
        "release": release,
        "unbalanced": list(done.unbalanced),
        "newest_release_is_as_it_was": done.names_it,
        "hidden_in_a_masked_total": done.hidden,
    }
    lines: list[tuple[str, ...]] = [(verb, subject)]
    if published is not None:
        domains = ", ".join(published.domains)
        number = f"{published.number:04}"
        lines.append(("release", number, published.release[:12], domains))
    if done.hidden:
        lines += [("note", HIDDEN), ("next", _RETIRE)]
    elif done.names_it:
        lines.append(("note", TOO_FEW_DOMAINS))
    if done.unbalanced:
        words = "will get the full weight of the domain in the next round"
        lines.append(("note", f"{', '.join(done.unbalanced)} {words}"))
    show(facts, *lines, json=json)
