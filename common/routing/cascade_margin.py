"""Where the table of a cascade hands over to its sentence encoder, chosen on held-out text: for a
share of texts that are read, or for an accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeway.common.base.errors import InputError
from ridgeway.common.encoding.tokenizer import Tokenizer
from ridgeway.common.routing.sentence_table import Cascade

_ROUNDING = 1e-9
"""Of sums of weights."""


@dataclass(frozen=True, slots=True)
class ChosenMargin:
    """share: of held-out texts that are read. accuracy: of the cascade on them. Domains weigh the
    same.
    """

    margin: float
    share: float
    accuracy: float


def choose_margin(
    cascade: Cascade,
    tokenizer: Tokenizer,
    texts: Mapping[str, Sequence[str]],
    *,
    share: float | None = None,
    accuracy: float | None = None,
) -> ChosenMargin:
    """The largest margin with which at most this share is read, or the smallest with this accuracy.

    texts: by domain, in the order of the cascade's columns.
    """
    flat = [text for own in texts.values() for text in own]
    sizes = [len(own) for own in texts.values()]
    labels = np.repeat(np.arange(len(sizes)), sizes)
    weights = np.repeat([1 / max(size, 1) for size in sizes], sizes) / len(sizes)
    ids, lengths = tokenizer.encode_many(flat)
    leads = cascade.leads(cascade.table.token_sums(ids, lengths), ids, lengths)
    order = np.argsort(leads, kind="stable")
    by_table, by_sentences = (
        (router.token_sums(ids, lengths).argmax(axis=1) == labels)[order]
        for router in (cascade.table, cascade.sentences)
    )
    # with the first k of the texts read, for k = 0, 1, …
    gained = (by_sentences.astype(float) - by_table) * weights[order]
    accuracies = np.append(0, np.cumsum(gained)) + (by_table * weights[order]).sum()
    shares = np.append(0, np.cumsum(weights[order]))
    # texts of one lead are read together, and those without end never
    ordered = leads[order]
    margins = np.append(0.0, np.nextafter(ordered, np.inf))
    last_of_lead = np.append(ordered[1:] > ordered[:-1], True)[: len(ordered)]
    fits = np.append(True, last_of_lead & np.isfinite(ordered))
    best = accuracies[fits].max()
    if share is not None:
        fits &= shares <= share + _ROUNDING
        chosen = int(np.flatnonzero(fits).max())
    else:
        fits &= accuracies >= (accuracy or 0.0) - _ROUNDING
        if not fits.any():
            raise InputError(
                f"no margin reaches an accuracy of {100 * (accuracy or 0):g} % on this"
                f" text; the best is {100 * best:.1f} %"
            )
        chosen = int(np.flatnonzero(fits).min())
    return ChosenMargin(
        float(margins[chosen]), float(shares[chosen]), float(accuracies[chosen])
    )
