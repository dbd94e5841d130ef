"""One trial: a holder's text summed, seen as a coordinator may see it, and attacked as `ridgeway
audit` does.

    Dataset ──▶ Ground: tokens of some domains, an encoder perhaps cut to fewer tokens and columns
    ──▶ Trial ──▶ audit
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.audit import (
    CLEAR,
    COLUMN,
    AuditedHolder,
    Finding,
    attack_cohort,
)
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.base.settings import DEFAULT, Sampling
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.statistics.sums import Integers
from ridgeway.simulations.bench.random_corpus import DEFINITION
from ridgeway.simulations.experiments.dataset import (
    Dataset,
    DomainTokens,
    Tokens,
    sums_of,
)

USUAL = "usual"
"""In the column of windows: sampled as holders do unless told otherwise, where that is not plain
windows.
"""

CALLED = "total of the cohort"
"""Of the union's tokens, those that would be called the domain's."""


# What is attacked


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """domain: whose holder is attacked. rows: every domain's tokens. used: how many distinct ones
    there are.
    """

    encoder: TableEncoder
    domain: str
    rows: DomainTokens
    used: int


def lay_ground(
    dataset: Dataset,
    encoder: TableEncoder,
    *,
    domains: int,
    tokens: int,
    others: int,
    rows: int | None,
    seed: int,
) -> Ground:
    """The domain with the least text of those that have `tokens`, and the next ones, `others`
    tokens of each.

    rows: how many tokens the table is cut to: those that are used, and as many more, drawn at
          random. None keeps all.
    """
    texts = {
        name: _tokens(dataset.train[name], encoder, seed) for name in dataset.domains
    }
    enough = [name for name in texts if len(texts[name].ids) >= tokens]
    domain = min(
        enough or texts,
        key=lambda name: (len(texts[name].ids) * (1 if enough else -1), name),
    )
    beside = [name for name in sorted(texts) if name != domain][: domains - 1]
    cut = {
        domain: texts[domain].part(0, tokens),
        **{name: texts[name].part(0, others) for name in beside},
    }
    if not len(cut[domain].ids):
        raise CorpusError(
            f"the domain {domain!r} of {dataset.name} holds no tokens; there is nothing"
            " to attack"
        )
    used = np.unique(np.concatenate([row.ids for row in cut.values()]))
    kept = _kept(used, encoder.rows, rows, seed)
    places = np.full(encoder.rows, -1, dtype=np.int32)
    places[kept] = np.arange(len(kept), dtype=np.int32)
    placed = {name: Tokens(places[row.ids], row.lengths) for name, row in cut.items()}
    return Ground(_unread(encoder, encoder.table[kept]), domain, placed, len(used))


def _tokens(texts: Sequence[str], encoder: TableEncoder, seed: int) -> Tokens:
    """What is summed of some texts, in a random order."""
    summed = [text for text in texts if not is_held_out(text, DEFAULT.holdout)]
    random.Random(seed).shuffle(summed)
    return Tokens(*encoder.tokenizer.encode_many(summed))


def _kept(
    used: NDArray[np.int32], all_rows: int, rows: int | None, seed: int
) -> Integers:
    if rows is None or rows >= all_rows:
        return np.arange(all_rows, dtype=np.int64)
    others = np.setdiff1d(np.arange(all_rows), used)
    drawn = np.random.default_rng(seed).choice(
        others, max(0, rows - len(used)), replace=False
    )
    kept: Integers = np.sort(np.concatenate([used, drawn])).astype(np.int64)
    return kept


def _unread(encoder: TableEncoder, table: NDArray[np.int16]) -> TableEncoder:
    """An encoder with another table, whose tokenizer is not asked any more."""
    return TableEncoder(
        encoder.name,
        json.dumps(DEFINITION).encode(),
        np.ascontiguousarray(table),
        encoder.scale,
    )


# The attack


@dataclass(frozen=True, slots=True)
class Trial:
    """tokens: of the attacked holder. holders: how many of like size its domain has. cohort:
    whether other domains are there.
    """

    tokens: int
    width: int
    sampling: Sampling
    holders: int = 1
    cohort: bool = False

    @property
    def words(self) -> str:
        """As it stands in a table: the window where that says all about how documents are
        sampled.
        """
        window = self.sampling.window
        return str(window) if self.sampling == Sampling(window=window) else USUAL

    @property
    def needed(self) -> int:
        return self.tokens * self.holders


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What an attack on one view brought, in percent of the holder's own.

    recovered, rare: of its distinct tokens, and of those that occur once or twice. mass: of all its
                     tokens.
    precision: the share of what was found that is the holder's. chance: what finding as many at
               random would hit.
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
    whole = trial.width == ground.encoder.width
    encoder = (
        ground.encoder
        if whole
        else _unread(ground.encoder, ground.encoder.table[:, : trial.width])
    )
    domains = sorted(ground.rows) if trial.cohort else [ground.domain]
    members = [_member(ground, name, encoder, trial) for name in domains]
    place = domains.index(ground.domain)
    truth = members[place].counts
    assert truth is not None
    findings = attack_cohort(members, place, trial.sampling, encoder)
    return [asdict(each) for each in _results(findings, truth, trial, ground.domain)]


def _member(
    ground: Ground, domain: str, encoder: TableEncoder, trial: Trial
) -> AuditedHolder:
    """A domain's holders, added up; its counts are those of the one that is attacked, and of other
    domains unknown.
    """
    parts = [
        ground.rows[domain].part(place * trial.tokens, trial.tokens)
        for place in range(trial.holders)
    ]
    sums = sums_of(
        encoder,
        trial.sampling,
        {str(place): part for place, part in enumerate(parts) if len(part.ids)},
    )
    counts = np.bincount(parts[0].ids, minlength=encoder.rows).astype(np.int64)
    total = reduce(add, sums.values())
    return AuditedHolder(domain, total, counts if domain == ground.domain else None)


def _results(
    findings: Iterator[Finding], truth: Integers, trial: Trial, domain: str
) -> Iterator[AttackResult]:
    for finding in findings:
        view = CALLED if finding.view.endswith(f"called {domain}") else finding.view
        measures = finding.measures
        if measures is None or view not in (CLEAR, COLUMN, CALLED):
            continue
        yield AttackResult(
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
