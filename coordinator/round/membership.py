"""Releases that need no round: retire a domain, remove a holder, roll back to an earlier release.

Retiring drops a domain's column from the newest router at once. Removing subtracts a holder's sums
exactly, as if it had never sent them, and solves again. Rolling back publishes an earlier router
under a new number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeway.common.base.errors import InputError
from ridgeway.common.encoding.encoder_sources import find_by_fingerprint
from ridgeway.common.encoding.transformer_encoder import AnyEncoder
from ridgeway.common.privacy.private_solve import solve_private
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.routing.release import (
    PRIVACY,
    QUALITY,
    TOKENIZER,
    Release,
    save_release,
)
from ridgeway.common.routing.router import router_of
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.ledger import Contribution, LedgerRelease
from ridgeway.coordinator.solving.publish import RouterChoices, compose, sign
from ridgeway.coordinator.solving.solve import Solution, solve
from ridgeway.coordinator.solving.total import add_weighted

MADE_ANEW = ("format", "version", "step", "files", "signature", "familiar")
"""`familiar` stands in releases of earlier versions, with a column that is no longer used."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a change came to.

    unbalanced: holders of the same domain, which keep their share until the next round.
    names_it:   whether no release could be made, so that the newest one is as it was.
    hidden:     whether that is because the sums are hidden in a masked total, out of which nobody
                can take them.
    note:       what solving again has to say to the operator, if anything.
    """

    published: LedgerRelease | None
    unbalanced: tuple[str, ...] = ()
    names_it: bool = False
    hidden: bool = False
    note: str = ""


def retire(federation: Federation, domain: str) -> Change:
    """Drop a domain's column at once. Later rounds leave its holders out until they are admitted
    again.
    """
    with federation.exclusive_lock():
        standing = federation.ledger.standing()
        active = {holder.domain for holder in standing.active.values()}
        if domain not in active:
            raise InputError(
                f"there is no domain {domain!r} to retire; there are"
                f" {', '.join(sorted(active)) or 'none'}"
            )
        retirement = ("retired", {"domain": domain})
        newest = federation.newest
        if newest is None or domain not in newest.domains:
            federation.ledger.journal.append(retirement)
            return Change(None)
        loaded = federation.release(newest.number)
        number = federation.next_number
        release = _without(federation, loaded, domain, number)
        kept = tuple(name for name in newest.domains if name != domain)
        published = replace(
            newest,
            number=number,
            release=release,
            cause=f"retired {domain}",
            domains=kept,
        )
        federation.ledger.journal.append(retirement, ("released", published.to_json()))
        federation.point_to_latest()
        return Change(federation.newest)


def _without(federation: Federation, loaded: Release, domain: str, number: int) -> str:
    router = router_of(loaded).without(domain)
    place = loaded.domains.index(domain)
    facts = {
        name: value for name, value in loaded.manifest.items() if name not in MADE_ANEW
    }
    facts |= {
        "domains": list(router.domains),
        "masses": {
            name: mass for name, mass in facts["masses"].items() if name != domain
        },
        "holdout": {
            name: share for name, share in facts["holdout"].items() if name != domain
        },
        "confidence": router.confidence.to_json(),
        "evaluation": None,
        "number": number,
        "parent": loaded.id,
    }
    if router.quality is not None:
        facts[QUALITY] = router.quality.to_json()
    before = federation.release_folder(loaded.manifest["number"])
    folder = federation.release_folder(number)
    weights = np.ascontiguousarray(np.delete(loaded.weights, place, axis=1))
    definition = (before / TOKENIZER).read_bytes()
    return save_release(
        folder, facts, weights, router.compiled, definition, federation.identity
    )


def remove(federation: Federation, name: str) -> Change:
    """Take a holder off the roster, subtract its sums and erase them; the choices of the newest
    release stay.

    No release is made where the newest one does not hold its sums, where fewer than two domains
    would be left, or where its sums are hidden in a masked total.
    """
    with federation.exclusive_lock():
        ledger = federation.ledger
        standing = federation.ledger.standing()
        if name not in standing.roster:
            raise InputError(
                f"there is no holder {name!r} to remove; there are"
                f" {', '.join(sorted(standing.roster))}"
            )
        removal = ("removed", {"name": name})
        domain = standing.roster[name].domain
        newest = federation.newest
        members, domains = (newest.members, newest.domains) if newest else ((), ())
        left = tuple(
            each for each in members if each.name != name and each.domain in domains
        )
        counts = any(each.name == name for each in members)
        hidden = counts and newest is not None and newest.terms.uses_masks
        if (
            newest is None
            or not counts
            or hidden
            or len({each.domain for each in left}) < 2
        ):
            ledger.journal.append(removal)
            published = None
            note = ""
        else:
            published, note = _solved_again(federation, newest, left, f"removed {name}")
            ledger.journal.append(removal, ("released", published.to_json()))
            federation.point_to_latest()
        ledger.erase_outdated()
        others = tuple(member.name for member in left if member.domain == domain)
        return Change(
            published,
            others if published else (),
            counts and published is None,
            hidden,
            note,
        )


def rollback(federation: Federation, number: int) -> Change:
    """Publish the router of an earlier release anew: under the next number, since holders take no
    earlier one.

    The newest itself is published anew where holders have another one of its number. Not one with a
    domain that was retired since, or with sums of a holder that was removed.
    """
    with federation.exclusive_lock():
        standing = federation.ledger.standing()
        newest = federation.newest
        old = next((each for each in standing.releases if each.number == number), None)
        if old is None or newest is None or (old is newest and not standing.ahead):
            raise InputError(
                f"release {number} is not one of the earlier ones; `coordinator"
                " releases` lists them"
            )
        gone = {each.name for each in old.members} & _removed_since(federation, number)
        if gone or not set(old.domains) <= {
            holder.domain for holder in standing.active.values()
        }:
            raise InputError(
                f"release {number:04} holds sums or domains of holders that were"
                " removed or retired since"
                f" ({', '.join(sorted(gone)) or 'a retired domain'}), so it cannot come"
                " back; run a round instead"
            )
        before = federation.release_folder(number)
        folder = federation.release_folder(federation.next_number)
        loaded = federation.release(number)
        facts = {
            name: value
            for name, value in loaded.manifest.items()
            if name not in MADE_ANEW
        }
        facts |= {"number": federation.next_number, "parent": newest.release}
        definition = (before / TOKENIZER).read_bytes()
        compiled = router_of(loaded).compiled
        identity = federation.identity
        release = save_release(
            folder, facts, loaded.weights, compiled, definition, identity
        )
        # their sums are erased, or are of later use
        members = tuple(replace(each, digest="") for each in old.members)
        cause = f"rolled back to {number:04}"
        published = replace(
            old,
            number=federation.next_number,
            release=release,
            cause=cause,
            members=members,
            choices="",
        )
        federation.ledger.journal.append(("released", published.to_json()))
        federation.point_to_latest()
        return Change(published)


def _removed_since(federation: Federation, number: int) -> set[str]:
    """Whoever was removed after a release; another holder may have the name by now, but not its
    sums.
    """
    entries = federation.ledger.journal.entries("released", "removed")
    [made] = [
        each.number
        for each in entries
        if each.kind == "released" and each.facts["number"] == number
    ]
    return {
        each.facts["name"]
        for each in entries
        if each.kind == "removed" and each.number > made
    }


def _solved_again(
    federation: Federation,
    newest: LedgerRelease,
    left: tuple[Contribution, ...],
    cause: str,
) -> tuple[LedgerRelease, str]:
    """The newest release as it would be had it been solved from these sums alone, under its own
    terms; and a note.
    """
    manifest = federation.release(newest.number).manifest
    encoder = _encoder(federation, newest.terms)
    total = add_weighted(
        ((each.domain, federation.ledger.sums(each), each.holdout) for each in left),
        newest.terms,
    )
    choices = RouterChoices.of_manifest(manifest)
    choices = replace(choices, confidence=replace(choices.confidence, calibrated=False))
    number = federation.next_number
    more: dict[str, Any] = {}
    if newest.terms.privacy:
        members = [member.domain for member in left]
        weights = solve_private(
            total.statistics,
            newest.terms.privacy,
            members,
            federation.prior,
            encoder.scale,
        )
        solution = Solution(weights, 0.0, 1.0, 0.0)
        more = {PRIVACY: manifest[PRIVACY]}
    else:
        solution = solve(total.statistics, encoder.scale, choices.ridge)
    draft = compose(
        total, encoder, choices, solution, number=number, parent=newest.release, **more
    )
    release = sign(
        draft, federation.identity, federation.release_folder(number)
    ).release
    return (
        LedgerRelease(number, release, cause, total.domains, left, newest.terms),
        solution.note,
    )


def _encoder(federation: Federation, terms: Terms) -> AnyEncoder:
    """The encoder of a release; the settings may name another by now."""
    if federation.encoder.fingerprint == terms.encoder:
        return federation.encoder
    return find_by_fingerprint(terms.encoder, terms.encoder_name)
