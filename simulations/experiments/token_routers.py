"""Routers that are tables over tokens, as ours is, decided by production's selectors.

Naive Bayes and a linear router with cross-entropy, both scikit-learn's, learn from all text in one
place. The paper's own router comes from production's code: the preset `paper` follows the published
code, the last line the paper's text, which does not normalise columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.sums.accumulate import accumulators
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import PAPER, Confidence, Sampling, Selector
from ridgeway.common.encoding.model_files import imported
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids, Tokenizer
from ridgeway.common.routing.decision import winners
from ridgeway.common.routing.token_table import (
    RouterTable,
    TokenTable,
    counted_in,
    step_for,
    tally_texts,
)
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.common.statistics.sums import Integers, Statistics
from ridgeway.coordinator.solving.publish import RouterChoices, draft
from ridgeway.simulations.experiments.dataset import Dataset, Texts, split
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.routers import (
    Places,
    Route,
    RouterLine,
    RoutingMethod,
)

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
    tokenizer: Tokenizer, table: RouterTable, selector: Selector, columns: Places
) -> Route:
    """columns: the place of the domain that each column of the table belongs to."""

    def route(prompts: Sequence[str]) -> Places:
        ids, lengths = tokenizer.encode_many(prompts)
        found: Places = columns[winners(tally_texts(table, selector, ids, lengths))]
        return found

    return route


def compiled(exact: _Matrix) -> TokenTable:
    """Logits of every token as production's router keeps them."""
    step = step_for(float(np.abs(exact).max()))
    return counted_in(step, np.ascontiguousarray(exact))


def token_counts(tokenizer: Tokenizer, texts: Texts, rows: int) -> NDArray[np.int64]:
    """How often each token stands in each domain's text, V×C."""
    counts = [
        np.bincount(tokenizer.encode_many(own)[0], minlength=rows)
        for own in texts.values()
    ]
    return np.stack(counts, axis=1)


# Naive Bayes


def log_likelihoods(counts: NDArray[np.int64], smoothing: float) -> _Matrix:
    """The logarithm of each token's chance in each domain, up to what all domains share."""
    bayes = imported("sklearn.naive_bayes", "simulation").MultinomialNB(alpha=smoothing)
    logs = bayes.fit(counts.T, np.arange(counts.shape[1])).feature_log_prob_.T
    apart: _Matrix = logs - logs.mean(axis=1, keepdims=True)
    return apart


def _naive_bayes(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    encoder = plan.table_encoder()
    counts = token_counts(encoder.tokenizer, split(dataset).fit, encoder.rows)
    columns = np.arange(len(dataset.domains))
    variants = {
        f"{smoothing:g} added to every count": table_route(
            encoder.tokenizer,
            compiled(log_likelihoods(counts, smoothing)),
            AVERAGE,
            columns,
        )
        for smoothing in SMOOTHINGS
    }
    return [RouterLine("naive Bayes on token counts", variants)]


# Logistic regression


def _cross_entropy(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    encoder = plan.table_encoder()
    counts = token_counts(encoder.tokenizer, split(dataset).fit, encoder.rows)
    columns = np.arange(len(dataset.domains))
    steps = FULL_STEPS if plan.full else SHORT_STEPS
    selectors = [AVERAGE, ALL, *(Selector("entropy", k) for k in VOTERS)]
    variants = {}
    path = softmax_path(encoder.table.astype(np.float64), counts, steps)
    for penalty, logits in zip(PENALTIES, path, strict=True):
        table = compiled(logits)
        for selector in selectors:
            words = f"L2 penalty {penalty:g}, {_words(selector)}"
            variants[words] = table_route(encoder.tokenizer, table, selector, columns)
    return [RouterLine("linear router, cross-entropy", variants)]


def softmax_path(
    table: _Matrix, counts: NDArray[np.int64], steps: int
) -> Iterator[_Matrix]:
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
    batches: Iterable[tuple[Ids, Integers]],
) -> Statistics:
    """The sums over token ids, without mistyped copies, which are made of text."""
    accumulator = accumulators(table, replace(sampling, mistyped=0))()
    for ids, lengths in batches:
        accumulator.add(ids, lengths)
    return accumulator.statistics(accumulator.state(), cores())


def summed_texts(
    encoder: TableEncoder, sampling: Sampling, domain: str, texts: Sequence[str]
) -> Prepared:
    starts = range(0, len(texts), TEXTS_PER_BATCH)
    batches = (
        encoder.tokenizer.encode_many(texts[start : start + TEXTS_PER_BATCH])
        for start in starts
    )
    sums = summed(encoder.table, sampling, batches)
    return Prepared(domain, "local", encoder.fingerprint, sampling, sums)


def solved(
    parts: list[Prepared], encoder: TableEncoder, *, normalise: bool
) -> TokenTable:
    """The paper's table over the parts' domains, sorted."""
    choices = RouterChoices(
        PAPER.weighting, PAPER.ridge, normalise, PAPER.selector, Confidence()
    )
    found: Any = draft(parts, encoder, choices).compiled
    assert isinstance(found, TokenTable)
    return found


def _ir3de(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    encoder = plan.table_encoder()
    fit = split(dataset).fit
    names = sorted(fit)
    parts = [summed_texts(encoder, PAPER.sampling, name, fit[name]) for name in names]
    columns = np.array([dataset.domains.index(name) for name in names])
    normed = solved(parts, encoder, normalise=True)
    plain = solved(parts, encoder, normalise=False)

    def routes(table: TokenTable, *selectors: Selector) -> dict[str, Route]:
        return {
            _words(selector): table_route(encoder.tokenizer, table, selector, columns)
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


NAIVE_BAYES = RoutingMethod("token counts", _naive_bayes)
CROSS_ENTROPY = RoutingMethod("the same embeddings, cross-entropy", _cross_entropy)
IR3DE = RoutingMethod(
    "the same embeddings, ridge regression, token by token", _ir3de, gathers=False
)
