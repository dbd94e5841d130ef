"""Choosing a model by scores on training prompts: by a router's probabilities and a table of
quality, by kNN, by ridge regression.

The latter two are scikit-learn's, and need every prompt with its scores in one place. To them a
prompt is the mean of its tokens' rows in the encoder's table, of length one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.encoding.model_files import imported
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.experts.expert_choice import ExpertChooser
from ridgeway.common.experts.experts_file import Expert, Experts
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.quality import QualityTable

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
