"""A transformer's integer features on the CPU and on a card: how far apart they are, and whether it matters.

The CPU runs the model in float32, a card in bfloat16. Everything after the features is exact, so this is all there is
to differ between machines. Knows contextual encoders. Knows nothing of timing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from common.settings import CONTEXTUAL, DEFAULT
from common.tokenizer import first_tokens
from common.windows import Rows, window_starts
from simulations.bench.measuring import Result, figure

if TYPE_CHECKING:
    from common.contextual import ContextualEncoder
    from common.transformer import Transformer

DOCUMENTS: Final = 150
MOST_TOKENS: Final = 1024
ROWS: Final = 64

Features = NDArray[np.float64]


def bench_features(
    encoder: ContextualEncoder, texts: dict[str, list[str]], here: Transformer, there: Transformer
) -> list[Result]:
    """texts: some documents of each domain; a router is solved on the features of `here` and asked about both."""
    pieces = [_windows(encoder, documents[:DOCUMENTS], here, there) for documents in texts.values()]
    owners = np.repeat(np.arange(len(pieces)), [len(piece[0]) for piece in pieces])
    one, other = (np.concatenate(column) for column in zip(*pieces, strict=True))
    apart = np.abs(one - other)
    about = f"{len(one):,} windows of {len(pieces)} domains"
    spread = f"features have a root mean square of {np.sqrt((one**2).mean()):.1f}"
    same, score = _decisions(one * encoder.scale, other * encoder.scale, owners)
    return [
        figure("features that differ, share", float((apart > 0).mean()), "", about),
        figure("features that differ by more than one unit, share", float((apart > 1).mean()), "", about),
        figure("difference, root mean square, units", float(np.sqrt((apart**2).mean())), "", spread),
        figure("largest difference, units", float(apart.max()), "", f"the largest feature is {np.abs(one).max():.0f}"),
        figure("windows that go to the same domain, share", same, "", about),
        figure("largest difference of a score", score, "", "scores lie about 0 and 1"),
    ]


def _windows(
    encoder: ContextualEncoder, documents: list[str], here: Transformer, there: Transformer
) -> tuple[Features, Features]:
    """The features of all windows of some documents, by both."""
    ids, lengths = first_tokens(*encoder.tokenizer.encode_many(documents), MOST_TOKENS)
    window = CONTEXTUAL.window
    found = [np.empty((len(window_starts(lengths, window)), encoder.width)) for _ in range(2)]
    for rows in here.frame(window).rows(ids, lengths):
        for start in range(0, len(rows), ROWS):
            part = rows[start : start + ROWS]
            for target, model in zip(found, (here, there), strict=True):
                target[part.places] = _features(model, part, encoder.scale)
    return found[0], found[1]


def _features(model: Transformer, rows: Rows, scale: float) -> Any:
    return np.rint(model.means(rows).cpu().numpy().astype(np.float64) / scale)


def _decisions(one: Features, other: Features, owners: NDArray[np.int64]) -> tuple[float, float]:
    """The share of windows that a router sends to the same domain either way, and how far scores differ at most."""
    constant = np.ones((len(one), 1))
    features, moved = (np.hstack((part, constant)) for part in (one, other))
    gram = features.T @ features
    gram[np.diag_indices_from(gram)] += DEFAULT.ridge.value * gram.diagonal().mean()
    weights = np.linalg.solve(gram, features.T @ np.eye(int(owners.max()) + 1)[owners])
    scores, others = features @ weights, moved @ weights
    same = (scores.argmax(axis=1) == others.argmax(axis=1)).mean()
    return float(same), float(np.abs(scores - others).max())
