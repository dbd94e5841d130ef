"""Federations to be attacked, and the steps that several attacks have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.privacy.noise import PrivacyMode
from ridgeway.common.protocol.messages import Confirmed, Refusal
from ridgeway.common.statistics import Statistics, from_vector
from ridgeway.coordinator.round.federation import PrivacySettings
from tests.support.hostile import CONFIRM, Hostile
from tests.support.simulated_federation import Parties, found, found_private, populate

HOLDOUT = 0.25
"""The share of documents that the holders of `found` keep out of sums."""


class NotOpened(Exception):
    """Some members did not sign a sum. codes: of their refusals, by name."""

    def __init__(self, codes: Mapping[str, str]) -> None:
        super().__init__(str(codes))
        self.codes = dict(codes)


def rounds() -> Iterator[str]:
    """Names of rounds, all different."""
    return (f"{number:032x}" for number in count(1))


def domains_of(names: Iterable[str]) -> dict[str, str]:
    """A domain of its own for each holder."""
    return {name: f"d{name.lower()}" for name in names}


def settled(folder: Path, domains: Mapping[str, str]) -> Parties:
    """Holders of masked rounds that have pinned each other."""
    return populate(found(folder, mode="masked"), domains)


def settled_privately(
    folder: Path,
    domains: Mapping[str, str],
    sums: PrivacyMode = "columns",
    texts: Mapping[str, Sequence[str]] | None = None,
    **policy: Any,
) -> Parties:
    """Holders of private rounds, with a prior that is made of public text."""
    parties = found_private(folder, privacy=PrivacySettings(sums=sums, epsilon=1.0))
    return populate(parties, domains, texts, **policy)


def opened(parties: Parties, names: Sequence[str], round_: str) -> Statistics:
    """The exact total over these members, which they have signed; raises NotOpened if some have
    not.
    """
    coordinator = Hostile(parties, list(names), round_)
    coordinator.until(CONFIRM)
    signatures, codes = {}, {}
    for name in coordinator.names:
        reply = coordinator.ask(
            name, coordinator.confirm_request("statistics", names)
        ).message
        if isinstance(reply, Refusal):
            codes[name] = reply.code
        else:
            assert isinstance(reply, Confirmed)
            signatures[coordinator.place(name)] = reply.signature
    if codes:
        raise NotOpened(codes)
    reveals = coordinator.open("statistics", names, names, signatures)
    total = coordinator.total("statistics", names, reveals)
    return from_vector(
        total, coordinator.terms.features, len(coordinator.cohort().domains)
    )


def refusals(parties: Parties, names: Sequence[str], round_: str) -> set[str]:
    """The codes with which all of these members, and not only some, refuse to sign their total."""
    try:
        opened(parties, names, round_)
    except NotOpened as refusal:
        assert set(refusal.codes) == set(names), refusal.codes
        return set(refusal.codes.values())
    raise AssertionError(f"the sum of {', '.join(names)} was opened")


def own_sums(parties: Parties, name: str, mass: int = EQUAL_MASS) -> Statistics:
    """What only the holder should ever see: its sums, weighted as they are in a total."""
    holder = parties.holder(name)
    epoch = holder.epoch(parties.federation.terms)
    return holder.epochs.statistics(epoch).statistics.weighted(mass)


def add_document(parties: Parties, name: str, text: str) -> None:
    """Let a holder's corpus have one document more; no epoch is opened."""
    [corpus] = parties.holder(name).settings.corpus
    with Path(corpus).open("a") as file:
        file.write(json.dumps({"text": text}) + "\n")


def document(words: str, *, held_out: bool) -> str:
    """Some words, followed by as many spaces as make it a document that is held out, or one that is
    summed.
    """
    return next(
        text for text in spaced(words) if is_held_out(text, HOLDOUT) == held_out
    )


def spaced(words: str) -> Iterator[str]:
    return (words + " " * number for number in count())
