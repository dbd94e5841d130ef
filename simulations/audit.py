"""The privacy audit of a whole cohort: every view that a coordinator may get, and what the known attacks make of it.

    the holder's statistics in the clear · its column of B alone · a total · two totals that differ by the holder

Runs on one machine, where the text is known, so that the shares are true ones. Knows nothing of how they are shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np

from client.audit import CLEAR, Finding, Ticks, attack_column, attack_gram, must_fit, read_summed, true_counts
from client.prepare import Job, Watch
from common.attacks import attribution, measure, unweighted
from common.encoder import Encoder
from common.errors import InputError
from common.records import DEFAULT_FIELDS
from common.settings import DEFAULT, EQUAL_MASS, Sampling
from common.statistics import Integers, Statistics, single_domain
from common.statistics_file import Prepared
from common.threads import cores
from coordinator.total import must_agree

TRAIN = ".train.jsonl"
SAMPLINGS = (Sampling(window=1), DEFAULT.sampling)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A holder of the cohort, alone in its domain: its sums, one for each sampling, and its counts where known."""

    domain: str
    statistics: Mapping[Sampling, Statistics]
    counts: Integers | None


def members_of_folder(data: Path, samplings: Iterable[Sampling], encoder: Encoder, watch: Watch) -> Iterator[Member]:
    """A holder for every DOMAIN.train.jsonl of a folder."""
    paths = sorted(data.glob(f"*{TRAIN}"))
    if not paths:
        raise InputError(f"{data} holds no file named DOMAIN{TRAIN}; an audit needs at least one")
    for path in paths:
        domain = path.name.removesuffix(TRAIN)
        job = Job((path,), domain, Sampling(), DEFAULT.holdout, DEFAULT_FIELDS, cores())
        summed = read_summed(job, encoder, samplings, watch)
        yield Member(domain, summed.statistics, summed.counts)


def members_of_files(
    parts: Sequence[Prepared], jobs: Mapping[str, Job], encoder: Encoder, watch: Watch
) -> Iterator[Member]:
    """A holder for every statistics file; its counts are known where its corpus is given."""
    must_agree(parts)
    domains = [part.domain for part in parts]
    twice = sorted({name for name in domains if domains.count(name) > 1})
    if twice:
        raise InputError(f"two of the files are of {twice[0]!r}; the audit takes one file a domain")
    for part in parts:
        must_fit(part, encoder)
        job = jobs.get(part.domain)
        counts = true_counts(part, job, encoder, watch) if job else None
        yield Member(part.domain, {part.sampling: part.statistics}, counts)


def parse_windows(words: str | None) -> list[Sampling]:
    """`1,64` → plain windows, in order, each once; nothing: single tokens and the default."""
    if words is None:
        return list(SAMPLINGS)
    names = [word.strip() for word in words.split(",")]
    wrong = next((word for word in names if not (word.isascii() and word.isdecimal())), None)
    if wrong is not None:
        raise InputError(f"{wrong!r} is not a number of tokens; give windows such as --windows 1,64")
    return [Sampling(window=size) for size in sorted({int(word) for word in names})]


def choose_holder(members: Sequence[Member], name: str | None) -> int:
    """The place of the holder that is attacked; unless one is named, that with the least text."""
    domains = [member.domain for member in members]
    if name is None:
        sizes = [min(each.mass for each in member.statistics.values()) for member in members]
        return sizes.index(min(sizes))
    if name not in domains:
        raise InputError(f"there is no holder {name!r}; there are {', '.join(domains)}")
    return domains.index(name)


def audit(
    members: Sequence[Member], holder: int, samplings: Iterable[Sampling], encoder: Encoder, ticks: Ticks
) -> Iterator[Finding]:
    """Attack one holder by every view that this cohort has, one way of sampling after another."""
    member = members[holder]
    for sampling in samplings:
        own = member.statistics[sampling]
        clear = attack_gram(CLEAR, encoder, own, sampling, member.counts, ticks)
        yield clear
        yield attack_column(encoder, own.cross[:, 0], sampling, member.counts)
        if len(members) > 1:
            yield from _from_total(members, holder, sampling, encoder, ticks)
            yield _from_difference(members, holder, sampling, clear, encoder, ticks)


def _from_total(
    members: Sequence[Member], holder: int, sampling: Sampling, encoder: Encoder, ticks: Ticks
) -> Iterator[Finding]:
    """The union's histogram, and of that what would be called the holder's."""
    total = _total(members, sampling)
    known = [member.counts for member in members if member.counts is not None]
    truth = reduce(add, known) if len(known) == len(members) else None
    union = attack_gram(f"total of {len(members)}: union", encoder, total, sampling, truth, ticks)
    yield union
    started = time.monotonic()
    counts = np.where(attribution(encoder.table, total) == holder, union.counts, 0)
    own = members[holder].counts
    measures = None if own is None else measure(counts, own)
    name = f"total of {len(members)}: called {members[holder].domain}"
    yield Finding(name, sampling, counts, False, measures, union.seconds + time.monotonic() - started)


def _from_difference(
    members: Sequence[Member], holder: int, sampling: Sampling, clear: Finding, encoder: Encoder, ticks: Ticks
) -> Finding:
    """Two weighted totals, one without the holder: their difference, its weighting undone, is attacked as the clear
    statistics are. Where it equals them bit for bit, so does what is found."""
    started = time.monotonic()
    both = _total(members, sampling, EQUAL_MASS)
    others = _total([member for place, member in enumerate(members) if place != holder], sampling, EQUAL_MASS)
    seen = single_domain(both.gram - others.gram)
    raw = unweighted(seen) or seen
    view = "difference of totals"
    if raw.equals(members[holder].statistics[sampling]):
        return replace(clear, view=view, seconds=clear.seconds + time.monotonic() - started)
    return attack_gram(view, encoder, raw, sampling, members[holder].counts, ticks)


def _total(members: Sequence[Member], sampling: Sampling, mass: int | None = None) -> Statistics:
    """The sum over holders, of raw sums or of those that each has weighted."""
    own = (member.statistics[sampling] for member in members)
    parts = [each.weighted(mass) if mass else each for each in own]
    return reduce(add, (part.placed(place, len(parts)) for place, part in enumerate(parts)))
