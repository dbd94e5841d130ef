"""Routers that are tables over tokens, like ours, but learnt from all text in one place: naive Bayes, and a linear
router with cross-entropy over the same embeddings.

They are served by the production router's own table and selectors. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.compiled import CompiledTable, counted_in, step_for
from common.selectors import tally, winners
from common.settings import Selector
from common.tokenizer import Tokenizer
from simulations.lab.routers.task import Line, Method, Places, Task, Trained, Variant
from simulations.lab.setting import Texts

Matrix = NDArray[np.float64]

SMOOTHINGS = (1e-3, 1e-2, 0.1, 0.5, 1.0)
PENALTIES = (1e-2, 1e-3, 1e-4)
"""On weights over features of variance one; the strongest first, since each is where the next one begins."""
STEPS = {False: 60, True: 500}
"""Of L-BFGS for each penalty, in a short run and in a full one."""
FLOOR = 1e-3
"""Directions of less than so much of the mean variance are not blown up."""
VOTERS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
SELECTORS = (Selector("average"), Selector("all"), *(Selector("entropy", k) for k in VOTERS))


@dataclass(frozen=True, eq=False, repr=False)
class Served:
    """A table and the selector by which it decides."""

    compiled: CompiledTable
    selector: Selector


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Tables(Trained):
    """A table and a selector for each variant. order: which of the setting's domains each column belongs to."""

    tokenizer: Tokenizer
    served: Sequence[Served]
    order: Places

    def routed(self, prompts: Sequence[str]) -> Iterator[Places]:
        ids, lengths = self.tokenizer.encode_many(prompts)
        return (self.order[winners(tally(each.compiled, each.selector, ids, lengths))] for each in self.served)


def table_shape(selector: Selector) -> dict[str, Any]:
    return {"kind": "table", "selector": selector.name, "k": selector.k if selector.name == "entropy" else 0}


def words_of(selector: Selector) -> str:
    return f"entropy, k = {selector.k}" if selector.name == "entropy" else selector.name


def compiled(exact: Matrix) -> CompiledTable:
    """Logits of every token as production's router keeps them."""
    return counted_in(step_for(float(np.abs(exact).max())), exact)


def token_counts(tokenizer: Tokenizer, texts: Texts, rows: int) -> NDArray[np.int64]:
    """How often each token stands in each domain's text, V×C."""
    counts = (np.bincount(tokenizer.encode_many(own)[0], minlength=rows) for own in texts.values())
    return np.stack(list(counts), axis=1)


# Naive Bayes


def log_likelihoods(counts: NDArray[np.int64], smoothing: float) -> Matrix:
    """The logarithm of each token's chance in each domain; so much is added to every count."""
    raised = counts + smoothing
    logs: Matrix = np.log(raised) - np.log(raised.sum(axis=0))
    logs -= logs.mean(axis=1, keepdims=True)  # what all domains share decides nothing
    return logs


def _naive_bayes(task: Task) -> Trained:
    encoder, parts = task.static_encoder(), task.split()
    counts = token_counts(encoder.tokenizer, parts.fit, encoder.rows)
    average = Selector("average")
    return Tables(
        variants=[Variant("bayes", f"{each:g} added to every count", table_shape(average)) for each in SMOOTHINGS],
        note="equal chances of all domains beforehand",
        held=parts.held,
        tokenizer=encoder.tokenizer,
        order=np.arange(len(task.domains)),
        served=[Served(compiled(log_likelihoods(counts, each)), average) for each in SMOOTHINGS],
    )


# Cross-entropy


def _cross_entropy(task: Task) -> Trained:
    encoder, parts = task.static_encoder(), task.split()
    counts = token_counts(encoder.tokenizer, parts.fit, encoder.rows)
    table = encoder.table.astype(np.float64)
    tables = [compiled(table @ weights[:-1] + weights[-1]) for weights in softmax_path(table, counts, STEPS[task.full])]
    pairs = [(penalty, made, rule) for penalty, made in zip(PENALTIES, tables, strict=True) for rule in SELECTORS]
    return Tables(
        variants=[
            Variant("linear", f"L2 penalty {penalty:g}, selector {words_of(rule)}", table_shape(rule))
            for penalty, _, rule in pairs
        ],
        note="a softmax over every token, all domains weighing the same, fitted from token counts by L-BFGS",
        held=parts.held,
        tokenizer=encoder.tokenizer,
        order=np.arange(len(task.domains)),
        served=[Served(made, rule) for _, made, rule in pairs],
    )


def softmax_path(table: Matrix, counts: NDArray[np.int64], steps: int) -> Iterator[Matrix]:
    """Weights over embeddings and a constant, (h+1)×C, for each of PENALTIES. Every domain weighs the same.

    A loss over tokens depends on their counts alone, so this is the loss over all tokens of all texts.
    """
    from scipy.optimize import minimize

    used = np.flatnonzero(counts.sum(axis=1))
    shares = counts[used] / counts.sum(axis=0) / counts.shape[1]
    middle, whitening = _whitening(table[used], shares.sum(axis=1))
    features = np.append((table[used] - middle) @ whitening, np.ones((len(used), 1)), axis=1)
    flat = np.zeros(features.shape[1] * counts.shape[1])
    for penalty in PENALTIES:
        loss = partial(_loss, features=features, shares=shares, penalty=penalty)
        flat = minimize(loss, flat, method="L-BFGS-B", jac=True, options={"maxiter": steps}).x
        inner = flat.reshape(features.shape[1], -1)
        weights = whitening @ inner[:-1]
        yield np.append(weights, inner[-1:] - middle @ weights, axis=0)


def _whitening(rows: Matrix, mass: Matrix) -> tuple[Matrix, Matrix]:
    """The mean, and the directions in which features have variance one: the descent is then short."""
    middle = mass @ rows
    centred = rows - middle
    values, vectors = np.linalg.eigh((centred * mass[:, None]).T @ centred)
    return middle, vectors / np.sqrt(values.clip(0) + FLOOR * values.mean())


def _loss(flat: Matrix, features: Matrix, shares: Matrix, penalty: float) -> tuple[float, Matrix]:
    """The mean cross-entropy over all tokens with the penalty on all weights but the constant's, and its slope."""
    weights = flat.reshape(features.shape[1], shares.shape[1])
    logits = features @ weights
    logits -= logits.max(axis=1, keepdims=True)
    odds = np.exp(logits)
    total = odds.sum(axis=1, keepdims=True)
    mass = shares.sum(axis=1, keepdims=True)
    loss = float((mass * np.log(total)).sum() - (shares * logits).sum())
    slope = features.T @ (odds / total * mass - shares)
    penalised = weights.copy()
    penalised[-1] = 0.0
    return loss + penalty / 2 * float((penalised**2).sum()), np.ravel(slope + penalty * penalised)


NAIVE_BAYES = Method("bayes", "token counts", _naive_bayes, {"bayes": Line(chosen="naive Bayes on token counts")})
CROSS_ENTROPY = Method(
    "linear",
    "the same embeddings, cross-entropy, token by token",
    _cross_entropy,
    {"linear": Line(chosen="linear router, cross-entropy")},
)
