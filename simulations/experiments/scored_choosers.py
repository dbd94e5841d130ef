"""Choosing a model by scores on training prompts: by a router's probabilities and a table of
quality, by kNN, by ridge regression.

The latter two need every prompt with its scores in one place. To them a prompt is the mean of its
tokens' rows in the encoder's table, of length one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.experts.expert_choice import ExpertChooser
from ridgeway.common.experts.experts_file import Expert, Experts
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.quality import QualityTable

_Matrix = NDArray[np.float64]
Fit = Callable[[_Matrix, _Matrix], Callable[[_Matrix], _Matrix]]
"""Of features and scores: what to expect of each model on prompts with other features."""

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


def mean_rows(encoder: TableEncoder, texts: Sequence[str]) -> _Matrix:
    ids, lengths = encoder.tokenizer.encode_many(texts)
    starts = np.cumsum(lengths) - lengths
    sums = np.add.reduceat(encoder.table[ids].astype(np.float64), starts)
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    rows: _Matrix = sums / np.maximum(norms, 1e-9)
    return rows


def nearest_scores(count: int) -> Fit:
    """The mean scores of so many nearest training prompts."""

    def fit(rows: _Matrix, scores: _Matrix) -> Callable[[_Matrix], _Matrix]:
        last = min(count, len(rows)) - 1

        def expected(asked: _Matrix) -> _Matrix:
            near = np.argpartition(-(asked @ rows.T), last, axis=1)[:, : last + 1]
            means: _Matrix = scores[near].mean(axis=1)
            return means

        return expected

    return fit


def ridge_scores(penalty: float) -> Fit:
    """Linear in the features, with a constant that is not penalised."""

    def fit(rows: _Matrix, scores: _Matrix) -> Callable[[_Matrix], _Matrix]:
        centre = rows.mean(axis=0)
        level = scores.mean(axis=0)
        own = rows - centre
        normal = own.T @ own + penalty * np.eye(own.shape[1])
        weights = np.linalg.solve(normal, own.T @ (scores - level))
        return lambda asked: level + (asked - centre) @ weights

    return fit


def expected_scores(
    fits: Sequence[Fit], rows: _Matrix, scores: _Matrix, asked: _Matrix
) -> _Matrix:
    """Of the fit that chooses best on each tenth training prompt, fitted again to all of them."""
    held = np.arange(len(rows)) % _EVERY_TENTH == 0

    def worth(fit: Fit) -> float:
        expected = fit(rows[~held], scores[~held])(rows[held])
        chosen = expected.argmax(axis=1)
        return float(scores[held][np.arange(len(chosen)), chosen].mean())

    return max(fits, key=worth)(rows, scores)(asked)


KNN_FITS = tuple(map(nearest_scores, _NEIGHBOURS))
RIDGE_FITS = tuple(map(ridge_scores, _PENALTIES))
