"""The part `scores`: real models that are not domains, chosen by the router's probabilities and a
measured table.

Reads right and wrong answers of several models to questions of many categories. A federation of the
categories makes the router, the training questions make the table, and test questions are answered
by whom the production code chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.experts.expert_choice import ExpertChooser
from ridgeway.common.experts.experts_file import Expert, Experts
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.quality import (
    PRIOR_SCORES,
    DomainScore,
    QualityTable,
    quality_of,
)
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.score_files import ScoredPrompt, read_scores
from ridgeway.simulations.experiments.dataset import DATA_FOLDER, Dataset, Texts
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report import ReportPart, ReportTable
from ridgeway.simulations.experiments.routers import our_router

TITLE = "Experts that are not domains"
SCORES_FOLDER = DATA_FOLDER / "stern" / "mmlupro_scores"
STANDARD_ERRORS = 1.96

Shares = NDArray[np.float64]


def run(plan: ExperimentPlan, folder: Path = SCORES_FOLDER) -> ReportPart:
    """folder: train.jsonl and test.jsonl, each line with `text`, `category` and `scores` of all
    models.
    """
    if not (folder / "train.jsonl").is_file():
        lack = (
            "the models' answers are not on this machine; put them into"
            " shared/data/stern/mmlupro_scores beside the project"
        )
        return ReportPart(TITLE, (), (), (lack,))
    train = [_named(line) for line in read_scores(folder / "train.jsonl")]
    test = [_named(line) for line in read_scores(folder / "test.jsonl")]
    dataset = Dataset("MMLU-Pro", "its categories", _texts(train), _texts(test))
    router = our_router(plan, dataset)
    scores = [
        DomainScore(line.domain, name, score)
        for line in train
        for name, score in line.scores.items()
    ]
    table = quality_of(scores, router.domains)
    decisions = router.route_many([line.prompt for line in test])
    known = [_certain(line.domain, router) for line in test]
    right = np.array([[line.scores[name] for name in table.experts] for line in test])
    sums = [sum(line.scores[name] for line in train) for name in table.experts]
    single = int(np.argmax(sums))
    ways = {
        f"always the best on training questions ({table.experts[single]})": right[
            :, single
        ],
        "Ridgeway: probabilities × table": _answered(table, right, decisions),
        "the table, every category known": _answered(table, right, known),
        "any model that is right, in hindsight": right.max(axis=1),
    }
    pairs = zip(decisions, test, strict=True)
    found = float(np.mean([decision.best == line.domain for decision, line in pairs]))
    words = _words(table, len(train), len(test), found)
    return ReportPart(TITLE, (words,), (_table(ways),), facts={"prior": PRIOR_SCORES})


def _named(line: ScoredPrompt) -> ScoredPrompt:
    """With a category that can name a domain."""
    return line._replace(domain=line.domain.replace(" ", "_"))


def _texts(lines: Sequence[ScoredPrompt]) -> Texts:
    names = sorted({line.domain for line in lines})
    return {
        name: tuple(line.prompt for line in lines if line.domain == name)
        for name in names
    }


def _certain(domain: str, router: Router) -> Decision:
    return Decision(
        domain,
        1.0,
        {name: float(name == domain) for name in router.domains},
        False,
        domain,
        0,
    )


def _answered(
    table: QualityTable, right: Shares, decisions: Sequence[Decision]
) -> Shares:
    """Whether the chosen expert is right on each question. The experts cost nothing, and are
    nowhere.
    """
    nowhere = Expert(base_url="http://127.0.0.1/v1", model="none")
    chooser = ExpertChooser(
        Experts(experts=dict.fromkeys(table.experts, nowhere)), table.domains, table
    )
    choices = [chooser.choose(decision) for decision in decisions]
    places = [table.experts.index(choice.expert) for choice in choices if choice]
    found: Shares = right[np.arange(len(right)), places]
    return found


def _words(table: QualityTable, train: int, test: int, ahead: float) -> str:
    return (
        f"{len(table.experts)} models that know nothing of categories answer questions"
        f" of {len(table.domains)} categories. The router is that of a masked round in"
        f" which each category is a holder, and sends {100 * ahead:.1f} % of {test:,}"
        " test questions to their category. The table of quality is measured on the"
        f" {train:,} training questions. A test question goes to the model of the best"
        " quality to expect, by the router's probabilities of the categories."
    )


def _table(ways: dict[str, Shares]) -> ReportTable:
    """The first way is what the others are compared with, question by question."""
    base = next(iter(ways.values()))
    rows = []
    for name, found in ways.items():
        more = found - base
        error = 100 * STANDARD_ERRORS * float(more.std(ddof=1)) / len(more) ** 0.5
        rows.append((name, 100 * float(found.mean()), 100 * float(more.mean()), error))
    return ReportTable(
        "Questions answered rightly, percent",
        ("who answers", "right", "more than the first", "±"),
        tuple(rows),
        "±: 19 times of 20 the difference lies within. All choices were made on"
        " training questions.",
    )
