"""Time for one prompt, router beside router, in one process on the CPU.

A router of each shape is timed: a table of the same size, as many known texts, a classifier of the same kind. What
stands in them does not change the time, so nothing has to be learnt again for it. Knows nothing of accuracy.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from common.router import Router
from common.settings import Selector
from simulations.lab.routers.knn import NEIGHBOURS, vote
from simulations.lab.routers.modem import blank, classified, find_base
from simulations.lab.routers.sentences import minilm
from simulations.lab.routers.tables import compiled
from simulations.lab.routers.task import Task

PROMPTS = {False: 12, True: 30}
"""So many test texts are routed one by one in a pass, in a short run and in a full one."""
PASSES = 5
WARM = 2

Shape = Mapping[str, Any]
Route = Callable[[str], object]


def milliseconds(task: Task, shapes: Sequence[Shape], tick: Callable[[], None] = lambda: None) -> list[float | None]:
    """For each shape the median over passes of the mean over prompts; None where a router does nothing."""
    prompts = sample(task, PROMPTS[task.full])
    routes = [_MAKERS[shape["kind"]](task, shape) for shape in shapes]
    for route in routes:
        _pass(route, prompts[:WARM])
    passes = []
    for _ in range(PASSES):
        passes.append([_pass(route, prompts) for route in routes])
        tick()
    return [
        statistics.median(times) if shape["kind"] != "nothing" else None
        for shape, times in zip(shapes, zip(*passes, strict=True), strict=True)
    ]


def sample(task: Task, most: int) -> list[str]:
    """Prompts of all domains in turn: the first of each, the second of each, and so on."""
    longest = max(map(len, task.shown.values()))
    turns = ((own[turn] for own in task.shown.values() if turn < len(own)) for turn in range(longest))
    return list(chain.from_iterable(turns))[:most]


def _pass(route: Route, prompts: Sequence[str]) -> float:
    begin = time.perf_counter()
    for prompt in prompts:
        route(prompt)
    return 1e3 * (time.perf_counter() - begin) / len(prompts)


def _nothing(task: Task, shape: Shape) -> Route:
    return lambda prompt: None


def _table(task: Task, shape: Shape) -> Route:
    encoder = task.static_encoder()
    exact = np.random.default_rng(task.seed).standard_normal((encoder.rows, len(task.domains)))
    selector = Selector(shape["selector"], shape["k"] or 1)
    return Router(task.domains, compiled(exact), encoder.tokenizer, selector).route


def _nearest(task: Task, shape: Shape) -> Route:
    encoder, chance = minilm("cpu"), np.random.default_rng(task.seed)
    known = chance.standard_normal((shape["texts"], encoder.width)).astype(np.float32)
    labels = chance.integers(len(task.domains), size=len(known))
    return lambda prompt: vote(encoder.embed([prompt]) @ known.T, labels, max(NEIGHBOURS), len(task.domains))


def _classifier(task: Task, shape: Shape) -> Route:
    encoder, head = blank(find_base(task.full)[0], "cpu", shape["tokens"], len(task.domains))
    return lambda prompt: classified(encoder, head, encoder.ids([prompt]))


_MAKERS = {"nothing": _nothing, "table": _table, "nearest": _nearest, "classifier": _classifier}
