"""All routers on one dataset, tried and timed: the figures that tables are made of. Here are also
the two routers that look at nothing, which every router must beat, and ours as it comes: a masked
round of a simulated federation with one holder a domain, all settings at their defaults, and the
release that comes of it.

Times are taken router beside router, in one process on the CPU. A router of each shape is timed: a
table of the same size, as many known texts, a classifier of the same kind. What stands in them does
not change the time, so nothing has to be learnt again for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.base.settings import DEFAULT, Selector
from ridgeway.common.encoding.table_encoder import WORDS, bare_name
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.common.routing.router import Router
from ridgeway.simulations import corpora
from ridgeway.simulations.experiments.baselines import sentence_routers
from ridgeway.simulations.experiments.baselines.routing_method import (
    Outcome,
    Places,
    RoutingMethod,
    RowNames,
    Task,
    Trained,
    Variant,
    evaluation,
    of_outcome,
    table_shape,
    task_of,
    tried,
)
from ridgeway.simulations.experiments.baselines.token_routers import (
    CROSS_ENTROPY,
    IR3DE,
    NAIVE_BAYES,
    compiled,
)
from ridgeway.simulations.experiments.dataset import Dataset, in_turn
from ridgeway.simulations.experiments.plan import ExperimentPlan

if TYPE_CHECKING:
    from ridgeway.common.base.schema import Mode
    from ridgeway.simulations.simulate import Simulated

TIMING_CODE = 2
"""Counted up when times would change."""

PROMPTS = {False: 12, True: 30}
"""Test texts that are routed one by one in a pass, in a short run and in a full one."""
PASSES = 5
WARM_UP_PROMPTS = 2

NOTHING = {"kind": "nothing"}

Shape = Mapping[str, Any]
Route = Callable[[str], object]


def _guess(task: Task) -> Trained:
    """Law: the same prompts in the same order are sent to the same domains."""

    def routed(prompts: Sequence[str]) -> Iterator[Places]:
        yield np.random.default_rng(task.seed).integers(
            len(task.domains), size=len(prompts)
        )

    return Trained([Variant("random", "", NOTHING)], routed)


def _always(task: Task) -> Trained:
    """A variant for each domain."""

    def routed(prompts: Sequence[str]) -> Iterator[Places]:
        return (
            np.full(len(prompts), place, dtype=np.int64)
            for place in range(len(task.domains))
        )

    return Trained([Variant("always", name, NOTHING) for name in task.domains], routed)


def our_router(task: Task) -> tuple[Router, Simulated]:
    """The router of a masked round with one holder a domain, all settings at their defaults, and
    how it went.
    """
    from ridgeway.common.masking.agreement import SMALLEST_COHORT
    from ridgeway.coordinator.round.progress import no_watch
    from ridgeway.simulations.simulate import simulate

    data = task.work / "data"
    release = task.work / "release"
    corpora.write(task.dataset.corpora, data)
    mode: Mode = "masked" if len(task.domains) >= SMALLEST_COHORT else "clear"
    encoder = bare_name(task.encoder) + WORDS
    done = simulate(
        task.work / "federation",
        no_watch,
        data=data,
        out=release,
        encoder=encoder,
        mode=mode,
    )
    return Router.load(release), done


def _ours(task: Task) -> Trained:
    router, done = our_router(task)

    def routed(prompts: Sequence[str]) -> Iterator[Places]:
        yield np.array(
            [task.domains.index(each.best) for each in router.route_many(prompts)],
            dtype=np.int64,
        )

    how = f"λ = {done.manifest['ridge']['value']:g}, selector {router.selector.name}"
    note = (
        f"{done.mode} round of {done.holders} holders; chosen by them on held-out text:"
        f" {how}"
    )
    variants = [Variant("ours", how, table_shape(router.selector))]
    return Trained(variants, routed, note, aside=done.timings["evaluation"])


RANDOM = RoutingMethod(
    "random", "chance", _guess, {"random": RowNames(chosen="random")}, gathers=False
)
_SINGLE_ROWS = {"always": RowNames(each="always {}")}
SINGLE = RoutingMethod(
    "always", "one expert for everything", _always, _SINGLE_ROWS, gathers=False
)
_OUR_WORDS = "windows of embeddings, ridge regression"
_OUR_ROWS = {"ours": RowNames(chosen="Ridgeway (ours)")}
OURS = RoutingMethod(
    "ridgeway", _OUR_WORDS, _ours, _OUR_ROWS, gathers=False, decides=repr(DEFAULT)
)
METHODS = {
    each.key: each
    for each in (
        RANDOM,
        SINGLE,
        sentence_routers.KNN,
        sentence_routers.MODEM,
        NAIVE_BAYES,
        CROSS_ENTROPY,
        IR3DE,
        OURS,
    )
}
"""All the routers of a comparison, in the order of its table."""


@dataclass(frozen=True, slots=True)
class ComparedRouter:
    """A router's figures.

    shown: on the texts that all were compared on. whole: on all test texts, where it was given
           them.
    """

    method: RoutingMethod
    name: str
    variant: str
    note: str
    shown: Evaluation
    whole: Evaluation | None
    seconds: float
    milliseconds: float | None
    machine: str


@dataclass(frozen=True, slots=True)
class Compared:
    """All routers on one dataset."""

    dataset: Dataset
    task: Task
    rows: tuple[ComparedRouter, ...]
    left_out: tuple[str, ...]

    @property
    def ours(self) -> ComparedRouter:
        return next(row for row in self.rows if row.method is OURS)


def compare(plan: ExperimentPlan, dataset: Dataset) -> Compared:
    """Try every router; one that cannot be had is left out, unless it is our own."""
    outcomes: dict[str, Outcome] = {}
    left_out = []
    with plan.ticking(f"routers on {dataset.name}", len(METHODS)) as tick:
        for key, method in METHODS.items():
            try:
                outcomes[key] = tried(plan, dataset, method)
            except RidgewayError as error:
                if method is OURS:
                    raise
                left_out.append(f"{key} on {dataset.name}: {error}")
            tick()
    task = task_of(plan, dataset, plan.work / f"{dataset.name}-times")
    times = _times(plan, task, outcomes)
    rows = [
        row
        for key, outcome in outcomes.items()
        for row in _rows(task, METHODS[key], outcome, times)
    ]
    return Compared(dataset, task, tuple(rows), tuple(left_out))


def _times(
    plan: ExperimentPlan, task: Task, outcomes: Mapping[str, Outcome]
) -> list[tuple[Any, float | None]]:
    """Each shape of a router with its milliseconds for one prompt, all measured in one go."""
    shapes = unlike(
        [row["shape"] for outcome in outcomes.values() for row in outcome["rows"]]
    )
    key = {
        "setting": task.dataset.digest,
        "encoder": plan.encoder,
        "full": plan.full,
        "seed": plan.seed,
    }
    key |= {"code": TIMING_CODE, "shapes": shapes}

    def make() -> list[float | None]:
        with plan.ticking(f"time for a prompt of {task.dataset.name}", PASSES) as tick:
            return milliseconds(task, shapes, tick)

    return list(zip(shapes, plan.cache.kept("router-times", key, make), strict=True))


def unlike(values: Sequence[Any]) -> list[Any]:
    """Each value once, in its order."""
    return [value for place, value in enumerate(values) if value not in values[:place]]


def _rows(
    task: Task,
    method: RoutingMethod,
    outcome: Outcome,
    times: Sequence[tuple[Any, float | None]],
) -> Iterator[ComparedRouter]:
    shown = of_outcome(outcome, task.shown, task.dataset.test, task.shown)
    for row in outcome["rows"]:
        found = evaluation(task.domains, shown[row["name"]])
        whole = (
            evaluation(task.domains, row["routed"])
            if outcome["tested"] == "all"
            else None
        )
        time = next(time for shape, time in times if shape == row["shape"])
        words = (row["name"], row["variant"], row["note"])
        yield ComparedRouter(
            method, *words, found, whole, outcome["seconds"], time, outcome["machine"]
        )


# Time for one prompt


def milliseconds(
    task: Task, shapes: Sequence[Shape], tick: Callable[[], None] = lambda: None
) -> list[float | None]:
    """For each shape the median over passes of the mean over prompts; None where a router does
    nothing.
    """
    prompts = in_turn(task.shown, PROMPTS[task.full])
    routes = {
        place: _MAKERS[shape["kind"]](task, shape)
        for place, shape in enumerate(shapes)
        if shape != NOTHING
    }
    times: dict[int, list[float]] = {place: [] for place in routes}
    for route in routes.values():
        _pass(route, prompts[:WARM_UP_PROMPTS])
    for _ in range(PASSES):
        for place, route in routes.items():
            times[place].append(_pass(route, prompts))
        tick()
    return [
        statistics.median(times[place]) if place in times else None
        for place in range(len(shapes))
    ]


def _pass(route: Route, prompts: Sequence[str]) -> float:
    begin = time.perf_counter()
    for prompt in prompts:
        route(prompt)
    return 1e3 * (time.perf_counter() - begin) / len(prompts)


def _table(task: Task, shape: Shape) -> Route:
    encoder = task.static_encoder()
    exact = np.random.default_rng(task.seed).standard_normal(
        (encoder.rows, len(task.domains))
    )
    return Router(
        task.domains,
        compiled(exact),
        encoder.tokenizer,
        Selector(shape["selector"], shape["k"] or 1),
    ).route


def _nearest(task: Task, shape: Shape) -> Route:
    encoder = sentence_routers.minilm("cpu")
    chance = np.random.default_rng(task.seed)
    known = chance.standard_normal((shape["texts"], encoder.width)).astype(np.float32)
    labels = chance.integers(len(task.domains), size=len(known))
    classifier = sentence_routers.nearest(
        known, labels, max(sentence_routers.NEIGHBOURS)
    )
    return lambda prompt: classifier.predict(encoder.embed([prompt]))


def _classifier(task: Task, shape: Shape) -> Route:
    base, _ = sentence_routers.find_base(task.full)
    encoder, head = sentence_routers.untrained(
        base, "cpu", shape["tokens"], len(task.domains)
    )
    return lambda prompt: sentence_routers.classified(encoder, head, [prompt])


_MAKERS = {"table": _table, "nearest": _nearest, "classifier": _classifier}
