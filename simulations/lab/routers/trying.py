"""A method is tried on a task: it learns, held-out text decides among its variants, and the test texts are routed.

Nothing learns again after the choice. Knows nothing of any router, nor of how figures are shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from common.evaluation import Evaluation
from simulations.lab.machine import surroundings
from simulations.lab.plan import Plan
from simulations.lab.routers.task import Line, Method, Places, Task, Trained, Variant, labelled, task_of
from simulations.lab.setting import Setting, Texts

Outcome = Mapping[str, Any]
"""What JSON keeps of a method's trial: `rows`, `seconds`, `tested` and the `machine`."""


def tried(plan: Plan, setting: Setting, method: Method) -> Outcome:
    """The outcome of a method, made now or taken from the shelf. What is kept there does not depend on the machine,
    so a trial on another machine is taken over by copying its file."""
    key = {
        "setting": setting.digest,
        "domains": list(setting.domains),
        "encoder": plan.encoder,
        "full": plan.full,
        "seed": plan.seed,
        "method": method.key,
        "decides": method.decides,
        "code": method.code,
    }
    task = task_of(plan, setting, plan.work / f"{setting.name}-{method.key}")
    found: Outcome = plan.shelf.kept(f"router-{method.key}", key, lambda: trial(method, task))
    return found


def trial(method: Method, task: Task) -> Outcome:
    """Seconds are those until a router is chosen; routing the test is not among them."""
    begin = time.perf_counter()
    trained = method.fit(task)
    chosen = _chosen(trained, task.domains)
    seconds = time.perf_counter() - begin - trained.aside
    tests = task.shown if method.sentence else task.setting.test
    routed = [_by_domain(places, tests) for places in trained.routed(labelled(tests)[0])]
    scores = [evaluation(task.domains, found).accuracy for found in routed]
    best = {line: _first_best(trained.variants, scores, line) for line in method.lines}
    rows = [
        {"name": name, "variant": variant.words, "note": trained.note, "shape": dict(variant.shape), "routed": found}
        for line, words in method.lines.items()
        for name, place in _rows(trained.variants, line, words, chosen[line], best[line])
        for variant, found in [(trained.variants[place], routed[place])]
    ]
    return {"rows": rows, "seconds": seconds, "tested": "shown" if method.sentence else "all", "machine": machine(task)}


def machine(task: Task) -> str:
    """Where it was done, in words."""
    about = surroundings(task.device)["machine"]
    return ", ".join([f"{about['cores']} cores", about["processor"], *([about["card"]] if "card" in about else [])])


def evaluation(domains: Sequence[str], routed: Mapping[str, Sequence[int]]) -> Evaluation:
    """How well texts were routed, by domain."""
    rows = (np.bincount(np.array(routed[name], dtype=np.int64), minlength=len(domains)) for name in domains)
    return Evaluation(tuple(domains), tuple(tuple(row.tolist()) for row in rows))


def among(whole: Sequence[str], part: Sequence[str]) -> list[int]:
    """Where the texts of a part, in their old order, stand in the whole."""
    places = iter(enumerate(whole))
    return [next(place for place, text in places if text == wanted) for wanted in part]


def _chosen(trained: Trained, domains: Sequence[str]) -> dict[str, int]:
    """The variant of each line that did best on held-out text; nothing is routed where there is no choice."""
    variants, held = trained.variants, trained.held
    lines = list(dict.fromkeys(variant.line for variant in variants))
    scores = [0.0] * len(variants)
    if len(variants) > len(lines) and any(held.values()):
        routed = trained.routed(labelled(held)[0])
        scores = [evaluation(domains, _by_domain(places, held)).accuracy for places in routed]
    return {line: _first_best(variants, scores, line) for line in lines}


def _first_best(variants: Sequence[Variant], scores: Sequence[float], line: str) -> int:
    """Of equals the first."""
    own = [place for place, variant in enumerate(variants) if variant.line == line]
    return max(own, key=lambda place: (round(scores[place], 9), -place))


def _by_domain(places: Places, texts: Texts) -> dict[str, list[int]]:
    left = iter(places.tolist())
    return {name: list(islice(left, len(own))) for name, own in texts.items()}


def _rows(variants: Sequence[Variant], line: str, words: Line, chosen: int, best: int) -> Iterator[tuple[str, int]]:
    """The names of a line's rows, each with the place of its variant."""
    if words.each:
        own = (place for place, variant in enumerate(variants) if variant.line == line)
        yield from ((words.each.format(variants[place].words), place) for place in own)
    if words.chosen:
        yield words.chosen, chosen
    if words.best:
        yield words.best, best
