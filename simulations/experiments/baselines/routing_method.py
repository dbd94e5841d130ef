"""What a router is asked to do in a comparison, what it looks like to the code that compares, and
how it is tried: it learns, held-out text decides among its variants, and the test texts are routed.
Nothing learns again after the choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.settings import Selector
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.simulations.experiments.dataset import Dataset, Split, Texts, split
from ridgeway.simulations.experiments.plan import ExperimentPlan, machine_in_words

Places = NDArray[np.int64]
"""For each prompt, the place of a domain among the dataset's."""
Decisions = Mapping[str, Sequence[int]]
"""By domain, for each test text the place of the domain it is sent to."""
Outcome = Mapping[str, Any]
"""What JSON keeps of a method's trial: `rows`, `seconds`, `tested` and the `machine`."""

SHORT_TEST_TEXTS = 30
"""Test texts of a domain that routers are compared on in a short run: a sentence encoder has no
time for more.
"""


@dataclass(frozen=True, slots=True)
class Task:
    """
    dataset: all of the text.
    shown:   the test texts that all routers are compared on: all of them in a full run.
    work:    a folder of this task's own, which need not be there yet.
    """

    dataset: Dataset
    shown: Texts
    encoder: str
    full: bool
    device: str
    seed: int
    work: Path

    @property
    def domains(self) -> tuple[str, ...]:
        return self.dataset.domains

    def split(self, most: int | None = None) -> Split:
        """The training text divided, of each domain at most `most` texts."""
        return split(self.dataset.sampled(self.seed, train=most))

    def static_encoder(self) -> TableEncoder:
        """The encoder, if it is a table."""
        from ridgeway.common.encoding.encoder_sources import find_encoder

        found = find_encoder(self.encoder)
        if not isinstance(found, TableEncoder):
            raise EncoderError(
                f"{self.encoder} is no table over tokens, and this router needs one"
            )
        return found


def task_of(plan: ExperimentPlan, dataset: Dataset, work: Path) -> Task:
    shown = dataset if plan.full else dataset.sampled(plan.seed, test=SHORT_TEST_TEXTS)
    return Task(
        dataset, shown.test, plan.encoder, plan.full, plan.device, plan.seed, work
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to set a router's hyper-parameters.

    line:  which variants are chosen among: one row of a table, or a few, come of each line.
    words: what sets it apart from the others of its line.
    shape: what the time for one prompt depends on.
    """

    line: str
    words: str
    shape: Mapping[str, Any]


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Trained:
    """A router that has learnt, in all its variants.

    routed: where each variant in turn sends some prompts.
    note:   what was decided on the way, in words.
    held:   the texts to choose among the variants on.
    aside:  seconds of the learning that were spent on something else.
    """

    variants: Sequence[Variant]
    routed: Callable[[Sequence[str]], Iterator[Places]]
    note: str = ""
    held: Texts = field(default_factory=dict)
    aside: float = 0.0


@dataclass(frozen=True, slots=True)
class RowNames:
    """The rows that come of a line: of every variant (`{}` stands for its words), of the one that
    did best on held-out text, and of the one that did best on the test, which nobody can know
    beforehand.
    """

    each: str = ""
    chosen: str = ""
    best: str = ""


@dataclass(frozen=True, slots=True)
class RoutingMethod:
    """A kind of router.

    made_of:  what it is made of, in a few words.
    gathers:  whether it needs all domains' text in one place.
    sentence: whether it runs a sentence encoder on every text, and so on few of them in a short
              run.
    decides:  production's settings that its results depend on, in words.
    code:     counted up when results would change.
    """

    key: str
    made_of: str
    fit: Callable[[Task], Trained]
    lines: Mapping[str, RowNames]
    gathers: bool = True
    sentence: bool = False
    decides: str = ""
    code: int = 1


def table_shape(selector: Selector) -> dict[str, Any]:
    """Of a router that is a table over tokens."""
    return {
        "kind": "table",
        "selector": selector.name,
        "k": selector.k if selector.name == "entropy" else 0,
    }


def labelled(texts: Texts) -> tuple[list[str], Places]:
    """All texts in one row, and the place of each one's domain."""
    labels = [place for place, own in enumerate(texts.values()) for _ in own]
    return [text for own in texts.values() for text in own], np.array(
        labels, dtype=np.int64
    )


# Trials


def tried(plan: ExperimentPlan, dataset: Dataset, method: RoutingMethod) -> Outcome:
    """The outcome of a method, made now or taken from the cache. What is kept there does not depend
    on the machine, so a trial on another machine is taken over by copying its file.
    """
    key = {
        "setting": dataset.digest,
        "domains": list(dataset.domains),
        "encoder": plan.encoder,
        "full": plan.full,
    }
    key |= {
        "seed": plan.seed,
        "method": method.key,
        "decides": method.decides,
        "code": method.code,
    }
    task = task_of(plan, dataset, plan.work / f"{dataset.name}-{method.key}")
    found: Outcome = plan.cache.kept(
        f"router-{method.key}", key, lambda: trial(method, task)
    )
    return found


def trial(method: RoutingMethod, task: Task) -> Outcome:
    """Seconds are those until a router is chosen; routing the test is not among them."""
    begin = time.perf_counter()
    trained = method.fit(task)
    variants = trained.variants
    scores = _held_scores(method, task, trained)
    seconds = time.perf_counter() - begin - trained.aside
    tests = task.shown if method.sentence else task.dataset.test
    routed = list(routed_texts(trained, tests))
    reached = [evaluation(task.domains, found).accuracy for found in routed]
    rows = [
        {
            "name": name.format(variants[place].words),
            "variant": variants[place].words,
            "note": trained.note,
            "shape": dict(variants[place].shape),
            "routed": routed[place],
        }
        for line, names in method.lines.items()
        for own in [
            [place for place, variant in enumerate(variants) if variant.line == line]
        ]
        for name, places in (
            (names.each, own),
            (names.chosen, [_first_best(own, scores)]),
            (names.best, [_first_best(own, reached)]),
        )
        for place in (places if name else ())
    ]
    tested = "shown" if method.sentence else "all"
    return {
        "rows": rows,
        "seconds": seconds,
        "tested": tested,
        "machine": machine_in_words(task.device),
    }


def chosen_rows(
    method: RoutingMethod, task: Task, trained: Trained
) -> Iterator[tuple[str, int]]:
    """The rows of the variants that did best on held-out text: their names, and the variants'
    places.
    """
    scores = _held_scores(method, task, trained)
    for line, names in method.lines.items():
        own = [
            place
            for place, variant in enumerate(trained.variants)
            if variant.line == line
        ]
        if names.chosen:
            yield (
                names.chosen.format(trained.variants[_first_best(own, scores)].words),
                _first_best(own, scores),
            )


def _held_scores(method: RoutingMethod, task: Task, trained: Trained) -> list[float]:
    """How well each variant does on held-out text; nothing is routed where there is no choice."""
    if len(trained.variants) == len(method.lines) or not any(trained.held.values()):
        return [0.0] * len(trained.variants)
    return [
        evaluation(task.domains, found).accuracy
        for found in routed_texts(trained, trained.held)
    ]


def routed_texts(trained: Trained, texts: Texts) -> Iterator[dict[str, list[int]]]:
    """For each variant the places of every domain's texts."""
    for places in trained.routed(labelled(texts)[0]):
        left = iter(places.tolist())
        yield {name: list(islice(left, len(own))) for name, own in texts.items()}


def _first_best(places: Sequence[int], scores: Sequence[float]) -> int:
    """Of equals the first."""
    return max(places, key=lambda place: (round(scores[place], 9), -place))


def evaluation(domains: Sequence[str], routed: Decisions) -> Evaluation:
    """How well texts were routed, by domain."""
    rows = (
        np.bincount(np.array(routed[name], dtype=np.int64), minlength=len(domains))
        for name in domains
    )
    return Evaluation(tuple(domains), tuple(tuple(row.tolist()) for row in rows))


def among(whole: Sequence[str], part: Sequence[str]) -> list[int]:
    """Where the texts of a part, in their old order, stand in the whole."""
    places = iter(enumerate(whole))
    return [next(place for place, text in places if text == wanted) for wanted in part]


def of_outcome(
    outcome: Outcome, shown: Texts, whole: Texts, tests: Texts
) -> dict[str, Decisions]:
    """The decisions of each row of an outcome on some of the texts that it was tested on."""
    there = whole if outcome["tested"] == "all" else shown
    places = {name: among(there[name], own) for name, own in tests.items()}
    return {
        row["name"]: {
            name: [row["routed"][name][place] for place in own]
            for name, own in places.items()
        }
        for row in outcome["rows"]
    }
