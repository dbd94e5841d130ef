"""Changes of membership that need no round: retire a domain, remove a holder.

Retiring drops a domain's column from the newest router at once. Removing subtracts a holder's sums exactly, as if it
had never sent them, and solves again. Knows the ledger and releases. Knows nothing of the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from common.errors import InputError
from common.release import Release, load_release, save_release
from common.router import Confidence
from common.settings import Ridge, Selector
from coordinator.federation import Federation
from coordinator.ledger import Published
from coordinator.publish import Choices, compose, sign
from coordinator.solve import solve
from coordinator.total import add_weighted

MADE_ANEW = ("format", "version", "step", "files", "signature")


@dataclass(frozen=True, slots=True)
class Change:
    """What a change came to: the release that was made, if any, and the holders whose share no longer fits."""

    published: Published | None
    unbalanced: tuple[str, ...] = ()


def retire(federation: Federation, domain: str) -> Change:
    """Drop a domain's column. Its holders are not asked again, and later rounds leave their sums out."""
    with federation.alone():
        standing = federation.ledger.standing()
        if domain not in {holder.domain for holder in standing.roster.values()} or domain in standing.retired:
            active = sorted({holder.domain for holder in standing.active.values()})
            raise InputError(f"there is no domain {domain!r} to retire; there are {', '.join(active) or 'none'}")
        newest = federation.newest
        if newest is None or domain not in newest.domains:
            federation.ledger.note("retired", domain=domain)
            return Change(None)
        loaded = load_release(federation.release_folder(newest.number), key=federation.identity.public)
        number = federation.next_number
        release = _without(federation, loaded, domain, number)
        facts = _released(number, release, f"retired {domain}", loaded.router.without(domain).domains)
        federation.ledger.journal.append(("retired", {"domain": domain}), ("released", facts))
        federation.point_to_latest()
        return Change(federation.newest)


def _without(federation: Federation, loaded: Release, domain: str, number: int) -> str:
    router = loaded.router.without(domain)
    place = loaded.router.domains.index(domain)
    facts = {name: value for name, value in loaded.manifest.items() if name not in MADE_ANEW}
    facts |= {
        "domains": list(router.domains),
        "masses": {name: mass for name, mass in facts["masses"].items() if name != domain},
        "holdout": {name: share for name, share in facts["holdout"].items() if name != domain},
        "confidence": router.confidence.to_json(),
        "evaluation": None,
        "number": number,
        "parent": loaded.id,
    }
    definition = (federation.release_folder(loaded.manifest["number"]) / "tokenizer.json").read_bytes()
    weights = np.ascontiguousarray(np.delete(loaded.weights, place, axis=1))
    folder = federation.release_folder(number)
    return save_release(folder, facts, weights, router.compiled, definition, federation.identity)


def remove(federation: Federation, name: str) -> Change:
    """Take a holder off the roster, subtract its sums and erase them; the choices of the newest release stay."""
    with federation.alone():
        ledger, standing = federation.ledger, federation.ledger.standing()
        if name not in standing.roster:
            raise InputError(f"there is no holder {name!r} to remove; there are {', '.join(sorted(standing.roster))}")
        newest, given = federation.newest, standing.contributions.get(name)
        removal = ("removed", {"name": name})
        if newest is None or given is None or given.domain not in {*newest.domains, *standing.retired}:
            ledger.journal.append(removal)
            ledger.erase_outdated()
            return Change(None)
        loaded = load_release(federation.release_folder(newest.number), key=federation.identity.public)
        left = {each: kept for each, kept in _counted(federation, loaded).items() if each != name}
        if len({kept.domain for kept in left.values()}) < 2:
            raise InputError(f"without {name!r} fewer than two domains are left, and a router needs two")
        number = federation.next_number
        release, domains = _solved_again(federation, loaded, left, number)
        ledger.journal.append(removal, ("released", _released(number, release, f"removed {name}", domains)))
        federation.point_to_latest()
        ledger.erase_outdated()
        return Change(federation.newest, tuple(each for each, kept in left.items() if kept.domain == given.domain))


def _counted(federation: Federation, loaded: Release) -> dict[str, Any]:
    """The contributions that the release was made of."""
    standing = federation.ledger.standing()
    return {
        name: each
        for name, each in sorted(standing.contributions.items())
        if each.domain in loaded.router.domains and each.terms == federation.terms.id
    }


def _solved_again(
    federation: Federation, loaded: Release, left: Mapping[str, Any], number: int
) -> tuple[str, tuple[str, ...]]:
    manifest = loaded.manifest
    parts = ((each.domain, federation.ledger.sums(each), each.holdout) for each in left.values())
    total = add_weighted(parts, federation.terms)
    confidence = replace(Confidence(**manifest["confidence"]), calibrated=False)
    ridge = Ridge(**manifest["ridge"])
    choices = Choices(
        weighting=federation.settings.weighting,
        ridge=ridge,
        normalise_columns=manifest["normalise_columns"],
        selector=Selector(**manifest["selector"]),
        confidence=confidence,
    )
    solution = solve(total.statistics, federation.encoder.scale, ridge)
    draft = compose(total, federation.encoder, choices, solution, number=number, parent=loaded.id)
    return sign(draft, federation.identity, federation.release_folder(number)).release, total.domains


def _released(number: int, release: str, cause: str, domains: tuple[str, ...]) -> dict[str, Any]:
    return {"number": number, "release": release, "cause": cause, "domains": list(domains)}
