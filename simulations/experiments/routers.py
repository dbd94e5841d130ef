"""Routers side by side: each learns from a dataset's training text, and held-out training text
chooses among its variants. Test texts help in rows that say so, and nowhere else.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.sums.accumulate import accumulators
from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import (
    PAPER,
    Sampling,
    Selector,
    SentenceUse,
)
from ridgeway.common.cli.terminal import step
from ridgeway.common.masking.agreement import SMALLEST_COHORT
from ridgeway.common.routing.decision import winners
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.token_table import (
    ExactTable,
    RouterTable,
    TokenTable,
    tally_texts,
)
from ridgeway.common.statistics import Integers, Prepared, Statistics
from ridgeway.common.text.model_files import imported
from ridgeway.common.text.sentence_encoder import SENTENCE
from ridgeway.common.text.table_encoder import WORDS, TableEncoder, bare_name
from ridgeway.common.text.tokens import TextReader, Tokens
from ridgeway.coordinator.solving.solve import RouterChoices, draft
from ridgeway.simulations import corpora
from ridgeway.simulations.bench.measuring import seconds_in_turns
from ridgeway.simulations.experiments.dataset import (
    Dataset,
    ExperimentPlan,
    Texts,
    sampled_texts,
    split,
)

Places = Integers
"""For each prompt, the place of a domain among the dataset's."""
Route = Callable[[Sequence[str]], Places]
Embed = Callable[[Sequence[str]], NDArray[np.float32]]

SHORT_HELD_TEXTS = 10
PASSES = 3


@dataclass(frozen=True, slots=True)
class RouterLine:
    """Variants of one router, by what sets them apart.

    name: the row of the variant that does best on held-out text.
    each: how the name of a row for every variant begins; no such rows if empty.
    best: the row of the variant that does best on the test, which nobody can know beforehand.
    """

    name: str
    variants: Mapping[str, Route]
    each: str = ""
    best: str = ""


@dataclass(frozen=True, slots=True)
class RouterRow:
    name: str
    variant: str
    route: Route


@dataclass(frozen=True, slots=True)
class RoutingMethod:
    """gathers: whether it needs all domains' text in one place."""

    made_of: str
    learn: Callable[[ExperimentPlan, Dataset], list[RouterLine]]
    gathers: bool = True


@dataclass(frozen=True, slots=True)
class LearntRouter:
    """seconds: from reading text to the chosen variants."""

    method: RoutingMethod
    rows: tuple[RouterRow, ...]
    seconds: float


def learnt_routers(
    plan: ExperimentPlan, dataset: Dataset, methods: Mapping[str, RoutingMethod]
) -> tuple[list[LearntRouter], list[str]]:
    """Routers that have learnt; for each that cannot be had, the reason."""
    learners = []
    left_out = []
    for name, method in methods.items():
        try:
            learners.append(learnt(plan, dataset, name, method))
        except RidgewayError as error:
            left_out.append(f"{name} on {dataset.name}: {error}")
    return learners, left_out


def learnt(
    plan: ExperimentPlan, dataset: Dataset, name: str, method: RoutingMethod
) -> LearntRouter:
    def make() -> LearntRouter:
        begin = time.perf_counter()
        lines = method.learn(plan, dataset)
        held = sampled_texts(
            split(dataset).held, plan.short(SHORT_HELD_TEXTS), plan.seed
        )
        chosen = [_best(line, held) for line in lines]
        seconds = time.perf_counter() - begin
        rows = [
            row
            for line, words in zip(lines, chosen, strict=True)
            for row in _rows(line, words, dataset.test)
        ]
        step("learnt", name, dataset.name, f"{seconds:.1f} s")
        return LearntRouter(method, tuple(rows), seconds)

    return plan.once(dataset, name, make)


def _best(line: RouterLine, texts: Texts) -> str:
    """The words of the variant that does best on some texts; of equals the first."""
    if len(line.variants) == 1 or not any(texts.values()):
        return next(iter(line.variants))
    scores = {
        words: round(evaluation(route, texts).accuracy, 9)
        for words, route in line.variants.items()
    }
    return max(scores, key=lambda words: scores[words])


def _rows(line: RouterLine, chosen: str, test: Texts) -> Iterator[RouterRow]:
    if line.each:
        for words, route in line.variants.items():
            yield RouterRow(line.each + words, words, route)
    yield RouterRow(line.name, chosen, line.variants[chosen])
    if line.best:
        words = _best(line, test)
        yield RouterRow(line.best, words, line.variants[words])


def labelled(texts: Texts) -> tuple[list[str], Places]:
    """All texts in one row, and the place of each one's domain."""
    flat = [text for own in texts.values() for text in own]
    counts = [len(own) for own in texts.values()]
    return flat, np.repeat(np.arange(len(counts)), counts)


def routed(route: Route, texts: Texts) -> dict[str, Places]:
    """Where the texts of each domain are sent."""
    return by_domain(route(labelled(texts)[0]), texts)


def by_domain(places: Places, texts: Texts) -> dict[str, Places]:
    """What stands in one row for all texts, for those of each domain."""
    ends = np.cumsum([len(own) for own in texts.values()])
    return dict(zip(texts, np.split(places, ends[:-1]), strict=True))


def evaluation(route: Route, texts: Texts) -> Evaluation:
    """How well texts are routed, by domain."""
    sent = routed(route, texts)
    counts = [np.bincount(own, minlength=len(texts)).tolist() for own in sent.values()]
    return Evaluation(tuple(texts), tuple(map(tuple, counts)))


def milliseconds(routes: Sequence[Route], prompts: Sequence[str]) -> list[float]:
    """Of CPU, for one prompt: the median over passes, all routers in turns."""

    def one_by_one(route: Route) -> None:
        for prompt in prompts:
            route([prompt])

    passes = [partial(one_by_one, route) for route in routes]
    seconds = seconds_in_turns(*passes, rounds=PASSES, clock=time.process_time)
    return [1e3 * second / len(prompts) for second in seconds]


def read_once(embed: Embed) -> Embed:
    """Keeps the vectors of the last lists of texts, which several routers are tried on.

    A single prompt is read each time, since that is timed.
    """

    @lru_cache(maxsize=4)
    def kept(texts: tuple[str, ...]) -> NDArray[np.float32]:
        return embed(texts)

    return lambda texts: embed(texts) if len(texts) == 1 else kept(tuple(texts))


# Chance, and ours


def _random(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    def route(prompts: Sequence[str]) -> Places:
        chance = np.random.default_rng(plan.seed)
        return chance.integers(len(dataset.domains), size=len(prompts))

    return [RouterLine("random", {"": route})]


def our_router(plan: ExperimentPlan, dataset: Dataset) -> Router:
    """Of a masked round with all settings at their defaults."""
    return Router.load(our_release(plan, dataset, WORDS))


def our_release(plan: ExperimentPlan, dataset: Dataset, features: str) -> Path:
    """Of a masked round with one holder a domain. features: the ending of the encoder's name."""

    def make() -> Path:
        from ridgeway.simulations.simulate import simulate_federation

        work = plan.work / (dataset.digest[:16] + features)
        corpora.write(dataset.corpora, work / "data")
        masked = len(dataset.domains) >= SMALLEST_COHORT
        simulate_federation(
            work / "federation",
            lambda event: None,
            data=work / "data",
            out=work / "release",
            encoder=bare_name(plan.encoder) + features,
            mode="masked" if masked else "clear",
        )
        return work / "release"

    return plan.once(dataset, f"our release {features}", make)


def _line(name: str, router: Router, dataset: Dataset) -> RouterLine:
    def route(prompts: Sequence[str]) -> Places:
        decisions = router.route_many(list(prompts))
        return np.array(
            [dataset.domains.index(decision.best) for decision in decisions]
        )

    return RouterLine(name, {router.selector.name: route})


def _ours(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    return [_line("Ridgeway (ours)", our_router(plan, dataset), dataset)]


def _ours_with_sentences(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    release = our_release(plan, dataset, WORDS + SENTENCE)
    uses: dict[str, SentenceUse] = {"cascade": "auto", "every text read": "always"}
    return [
        _line(
            f"Ridgeway with sentences, {name}",
            Router.load(release, sentences=use),
            dataset,
        )
        for name, use in uses.items()
    ]


RANDOM = RoutingMethod("chance", _random, gathers=False)
OURS_WITH_SENTENCES = RoutingMethod(
    "the same, and sentence vectors", _ours_with_sentences, gathers=False
)
OURS = RoutingMethod("windows of embeddings, ridge regression", _ours, gathers=False)


# Routers that are tables over tokens, as ours is, decided by production's selectors. They have the
# encoder of the paper.
#
# Naive Bayes and a linear router with cross-entropy, both scikit-learn's, learn from all text in
# one place. The paper's own router comes from production's code: the preset `paper` follows the
# published code, the last line the paper's text, which does not normalise columns.


_Matrix = NDArray[np.float64]

SMOOTHINGS = (1e-3, 1e-2, 0.1, 0.5, 1.0)
PENALTIES = (1e-2, 1e-3, 1e-4)
"""On weights over features of variance one."""
SHORT_STEPS = 60
FULL_STEPS = 500
"""Of L-BFGS for each penalty."""
VOTERS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
AVERAGE = Selector("average")
ALL = Selector("all")
TEXTS_PER_BATCH = 64


def table_route(
    reader: TextReader, table: RouterTable, selector: Selector, columns: Places
) -> Route:
    """columns: the place of the domain that each column of the table belongs to."""

    def route(prompts: Sequence[str]) -> Places:
        tokens = reader.read(prompts)
        found: Places = columns[winners(tally_texts(table, selector, tokens))]
        return found

    return route


def compiled(exact: _Matrix) -> TokenTable:
    """Logits of every token as production's router keeps them."""
    table = ExactTable(exact, None)
    return table.counted_in(table.steps)


def token_counts(reader: TextReader, texts: Texts, rows: int) -> Integers:
    """How often each token stands in each domain's text, V×C."""
    counts = [
        np.bincount(reader.read(own).ids, minlength=rows) for own in texts.values()
    ]
    return np.stack(counts, axis=1)


# Naive Bayes


def log_likelihoods(counts: Integers, smoothing: float) -> _Matrix:
    """The logarithm of each token's chance in each domain, up to what all domains share."""
    bayes = imported("sklearn.naive_bayes", "simulation").MultinomialNB(alpha=smoothing)
    logs = bayes.fit(counts.T, np.arange(counts.shape[1])).feature_log_prob_.T
    apart: _Matrix = logs - logs.mean(axis=1, keepdims=True)
    return apart


def _naive_bayes(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    encoder = plan.published_encoder()
    counts = token_counts(encoder.reader, split(dataset).fit, encoder.rows)
    columns = np.arange(len(dataset.domains))
    variants = {
        f"{smoothing:g} added to every count": table_route(
            encoder.reader,
            compiled(log_likelihoods(counts, smoothing)),
            AVERAGE,
            columns,
        )
        for smoothing in SMOOTHINGS
    }
    return [RouterLine("naive Bayes on token counts", variants)]


# Logistic regression


def _cross_entropy(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    encoder = plan.published_encoder()
    counts = token_counts(encoder.reader, split(dataset).fit, encoder.rows)
    columns = np.arange(len(dataset.domains))
    steps = FULL_STEPS if plan.full else SHORT_STEPS
    selectors = [AVERAGE, ALL, *(Selector("entropy", k) for k in VOTERS)]
    variants = {}
    path = softmax_path(encoder.table.astype(np.float64), counts, steps)
    for penalty, logits in zip(PENALTIES, path, strict=True):
        table = compiled(logits)
        for selector in selectors:
            words = f"L2 penalty {penalty:g}, {_words(selector)}"
            variants[words] = table_route(encoder.reader, table, selector, columns)
    return [RouterLine("linear router, cross-entropy", variants)]


def softmax_path(table: _Matrix, counts: Integers, steps: int) -> Iterator[_Matrix]:
    """The logits of every token, V×C, for each of PENALTIES. Every domain weighs the same.

    A loss over tokens depends on their counts alone, so this is the loss over all tokens of all
    texts.
    """
    linear = imported("sklearn.linear_model", "simulation")
    scaling = imported("sklearn.preprocessing", "simulation")
    tokens, domains = np.nonzero(counts)
    shares = (counts / counts.sum(axis=0) / counts.shape[1])[tokens, domains]
    scaler = scaling.StandardScaler().fit(table[tokens], sample_weight=shares)
    features = scaler.transform(table[tokens])
    every = scaler.transform(table)
    for penalty in PENALTIES:
        model = linear.LogisticRegression(C=1 / penalty, max_iter=steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the steps were not enough is no news
            model.fit(features, domains, sample_weight=shares)
        logits: _Matrix = model.decision_function(every)
        yield logits if logits.ndim > 1 else np.stack([-logits, logits], axis=1) / 2


def _words(selector: Selector) -> str:
    return f"k = {selector.k}" if selector.name == "entropy" else selector.name


# The paper's router


def summed(
    table: NDArray[np.int16],
    sampling: Sampling,
    batches: Iterable[Tokens],
) -> Statistics:
    """The sums over tokens alone, without mistyped copies, which are made of text."""
    accumulator = accumulators(table, replace(sampling, mistyped=0))()
    for tokens in batches:
        accumulator.add(tokens)
    return accumulator.statistics(accumulator.state(), cores())


def summed_texts(
    encoder: TableEncoder, sampling: Sampling, domain: str, texts: Sequence[str]
) -> Prepared:
    starts = range(0, len(texts), TEXTS_PER_BATCH)
    batches = (encoder.read(texts[start : start + TEXTS_PER_BATCH]) for start in starts)
    sums = summed(encoder.table, sampling, batches)
    return Prepared(domain, "local", encoder.fingerprint, sampling, sums)


def solved(
    parts: list[Prepared], encoder: TableEncoder, *, normalise: bool
) -> TokenTable:
    """The paper's table over the parts' domains, sorted."""
    choices = RouterChoices.of_preset(replace(PAPER, normalise_columns=normalise))
    found: Any = draft(parts, encoder, choices).compiled
    assert isinstance(found, TokenTable)
    return found


def _ir3de(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    encoder = plan.published_encoder()
    fit = split(dataset).fit
    names = sorted(fit)
    parts = [summed_texts(encoder, PAPER.sampling, name, fit[name]) for name in names]
    columns = np.array([dataset.domains.index(name) for name in names])
    normed = solved(parts, encoder, normalise=True)
    plain = solved(parts, encoder, normalise=False)

    def routes(table: TokenTable, *selectors: Selector) -> dict[str, Route]:
        return {
            _words(selector): table_route(encoder.reader, table, selector, columns)
            for selector in selectors
        }

    entropy = [Selector("entropy", k) for k in VOTERS]
    unnormed = "IR3DE without column norm, k chosen on held-out text"
    return [
        RouterLine(
            "IR3DE, k chosen on held-out text",
            routes(normed, *entropy),
            best="IR3DE, best k on the test, as in the paper",
        ),
        RouterLine("IR3DE-all", routes(normed, ALL)),
        RouterLine("IR3DE-avg", routes(normed, AVERAGE)),
        RouterLine(unnormed, routes(plain, *entropy)),
    ]


NAIVE_BAYES = RoutingMethod("counts of SmolLM2's tokens", _naive_bayes)
CROSS_ENTROPY = RoutingMethod("SmolLM2's embeddings, cross-entropy", _cross_entropy)
IR3DE = RoutingMethod(
    "SmolLM2's embeddings, ridge regression, token by token", _ir3de, gathers=False
)
