"""Routers that are tables over tokens, as ours is, served by the production router's own table and
selectors.

Naive Bayes and a linear router with cross-entropy over the same embeddings, both scikit-learn's,
learn from all text in one place. The paper's own router comes from production's code: the preset
`paper` follows the published code, the line `written` the paper's text, which does not normalise
columns.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.files import write_whole
from ridgeway.common.base.settings import PAPER, Sampling, Selector
from ridgeway.common.base.threads import cores
from ridgeway.common.encoding.model_files import imported
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Tokenizer
from ridgeway.common.encoding.transformer_encoder import AnyEncoder
from ridgeway.common.routing.decision import winners
from ridgeway.common.routing.token_table import (
    TokenTable,
    counted_in,
    step_for,
    tally,
)
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.simulations.experiments.baselines.routing_method import (
    Places,
    RoutingMethod,
    RowNames,
    Task,
    Trained,
    Variant,
    table_shape,
)
from ridgeway.simulations.experiments.dataset import Texts

Matrix = NDArray[np.float64]

SMOOTHINGS = (1e-3, 1e-2, 0.1, 0.5, 1.0)
PENALTIES = (1e-2, 1e-3, 1e-4)
"""On weights over features of variance one."""
MAX_STEPS = {False: 60, True: 500}
"""Of L-BFGS for each penalty, in a short run and in a full one."""
VOTERS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_ENTROPY = [Selector("entropy", k) for k in VOTERS]
SELECTORS = (Selector("average"), Selector("all"), *_ENTROPY)


Served = tuple[str, str, TokenTable, Selector]
"""A variant's line, its words, its table and the selector by which it decides."""


def _tables(
    task: Task,
    encoder: TableEncoder,
    made: Sequence[Served],
    columns: Sequence[str],
    **about: Any,
) -> Trained:
    """columns: the domain that each column of the tables belongs to."""
    order = np.array([task.domains.index(name) for name in columns])

    def routed(prompts: Sequence[str]) -> Iterator[Places]:
        ids, lengths = encoder.tokenizer.encode_many(prompts)
        return (
            order[winners(tally(table, rule, ids, lengths))] for *_, table, rule in made
        )

    return Trained(
        [Variant(line, words, table_shape(rule)) for line, words, _, rule in made],
        routed,
        **about,
    )


def words_of(selector: Selector) -> str:
    return f"entropy, k = {selector.k}" if selector.name == "entropy" else selector.name


def compiled(exact: Matrix) -> TokenTable:
    """Logits of every token as production's router keeps them."""
    return counted_in(step_for(float(np.abs(exact).max())), exact)


def token_counts(tokenizer: Tokenizer, texts: Texts, rows: int) -> NDArray[np.int64]:
    """How often each token stands in each domain's text, V×C."""
    counts = (
        np.bincount(tokenizer.encode_many(own)[0], minlength=rows)
        for own in texts.values()
    )
    return np.stack(list(counts), axis=1)


# Naive Bayes


def log_likelihoods(counts: NDArray[np.int64], smoothing: float) -> Matrix:
    """The logarithm of each token's chance in each domain; so much is added to every count."""
    bayes = imported("sklearn.naive_bayes", "simulation").MultinomialNB(alpha=smoothing)
    logs = bayes.fit(counts.T, np.arange(counts.shape[1])).feature_log_prob_.T
    # what all domains share decides nothing
    apart: Matrix = logs - logs.mean(axis=1, keepdims=True)
    return apart


def _naive_bayes(task: Task) -> Trained:
    encoder = task.static_encoder()
    parts = task.split()
    counts = token_counts(encoder.tokenizer, parts.fit, encoder.rows)
    made = [
        (
            "bayes",
            f"{each:g} added to every count",
            compiled(log_likelihoods(counts, each)),
            Selector("average"),
        )
        for each in SMOOTHINGS
    ]
    note = "equal chances of all domains beforehand"
    return _tables(task, encoder, made, task.domains, note=note, held=parts.held)


# Cross-entropy


def _cross_entropy(task: Task) -> Trained:
    encoder = task.static_encoder()
    parts = task.split()
    counts = token_counts(encoder.tokenizer, parts.fit, encoder.rows)
    paths = zip(
        PENALTIES,
        softmax_path(encoder.table.astype(np.float64), counts, MAX_STEPS[task.full]),
        strict=True,
    )
    made = [
        ("linear", f"L2 penalty {penalty:g}, selector {words_of(rule)}", table, rule)
        for penalty, table in ((penalty, compiled(logits)) for penalty, logits in paths)
        for rule in SELECTORS
    ]
    note = (
        "a softmax over every token, all domains weighing the same, fitted from token"
        " counts by L-BFGS"
    )
    return _tables(task, encoder, made, task.domains, note=note, held=parts.held)


def softmax_path(
    table: Matrix, counts: NDArray[np.int64], steps: int
) -> Iterator[Matrix]:
    """The logits of every token, V×C, for each of PENALTIES, by scikit-learn. Every domain weighs
    the same.

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
        logits: Matrix = model.decision_function(every)
        yield logits if logits.ndim > 1 else np.stack([-logits, logits], axis=1) / 2


# The paper's router


_UNNORMED = "IR3DE without column norm"
_K_CHOSEN = "k chosen on held-out text"
_K_BEST = "best k on the test"
PAPER_LINES = {
    "entropy": (
        True,
        _ENTROPY,
        RowNames("", f"IR3DE, {_K_CHOSEN}", f"IR3DE, {_K_BEST}, as in the paper"),
    ),
    "all": (True, [Selector("all")], RowNames(chosen="IR3DE-all")),
    "average": (True, [Selector("average")], RowNames(chosen="IR3DE-avg")),
    "written": (
        False,
        _ENTROPY,
        RowNames("", f"{_UNNORMED}, {_K_CHOSEN}", f"{_UNNORMED}, {_K_BEST}"),
    ),
}
"""For each line, whether columns are normalised, the selectors to choose among, and the names of
its rows.
"""


def prepared(
    texts: Texts, encoder: AnyEncoder, folder: Path, sampling: Sampling, holdout: float
) -> list[Prepared]:
    """Each domain's sums, as its holder would make them."""
    from ridgeway.client.sums.prepare import PrepareJob, prepare

    parts = []
    for name, own in texts.items():
        path = folder / f"{name}.jsonl"
        write_whole(
            path, "".join(json.dumps({"text": text}) + "\n" for text in own).encode()
        )
        job = PrepareJob((path,), name, sampling, holdout, ("text",), cores())
        parts.append(prepare(job, encoder, folder / "cache").prepared)
    return parts


def solved(
    parts: list[Prepared], encoder: TableEncoder, *, normalise: bool
) -> TokenTable:
    """The table of a router over the sorted domains."""
    from ridgeway.common.base.settings import Confidence
    from ridgeway.coordinator.solving.publish import RouterChoices, draft

    choices = RouterChoices(
        PAPER.weighting, PAPER.ridge, normalise, PAPER.selector, Confidence()
    )
    made = draft(parts, encoder, choices).compiled
    assert isinstance(made, TokenTable)
    return made


def _ir3de(task: Task) -> Trained:
    encoder = task.static_encoder()
    split = task.split()
    texts = {name: split.fit[name] for name in sorted(split.fit)}
    parts = prepared(texts, encoder, task.work, PAPER.sampling, PAPER.holdout)
    tables = {
        normalise: solved(parts, encoder, normalise=normalise)
        for normalise in (True, False)
    }
    made = [
        (line, words_of(rule), tables[normalise], rule)
        for line, (normalise, rules, _) in PAPER_LINES.items()
        for rule in rules
    ]
    note = f"windows of one token, λ = {PAPER.ridge.value:g}, sums over tokens"
    return _tables(
        task, encoder, made, [part.domain for part in parts], note=note, held=split.held
    )


NAIVE_BAYES = RoutingMethod(
    "bayes",
    "token counts",
    _naive_bayes,
    {"bayes": RowNames(chosen="naive Bayes on token counts")},
)
CROSS_ENTROPY = RoutingMethod(
    "linear",
    "the same embeddings, cross-entropy, token by token",
    _cross_entropy,
    {"linear": RowNames(chosen="linear router, cross-entropy")},
    code=2,
)
_PAPER_ROWS = {line: names for line, (_, _, names) in PAPER_LINES.items()}
_PAPER_WORDS = "the same embeddings, ridge regression, token by token"
IR3DE = RoutingMethod(
    "ir3de", _PAPER_WORDS, _ir3de, _PAPER_ROWS, gathers=False, decides=repr(PAPER)
)
