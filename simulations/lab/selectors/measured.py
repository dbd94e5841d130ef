"""The measurements: accuracy over one quantity at a time, all else as it is by default.

A measurement gives a curve of plain values that survive a trip through JSON. Knows nothing of how they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from common.encoder import Encoder
from common.errors import UnsolvableTotal
from common.settings import DEFAULT, MOST_TOKENS, PAPER, Preset, Ridge, Sampling, Selector
from simulations.lab.selectors.bench import Bench, Exam, Library, Method, accuracies, coarser, coarser_logits

KS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
WINDOWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BITS = (3, 4, 6, 8, 10, 12)
BUDGETS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
LENGTHS = (4, 8, 16, 32, 64, 128, 256)
RATES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)

AVERAGE, ALL, WHOLE = "average", "all", "whole documents"
TEST, HELD = "test", "held-out"
USUAL = str(DEFAULT.sampling.window) if DEFAULT.sampling.is_plain else str(DEFAULT.sampling)
"""How the preset's samples are called beside plain windows of one size."""
SHORT_PROMPT = 32
FEW = 30_000


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done.

    sum_tokens:   of each domain, so many tokens at most where each value needs sums of its own; None for all.
    typing_texts: of each domain, so many test texts are mistyped at most; None for all.
    draws:        how often FEW tokens or fewer are drawn of each domain, since chance decides much there.
    """

    sum_tokens: int | None
    typing_texts: int | None
    draws: int


SHORT = Effort(50_000, 200, 3)
FULL = Effort(None, None, 5)


@dataclass(frozen=True, slots=True)
class Row:
    """One value that was tried. x: None where it has no place on the axis."""

    label: str
    x: float | None
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Accuracies in percent: a row for each value tried, in it one number for each of `series`."""

    series: tuple[str, ...]
    rows: tuple[Row, ...]

    def column(self, name: str) -> tuple[float | None, ...]:
        place = self.series.index(name)
        return tuple(row.values[place] for row in self.rows)


def curve_from_json(value: Mapping[str, Any]) -> Curve:
    """A curve after a trip through JSON."""
    rows = (Row(row["label"], row["x"], tuple(row["values"])) for row in value["rows"])
    return Curve(tuple(value["series"]), tuple(rows))


Measure = Callable[[Bench, Effort], Curve]


def over_k(preset: Preset) -> Measure:
    """k of the entropy selector, and the two other selectors, on one table."""
    rules = [(str(k), float(k), Selector("entropy", k)) for k in KS]

    def measure(bench: Bench, effort: Effort) -> Curve:
        method = bench.router(preset)
        others = ((AVERAGE, None, Selector("average")), (ALL, None, Selector("all")))
        return _both(bench, ((label, x, replace(method, rule=rule)) for label, x, rule in (*rules, *others)))

    return measure


def over_ridge(bench: Bench, effort: Effort) -> Curve:
    """λ relative to the mean diagonal."""
    tried = ((f"{value:g}", value, _router(bench, DEFAULT, ridge=Ridge(value))) for value in RIDGES)
    return _both(bench, ((label, x, _tried(make)) for label, x, make in tried))


def over_window(bench: Bench, effort: Effort) -> Curve:
    """The tokens of a sample, one window after another; beside them what the preset has, and whole documents."""
    library = _some(bench, effort)
    plain = {str(window): Sampling(window) for window in WINDOWS}
    others = (
        {WHOLE: Sampling(MOST_TOKENS)} if USUAL in plain else {USUAL: DEFAULT.sampling, WHOLE: Sampling(MOST_TOKENS)}
    )
    presets = {label: replace(DEFAULT, sampling=sampling) for label, sampling in (plain | others).items()}
    places = {label: float(sampling.window) for label, sampling in plain.items()}
    routers = ((label, _router(bench, preset, library)) for label, preset in presets.items())
    return _both(bench, ((label, places.get(label), _tried(make)) for label, make in routers))


def over_table_bits(bench: Bench, effort: Effort) -> Curve:
    """The bits of the public integer table; sums, weights and logits follow from it."""
    library = _some(bench, effort)
    tables = ((str(bits), float(bits), coarser(bench.encoder, bits)) for bits in BITS)
    return _both(bench, ((label, x, _tried(_router(bench, DEFAULT, library, own))) for label, x, own in tables))


def _some(bench: Bench, effort: Effort) -> Library | None:
    return None if effort.sum_tokens is None else bench.drawn(effort.sum_tokens)


def over_logit_bits(bench: Bench, effort: Effort) -> Curve:
    """The bits of the compiled table's logits; the sums and weights are the default's."""
    method = bench.router()
    return _both(bench, ((str(bits), float(bits), coarser_logits(bench.encoder, method, bits)) for bits in BITS))


def over_text(bench: Bench, effort: Effort) -> Curve:
    """The training text of a domain; x is the mean over domains of what there was. Means over draws."""
    largest = max(len(own.ids) for own in bench.fit.values())
    rows = [_drawn(bench, most, effort.draws if most <= FEW else 1) for most in BUDGETS if most < largest]
    every = _compared((bench.exams[0],), bench.contenders())
    return Curve(tuple(bench.contenders()), (*rows, Row("all", _mean_tokens(bench.fit), tuple(every))))


def _drawn(bench: Bench, most: int, draws: int) -> Row:
    libraries = [bench.drawn(most, draw) for draw in range(draws)]
    found = [_compared((bench.exams[0],), bench.contenders(library)) for library in libraries]
    return Row(f"{most:,}", _mean_tokens(libraries[0]), tuple(_mean(column) for column in zip(*found, strict=True)))


def over_length(bench: Bench, effort: Effort) -> Curve:
    """The first tokens of the test texts."""
    methods = {name: _tried(make) for name, make in bench.contenders().items()}
    lengths = [*((str(limit), float(limit), limit) for limit in LENGTHS), (WHOLE, None, 0)]
    return Curve(tuple(methods), tuple(_at_length(bench.test, methods, *each) for each in lengths))


def over_typing(limit: int) -> Measure:
    """Typing errors in the test texts, of which the first so many tokens are taken; 0 for all of them."""

    def measure(bench: Bench, effort: Effort) -> Curve:
        methods = {name: _tried(make) for name, make in bench.contenders().items()}
        shares = ((f"{100 * rate:g} %", 100 * rate, bench.typed(rate, effort.typing_texts)) for rate in RATES)
        return Curve(tuple(methods), tuple(_at_length(own, methods, label, x, limit) for label, x, own in shares))

    return measure


def _at_length(library: Library, methods: Mapping[str, Method | None], label: str, x: float | None, limit: int) -> Row:
    exam = Exam({name: own.first(limit) for name, own in library.items()})
    return Row(label, x, tuple(value for method in methods.values() for value in accuracies((exam,), method)))


def _both(bench: Bench, tried: Iterable[tuple[str, float | None, Method | None]]) -> Curve:
    """On the test, and on held-out training text."""
    rows = (Row(label, x, tuple(accuracies(bench.exams, method))) for label, x, method in tried)
    return Curve((TEST, HELD), tuple(rows))


def _compared(exams: tuple[Exam], contenders: Mapping[str, Callable[[], Method]]) -> list[float | None]:
    return [value for make in contenders.values() for value in accuracies(exams, _tried(make))]


def _router(
    bench: Bench,
    preset: Preset,
    library: Library | None = None,
    encoder: Encoder | None = None,
    ridge: Ridge | None = None,
) -> Callable[[], Method]:
    return lambda: bench.router(preset, library=library, encoder=encoder, ridge=ridge)


def _tried(make: Callable[[], Method]) -> Method | None:
    """None where the sums have no router: too little text for so small a λ."""
    try:
        return make()
    except UnsolvableTotal:
        return None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _mean_tokens(library: Library) -> float:
    return float(np.mean([len(own.ids) for own in library.values()]))


K_OF_PAPER, K_OF_OURS = over_k(PAPER), over_k(DEFAULT)
