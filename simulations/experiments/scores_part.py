"""The part `scores`: real models that are not domains, chosen by the router's probabilities and a
measured table.

Reads right and wrong answers of several models to questions of many categories. A federation of the
categories makes the router, the training questions make the table, and test questions are answered
by whom the production code chooses. Beside it: choosers that see every training question with its
scores, what quality costs, how many scores a category needs, and what noise would cost.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.identity import Identity
from ridgeway.common.masking.reference_session import masked_sum
from ridgeway.common.privacy.accountant import rho_for, sigma_for
from ridgeway.common.privacy.noise import Randomness, discrete_gaussian
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.expert_choice import ExpertChooser
from ridgeway.common.routing.experts_file import Expert, Experts
from ridgeway.common.routing.quality import (
    PRIOR_SCORES,
    SCORE_UNIT,
    DomainScore,
    QualityTable,
    ScoredPrompt,
    quality_of,
    read_scores,
)
from ridgeway.common.routing.router import Router
from ridgeway.common.text.model_files import imported
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.simulations.experiments.dataset import (
    DATA_FOLDER,
    Dataset,
    ExperimentPlan,
    Texts,
)
from ridgeway.simulations.experiments.report import ReportPart, ReportTable
from ridgeway.simulations.experiments.routers import our_router

# Choosing a model by scores on training prompts: by a router's probabilities and a table of
# quality, by kNN, by ridge regression.
#
# The latter two are scikit-learn's, and need every prompt with its scores in one place. To them a
# prompt is the mean of its tokens' rows in the encoder's table, of length one.


_Matrix = NDArray[np.float64]

_NEIGHBOURS = (20, 50, 100, 200)
_PENALTIES = (0.1, 1.0, 10.0, 100.0)
_EVERY_TENTH = 10
"""Of the training prompts, each tenth chooses among settings."""


def of_best_quality(table: QualityTable, decisions: Sequence[Decision]) -> list[int]:
    """The place of the expert that the production code chooses for each decision. The experts cost
    nothing, and are nowhere.
    """
    nowhere = Expert(base_url="http://127.0.0.1/v1", model="none")
    chooser = ExpertChooser(
        Experts(experts=dict.fromkeys(table.experts, nowhere)), table.domains, table
    )
    choices = [chooser.choose(decision) for decision in decisions]
    return [table.experts.index(choice.expert) for choice in choices if choice]


def certain(domain: str, domains: Sequence[str]) -> Decision:
    """What a router that knows the domain would say."""
    scores = {name: float(name == domain) for name in domains}
    return Decision(domain, 1.0, scores, False, domain, 0)


def expected_by_others(
    encoder: TableEncoder,
    known: Sequence[str],
    scores: _Matrix,
    asked: Sequence[str],
) -> dict[str, _Matrix]:
    """What kNN and ridge regression expect of each model on prompts that are asked, by the scores
    of known ones.
    """
    rows, questions = (_mean_rows(encoder, texts) for texts in (known, asked))
    neighbours = imported("sklearn.neighbors", "simulation").KNeighborsRegressor
    ridge = imported("sklearn.linear_model", "simulation").Ridge
    held = np.arange(len(rows)) % _EVERY_TENTH == 0
    most = int(np.count_nonzero(~held))
    kinds = {
        "kNN over scores": [
            neighbours(min(count, most), algorithm="brute") for count in _NEIGHBOURS
        ],
        "ridge regression on scores": [ridge(penalty) for penalty in _PENALTIES],
    }

    def worth(model: Any) -> float:
        """Of what it chooses on held-out prompts."""
        expected = model.fit(rows[~held], scores[~held]).predict(rows[held])
        return float(at_best(scores[held], expected).mean())

    return {
        name: max(models, key=worth).fit(rows, scores).predict(questions)
        for name, models in kinds.items()
    }


def at_best(scores: _Matrix, expected: _Matrix) -> _Matrix:
    """The score of each prompt's model of which most is expected."""
    found: _Matrix = scores[np.arange(len(scores)), expected.argmax(axis=1)]
    return found


def _mean_rows(encoder: TableEncoder, texts: Sequence[str]) -> _Matrix:
    ids, lengths = encoder.tokenizer.encode_many(texts)
    starts = np.cumsum(lengths) - lengths
    sums = np.add.reduceat(encoder.table[ids].astype(np.float64), starts)
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    rows: _Matrix = sums / np.maximum(norms, 1e-9)
    return rows


TITLE = "Experts that are not domains"
SCORES_FOLDER = DATA_FOLDER / "stern" / "mmlupro_scores"
STANDARD_ERRORS = 1.96
COSTS = {
    "Meta-Llama-3_1-8B-Instruct": 8.0,
    "Phi-3-mini-4k-instruct": 3.8,
    "mathstral-7B": 7.2,
    "Mixtral-8x7B-Instruct-v0.1": 12.9,
    "Yi-34B": 34.4,
    "Qwen1.5-72B-Chat": 72.3,
    "c4ai-command-r-v01": 35.0,
    "gemma-7b": 8.5,
    "Mistral-7B-Instruct-v0.2": 7.2,
}
"""Billions of parameters that a token passes through, which stand for a model's cost."""
_PRICES = (0.0, 0.0003, 0.001, 0.002, 0.004, 0.01)
"""What a billion parameters costs, in right answers: the larger, the cheaper the models chosen."""
_SCORED = (2, 5, 10, 20, 50, 100, 200, None)
"""Scored questions of a category; None: all."""
_DRAWS = 5
_EPSILONS = (0.3, 1.0, 3.0, 8.0)
_NOISY_SCORED = (100, None)
_DELTA = 1e-8

Shares = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Answers:
    """What a router and models make of questions.

    right: test questions × experts. decisions: the router's, on test questions.
    """

    train: Sequence[ScoredPrompt]
    router: Router
    experts: tuple[str, ...]
    right: Shares
    decisions: Sequence[Decision]

    def chosen(
        self, table: QualityTable, decisions: Sequence[Decision] | None = None
    ) -> Shares:
        """Whether the expert that a table and decisions choose is right on each question."""
        places = of_best_quality(table, decisions or self.decisions)
        found: Shares = self.right[np.arange(len(self.right)), places]
        return found

    def percent(self, table: QualityTable) -> float:
        return 100 * float(self.chosen(table).mean())

    def table(self, count: int | None, chance: np.random.Generator) -> QualityTable:
        """Of so many questions of each category, drawn at random; None: of all."""
        drawn = [self.train[index] for index in chance.permutation(len(self.train))]
        kept = list[ScoredPrompt]()
        taken = Counter[str]()
        for line in drawn:
            taken[line.domain] += 1
            if count is None or taken[line.domain] <= count:
                kept.append(line)
        table = _measured(kept, self.router)
        places = [table.experts.index(name) for name in self.experts]
        return QualityTable(
            table.domains,
            self.experts,
            table.sums[:, places],
            table.counts[:, places],
        )


def run_scores(plan: ExperimentPlan, folder: Path = SCORES_FOLDER) -> ReportPart:
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
    table = _measured(train, router)
    asked = [line.prompt for line in test]
    decisions = router.route_many(asked)
    known = [certain(line.domain, router.domains) for line in test]
    scored = _scores(train, table.experts)
    right = _scores(test, table.experts)
    answers = Answers(train, router, table.experts, right, decisions)
    single = int(scored.sum(axis=0).argmax())
    others = expected_by_others(
        plan.table_encoder(), [line.prompt for line in train], scored, asked
    )
    choosers = {
        f"always the best on training questions ({table.experts[single]})": right[
            :, single
        ],
        "Ridgeway: probabilities × table": answers.chosen(table),
        **{name: at_best(right, worth) for name, worth in others.items()},
        "the table, every category known": answers.chosen(table, known),
        "any model that is right, in hindsight": right.max(axis=1),
    }
    pairs = zip(decisions, test, strict=True)
    found = float(np.mean([decision.best == line.domain for decision, line in pairs]))
    words = [_words(table, len(train), len(test), found), _masked_words(table)]
    tables = [_table(choosers), _few_scores(answers), _noisy_scores(answers)]
    if set(table.experts) <= set(COSTS):
        ours = np.array([list(decision.scores.values()) for decision in decisions])
        worths = {"Ridgeway": ours @ table.expected, **others}
        tables.append(_curves(worths, right, table.experts))
    facts = {"prior": PRIOR_SCORES}
    return ReportPart(TITLE, tuple(words), tuple(tables), facts=facts)


def _scores(lines: Sequence[ScoredPrompt], experts: Sequence[str]) -> Shares:
    """Questions × experts."""
    return np.array([[line.scores[name] for name in experts] for line in lines])


def _measured(lines: Sequence[ScoredPrompt], router: Router) -> QualityTable:
    scores = [
        DomainScore(line.domain, name, score)
        for line in lines
        for name, score in line.scores.items()
    ]
    return quality_of(scores, router.domains)


def _named(line: ScoredPrompt) -> ScoredPrompt:
    """With a category that can name a domain."""
    return line._replace(domain=line.domain.replace(" ", "_"))


def _texts(lines: Sequence[ScoredPrompt]) -> Texts:
    names = sorted({line.domain for line in lines})
    return {
        name: tuple(line.prompt for line in lines if line.domain == name)
        for name in names
    }


# What quality costs


def _curves(
    worths: dict[str, Shares], right: Shares, experts: Sequence[str]
) -> ReportTable:
    """Each chooser at several prices; and every model alone."""
    costs = np.array([COSTS[name] for name in experts])
    rows: list[tuple[str, float, float]] = []
    for name, worth in worths.items():
        for price in _PRICES:
            net = worth - price * costs
            cost = float(costs[net.argmax(axis=1)].mean())
            quality = 100 * float(at_best(right, net).mean())
            rows.append((f"{name}, μ = {price:g}", cost, quality))
    for index, name in enumerate(experts):
        rows.append((name, float(costs[index]), 100 * float(right[:, index].mean())))
    return ReportTable(
        "Quality over cost",
        ("who answers", "billion parameters", "right, percent"),
        tuple(rows),
        "Cost is the mean of the parameters that a token of the answer passes through.",
        plot=("billion parameters", "right, percent"),
    )


# How many scores a category needs


def _few_scores(answers: Answers) -> ReportTable:
    chance = np.random.default_rng(1)
    rows = []
    for count in _SCORED:
        draws = range(_DRAWS if count else 1)
        drawn = [answers.table(count, chance) for _ in draws]
        percents = [answers.percent(table) for table in drawn]
        best = [int(table.sums.sum(axis=0).argmax()) for table in drawn]
        single = 100 * float(answers.right[:, best].mean())
        figures = fmean(percents), single, min(percents), max(percents)
        rows.append((str(count or "all"), *figures))
    return ReportTable(
        "Scored questions of a category",
        ("scored questions", "right, percent", "best single model", "least", "most"),
        tuple(rows),
        f"Means of {_DRAWS} draws, and the least and most right answers. The best single"
        " model is chosen by the same scores. The router is the same in all rows.",
    )


def _noisy_scores(answers: Answers) -> ReportTable:
    """What a table under noise would be worth."""
    chance = np.random.default_rng(1)
    rows = []
    for count, epsilon in product(_NOISY_SCORED, _EPSILONS):
        rho = rho_for(epsilon, _DELTA)
        found = [
            answers.percent(
                noisy_table(answers.table(count, chance), rho, chance.bytes)
            )
            for _ in range(_DRAWS)
        ]
        figures = fmean(found), min(found), max(found)
        rows.append((str(count or "all"), f"{epsilon:g}", *figures))
    return ReportTable(
        "Scores under noise",
        ("scored questions", "ε", "right, percent", "least", "most"),
        tuple(rows),
        "Every category adds discrete Gaussian noise to its sums of scores and to its"
        f" number of questions; ε is of one scored question, δ is 10⁻⁸. Means of {_DRAWS}"
        " draws. The router is the same in all rows, and exact. Private rounds carry no"
        " scores, so this is what they would be worth.",
    )


def noisy_table(table: QualityTable, rho: Fraction, draw: Randomness) -> QualityTable:
    """The table of sums under noise; all experts were scored on the same questions of a domain.

    One question moves the sum of each expert and the number of questions, by one score each.
    """
    domains, experts = table.sums.shape
    sigma = sigma_for((experts + 1) * SCORE_UNIT**2, rho)
    noise = discrete_gaussian(sigma, domains * (experts + 1), draw)
    noise = noise.reshape(domains, experts + 1)
    numbers = table.counts[:, 0] + np.rint(noise[:, -1] / SCORE_UNIT).astype(np.int64)
    counts = np.repeat(np.maximum(numbers, 0)[:, None], experts, axis=1)
    sums = np.clip(table.sums + noise[:, :-1], 0, counts * SCORE_UNIT)
    return QualityTable(table.domains, table.experts, sums, counts)


def _masked_words(table: QualityTable) -> str:
    """Whether the sums of scores of one holder a category, under masks, give the same table."""
    vectors = []
    for index in range(len(table.domains)):
        own = np.zeros((2, *table.sums.shape), np.int64)
        own[:, index] = table.sums[index], table.counts[index]
        vectors.append(own.ravel())
    members = [Identity.generate() for _ in vectors]
    run = masked_sum(members, vectors, {}, lambda purpose, place: secrets.token_bytes)
    exact = np.array_equal(run.total, np.stack([table.sums, table.counts]).ravel())
    return (
        "Sums of scores that holders add up under masks give"
        f" {'the same table, bit for bit' if exact else 'ANOTHER table'}. Private rounds"
        " carry no scores."
    )


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
