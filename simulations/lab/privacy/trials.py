"""One trial: a holder's text summed, seen as a coordinator may see it, and attacked as `ridgeway audit` does.

Knows the audit. Knows nothing of tables and plots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any

from client.audit import CLEAR, COLUMN, Finding
from common.encoder import Encoder
from common.settings import Sampling
from common.statistics import Integers
from simulations.audit import Member, audit
from simulations.lab.privacy.ground import Ground, Row

USUAL = "usual"
"""In the column of windows: sampled as holders do unless told otherwise, where that is not plain windows."""

CALLED = "total of the cohort"
"""Of the union's tokens, those that would be called the domain's."""


@dataclass(frozen=True, slots=True)
class Trial:
    """tokens: of the attacked holder. holders: how many of like size its domain has. cohort: whether other domains are
    there.
    """

    tokens: int
    width: int
    sampling: Sampling
    holders: int = 1
    cohort: bool = False

    @property
    def window(self) -> int:
        return self.sampling.window

    @property
    def is_plain(self) -> bool:
        """Whether the window says all about how documents are sampled."""
        return self.sampling == Sampling(window=self.window)

    @property
    def words(self) -> str:
        """As it stands in a table."""
        return str(self.window) if self.is_plain else USUAL

    @property
    def sampled(self) -> str:
        """The same in a sentence."""
        return f"windows of {self.window}" if self.is_plain else str(self.sampling)

    @property
    def needed(self) -> int:
        return self.tokens * self.holders


@dataclass(frozen=True, slots=True)
class Seen:
    """What an attack on one view brought, in percent of the holder's own.

    recovered, rare: of its distinct tokens, and of those that occur once or twice. mass: of all its tokens.
    precision: the share of what was found that is the holder's. chance: what finding as many at random would hit.
    """

    view: str
    trial: Trial
    distinct: int
    found: int
    recovered: float
    mass: float
    rare: float | None
    exact: float
    precision: float | None
    chance: float
    proven: bool


def attacked(ground: Ground, trial: Trial) -> list[dict[str, Any]]:
    """Every view of this trial, as what JSON can hold."""
    encoder = ground.encoder if trial.width == ground.encoder.width else ground.narrowed(trial.width)
    members = [
        _member(ground, name, encoder, trial) for name in (sorted(ground.rows) if trial.cohort else [ground.domain])
    ]
    place = [member.domain for member in members].index(ground.domain)
    truth = members[place].counts
    assert truth is not None
    findings = audit(members, place, [trial.sampling], encoder, lambda view: lambda: None)
    return [asdict(seen) for seen in _seen(findings, truth, trial, ground.domain)]


def seen_of(value: dict[str, Any]) -> Seen:
    trial = value["trial"]
    return Seen(**{**value, "trial": Trial(**{**trial, "sampling": Sampling(**trial["sampling"])})})


def _member(ground: Ground, domain: str, encoder: Encoder, trial: Trial) -> Member:
    """A domain's holders, added up; its counts are those of the one that is attacked, and of other domains unknown."""
    parts = [ground.rows[domain].part(place * trial.tokens, trial.tokens) for place in range(trial.holders)]
    total = reduce(add, (part.statistics(encoder, trial.sampling) for part in _some(parts)))
    return Member(domain, {trial.sampling: total}, parts[0].counts(encoder.rows) if domain == ground.domain else None)


def _some(parts: list[Row]) -> list[Row]:
    return [part for part in parts if len(part.ids)]


def _seen(findings: Iterator[Finding], truth: Integers, trial: Trial, domain: str) -> Iterator[Seen]:
    for finding in findings:
        name = CALLED if finding.view.endswith(f"called {domain}") else finding.view
        if finding.measures is not None and name in (CLEAR, COLUMN, CALLED):
            yield _measured(name, finding, truth, trial)


def _measured(view: str, finding: Finding, truth: Integers, trial: Trial) -> Seen:
    measures = finding.measures
    assert measures is not None
    return Seen(
        view=view,
        trial=trial,
        distinct=measures.tokens,
        found=measures.found,
        recovered=_percent(measures.recovered) or 0.0,
        mass=100 * float(truth[finding.counts > 0].sum() / truth.sum()),
        rare=_percent(measures.rare_recovered),
        exact=_percent(measures.exact) or 0.0,
        precision=_percent(measures.precision),
        chance=100 * measures.chance,
        proven=finding.proven,
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
