"""The parts `accuracy` and `experts`: how often prompts reach the right expert, beside other
routers, and what that is worth in perplexity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.common.routing.quality import DomainScore, quality_of
from ridgeway.common.text.tokenizer import Tokenizer, shared_tokenizer
from ridgeway.simulations.experiments.dataset import (
    Dataset,
    ExperimentPlan,
    Texts,
    in_turn,
    sampled_texts,
    split,
)
from ridgeway.simulations.experiments.expert_training import (
    FULL_RECIPE,
    MERGED,
    SHORT_RECIPE,
    Likelihoods,
    definition_of,
    train_experts,
)
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
    Places,
    RouterRow,
    by_domain,
    evaluation,
    labelled,
    learnt_routers,
    milliseconds,
    our_router,
    routed,
)
from ridgeway.simulations.experiments.scores_part import (
    certain,
    expected_by_others,
    of_best_quality,
)
from ridgeway.simulations.experiments.sentence_routers import (
    KNN,
    KNN_ON_USE,
    LOGISTIC_ON_USE,
    MODEM,
    device_for,
)

# The part `accuracy`: how often prompts reach the right expert, and what that costs, beside other
# routers.


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


def run_accuracy(plan: ExperimentPlan) -> ReportPart:
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


# The part `experts`: for every dataset, experts' perplexities and what each router is worth that
# chooses among them.


ROUTERS = ("knn", "modem", "bayes", "ir3de", "ridgeway with sentences", "ridgeway")
_FIRST_TOKENS = 32
_VOCABULARY = 49_152
"""Of SmolLM2: the tokens that a guess is among."""
_EXPERTS_WORDS = (
    "The paper's own measure: every domain has an expert, a test text is answered by"
    " the expert that a router picks for it, and the perplexity of the domain's own"
    " expert is divided by the perplexity reached in this way. 100 is as good as"
    " knowing the domain; more is possible where another expert finds a text likelier."
)
_SHORT_EXPERTS_WORDS = (
    "This is the short training, of a few steps: it shows how the measure works, and"
    " its experts hardly differ."
)


def run_experts(
    plan: ExperimentPlan,
    model: Path | None = None,
    routers: Sequence[str] = ROUTERS,
) -> ReportPart:
    """model: a folder; None is SmolLM2."""
    device = device_for(plan, "training experts")
    recipe = FULL_RECIPE if plan.full else SHORT_RECIPE
    methods = {name: METHODS[name] for name in routers}
    tokenizer = shared_tokenizer(definition_of(model))
    words = [f"Experts: {recipe.words()}.", _EXPERTS_WORDS]
    if not plan.full:
        words.append(_SHORT_EXPERTS_WORDS)
    tables = []
    left_out = []
    for dataset in plan.datasets:
        learnt, lacks = learnt_routers(plan, dataset, methods)
        left_out += lacks
        rows = [row for router in learnt for row in router.rows]
        scored = dataset.sampled(plan.seed, test=recipe.documents)
        held = sampled_texts(split(dataset).held, recipe.documents, plan.seed)
        likelihoods, measured = train_experts(
            dataset, (scored.test, held), model, recipe, device, plan.seed
        )
        begun = {
            name: tuple(beginning(tokenizer, text) for text in own)
            for name, own in scored.test.items()
        }
        name = dataset.name
        tables += [
            perplexity_table(name, likelihoods),
            routed_table(f"{name}, whole texts", likelihoods, rows, scored.test),
            routed_table(
                f"{name}, the first {_FIRST_TOKENS} tokens", likelihoods, rows, begun
            ),
            quality_table(plan, dataset, held, measured, scored.test, likelihoods),
        ]
        words.append(
            f"{name}: picking the likeliest expert for every text in hindsight would"
            f" give a normalised performance of {hindsight(likelihoods):.1f}."
        )
    title = "Answers of the experts that prompts are sent to"
    return ReportPart(title, tuple(words), tuple(tables), tuple(left_out))


def beginning(tokenizer: Tokenizer, text: str) -> str:
    return "".join(piece for _, piece in tokenizer.pieces(text)[:_FIRST_TOKENS])


def model_words(likelihoods: Likelihoods, model: str) -> str:
    return f"{model} expert" if model in likelihoods.domains else model


def perplexity_table(name: str, likelihoods: Likelihoods) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for model in likelihoods.models:
        values = [
            likelihoods.perplexity(domain, model) for domain in likelihoods.domains
        ]
        rows.append((model_words(likelihoods, model), *values, fmean(values)))
    return ReportTable(
        f"Perplexity in each domain's test text, {name}",
        ("model", *likelihoods.domains, "mean"),
        tuple(rows),
        digits=2,
        best="less",
    )


def routed_table(
    name: str, likelihoods: Likelihoods, routers: Sequence[RouterRow], texts: Texts
) -> ReportTable:
    """Experts alone, their average, chance, then the routers."""
    domains = likelihoods.domains
    rows = []
    for model in (*domains, MERGED):
        values = [likelihoods.perplexity(domain, model) for domain in domains]
        rows.append(_row(model_words(likelihoods, model), likelihoods, values, None))
    values = [likelihoods.random_perplexity(domain) for domain in domains]
    rows.append(_row("random", likelihoods, values, 100 / len(domains)))
    for router in routers:
        sent = routed(router.route, texts)
        right = [np.mean(sent[domain] == index) for index, domain in enumerate(domains)]
        values = routed_perplexities(likelihoods, sent)
        rows.append(_row(router.name, likelihoods, values, 100 * float(np.mean(right))))
    counts = ", ".join(f"{domain} {len(own)}" for domain, own in texts.items())
    return ReportTable(
        f"Normalised performance, {name}",
        ("who answers", *domains, "mean", "rightly sent, %"),
        tuple(rows),
        f"100 is the domain's own expert. Random: the mean over all draws. Test texts:"
        f" {counts}.",
        best="more",
    )


def quality_table(
    plan: ExperimentPlan,
    dataset: Dataset,
    held: Texts,
    measured: Likelihoods,
    texts: Texts,
    likelihoods: Likelihoods,
) -> ReportTable:
    """Experts chosen by quality, measured on held-out training text, beside the expert of the
    likeliest domain.
    """
    domains = likelihoods.domains
    scores = np.concatenate([_scores(measured, domain) for domain in domains])
    known, labels = labelled(held)
    quality = quality_of(
        (
            DomainScore(domains[label], expert, score)
            for label, row in zip(labels, scores, strict=True)
            for expert, score in zip(domains, row, strict=True)
        ),
        domains,
        domains,
    )
    router = our_router(plan, dataset)
    asked, own = labelled(texts)
    decisions = router.route_many(asked)
    certainly = [certain(domains[index], router.domains) for index in own]
    single = int(scores.sum(axis=0).argmax())
    choosers: dict[str, Sequence[int]] = {
        f"always the best on held-out text ({domains[single]} expert)": [single]
        * len(asked),
        "Ridgeway: the expert of the likeliest domain": [
            domains.index(decision.best) for decision in decisions
        ],
        "Ridgeway: probabilities × table": of_best_quality(quality, decisions),
        "the table, every domain known": of_best_quality(quality, certainly),
        "the likeliest expert, in hindsight": [
            index for domain in domains for index in likelihoods.least(domain)
        ],
    }
    others = expected_by_others(plan.table_encoder(), known, scores, asked)
    for name, expected in others.items():
        choosers[name] = expected.argmax(axis=1).tolist()
    cells = []
    for name, places in choosers.items():
        values = routed_perplexities(likelihoods, by_domain(np.array(places), texts))
        right = 100 * float(np.mean(np.array(places) == own))
        cells.append(_row(name, likelihoods, values, right))
    return ReportTable(
        f"Experts chosen by quality, {dataset.name}",
        ("who answers", *domains, "mean", "own expert, %"),
        tuple(cells),
        f"Normalised performance. A score is 1 − nats a token / ln {_VOCABULARY:,}, so"
        " that a guess among all tokens is worth 0. Quality is measured on"
        f" {len(known):,} held-out training texts; kNN and ridge regression learn from"
        " each of them with its scores.",
        best="more",
    )


def _scores(likelihoods: Likelihoods, domain: str) -> NDArray[np.float64]:
    """Documents × experts, between 0 and 1; linear in log-likelihood, so that the best score to
    expect is the least perplexity to expect.
    """
    tokens = np.maximum(likelihoods.tokens[domain], 1)[:, None]
    nats = likelihoods.of_experts(domain) / tokens
    found: NDArray[np.float64] = np.clip(1 - nats / np.log(_VOCABULARY), 0.0, 1.0)
    return found


def routed_perplexities(
    likelihoods: Likelihoods, sent: Mapping[str, Places | list[int]]
) -> list[float]:
    return [
        likelihoods.routed_perplexity(domain, list(sent[domain]))
        for domain in likelihoods.domains
    ]


def _row(
    name: str, likelihoods: Likelihoods, values: Sequence[float], right: float | None
) -> tuple[Cell, ...]:
    pairs = zip(likelihoods.domains, values, strict=True)
    shares = [likelihoods.normalised(domain, value) for domain, value in pairs]
    return (name, *shares, fmean(shares), right)


def hindsight(likelihoods: Likelihoods) -> float:
    """The mean when each text goes to the expert that finds it likeliest."""
    least = {name: likelihoods.least(name) for name in likelihoods.domains}
    values = routed_perplexities(likelihoods, least)
    pairs = zip(likelihoods.domains, values, strict=True)
    return fmean(likelihoods.normalised(domain, value) for domain, value in pairs)
