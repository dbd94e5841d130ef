"""The part `accuracy`: how often prompts reach the right expert, and what that costs, beside other
routers.
"""

from __future__ import annotations

from ridgeway.common.base.errors import RoundFailed
from ridgeway.simulations.experiments.dataset import Dataset, in_turn
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report import Cell, ReportPart, ReportTable
from ridgeway.simulations.experiments.routers import (
    OURS,
    OURS_WITH_SENTENCES,
    PASSES,
    RANDOM,
    LearntRouter,
    evaluation,
    learnt_routers,
    milliseconds,
)
from ridgeway.simulations.experiments.same_encoder_routers import (
    SAME_ENCODER_KNN,
    SAME_ENCODER_LOGISTIC,
)
from ridgeway.simulations.experiments.sentence_routers import KNN, MODEM
from ridgeway.simulations.experiments.token_routers import (
    CROSS_ENTROPY,
    IR3DE,
    NAIVE_BAYES,
)

METHODS = {
    "random": RANDOM,
    "knn": KNN,
    "modem": MODEM,
    "bayes": NAIVE_BAYES,
    "linear": CROSS_ENTROPY,
    "ir3de": IR3DE,
    "knn on use": SAME_ENCODER_KNN,
    "logistic on use": SAME_ENCODER_LOGISTIC,
    "ridgeway with sentences": OURS_WITH_SENTENCES,
    "ridgeway": OURS,
}
"""All the routers of a comparison, in the order of its table."""
_PROMPTS = 12
_WORDS = (
    "Each router learns from the training text; a tenth of it is kept aside to choose"
    " hyper-parameters on. Test texts serve for the figures alone, except in rows that"
    " say so."
)
_SHORT_WORDS = (
    "This is the short run: routers learn from a sample of the training texts, sentence"
    " encoders from fewer, and are compared on a sample of the test texts."
)


def run(plan: ExperimentPlan) -> ReportPart:
    tables = []
    left_out = []
    for dataset in plan.datasets:
        routers, lacks = learnt_routers(plan, dataset, METHODS)
        left_out += lacks
        if routers[-1].method is not OURS:
            raise RoundFailed(lacks[-1])
        tables += [_accuracies(dataset, routers), _costs(dataset, routers)]
    words = (_WORDS,) if plan.full else (_WORDS, _SHORT_WORDS)
    title = "How often prompts reach the right expert"
    return ReportPart(title, words, tuple(tables), tuple(left_out))


def _accuracies(dataset: Dataset, routers: list[LearntRouter]) -> ReportTable:
    """Percent of the texts of each domain, and the mean over domains."""
    rows: list[tuple[Cell, ...]] = []
    for router in routers:
        for row in router.rows:
            found = evaluation(row.route, dataset.test)
            rows.append((row.name, *found.by_domain.values(), found.accuracy))
    count = sum(map(len, dataset.test.values()))
    return ReportTable(
        f"Accuracy on {dataset.name}, percent",
        ("router", *dataset.domains, "mean"),
        tuple(rows),
        f"Over {count:,} test texts. The mean is over domains.",
        best="more",
    )


def _costs(dataset: Dataset, routers: list[LearntRouter]) -> ReportTable:
    rows = [(router, row) for router in routers[1:] for row in router.rows]
    prompts = in_turn(dataset.test, _PROMPTS)
    times = milliseconds([row.route for _, row in rows], prompts)
    ours = times[-1]
    cells = [
        (
            row.name,
            router.method.made_of,
            row.variant,
            router.seconds,
            time,
            time / ours,
            evaluation(row.route, dataset.test).accuracy,
            "yes" if router.method.gathers else "no",
        )
        for (router, row), time in zip(rows, times, strict=True)
    ]
    columns = (
        "router",
        "made of",
        "set to",
        "training, s",
        "a prompt, ms",
        "times ours",
        "accuracy, percent",
        "sees all text",
    )
    note = (
        "Training is all from reading text to a chosen router. Time for a prompt is the"
        f" median of {PASSES} passes over {len(prompts)} test texts, one at a time, all"
        " routers in turns in one process."
    )
    title = f"Cost on {dataset.name}"
    return ReportTable(
        title,
        columns,
        tuple(cells),
        note,
        digits=2,
        plot=("a prompt, ms", "accuracy, percent"),
    )
