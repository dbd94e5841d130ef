"""The part `robustness`: prompts as people type them. Routers that have learnt from clean text are
tried on test texts that are misspelt, in capitals, without blanks, or cut off after a few
tokens; and ours on text that belongs nowhere.

Misspells here by its own rule, not by that of any training.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ridgeway.common.base.jsonl import jsonl_texts
from ridgeway.common.encoding.model_files import imported
from ridgeway.common.encoding.tokenizer import Tokenizer
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.evaluation import evaluate
from ridgeway.common.routing.router import Router
from ridgeway.simulations.experiments.dataset import DATA_FOLDER, Dataset, Texts
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report import Cell, ReportPart, ReportTable
from ridgeway.simulations.experiments.routers import (
    OURS,
    OURS_WITH_SENTENCES,
    evaluation,
    learnt_routers,
    our_router,
)
from ridgeway.simulations.experiments.same_encoder_routers import (
    SAME_ENCODER_KNN,
    SAME_ENCODER_LOGISTIC,
)
from ridgeway.simulations.experiments.sentence_routers import KNN
from ridgeway.simulations.experiments.token_routers import IR3DE, NAIVE_BAYES

_METHODS = {
    "knn": KNN,
    "bayes": NAIVE_BAYES,
    "ir3de": IR3DE,
    "knn on use": SAME_ENCODER_KNN,
    "logistic on use": SAME_ENCODER_LOGISTIC,
    "ridgeway with sentences": OURS_WITH_SENTENCES,
    "ridgeway": OURS,
}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
TYPO_RATES = (0.1, 0.2)
_FIRST_TOKENS = (4, 8, 16, 32, 64)
_OUT_OF_SCOPE = DATA_FOLDER / "stern" / "clinc_out_of_scope" / "out_of_scope.jsonl"
_NO_OUT_OF_SCOPE = (
    "CLINC's out-of-scope questions are not on this machine; put them into"
    " shared/data/stern/clinc_out_of_scope beside the project"
)
CLINC = "out of scope (CLINC)"
NOWHERE = {
    "empty": [""],
    "marks": ["?", "!!!", "...", "?!", "--"],
    "other languages": [
        "¿Cuánto cuesta un billete de tren a Sevilla mañana por la mañana?",
        "Wie komme ich am schnellsten vom Bahnhof zum Rathaus?",
        "昨天晚上我们去看了一场电影。",
        "Где находится ближайшая аптека?",
        "Nerede güzel bir lokanta bulabilirim?",
        "어디에서 표를 살 수 있나요?",
    ],
}
_WORDS = (
    "Every router learns from the training texts as they are, chooses on held-out"
    " training texts, and is then tried on changed copies of the test texts. Accuracies"
    " are means over domains.",
    "Of text that belongs nowhere it is told how much of it the router abstains on by"
    " default, beside the share of clean test texts on which it does not.",
)

Change = Callable[[str, random.Random], str]


def typos(rate: float) -> Change:
    """This share of the letters is replaced, dropped, followed by another, or of the other case."""

    def changed(text: str, chance: random.Random) -> str:
        ways: Sequence[Callable[[str], str]] = (
            lambda _: chance.choice(_LETTERS),
            lambda _: "",
            lambda letter: letter + chance.choice(_LETTERS),
            str.swapcase,
        )
        return "".join(
            chance.choice(ways)(letter) if chance.random() < rate else letter
            for letter in text
        )

    return changed


def first_tokens(tokenizer: Tokenizer, count: int) -> Change:
    def changed(text: str, chance: random.Random) -> str:
        return "".join(piece for _, piece in tokenizer.pieces(text)[:count])

    return changed


def changes(tokenizer: Tokenizer) -> dict[str, Change]:
    """What is done to test texts, by the name of its column."""
    return {
        "clean": lambda text, _: text,
        **{f"{100 * rate:.0f} % typos": typos(rate) for rate in TYPO_RATES},
        "capitals": lambda text, _: text.upper(),
        "no blanks": lambda text, _: text.replace(" ", ""),
        **{f"first {count}": first_tokens(tokenizer, count) for count in _FIRST_TOKENS},
    }


def changed_texts(texts: Texts, change: Change, seed: int) -> Texts:
    """Law: a text is changed alike whatever stands beside it."""
    return {
        name: tuple(change(text, random.Random(f"{seed} {text}")) for text in own)
        for name, own in texts.items()
    }


def run(plan: ExperimentPlan) -> ReportPart:
    every = changes(plan.table_encoder().tokenizer)
    tables = []
    left_out = []
    gaps: list[tuple[Cell, ...]] = []
    for dataset in plan.datasets:
        routers, lacks = learnt_routers(plan, dataset, _METHODS)
        left_out += lacks
        tests = [
            changed_texts(dataset.test, change, plan.seed) for change in every.values()
        ]
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (row.name, *(evaluation(row.route, texts).accuracy for texts in tests))
            for router in routers
            for row in router.rows
        )
        title = f"Changed test texts of {dataset.name}, percent"
        tables.append(ReportTable(title, ("router", *every), rows, best="more"))
        ours = our_router(plan, dataset)
        gaps.append((dataset.name, *(evaluate(ours, texts).gap for texts in tests)))
    title = "How far our confidence is from accuracy, points"
    tables.append(ReportTable(title, ("dataset", *every), tuple(gaps)))
    tables.append(_scope_table(plan))
    if not _OUT_OF_SCOPE.is_file():
        left_out.append(_NO_OUT_OF_SCOPE)
    title = "Prompts as people type them"
    return ReportPart(title, _WORDS, tuple(tables), tuple(left_out))


# Text that belongs nowhere


def _scope_table(plan: ExperimentPlan) -> ReportTable:
    kinds = dict(NOWHERE)
    columns = [
        "dataset",
        "test texts answered",
        *(f"rejected: {kind}" for kind in kinds),
    ]
    if _OUT_OF_SCOPE.is_file():
        lines = _OUT_OF_SCOPE.read_text().splitlines()
        kinds[CLINC] = list(jsonl_texts(lines, ("text",), _OUT_OF_SCOPE.name))
        columns += [f"rejected: {CLINC}", "AUROC", "rejected at 95 % coverage"]
    rows = tuple(
        _scope_row(each, our_router(plan, each), kinds) for each in plan.datasets
    )
    return ReportTable("Text that belongs nowhere, percent", tuple(columns), rows)


def _scope_row(
    dataset: Dataset, router: Router, kinds: Mapping[str, Sequence[str]]
) -> tuple[Cell, ...]:
    own = [each for texts in dataset.test.values() for each in router.route_many(texts)]
    other = {kind: router.route_many(texts) for kind, texts in kinds.items()}
    answered = 100 * float(np.mean([each.belongs for each in own]))
    rejected = [
        100 * float(np.mean([not each.belongs for each in found]))
        for found in other.values()
    ]
    apart = _told_apart(own, other[CLINC]) if CLINC in other else ()
    return (dataset.name, answered, *rejected, *apart)


def _told_apart(
    own: Sequence[Decision], other: Sequence[Decision]
) -> tuple[Cell, Cell]:
    """How well the chance to belong tells test texts from others, and how many it rejects where it
    keeps 95 %.
    """
    inside = [each.scope for each in own if each.scope is not None]
    outside = [each.scope for each in other if each.scope is not None]
    if not inside or not outside:
        return None, None
    area = imported("sklearn.metrics", "simulation").roc_auc_score
    labels = [True] * len(inside) + [False] * len(outside)
    least = np.quantile(inside, 0.05)
    rejected = np.mean(np.array(outside) < least)
    return 100 * float(area(labels, inside + outside)), 100 * float(rejected)
