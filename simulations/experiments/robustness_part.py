"""The part `robustness`: prompts as people type them. Routers that have learnt from clean text are
tried on test texts that are misspelt, in capitals, without blanks, or cut off after a few tokens;
and ours on text that belongs nowhere.

 Misspells here by its own rule, not by that of any training.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.base.jsonl import jsonl_texts
from ridgeway.common.encoding.encoder_sources import find_encoder
from ridgeway.common.encoding.model_files import imported
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.evaluation import Evaluation, evaluate
from ridgeway.common.routing.router import Router
from ridgeway.simulations.bench.bench_text import DATA_FOLDER
from ridgeway.simulations.experiments.baselines.comparison import OURS, our_router
from ridgeway.simulations.experiments.baselines.routing_method import (
    RoutingMethod,
    Task,
    chosen_rows,
    evaluation,
    routed_texts,
    task_of,
)
from ridgeway.simulations.experiments.baselines.sentence_routers import KNN
from ridgeway.simulations.experiments.baselines.token_routers import IR3DE, NAIVE_BAYES
from ridgeway.simulations.experiments.dataset import Dataset, Texts
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report.report_tables import (
    Cell,
    Column,
    ReportPart,
    Table,
)

KEY = "robustness"
TITLE = "Prompts as people type them"
CODE = 1
METHODS = (KNN, NAIVE_BAYES, IR3DE, OURS)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TYPO_RATES = (0.1, 0.2)
FIRST_TOKENS = (4, 8, 16, 32, 64)
OUT_OF_SCOPE = DATA_FOLDER / "stern" / "clinc_out_of_scope" / "out_of_scope.jsonl"
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
SHORT_TRAIN_TEXTS = 400
SHORT_TEST_TEXTS = 60

Change = Callable[[str, random.Random], str]


def typos(rate: float) -> Change:
    """Of so many letters one each is replaced, dropped, followed by another, or of the other
    case.
    """

    def changed(text: str, chance: random.Random) -> str:
        ways: Sequence[Callable[[str], str]] = (
            lambda _: chance.choice(LETTERS),
            lambda _: "",
            lambda letter: letter + chance.choice(LETTERS),
            str.swapcase,
        )
        return "".join(
            chance.choice(ways)(letter) if chance.random() < rate else letter
            for letter in text
        )

    return changed


def first_tokens(encoder: str, count: int) -> Change:
    tokenizer = find_encoder(encoder).tokenizer

    def changed(text: str, chance: random.Random) -> str:
        return "".join(piece for _, piece in tokenizer.pieces(text)[:count])

    return changed


def changes(encoder: str) -> dict[str, Change]:
    """What is done to test texts, by the name of its column."""
    return {
        "clean": lambda text, _: text,
        **{f"{100 * rate:.0f} % typos": typos(rate) for rate in TYPO_RATES},
        "capitals": lambda text, _: text.upper(),
        "no blanks": lambda text, _: text.replace(" ", ""),
        **{f"first {count}": first_tokens(encoder, count) for count in FIRST_TOKENS},
    }


def changed_texts(texts: Texts, change: Change, seed: int) -> Texts:
    """Law: a text is changed alike whatever stands beside it."""
    return {
        name: tuple(change(text, random.Random(f"{seed} {text}")) for text in own)
        for name, own in texts.items()
    }


def run(plan: ExperimentPlan) -> ReportPart:
    tables = []
    left_out = list[str]()
    found = []
    for dataset in plan.datasets:
        if not plan.full:
            dataset = dataset.sampled(
                plan.seed, train=SHORT_TRAIN_TEXTS, test=SHORT_TEST_TEXTS
            )
        rows, lacks, router, gaps = _compared(plan, dataset)
        tables.append(_table(dataset, rows, list(changes(plan.encoder))))
        left_out += lacks
        found.append((dataset, router, gaps))
    tables.append(_gap_table({dataset.name: gaps for dataset, _, gaps in found}))
    tables.append(_scope_table([(dataset, router) for dataset, router, _ in found]))
    words = (
        (
            "Every router learns from the training texts as they are, chooses on"
            " held-out training texts, and is then tried on changed copies of the test"
            " texts. Accuracies are means over domains."
        ),
        (
            "Of text that belongs nowhere it is told how much of it the router abstains"
            " on by default, beside the share of clean test texts on which it does not."
        ),
    )
    return ReportPart(KEY, TITLE, words, tuple(tables), left_out=tuple(left_out))


def _compared(
    plan: ExperimentPlan, dataset: Dataset
) -> tuple[
    list[tuple[str, dict[str, float]]], list[str], Router, dict[str, float | None]
]:
    """By router, how often changed texts reach their domain, in percent; then how far our
    confidence in them is off.
    """
    rows = []
    left_out = []
    task = task_of(plan, dataset, plan.work / f"{dataset.name}-{KEY}")
    router = our_router(task)[0]
    tests = {
        name: changed_texts(task.shown, each, plan.seed)
        for name, each in changes(plan.encoder).items()
    }
    ours = _routed_by(router, tests)
    with plan.ticking(f"routers on {dataset.name}", len(METHODS)) as tick:
        for method in METHODS:
            try:
                rows += list(_tried(method, task, tests, ours))
            except RidgewayError as error:
                left_out.append(f"{method.key} on {dataset.name}: {error}")
            tick()
    return rows, left_out, router, {change: each.gap for change, each in ours.items()}


def _tried(
    method: RoutingMethod,
    task: Task,
    tests: Mapping[str, Texts],
    ours: Mapping[str, Evaluation],
) -> Iterator[tuple[str, dict[str, float]]]:
    if method is OURS:
        yield method.lines["ours"].chosen, _accuracies(ours)
        return
    trained = method.fit(task)
    routed = {
        change: list(routed_texts(trained, texts)) for change, texts in tests.items()
    }
    for name, place in chosen_rows(method, task, trained):
        yield (
            name,
            {
                change: evaluation(task.domains, each[place]).accuracy
                for change, each in routed.items()
            },
        )


def _routed_by(router: Router, tests: Mapping[str, Texts]) -> dict[str, Evaluation]:
    return {change: evaluate(router, texts) for change, texts in tests.items()}


def _accuracies(found: Mapping[str, Evaluation]) -> dict[str, float]:
    return {change: each.accuracy for change, each in found.items()}


def _table(
    dataset: Dataset, rows: Sequence[tuple[str, dict[str, float]]], names: Sequence[str]
) -> Table:
    columns = (Column("router"), *(Column(name, "%", better="more") for name in names))
    cells: list[tuple[Cell, ...]] = [
        (name, *(found[each] for each in names)) for name, found in rows
    ]
    return Table(
        f"robustness-{dataset.name}",
        f"Changed test texts of {dataset.name}",
        columns,
        tuple(cells),
    )


def _gap_table(gaps: Mapping[str, Mapping[str, float | None]]) -> Table:
    names = list(next(iter(gaps.values()), {}))
    columns = (
        Column("dataset"),
        *(Column(name, "points", better="less") for name in names),
    )
    rows = tuple(
        (dataset, *(found[name] for name in names)) for dataset, found in gaps.items()
    )
    return Table(
        "robustness-confidence",
        "How far our confidence is from accuracy",
        columns,
        rows,
    )


def _scope_table(found: Sequence[tuple[Dataset, Router]]) -> Table:
    kinds = dict(NOWHERE)
    if OUT_OF_SCOPE.is_file():
        lines = OUT_OF_SCOPE.read_text().splitlines()
        kinds[CLINC] = list(jsonl_texts(lines, ("text",), OUT_OF_SCOPE.name))
    columns = (
        Column("dataset"),
        Column("test texts answered", "%"),
        *(Column(f"rejected: {kind}", "%") for kind in kinds),
        *(
            [
                Column("told apart (AUROC)", "%"),
                Column("rejected at 95 % coverage", "%"),
            ]
            if CLINC in kinds
            else []
        ),
    )
    rows = tuple(_scope_row(dataset, router, kinds) for dataset, router in found)
    return Table("robustness-scope", "Text that belongs nowhere", columns, rows)


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
    return dataset.name, answered, *rejected, *_told_apart(own, other.get(CLINC, []))


def _told_apart(own: Sequence[Decision], other: Sequence[Decision]) -> list[Cell]:
    """How well the chance to belong tells test texts from others, and how many it rejects where it
    keeps 95 %.
    """
    inside, outside = (
        [each.scope for each in found if each.scope is not None]
        for found in (own, other)
    )
    if not other:
        return []
    if not inside or not outside:
        return [None, None]
    area = imported("sklearn.metrics", "simulation").roc_auc_score
    labels = [True] * len(inside) + [False] * len(outside)
    least = np.quantile(inside, 0.05)
    return [
        100 * float(area(labels, inside + outside)),
        100 * float(np.mean(np.array(outside) < least)),
    ]
