"""Routers side by side: each learns from a dataset's training text, and held-out training text
chooses among its variants. Test texts help in rows that say so, and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.base.settings import SentenceUse
from ridgeway.common.cli.terminal import step
from ridgeway.common.encoding.sentence_features import SENTENCE
from ridgeway.common.encoding.table_encoder import WORDS, bare_name
from ridgeway.common.masking.agreement import SMALLEST_COHORT
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.common.routing.router import Router
from ridgeway.simulations import corpora
from ridgeway.simulations.bench.measuring import seconds_in_turns
from ridgeway.simulations.experiments.dataset import (
    Dataset,
    Texts,
    sampled_texts,
    split,
)
from ridgeway.simulations.experiments.plan import ExperimentPlan

Places = NDArray[np.int64]
"""For each prompt, the place of a domain among the dataset's."""
Route = Callable[[Sequence[str]], Places]
Embed = Callable[[Sequence[str]], NDArray[np.float32]]

SHORT_HELD_TEXTS = 10
PASSES = 3


@dataclass(frozen=True, slots=True)
class RouterLine:
    """Variants of one router, by what sets them apart.

    name: the row of the variant that does best on held-out text.
    each: how the name of a row for every variant begins; no such rows if empty.
    best: the row of the variant that does best on the test, which nobody can know beforehand.
    """

    name: str
    variants: Mapping[str, Route]
    each: str = ""
    best: str = ""


@dataclass(frozen=True, slots=True)
class RouterRow:
    name: str
    variant: str
    route: Route


@dataclass(frozen=True, slots=True)
class RoutingMethod:
    """gathers: whether it needs all domains' text in one place."""

    made_of: str
    learn: Callable[[ExperimentPlan, Dataset], list[RouterLine]]
    gathers: bool = True


@dataclass(frozen=True, slots=True)
class LearntRouter:
    """seconds: from reading text to the chosen variants."""

    method: RoutingMethod
    rows: tuple[RouterRow, ...]
    seconds: float


def learnt_routers(
    plan: ExperimentPlan, dataset: Dataset, methods: Mapping[str, RoutingMethod]
) -> tuple[list[LearntRouter], list[str]]:
    """Routers that have learnt; for each that cannot be had, the reason."""
    found = []
    left_out = []
    for name, method in methods.items():
        try:
            found.append(learnt(plan, dataset, name, method))
        except RidgewayError as error:
            left_out.append(f"{name} on {dataset.name}: {error}")
    return found, left_out


def learnt(
    plan: ExperimentPlan, dataset: Dataset, name: str, method: RoutingMethod
) -> LearntRouter:
    def make() -> LearntRouter:
        begin = time.perf_counter()
        lines = method.learn(plan, dataset)
        held = sampled_texts(
            split(dataset).held, plan.short(SHORT_HELD_TEXTS), plan.seed
        )
        chosen = [_best(line, held) for line in lines]
        seconds = time.perf_counter() - begin
        rows = [
            row
            for line, words in zip(lines, chosen, strict=True)
            for row in _rows(line, words, dataset.test)
        ]
        step("learnt", name, dataset.name, f"{seconds:.1f} s")
        return LearntRouter(method, tuple(rows), seconds)

    return plan.once(dataset, name, make)


def _best(line: RouterLine, texts: Texts) -> str:
    """The words of the variant that does best on some texts; of equals the first."""
    if len(line.variants) == 1 or not any(texts.values()):
        return next(iter(line.variants))
    scores = {
        words: round(evaluation(route, texts).accuracy, 9)
        for words, route in line.variants.items()
    }
    return max(scores, key=lambda words: scores[words])


def _rows(line: RouterLine, chosen: str, test: Texts) -> Iterator[RouterRow]:
    if line.each:
        for words, route in line.variants.items():
            yield RouterRow(line.each + words, words, route)
    yield RouterRow(line.name, chosen, line.variants[chosen])
    if line.best:
        words = _best(line, test)
        yield RouterRow(line.best, words, line.variants[words])


def labelled(texts: Texts) -> tuple[list[str], Places]:
    """All texts in one row, and the place of each one's domain."""
    flat = [text for own in texts.values() for text in own]
    counts = [len(own) for own in texts.values()]
    return flat, np.repeat(np.arange(len(counts)), counts)


def routed(route: Route, texts: Texts) -> dict[str, Places]:
    """Where the texts of each domain are sent."""
    return by_domain(route(labelled(texts)[0]), texts)


def by_domain(places: Places, texts: Texts) -> dict[str, Places]:
    """What stands in one row for all texts, for those of each domain."""
    ends = np.cumsum([len(own) for own in texts.values()])
    return dict(zip(texts, np.split(places, ends[:-1]), strict=True))


def evaluation(route: Route, texts: Texts) -> Evaluation:
    """How well texts are routed, by domain."""
    sent = routed(route, texts)
    counts = [np.bincount(own, minlength=len(texts)).tolist() for own in sent.values()]
    return Evaluation(tuple(texts), tuple(map(tuple, counts)))


def milliseconds(routes: Sequence[Route], prompts: Sequence[str]) -> list[float]:
    """Of CPU, for one prompt: the median over passes, all routers in turns."""

    def one_by_one(route: Route) -> None:
        for prompt in prompts:
            route([prompt])

    passes = [partial(one_by_one, route) for route in routes]
    seconds = seconds_in_turns(*passes, rounds=PASSES, clock=time.process_time)
    return [1e3 * second / len(prompts) for second in seconds]


def read_once(embed: Embed) -> Embed:
    """Keeps the vectors of the last lists of texts, which several routers are tried on.

    A single prompt is read each time, since that is timed.
    """

    @lru_cache(maxsize=4)
    def kept(texts: tuple[str, ...]) -> NDArray[np.float32]:
        return embed(texts)

    return lambda texts: embed(texts) if len(texts) == 1 else kept(tuple(texts))


# Chance, and ours


def _random(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    def route(prompts: Sequence[str]) -> Places:
        chance = np.random.default_rng(plan.seed)
        return chance.integers(len(dataset.domains), size=len(prompts))

    return [RouterLine("random", {"": route})]


def our_router(plan: ExperimentPlan, dataset: Dataset) -> Router:
    """Of a masked round with all settings at their defaults."""
    return Router.load(our_release(plan, dataset, WORDS))


def our_release(plan: ExperimentPlan, dataset: Dataset, features: str) -> Path:
    """Of a masked round with one holder a domain. features: the ending of the encoder's name."""

    def make() -> Path:
        from ridgeway.simulations.simulate import simulate

        work = plan.work / (dataset.digest[:16] + features)
        corpora.write(dataset.corpora, work / "data")
        masked = len(dataset.domains) >= SMALLEST_COHORT
        simulate(
            work / "federation",
            lambda event: None,
            data=work / "data",
            out=work / "release",
            encoder=bare_name(plan.encoder) + features,
            mode="masked" if masked else "clear",
        )
        return work / "release"

    return plan.once(dataset, f"our release {features}", make)


def _line(name: str, router: Router, dataset: Dataset) -> RouterLine:
    def route(prompts: Sequence[str]) -> Places:
        decisions = router.route_many(list(prompts))
        return np.array(
            [dataset.domains.index(decision.best) for decision in decisions]
        )

    return RouterLine(name, {router.selector.name: route})


def _ours(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    return [_line("Ridgeway (ours)", our_router(plan, dataset), dataset)]


def _ours_with_sentences(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    release = our_release(plan, dataset, WORDS + SENTENCE)
    uses: dict[str, SentenceUse] = {"cascade": "auto", "every text read": "always"}
    return [
        _line(
            f"Ridgeway with sentences, {name}",
            Router.load(release, sentences=use),
            dataset,
        )
        for name, use in uses.items()
    ]


RANDOM = RoutingMethod("chance", _random, gathers=False)
OURS_WITH_SENTENCES = RoutingMethod(
    "the same, and sentence vectors", _ours_with_sentences, gathers=False
)
OURS = RoutingMethod("windows of embeddings, ridge regression", _ours, gathers=False)
