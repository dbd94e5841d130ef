"""The part `selectors`: how accuracy depends on what can be chosen and on the text there is.

    Dataset ──▶ SelectorBench (tokens, sums, routers) ──▶ curves, kept in the cache ──▶ plots,
    tables

A curve is accuracy over one quantity, all else as it is by default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
from pydantic import TypeAdapter

from ridgeway.common.base.settings import (
    DEFAULT,
    MAX_WINDOW_TOKENS,
    PAPER,
    Preset,
    Ridge,
    Sampling,
    Selector,
)
from ridgeway.common.encoding.encoder_sources import find_encoder
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.simulations.experiments.dataset import HELD_OUT, Dataset, DomainTokens
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report.report_tables import (
    Better,
    Column,
    Plot,
    ReportPart,
    Scale,
    Series,
    Table,
)
from ridgeway.simulations.experiments.selectors.selector_bench import (
    BAYES,
    OURS,
    PAPERS,
    LabelledTexts,
    SelectorBench,
    TableRouter,
    coarser,
    coarser_logits,
)

KEY = "selectors"
TITLE = "Selectors, λ, windows, bits, and how much text is needed"
CODE = 3

METHOD = (
    f"Routers learn from training text of which {HELD_OUT:.0%} is held out. Accuracy is"
    " the mean over domains. Choices are to be made on held-out text, as a federation"
    " makes them; accuracy on the test itself is given beside it, since the paper"
    " chose so. Where routers are compared, ours is the default, the paper's is its"
    f" preset with k = {PAPER.selector.k}, and naive Bayes counts tokens with all text"
    " in one place, smoothed as held-out text chooses. The facts say how many tokens"
    " and texts were used where that is not all."
)
TEXT_NOTE = (
    "The tokens of each domain, or all that it has where these are fewer; the axis"
    " shows the mean over domains."
)


KS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
WINDOWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BITS = (3, 4, 6, 8, 10, 12)
BUDGETS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)

AVERAGE = "average"
ALL = "all"
WHOLE = "whole documents"
TEST = "test"
HELD = "held-out"
USUAL = (
    str(DEFAULT.sampling.window) if DEFAULT.sampling.is_plain else str(DEFAULT.sampling)
)
"""How the preset's samples are called beside plain windows of one size."""
REDRAWN_TOKENS = 30_000


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done.

    sum_tokens: tokens of each domain at most, where each value needs sums of its own; None for all.
    draws:      how often REDRAWN_TOKENS tokens or fewer are drawn of each domain, since chance
                decides much there.
    """

    sum_tokens: int | None
    draws: int


SHORT = Effort(50_000, 3)
FULL = Effort(None, 5)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One value that was tried. x: None where it has no place on the axis."""

    label: str
    x: float | None
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class AccuracyCurve:
    """Accuracies in percent: a point for each value tried, in it one number for each of
    `series`.
    """

    series: tuple[str, ...]
    points: tuple[CurvePoint, ...]


Measure = Callable[[SelectorBench, Effort], AccuracyCurve]


# Curves


def over_k(preset: Preset) -> Measure:
    """k of the entropy selector, and the two other selectors, on one table."""
    rules: list[tuple[str, float | None, Selector]] = [
        (str(k), float(k), Selector("entropy", k)) for k in KS
    ]
    rules += [(AVERAGE, None, Selector("average")), (ALL, None, Selector("all"))]

    def measure(bench: SelectorBench, effort: Effort) -> AccuracyCurve:
        method = bench.router(preset)
        return _both(
            bench, ((label, x, replace(method, rule=rule)) for label, x, rule in rules)
        )

    return measure


def over_ridge(bench: SelectorBench, effort: Effort) -> AccuracyCurve:
    """λ relative to the mean diagonal."""
    presets = ((value, replace(DEFAULT, ridge=Ridge(value))) for value in RIDGES)
    return _both(
        bench, ((f"{value:g}", value, bench.tried(preset)) for value, preset in presets)
    )


def over_window(bench: SelectorBench, effort: Effort) -> AccuracyCurve:
    """The tokens of a sample, one window after another; beside them what the preset has, and whole
    documents.
    """
    library = _some(bench, effort)
    places = {str(window): float(window) for window in WINDOWS}
    samplings = {str(window): Sampling(window) for window in WINDOWS}
    samplings |= {USUAL: DEFAULT.sampling, WHOLE: Sampling(MAX_WINDOW_TOKENS)}
    presets = (
        (label, replace(DEFAULT, sampling=sampling))
        for label, sampling in samplings.items()
    )
    return _both(
        bench,
        (
            (label, places.get(label), bench.tried(preset, library))
            for label, preset in presets
        ),
    )


def over_table_bits(bench: SelectorBench, effort: Effort) -> AccuracyCurve:
    """The bits of the public integer table; sums, weights and logits follow from it."""
    library = _some(bench, effort)
    tables = ((bits, coarser(bench.encoder, bits)) for bits in BITS)
    return _both(
        bench,
        (
            (str(bits), float(bits), bench.tried(DEFAULT, library, own))
            for bits, own in tables
        ),
    )


def _some(bench: SelectorBench, effort: Effort) -> DomainTokens | None:
    return None if effort.sum_tokens is None else bench.drawn(effort.sum_tokens)


def over_logit_bits(bench: SelectorBench, effort: Effort) -> AccuracyCurve:
    """The bits of the compiled table's logits; the sums and weights are the default's."""
    method = bench.router()
    return _both(
        bench,
        (
            (str(bits), float(bits), coarser_logits(bench.encoder, method, bits))
            for bits in BITS
        ),
    )


def over_text(bench: SelectorBench, effort: Effort) -> AccuracyCurve:
    """The training text of a domain; x is the mean over domains of what there was. Means over
    draws.
    """

    def point(label: str, libraries: list[DomainTokens]) -> CurvePoint:
        x = float(np.mean([len(own.ids) for own in libraries[0].values()]))
        scores = [
            _scores(bench.tests[0], bench.contenders(library)) for library in libraries
        ]
        return CurvePoint(
            label, x, tuple(_mean(column) for column in zip(*scores, strict=True))
        )

    largest = max(len(own.ids) for own in bench.fit.values())
    draws = {
        most: effort.draws if most <= REDRAWN_TOKENS else 1
        for most in BUDGETS
        if most < largest
    }
    rows = [
        point(f"{most:,}", [bench.drawn(most, draw) for draw in range(count)])
        for most, count in draws.items()
    ]
    return AccuracyCurve((OURS, PAPERS, BAYES), (*rows, point("all", [bench.fit])))


def _both(
    bench: SelectorBench, tried: Iterable[tuple[str, float | None, TableRouter | None]]
) -> AccuracyCurve:
    """On the test, and on held-out training text."""
    rows = (
        CurvePoint(label, x, tuple(each.accuracy(method) for each in bench.tests))
        for label, x, method in tried
    )
    return AccuracyCurve((TEST, HELD), tuple(rows))


def _scores(
    test: LabelledTexts, methods: Mapping[str, TableRouter | None]
) -> tuple[float | None, ...]:
    return tuple(map(test.accuracy, methods.values()))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


# The part


@dataclass(frozen=True, slots=True)
class Figure:
    """What is measured and how it reads. usual: the label of what the preset has; "" where routers
    are compared.
    """

    key: str
    title: str
    x_label: str
    measure: Measure
    usual: str = ""
    x_scale: Scale = "log"
    note: str = ""


FIGURES = (
    Figure(
        "k-paper",
        "k of the entropy selector, the paper's preset",
        "k",
        over_k(PAPER),
        str(PAPER.selector.k),
    ),
    Figure(
        "k-ours",
        "k of the entropy selector, our table",
        "k",
        over_k(DEFAULT),
        DEFAULT.selector.name,
    ),
    Figure("ridge", "λ", "λ, relative", over_ridge, f"{DEFAULT.ridge.value:g}"),
    Figure("window", "Window", "tokens of a sample", over_window, USUAL),
    Figure(
        "table-bits",
        "Bits of the public table",
        "bits and a sign",
        over_table_bits,
        "12",
        "linear",
    ),
    Figure(
        "logit-bits",
        "Bits of the compiled logits",
        "bits and a sign",
        over_logit_bits,
        "12",
        "linear",
    ),
    Figure(
        "text",
        "Training text of a domain",
        "tokens of a domain",
        over_text,
        note=TEXT_NOTE,
    ),
)


def run(plan: ExperimentPlan) -> ReportPart:
    """Every figure on every dataset."""
    encoder = find_encoder(plan.encoder)
    if not isinstance(encoder, TableEncoder):
        reason = (
            f"{plan.encoder} has no table over tokens, and this part is about such"
            " tables; take smollm2"
        )
        return ReportPart(KEY, TITLE, (), left_out=(reason,))
    effort = FULL if plan.full else SHORT
    found = [
        (each, _curves(plan, SelectorBench(encoder, each, plan.seed), effort))
        for each in plan.datasets
    ]
    pairs = [
        (dataset, figure, own[figure.key])
        for dataset, own in found
        for figure in FIGURES
    ]
    return ReportPart(
        key=KEY,
        title=TITLE,
        words=(METHOD,),
        tables=tuple(
            table(each, curve, own.name, f"{_key(each, own)}-table")
            for own, each, curve in pairs
        ),
        plots=tuple(
            plot(each, curve, own.name, _key(each, own)) for own, each, curve in pairs
        ),
        facts={
            "encoder": encoder.name,
            "fingerprint": encoder.fingerprint,
            "full": plan.full,
            **asdict(effort),
        },
    )


def _curves(
    plan: ExperimentPlan, bench: SelectorBench, effort: Effort
) -> dict[str, AccuracyCurve]:
    """Each kept in the cache by what decides it: the dataset's own texts, whatever else is
    planned.
    """
    key = {
        **plan.facts(),
        "settings": bench.dataset.digest,
        "encoder": bench.encoder.fingerprint,
        "effort": asdict(effort),
        "presets": [asdict(DEFAULT), asdict(PAPER)],
        "code": CODE,
    }
    found = {}
    with plan.ticking(f"selectors {bench.dataset.name}", len(FIGURES)) as tick:
        for each in FIGURES:
            make = partial(lambda each: asdict(each.measure(bench, effort)), each)
            kept = plan.cache.kept(f"{KEY}-{each.key}", key, make)
            found[each.key] = TypeAdapter(AccuracyCurve).validate_python(kept)
            tick()
    return found


def _key(figure: Figure, dataset: Dataset) -> str:
    name = re.sub(r"[^\w.-]+", "-", dataset.name)
    return f"{KEY}-{figure.key}-{name}"


# What is shown


def plot(figure: Figure, curve: AccuracyCurve, dataset: str, key: str) -> Plot:
    """Values without a place on the axis become lines across: the first a level, the others flat
    series.
    """
    placed = [point for point in curve.points if point.x is not None]
    across = [point for point in curve.points if point.x is None]
    x = tuple(point.x or 0.0 for point in placed)
    lines = (
        Series(name, x, tuple(point.values[place] for point in placed))
        for place, name in enumerate(curve.series)
    )
    flat = (
        Series(f"{each.label}, {curve.series[0]}", x, (each.values[0],) * len(x))
        for each in across[1:]
    )
    top = across[0].values[0] if across else None
    return Plot(
        key=key,
        title=f"{figure.title}: {dataset}",
        x_label=figure.x_label,
        y_label="accuracy, %",
        series=(*lines, *flat),
        x_scale=figure.x_scale,
        note=figure.note,
        level=None if top is None else (f"{across[0].label}, {curve.series[0]}", top),
    )


def table(figure: Figure, curve: AccuracyCurve, dataset: str, key: str) -> Table:
    marked: Better = "more" if figure.usual else ""
    columns = (
        Column(figure.x_label),
        *(Column(name, "%", 1, marked) for name in curve.series),
    )
    rows = tuple((point.label, *point.values) for point in curve.points)
    note = f"The preset has {figure.usual}." if figure.usual else figure.note
    return Table(key, f"{figure.title}: {dataset}", columns, rows, note)
