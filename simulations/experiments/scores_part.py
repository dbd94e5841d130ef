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
from ridgeway.simulations import corpora
from ridgeway.simulations.bench.bench_text import DATA_FOLDER
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report.report_tables import (
    Column,
    ReportPart,
    Table,
)

KEY = "scores"
TITLE = "Experts that are not domains"
CODE = 1
SCORES_FOLDER = DATA_FOLDER / "stern" / "mmlupro_scores"
STANDARD_ERRORS = 1.96

Shares = NDArray[np.float64]


def run(plan: ExperimentPlan, folder: Path = SCORES_FOLDER) -> ReportPart:
    """folder: train.jsonl and test.jsonl, each line with `text`, `category` and `scores` of all
    models.
    """
    paths = {side: folder / f"{side}.jsonl" for side in ("train", "test")}
    if not all(path.is_file() for path in paths.values()):
        where = "shared/data/stern/mmlupro_scores beside the project"
        lack = (
            f"the models' answers are not on this machine; put them into {where}, and"
            " run this with --fresh"
        )
        return ReportPart(KEY, TITLE, (), left_out=(lack,))
    train, test = (
        [_named(line) for line in read_scores(path)] for path in paths.values()
    )
    router = _router(plan, train, test)
    table = quality_of(_scores(train), router.domains)
    decisions = router.route_many([line.prompt for line in test])
    known = [_certain(line.domain, router) for line in test]
    right = np.array([[line.scores[name] for name in table.experts] for line in test])
    single = table.experts.index(_best_single(train))
    ways = {
        f"always the best on training questions ({table.experts[single]})": right[
            :, single
        ],
        "Ridgeway: probabilities × table": _answered(table, right, decisions),
        "the table, every category known": _answered(table, right, known),
        "any model that is right, in hindsight": right.max(axis=1),
    }
    ahead = float(
        np.mean(
            [
                decision.best == line.domain
                for decision, line in zip(decisions, test, strict=True)
            ]
        )
    )
    return ReportPart(
        KEY,
        TITLE,
        (_words(table, len(train), len(test), ahead),),
        (_table(ways),),
        facts={"prior": PRIOR_SCORES},
    )


def _named(line: ScoredPrompt) -> ScoredPrompt:
    """With a category that can name a domain."""
    return line._replace(domain=line.domain.replace(" ", "_"))


def _router(
    plan: ExperimentPlan, train: Sequence[ScoredPrompt], test: Sequence[ScoredPrompt]
) -> Router:
    """Of a masked round in which every category is a holder; the round calibrates it on held-out
    training questions.
    """
    from ridgeway.coordinator.round.progress import no_watch
    from ridgeway.simulations.simulate import simulate

    def texts(lines: Sequence[ScoredPrompt], domain: str) -> tuple[str, ...]:
        return tuple(line.prompt for line in lines if line.domain == domain)

    names = sorted({line.domain for line in train})
    data = plan.work / "data"
    release = plan.work / "release"
    corpora.write(
        [corpora.Corpus(name, texts(train, name), texts(test, name)) for name in names],
        data,
    )
    simulate(
        plan.work / "federation", no_watch, data=data, out=release, encoder=plan.encoder
    )
    return Router.load(release)


def _scores(lines: Sequence[ScoredPrompt]) -> list[DomainScore]:
    return [
        DomainScore(line.domain, name, score)
        for line in lines
        for name, score in line.scores.items()
    ]


def _best_single(lines: Sequence[ScoredPrompt]) -> str:
    sums = {name: sum(line.scores[name] for line in lines) for name in lines[0].scores}
    return max(sums, key=lambda name: sums[name])


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


def _table(ways: dict[str, Shares]) -> Table:
    """The first way is what the others are compared with, question by question."""
    (_, base), *_ = ways.items()
    rows = []
    for name, found in ways.items():
        more = found - base
        error = 100 * STANDARD_ERRORS * float(more.std(ddof=1)) / len(more) ** 0.5
        rows.append((name, 100 * float(found.mean()), 100 * float(more.mean()), error))
    columns = (
        Column("who answers"),
        Column("right", "%"),
        Column("more than the first", "%"),
        Column("±", "%"),
    )
    note = (
        "±: 19 times of 20 the difference lies within. All choices were made on"
        " training questions."
    )
    return Table("scores", "Questions answered rightly", columns, tuple(rows), note)
