"""Attacks on exact sums: a holder's text summed, seen as a coordinator may see it, and attacked as
`ridgeway audit` does, over sizes, widths, windows and holders.

In a short run the encoder is cut to fewer tokens and columns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.audit import CLEAR, COLUMN, AuditedHolder, attack_cohort
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.attacks import Measures
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.base.settings import DEFAULT, Sampling
from ridgeway.common.base.threads import cores, one_blas_thread
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.statistics.sums import Integers, triangle_size
from ridgeway.simulations.experiments.dataset import Dataset
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report import Cell, ReportTable
from ridgeway.simulations.experiments.token_routers import summed

UNREAD = b'{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
"""The tokenizer of an encoder whose table is cut, which is never asked."""
TRIALS_AT_ONCE = 4
"""Each trial holds the whole table several times over."""
CALLED = "total of the cohort: called the domain's"
_SHARES = (
    "distinct tokens",
    "found",
    "recovered, %",
    "rare, %",
    "counts exact, %",
    "precision, %",
    "by chance, %",
)
LEGEND = (
    "recovered: the share of the holder's distinct tokens that the attack names; rare:"
    " the same of tokens that occur once or twice; precision: the share of the named"
    " tokens that are the holder's; by chance: what naming as many tokens at random"
    " would hit."
)


@dataclass(frozen=True, slots=True)
class AttackSizes:
    """How much is attacked.

    rows:    how many tokens the table is cut to; None for all.
    width:   how many of its columns are kept where the width is not looked at; None for all.
    tokens:  of the corpus, where its size is looked at; `middle` elsewhere.
    share:   tokens of each holder, where holders are counted.
    domains: of the cohort there.
    """

    rows: int | None
    width: int | None
    widths: tuple[int, ...]
    tokens: tuple[int, ...]
    middle: int
    share: int
    domains: int
    holders: tuple[int, ...] = (1, 2, 4, 8)
    windows: tuple[int, ...] = (1, 8, 16, 64)
    few_windows: tuple[int, ...] = (1, 64)


SHORT_SIZES = AttackSizes(
    rows=6144,
    width=96,
    widths=(24, 48, 96, 192),
    tokens=(500, 2000, 8000),
    middle=2000,
    share=1000,
    domains=3,
)
FULL_SIZES = AttackSizes(
    rows=None,
    width=None,
    widths=(64, 144, 288, 576),
    tokens=(1000, 4000, 16_000, 64_000),
    middle=16_000,
    share=4000,
    domains=6,
)


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Texts as token ids in one row, `lengths` of them each."""

    ids: Ids
    lengths: Integers

    def part(self, start: int, tokens: int) -> Tokens:
        """This many tokens from a place on; texts that reach over an edge are cut."""
        ends = np.clip(np.cumsum(self.lengths), start, start + tokens) - start
        lengths: Integers = np.diff(ends, prepend=0)
        return Tokens(self.ids[start : start + tokens], lengths[lengths > 0])


@dataclass(frozen=True, slots=True, eq=False)
class AttackedText:
    """table: perhaps cut. domain: whose holder is attacked. tokens: by domain."""

    table: NDArray[np.int16]
    domain: str
    tokens: dict[str, Tokens]


@dataclass(frozen=True, slots=True)
class Trial:
    """tokens: of the attacked holder. holders: of like size that its domain has. cohort: whether
    other domains are there.
    """

    tokens: int
    width: int
    sampling: Sampling
    holders: int = 1
    cohort: bool = False


def attack_tables(
    plan: ExperimentPlan, size: AttackSizes
) -> tuple[list[ReportTable], list[str]]:
    """Attacks on the first dataset, and what there is too little text for."""
    encoder = plan.table_encoder()
    dataset = plan.datasets[0]
    text = attacked_text(dataset, encoder, size, plan.seed)
    rows = len(text.table)
    width = min(size.width or encoder.width, encoder.width)
    every = [*map(_plain, size.windows), DEFAULT.sampling]
    few = [*map(_plain, size.few_windows), DEFAULT.sampling]
    about = f"{text.domain} of {dataset.name}, {rows:,} of {encoder.rows:,} tokens"
    corpus = [Trial(tokens, width, each) for each in every for tokens in size.tokens]
    holders = [
        Trial(size.share, width, each, count, cohort=True)
        for each in few
        for count in size.holders
    ]
    widths = [
        Trial(size.middle, min(each, encoder.width), _plain(window))
        for window in size.few_windows
        for each in size.widths
    ]
    there = len(text.tokens[text.domain].ids)
    trials = [
        trial
        for trial in dict.fromkeys([*corpus, *holders, *widths])
        if trial.tokens * trial.holders <= there
    ]
    with one_blas_thread(), ThreadPoolExecutor(min(cores(), TRIALS_AT_ONCE)) as pool:
        attack = partial(attacked, text, encoder)
        found = dict(zip(trials, pool.map(attack, trials), strict=True))

    def table(
        by: str,
        columns: tuple[str, ...],
        trials: Sequence[Trial],
        cells: Callable[[Trial], tuple[Cell, ...]],
    ) -> ReportTable:
        lines = [
            (view, _words(trial.sampling), *cells(trial), *_shares(measures))
            for trial in trials
            for view, measures in found.get(trial, {}).items()
        ]
        title = f"What comes back of a holder's corpus by {by}; {about}"
        heads = ("view", "window", *columns, *_SHARES)
        lines.sort(key=lambda line: str(line[0]))
        return ReportTable(title, heads, tuple(lines), LEGEND)

    tables = [
        table(
            f"its size, h = {width}", ("tokens",), corpus, lambda each: (each.tokens,)
        ),
        table(
            f"the holders of its domain, {size.share:,} tokens each, h = {width}",
            ("holders",),
            holders,
            lambda each: (each.holders,),
        ),
        table(
            f"the width h, {size.middle:,} tokens",
            ("h", "sums for each token of the table"),
            widths,
            lambda each: (each.width, triangle_size(each.width + 1) / rows),
        ),
    ]
    missing = {each.tokens * each.holders for each in (*corpus, *holders, *widths)}
    left_out = [
        f"attacks on {tokens:,} tokens of {text.domain}: it has {there:,}"
        for tokens in sorted(missing)
        if tokens > there
    ]
    left_out += [
        f"attacks on {each.name}: only the first dataset is attacked"
        for each in plan.datasets[1:]
    ]
    return tables, left_out


def _plain(window: int) -> Sampling:
    return Sampling(window=window)


def _words(sampling: Sampling) -> str:
    return str(sampling.window) if sampling == _plain(sampling.window) else "default"


def _shares(measures: Measures) -> tuple[Cell, ...]:
    shares = (
        measures.recovered,
        measures.rare_recovered,
        measures.exact,
        measures.precision,
        measures.chance,
    )
    percent = (None if share is None else 100 * share for share in shares)
    return (measures.tokens, measures.found, *percent)


def attacked_text(
    dataset: Dataset, encoder: TableEncoder, size: AttackSizes, seed: int
) -> AttackedText:
    """The domain with the least text of those that have enough, and the next ones beside it.

    A table that is cut keeps the tokens that are used, and others drawn at random.
    """
    chance = np.random.default_rng(seed)
    beside = max(size.holders) * size.share
    most = max(*size.tokens, size.middle, beside)
    texts = {}
    for name, own in dataset.train.items():
        held_in = [text for text in own if not is_held_out(text, DEFAULT.holdout)]
        random.Random(seed).shuffle(held_in)
        texts[name] = Tokens(*encoder.tokenizer.encode_many(held_in))
    sizes = {name: len(own.ids) for name, own in texts.items()}
    enough = [name for name in sizes if sizes[name] >= most]
    domain = (
        min(enough, key=lambda name: sizes[name])
        if enough
        else max(sizes, key=lambda name: sizes[name])
    )
    if not sizes[domain]:
        raise CorpusError(f"{dataset.name} holds no tokens; there is nothing to attack")
    others = [name for name in sorted(texts) if name != domain][: size.domains - 1]
    cut = {domain: texts[domain].part(0, most)}
    cut |= {name: texts[name].part(0, beside) for name in others}
    if size.rows is None or size.rows >= encoder.rows:
        return AttackedText(encoder.table, domain, cut)
    used = np.unique(np.concatenate([own.ids for own in cut.values()]))
    unused = np.setdiff1d(np.arange(encoder.rows), used)
    drawn = chance.choice(unused, max(0, size.rows - len(used)), replace=False)
    kept = np.sort(np.concatenate([used, drawn]))
    places = np.full(encoder.rows, -1, dtype=np.int32)
    places[kept] = np.arange(len(kept))
    placed = {name: Tokens(places[own.ids], own.lengths) for name, own in cut.items()}
    return AttackedText(encoder.table[kept], domain, placed)


def attacked(
    text: AttackedText, encoder: TableEncoder, trial: Trial
) -> dict[str, Measures]:
    """What an attack on every view of this trial brought."""
    table = np.ascontiguousarray(text.table[:, : trial.width])
    cut = TableEncoder(encoder.name, UNREAD, table, encoder.scale)
    domains = sorted(text.tokens) if trial.cohort else [text.domain]
    members = [_member(text, name, table, trial) for name in domains]
    place = domains.index(text.domain)
    found = {}
    for finding in attack_cohort(members, place, trial.sampling, cut):
        called = finding.view.endswith(f"called {text.domain}")
        view = CALLED if called else finding.view
        if view in (CLEAR, COLUMN, CALLED) and finding.measures is not None:
            found[view] = finding.measures
    return found


def _member(
    text: AttackedText, domain: str, table: NDArray[np.int16], trial: Trial
) -> AuditedHolder:
    """A domain's holders, added up; the counts are those of the one that is attacked."""
    parts = [
        text.tokens[domain].part(place * trial.tokens, trial.tokens)
        for place in range(trial.holders)
    ]
    sums = [
        summed(table, trial.sampling, [(part.ids, part.lengths)])
        for part in parts
        if len(part.ids)
    ]
    counts = np.bincount(parts[0].ids, minlength=len(table)).astype(np.int64)
    known = counts if domain == text.domain else None
    return AuditedHolder(domain, reduce(add, sums), known)
