"""The privacy audit of a whole cohort: every view that a coordinator may get, and what the known
attacks make of it.

    the holder's statistics in the clear · its column of B alone · a total · two totals that differ
    by the holder

Runs on one machine, where the text is known, so that the shares are true ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np

from ridgeway.client.audit import (
    Finding,
    Ticks,
    attack_gram,
    attack_holder,
    measured,
    must_fit,
    of_tokens,
    read_summed,
    true_counts,
)
from ridgeway.client.sums.prepare import PrepareJob, Watch
from ridgeway.common.attacks import attribution, unweighted
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.jsonl import DEFAULT_FIELDS
from ridgeway.common.base.settings import DEFAULT, EQUAL_MASS, Sampling
from ridgeway.common.base.threads import cores
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.common.statistics.sums import Integers, Statistics, single_domain
from ridgeway.coordinator.solving.total import must_agree
from ridgeway.simulations.corpora import TRAIN

DEFAULT_SAMPLINGS = (Sampling(window=1), DEFAULT.sampling)


@dataclass(frozen=True, slots=True, eq=False)
class AuditedHolder:
    """A holder of the cohort, alone in its domain: its sums, one for each sampling, and its counts
    where known.
    """

    domain: str
    statistics: Mapping[Sampling, Statistics]
    counts: Integers | None


def members_of_folder(
    data: Path, samplings: Iterable[Sampling], encoder: TableEncoder, watch: Watch
) -> Iterator[AuditedHolder]:
    """A holder for every DOMAIN.train.jsonl of a folder."""
    paths = sorted(data.glob(f"*{TRAIN}"))
    if not paths:
        raise InputError(
            f"{data} holds no file named DOMAIN{TRAIN}; an audit needs at least one"
        )
    for path in paths:
        domain = path.name.removesuffix(TRAIN)
        job = PrepareJob(
            (path,), domain, Sampling(), DEFAULT.holdout, DEFAULT_FIELDS, cores()
        )
        counts, statistics = read_summed(job, encoder, samplings, watch)
        yield AuditedHolder(domain, statistics, counts)


def members_of_files(
    parts: Sequence[Prepared],
    jobs: Mapping[str, PrepareJob],
    encoder: TableEncoder,
    watch: Watch,
) -> Iterator[AuditedHolder]:
    """A holder for every statistics file; its counts are known where its corpus is given."""
    must_agree(parts)
    domains = [part.domain for part in parts]
    twice = sorted({name for name in domains if domains.count(name) > 1})
    if twice:
        raise InputError(
            f"two of the files are of {twice[0]!r}; the audit takes one file a domain"
        )
    for part in parts:
        must_fit(part, encoder)
        job = jobs.get(part.domain)
        counts = true_counts(part, job, encoder, watch) if job else None
        yield AuditedHolder(part.domain, {part.sampling: part.statistics}, counts)


def parse_windows(words: str | None) -> list[Sampling]:
    """`1,64` → plain windows, in order, each once; nothing: single tokens and the default."""
    if words is None:
        return list(DEFAULT_SAMPLINGS)
    names = [word.strip() for word in words.split(",")]
    wrong = next(
        (word for word in names if not (word.isascii() and word.isdecimal())), None
    )
    if wrong is not None:
        raise InputError(
            f"{wrong!r} is not a number of tokens; give windows such as --windows 1,64"
        )
    return [Sampling(window=size) for size in sorted({int(word) for word in names})]


def choose_holder(members: Sequence[AuditedHolder], name: str | None) -> int:
    """The place of the holder that is attacked; unless one is named, that with the least text."""
    domains = [member.domain for member in members]
    if name is None:
        sizes = [
            min(each.mass for each in member.statistics.values()) for member in members
        ]
        return sizes.index(min(sizes))
    if name not in domains:
        raise InputError(f"there is no holder {name!r}; there are {', '.join(domains)}")
    return domains.index(name)


def audit(
    members: Sequence[AuditedHolder],
    holder: int,
    samplings: Iterable[Sampling],
    encoder: TableEncoder,
    ticks: Ticks,
) -> Iterator[Finding]:
    """Attack one holder by every view that this cohort has, one way of sampling after another."""
    own = members[holder]
    for sampling in samplings:
        raw = own.statistics[sampling]
        found = []
        for finding in attack_holder(encoder, raw, sampling, own.counts, ticks):
            found.append(finding)
            yield finding
        if len(members) == 1:
            continue
        yield from _from_total(members, holder, sampling, encoder, ticks)
        started = time.monotonic()
        seen = _seen_in_difference(members, holder, sampling)
        view = "difference of totals"
        if seen.equals(raw):  # then what is found is the same too
            yield replace(
                found[0],
                view=view,
                seconds=found[0].seconds + time.monotonic() - started,
            )
        else:
            yield attack_gram(view, encoder, seen, sampling, own.counts, ticks)


def _from_total(
    members: Sequence[AuditedHolder],
    holder: int,
    sampling: Sampling,
    encoder: TableEncoder,
    ticks: Ticks,
) -> Iterator[Finding]:
    """The union's histogram, and of that what would be called the holder's."""
    total = _total(members, sampling)
    known = [member.counts for member in members if member.counts is not None]
    truth = reduce(add, known) if len(known) == len(members) else None
    union = attack_gram(
        f"total of {len(members)}: union", encoder, total, sampling, truth, ticks
    )
    yield union
    started = time.monotonic() - union.seconds
    counts = np.where(
        attribution(encoder.table, of_tokens(total, encoder)) == holder, union.counts, 0
    )
    name = f"total of {len(members)}: called {members[holder].domain}"
    yield measured(name, sampling, counts, members[holder].counts, started)


def _seen_in_difference(
    members: Sequence[AuditedHolder], holder: int, sampling: Sampling
) -> Statistics:
    """What two weighted totals, one of them without the holder, show of it: their difference, its
    weighting undone.
    """
    others = [member for place, member in enumerate(members) if place != holder]
    both, without = (_total(each, sampling, EQUAL_MASS) for each in (members, others))
    seen = single_domain(both.gram - without.gram)
    return unweighted(seen) or seen


def _total(
    members: Sequence[AuditedHolder], sampling: Sampling, mass: int | None = None
) -> Statistics:
    """The sum over holders, of raw sums or of those that each has weighted."""
    own = (member.statistics[sampling] for member in members)
    parts = [each.weighted(mass) if mass else each for each in own]
    return reduce(
        add, (part.placed(place, len(parts)) for place, part in enumerate(parts))
    )
