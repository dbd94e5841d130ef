"""The kNN router: a prompt goes where most of its k nearest training texts are from, by their sentence embeddings.

Equal votes are decided by summed similarity. Knows nothing of how embeddings come about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.lab.routers.sentences import NAME, SentenceEncoder, Vectors, minilm
from simulations.lab.routers.task import Line, Method, Places, Task, Trained, Variant, labelled

NEIGHBOURS = (1, 5, 10)
FEW = 70
"""So many training texts of a domain, held-out ones with them, in a short run; in a full one, all of them."""
BLOCK = 256

Embed = Callable[[Sequence[str]], Vectors]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Nearest(Trained):
    """known: the training texts' embeddings, of length one; labels: the place of each one's domain."""

    embed: Embed
    known: Vectors
    labels: Places
    domains: int

    def routed(self, prompts: Sequence[str]) -> Iterator[Places]:
        vectors = self.embed(prompts)
        return (self.nearest(vectors, k) for k in NEIGHBOURS)

    def nearest(self, vectors: Vectors, k: int) -> Places:
        blocks = [vectors[start : start + BLOCK] for start in range(0, len(vectors), BLOCK)]
        return np.concatenate([vote(block @ self.known.T, self.labels, k, self.domains) for block in blocks])


def vote(similarities: NDArray[np.float32], labels: Places, k: int, domains: int) -> Places:
    """Where the k nearest send each row: by votes, then by summed similarity, then by order."""
    k = min(k, similarities.shape[1])
    near = np.argpartition(-similarities, k - 1, axis=1)[:, :k]
    ballots = np.eye(domains)[labels[near]]
    votes = ballots.sum(axis=1)
    closeness = np.einsum("nk,nkc->nc", np.take_along_axis(similarities, near, axis=1).astype(np.float64), ballots)
    tied = votes == votes.max(axis=1, keepdims=True)
    best: Places = np.where(tied, closeness, -np.inf).argmax(axis=1)
    return best


def fit_with(encoder: SentenceEncoder, task: Task) -> Nearest:
    parts = task.split(None if task.full else FEW)
    texts, labels = labelled(parts.fit)
    known = encoder.embed(texts)
    shape: dict[str, Any] = {"kind": "nearest", "texts": len(texts)}
    return Nearest(
        variants=[Variant("knn", f"k = {k}", shape) for k in NEIGHBOURS],
        note=f"{NAME}, {len(texts):,} training texts",
        held=parts.held,
        embed=encoder.embed,
        known=known,
        labels=labels,
        domains=len(task.domains),
    )


def _fit(task: Task) -> Trained:
    return fit_with(minilm(task.device), task)


KNN = Method(
    "knn",
    "sentence embeddings, nearest training texts",
    _fit,
    {
        "knn": Line(
            each="kNN, {}",
            chosen="kNN, k chosen on held-out text",
            best="kNN, best k on the test, as in the paper",
        )
    },
    sentence=True,
)
