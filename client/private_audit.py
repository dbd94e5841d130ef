"""What sums of documents under noise give away: attacks on one half of a corpus, held against both
halves.

    documents ──▶ one half, summed and noised as in a round ──▶ attacks ──▶ what is true of this
    half
    documents ──▶ the other half, a control                             ──▶ what is true of any text
    of the domain

A column must tell the words of its domain, or it could not route. What it tells of a holder's own
documents is what it tells of them beyond the control. Runs on the holder's machine and sends
nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from ridgeway.client.audit import text_batches
from ridgeway.common.attacks import Measures, measure
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.privacy.discrete_gaussian import Randomness, discrete_gaussian
from ridgeway.common.privacy.document_bound import DocumentSums, bounded_sums
from ridgeway.common.privacy.document_vectors import document_vectors
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.public_prior import PublicPrior
from ridgeway.common.privacy_attacks import (
    auc,
    auc_allowed,
    auc_of_noise,
    membership_scores,
    token_directions,
    tokens_by_column,
    tokens_by_products,
)
from ridgeway.common.statistics.sums import Integers

MIN_AUDITED_DOCUMENTS = 20
"""Halves of fewer documents would say little."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Half:
    """Documents of one half of a corpus: a row for each, and how often each token stands in
    them.
    """

    rows: Integers
    counts: Integers


@dataclass(frozen=True, slots=True)
class PrivateFinding:
    """One attack on noisy sums, held against the documents that were summed and against the
    control.
    """

    view: str
    own: Measures
    control: Measures


@dataclass(frozen=True, slots=True)
class PrivateAudit:
    """What attacks brought at these terms.

    membership: how often a summed document scores higher than a control document (AUC).
    of_noise:   the AUC of the best attack that knows all else, by the noise; allowed: the most that
                ε allows.
    """

    privacy: Privacy
    documents: int
    findings: tuple[PrivateFinding, ...]
    membership: float
    of_noise: float
    allowed: float

    def to_json(self) -> dict[str, Any]:
        findings = [
            {
                "view": each.view,
                "own": each.own.to_json(),
                "control": each.control.to_json(),
            }
            for each in self.findings
        ]
        auc = {
            "own_against_control": self.membership,
            "worst_case": self.of_noise,
            "allowed": self.allowed,
        }
        terms = {
            "privacy": self.privacy.mode,
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
        }
        return {
            **terms,
            "documents": self.documents,
            "findings": findings,
            "membership_auc": auc,
        }


def halves(
    texts: Iterable[str], encoder: TableEncoder, prior: PublicPrior
) -> tuple[Half, Half]:
    """Documents divided in two by their hash, the same way each time; copies of one document stay
    together.
    """
    found: tuple[list[Half], list[Half]] = ([], [])
    for batch in text_batches(texts):
        sides: tuple[list[str], list[str]] = ([], [])
        for text in batch:
            sides[hashlib.sha256(text.encode(errors="replace")).digest()[0] & 1].append(
                text
            )
        for side, half in zip(sides, found, strict=True):
            half.append(half_of(side, encoder, prior))
    own, control = (
        Half(
            np.concatenate([each.rows for each in half]),
            reduce(add, (each.counts for each in half)),
        )
        for half in (found if found[0] else ([half_of([], encoder, prior)],) * 2)
    )
    if min(len(own.rows), len(control.rows)) < MIN_AUDITED_DOCUMENTS:
        raise CorpusError(
            f"the halves of the corpus have {len(own.rows)} and {len(control.rows)}"
            f" documents, and an audit under noise needs {MIN_AUDITED_DOCUMENTS} in"
            " each; name more text"
        )
    return own, control


def half_of(texts: list[str], encoder: TableEncoder, prior: PublicPrior) -> Half:
    """These documents, all of them in one half."""
    ids, lengths = encoder.tokenizer.encode_many(texts)
    counts = np.bincount(ids, minlength=len(encoder.table))
    return Half(document_vectors(prior, ids, lengths, encoder.table), counts)


def audit_halves(
    own: Half,
    control: Half,
    encoder: TableEncoder,
    prior: PublicPrior,
    privacy: Privacy,
    draw: Randomness = secrets.token_bytes,
) -> PrivateAudit:
    """Sum one half under noise, as if its holder were alone, and attack the sums."""
    noisy = under_noise(bounded_sums(privacy.mode, own.rows), privacy, draw)
    directions = token_directions(prior, encoder.table)
    named = {"column": tokens_by_column(directions, noisy.column[:-1])}
    if privacy.mode == "full":
        named["products"] = tokens_by_products(directions, noisy.products)
    findings = (
        PrivateFinding(view, measure(each, own.counts), measure(each, control.counts))
        for view, each in named.items()
    )
    scores = [membership_scores(half.rows, noisy) for half in (own, control)]
    promised = privacy.epsilon, privacy.delta
    return PrivateAudit(
        privacy,
        len(own.rows),
        tuple(findings),
        auc(*scores),
        auc_of_noise(*promised),
        auc_allowed(*promised),
    )


def under_noise(
    sums: DocumentSums, privacy: Privacy, draw: Randomness = secrets.token_bytes
) -> DocumentSums:
    """The sums with all of a round's noise on them."""
    upper = np.triu_indices(len(sums.products), 1)
    products = sums.products + np.diag(
        discrete_gaussian(privacy.sigma, len(sums.products), draw)
    )
    if len(upper[0]):
        drawn = discrete_gaussian(privacy.product_sigma, len(upper[0]), draw)
        products[upper] += drawn
        products.T[upper] += drawn
    return DocumentSums(
        sums.mode,
        products,
        sums.column + discrete_gaussian(privacy.sigma, len(sums.column), draw),
    )
