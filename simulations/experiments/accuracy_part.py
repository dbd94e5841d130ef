"""The part `accuracy`: how often prompts reach the right expert, and what that costs, beside other
routers.
"""

from __future__ import annotations

from collections.abc import Mapping

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.simulations.experiments.dataset import Dataset, ExperimentPlan, in_turn
from ridgeway.simulations.experiments.report import Cell, ReportPart, ReportTable
from ridgeway.simulations.experiments.routers import (
    CROSS_ENTROPY,
    IR3DE,
    NAIVE_BAYES,
    OURS,
    OURS_WITH_SENTENCES,
    PASSES,
    RANDOM,
    LearntRouter,
    evaluation,
    learnt_routers,
    milliseconds,
)
from ridgeway.simulations.experiments.sentence_routers import (
    KNN,
    KNN_ON_USE,
    LOGISTIC_ON_USE,
    MODEM,
)

METHODS = {
    "random": RANDOM,
    "knn": KNN,
    "modem": MODEM,
    "bayes": NAIVE_BAYES,
    "linear": CROSS_ENTROPY,
    "ir3de": IR3DE,
    "knn on use": KNN_ON_USE,
    "logistic on use": LOGISTIC_ON_USE,
    "ridgeway with sentences": OURS_WITH_SENTENCES,
    "ridgeway": OURS,
}
"""All the routers of a comparison, in the order of its table."""
_PROMPTS = 60
_SHORT_PROMPTS = 12
"""Test texts whose routing is timed. A cascade reads few of them, so a few tell little."""
_WORDS = (
    "Each router learns from the training text; a tenth of it is kept aside to choose"
    " hyper-parameters on. Test texts serve for the figures alone, except in rows that"
    " say so."
)
_SHORT_WORDS = (
    "This is the short run: routers learn from a sample of the training texts, sentence"
    " encoders from fewer, and are compared on a sample of the test texts."
)


MEAN = "mean"


def run(plan: ExperimentPlan) -> ReportPart:
    tables = []
    left_out = []
    means: dict[str, dict[str, float]] = {}
    for dataset in plan.datasets:
        routers, lacks = learnt_routers(plan, dataset, METHODS)
        left_out += lacks
        if routers[-1].method is not OURS:
            raise RoundFailed(lacks[-1])
        evaluations = {
            row.name: evaluation(row.route, dataset.test)
            for router in routers
            for row in router.rows
        }
        means[dataset.name] = {
            name: result.accuracy for name, result in evaluations.items()
        }
        tables.append(_accuracies(dataset, evaluations))
        tables.append(_costs(plan, dataset, routers, means[dataset.name]))
    tables.insert(0, means_table(means))
    words = (_WORDS,) if plan.full else (_WORDS, _SHORT_WORDS)
    title = "How often prompts reach the right expert"
    return ReportPart(title, words, tuple(tables), tuple(left_out))


def _accuracies(dataset: Dataset, evaluations: Mapping[str, Evaluation]) -> ReportTable:
    """Percent of the texts of each domain, and the mean over domains."""
    rows: list[tuple[Cell, ...]] = [
        (name, *result.by_domain.values(), result.accuracy)
        for name, result in evaluations.items()
    ]
    count = sum(map(len, dataset.test.values()))
    return ReportTable(
        f"Accuracy on {dataset.name}, percent",
        ("router", *dataset.domains, MEAN),
        tuple(rows),
        f"Over {count:,} test texts. The mean is over domains.",
        best="more",
    )


def means_table(means: Mapping[str, Mapping[str, float]]) -> ReportTable:
    """The mean accuracy of every router on every dataset."""
    names = list(dict.fromkeys(name for column in means.values() for name in column))
    rows = tuple(
        (name, *(column.get(name) for column in means.values())) for name in names
    )
    title = "Accuracy, mean over domains, percent"
    return ReportTable(title, ("router", *means), rows, best="more")


def _costs(
    plan: ExperimentPlan,
    dataset: Dataset,
    routers: list[LearntRouter],
    accuracies: Mapping[str, float],
) -> ReportTable:
    """accuracies: in percent, by the name of a router's row."""
    rows = [(router, row) for router in routers[1:] for row in router.rows]
    prompts = in_turn(dataset.test, plan.short(_SHORT_PROMPTS) or _PROMPTS)
    times = milliseconds([row.route for _, row in rows], prompts)
    shares = [accuracies[row.name] for _, row in rows]
    ours = shares[-1] / times[-1]
    cells = [
        (
            row.name,
            router.method.made_of,
            row.variant,
            router.seconds,
            time,
            share,
            share / time / ours,
            "yes" if router.method.gathers else "no",
        )
        for (router, row), time, share in zip(rows, times, shares, strict=True)
    ]
    columns = (
        "router",
        "made of",
        "set to",
        "training, s",
        "a prompt, CPU ms",
        "accuracy, percent",
        "accuracy per CPU ms, times ours",
        "sees all text",
    )
    note = (
        "Training is all from reading text to a chosen router. The CPU time of a prompt"
        f" is the median of {PASSES} passes over {len(prompts)} test texts, one at a"
        " time, all routers in turns in one process."
    )
    title = f"Cost on {dataset.name}"
    return ReportTable(
        title,
        columns,
        tuple(cells),
        note,
        digits=2,
        plot=("a prompt, CPU ms", "accuracy, percent"),
    )
