"""Releases that need no round: retire a domain, remove a holder, roll back to an earlier release.

Retiring drops a domain's column from the newest router at once. Removing subtracts a holder's sums
exactly, as if it had never sent them, and solves again. Rolling back publishes an earlier router
under a new number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import InputError
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.routing.release import (
    PRIVACY,
    QUALITY,
    Release,
    save_release,
)
from ridgeway.common.routing.router import Router, router_of
from ridgeway.common.routing.sentence_table import without_domain
from ridgeway.common.text.encoder_files import find_by_fingerprint
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.round.clear_round import add_contributions
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.ledger import ROLLED_BACK, Contribution, LedgerRelease
from ridgeway.coordinator.round.round import solve_total
from ridgeway.coordinator.solving.solve import RouterChoices, compose, sign

MADE_ANEW = ("format", "version", "step", "files", "signature")


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
        domains = set(federation.standing.kept_domains.values())
        if domain not in domains:
            raise InputError(
                f"there is no domain {domain!r}; the domains are:"
                f" {', '.join(sorted(domains)) or 'none'}"
            )
        retirement = ("retired", {"domain": domain})
        newest = federation.newest
        if newest is None or domain not in newest.domains:
            federation.ledger.journal.append(retirement)
            return Change(None)
        number = federation.next_number
        loaded = federation.release(newest.number)
        router = router_of(loaded).without(domain)
        published = replace(
            newest,
            number=number,
            release=_without(federation, loaded, router, domain),
            cause=f"retired {domain}",
            domains=router.domains,
        )
        federation.publish(retirement, ("released", published.to_json()))
        return Change(federation.newest)


def _without(
    federation: Federation, loaded: Release, router: Router, domain: str
) -> str:
    """Sign a release without the column of a domain; returns its id."""
    changes: dict[str, Any] = {
        "domains": list(router.domains),
        "masses": dict(loaded.manifest["masses"]),
        "holdout": dict(loaded.manifest["holdout"]),
        "confidence": router.confidence.to_json(),
        "evaluation": None,
        "parent": loaded.id,
    }
    del changes["masses"][domain]
    del changes["holdout"][domain]
    if router.quality is not None:
        changes[QUALITY] = router.quality.to_json()
    column = loaded.domains.index(domain)
    weights = without_domain(loaded.weights, column, len(loaded.domains))
    return _sign_again(federation, loaded, weights, router, changes)


def _sign_again(
    federation: Federation,
    loaded: Release,
    weights: NDArray[np.float64],
    router: Router,
    changes: dict[str, Any],
) -> str:
    """Sign what was published before, changed, under the next number; returns its id."""
    facts = {
        name: value for name, value in loaded.manifest.items() if name not in MADE_ANEW
    }
    number = federation.next_number
    return save_release(
        federation.release_folder(number),
        facts | changes | {"number": number},
        weights,
        router.compiled,
        loaded.reader.tokenizer.definition,
        federation.identity,
    )


def remove(federation: Federation, name: str) -> Change:
    """Take a holder off the roster, subtract its sums and erase them; the choices of the newest
    release stay.

    No release is made where the newest one does not hold its sums, where fewer than two domains
    would be left, or where its sums are hidden in a masked total.
    """
    with federation.exclusive_lock():
        ledger = federation.ledger
        roster = federation.standing.roster
        if name not in roster:
            raise InputError(
                f"there is no holder {name!r}; the holders are:"
                f" {', '.join(sorted(roster))}"
            )
        removal = ("removed", {"name": name})
        domain = roster[name].domain
        newest = federation.newest
        if newest is None or name not in {member.name for member in newest.members}:
            ledger.journal.append(removal)
            ledger.erase_outdated()
            return Change(None)
        left = tuple(
            member
            for member in newest.members
            if member.name != name and member.domain in newest.domains
        )
        hidden = newest.terms.uses_masks
        if hidden or len({member.domain for member in left}) < 2:
            ledger.journal.append(removal)
            change = Change(None, names_it=True, hidden=hidden)
        else:
            published, note = _solved_again(federation, newest, left, f"removed {name}")
            federation.publish(removal, ("released", published.to_json()))
            others = tuple(member.name for member in left if member.domain == domain)
            change = Change(published, others, note=note)
        ledger.erase_outdated()
        return change


def rollback(federation: Federation, number: int) -> Change:
    """Publish the router of an earlier release anew: under the next number, since holders take no
    earlier one.

    No round publishes over it until the operator ends that. The newest itself is published anew
    where holders have another one of its number. Not one with a domain that was retired since, or
    with sums of a holder that was removed.
    """
    with federation.exclusive_lock():
        standing = federation.standing
        newest = federation.newest
        releases = {release.number: release for release in standing.releases}
        old = releases.get(number)
        if old is None or newest is None or (old is newest and not standing.ahead):
            raise InputError(
                f"release {number} is not an earlier release; `coordinator releases`"
                " lists them"
            )
        members = {member.name for member in old.members}
        gone = members & _removed_since(federation, number)
        if gone or not set(old.domains) <= set(standing.domain_of.values()):
            raise InputError(
                f"release {number:04} contains holders or domains that were removed or"
                f" retired since ({', '.join(sorted(gone)) or 'a retired domain'}), so"
                " it cannot be published again; run a round instead"
            )
        loaded = federation.release(number)
        parent = {"parent": newest.release}
        router = router_of(loaded)
        # what stands published again is no step back, and rounds go on from it
        cause = "published again" if old is newest else ROLLED_BACK
        published = replace(
            old,
            number=federation.next_number,
            release=_sign_again(federation, loaded, loaded.weights, router, parent),
            cause=f"{cause} {number:04}",
            # their sums are erased, or are of later use
            members=tuple(replace(member, digest="") for member in old.members),
            choices="",
        )
        federation.publish(("released", published.to_json()))
        return Change(published)


def _removed_since(federation: Federation, number: int) -> set[str]:
    """Whoever was removed after a release; another holder may have the name by now, but not its
    sums.
    """
    journal = federation.ledger.journal
    [made] = [
        entry.number
        for entry in journal.entries("released")
        if entry.facts["number"] == number
    ]
    removals = journal.entries("removed", after=made)
    return {entry.facts["name"] for entry in removals}


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
    terms = newest.terms
    encoder = _encoder(federation, terms)
    total = add_contributions(federation.ledger, left, terms)
    choices = RouterChoices.of_manifest(manifest)
    choices = replace(choices, confidence=replace(choices.confidence, calibrated=False))
    number = federation.next_number
    solution = solve_total(federation, terms, total, left, encoder, choices.ridge)
    more = {PRIVACY: manifest[PRIVACY]} if terms.privacy else {}
    draft = compose(
        total, encoder, choices, solution, number=number, parent=newest.release, **more
    )
    folder = federation.release_folder(number)
    release = sign(draft, federation.identity, folder)
    published = LedgerRelease(number, release, cause, total.domains, left, terms)
    return published, solution.note


def _encoder(federation: Federation, terms: Terms) -> TableEncoder:
    """The encoder of a release; the settings may name another by now."""
    if federation.encoder.fingerprint == terms.encoder:
        return federation.encoder
    return find_by_fingerprint(terms.encoder, terms.encoder_name)
