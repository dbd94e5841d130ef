"""The routers of an encoder that reads sentences: one that reads every text, and a cascade, in
which a table of tokens and words decides where it is sure.

Both are solved from one total: the table's equation is a block of the whole one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import FormatError, InputError, ShapeMismatch
from ridgeway.common.routing.decision import Flags, Floats, Integers
from ridgeway.common.routing.token_table import (
    Arrays,
    TokenTable,
    compile_table,
    exact_table,
)
from ridgeway.common.text.sentence_encoder import SentenceFeatures
from ridgeway.common.text.table_encoder import TableEncoder, of_table_rows
from ridgeway.common.text.tokens import AnyTokenizer, TextReader, Tokens

Steps = NDArray[np.int32]
"""Weights as whole numbers."""

MAX_SENTENCE_WEIGHT = 1 << 30
"""Weights of sentences are integers below this, so that float64 holds their products with 2¹¹
features of 2¹² exactly.
"""

MAX_BITS = 1000
"""Beyond so many bits, no product of weights and features is a number."""

USUAL_MARGIN = 0.2
"""The table decides where its best score is so far ahead of the second. Scores are nearly
probabilities: those of the domains a text is trained for add up to 1.
"""

NOISY_MARGIN = 0.8
"""The same for sums under noise, where the table knows runs of letters alone: of held-out training
text of six sets at ε = 1, it decides between 0 and 14 %, and loses at most 0.4 points by it.
"""

TABLE_PREFIX = "table_"
"""What stands before the names of the table's arrays in the release of a cascade."""

FIRST_TEXT = "Is it ready?"
"""What a sentence encoder reads first, which loads its model."""


@dataclass(frozen=True, eq=False, repr=False)
class SentenceTable:
    """What the tokens of a text say, and its sentences.

    weights: D×C int32: what each feature of sentences says, in units of `step` · 2^−`bits`.
    """

    tokens: TokenTable
    weights: Steps
    bits: int
    features: SentenceFeatures

    def __post_init__(self) -> None:
        shape = self.features.width, self.tokens.domains
        if self.weights.dtype != np.int32 or self.weights.shape != shape:
            raise FormatError(f"sentence weights must be int32 of shape {shape}")
        if np.abs(self.weights.astype(np.int64)).max() >= MAX_SENTENCE_WEIGHT:
            raise FormatError("a sentence weight is out of range")
        if abs(self.bits) > MAX_BITS:
            raise FormatError(f"sentence weights of {self.bits} bits are not supported")

    @property
    def step(self) -> float:
        return self.tokens.step

    @property
    def domains(self) -> int:
        return self.tokens.domains

    @property
    def tokenizer(self) -> AnyTokenizer:
        """Of the sentence encoder."""
        return self.features.encoder.tokenizer

    def sentence_logits(self, tokens: Tokens) -> Integers:
        """N×C, in steps. Exact, so that a text's logits do not depend on those beside it."""
        features = self.features.text_features(tokens).astype(np.float64)
        products = features @ self._weights
        logits: Integers = np.rint(np.ldexp(products, -self.bits)).astype(np.int64)
        return logits

    @cached_property
    def _weights(self) -> Floats:
        return self.weights.astype(np.float64)

    def token_sums(self, tokens: Tokens) -> Integers:
        """N×C: each token speaks for itself, and as much as the text's sentences say."""
        said = self.sentence_logits(tokens)
        return self.tokens.token_sums(tokens) + tokens.lengths[:, None] * said

    def rows(self, tokens: Tokens) -> Integers:
        """The logits of each token, with what its text's sentences say."""
        said = self.sentence_logits(tokens)
        return self.tokens.rows(tokens) + np.repeat(said, tokens.lengths, axis=0)

    def arrays(self) -> Arrays:
        """What a release keeps of it."""
        return self.tokens.arrays() | {"sentence_weights": self.weights}

    def without(self, position: int) -> SentenceTable:
        """The table with one domain's column dropped."""
        weights = np.ascontiguousarray(np.delete(self.weights, position, axis=1))
        return replace(self, tokens=self.tokens.without(position), weights=weights)


@dataclass(frozen=True, eq=False, repr=False)
class Cascade:
    """The table decides where its margin is large enough, and the sentence router elsewhere.

    margin: how far the table's best score is ahead of the second where it decides.
    Law: a text's logits depend on the text alone.
    """

    table: TokenTable
    sentences: SentenceTable
    margin: float

    def __post_init__(self) -> None:
        if self.table.step != self.sentences.step:
            raise FormatError("the two routers of a cascade have different scales")

    @property
    def step(self) -> float:
        return self.table.step

    @property
    def domains(self) -> int:
        return self.table.domains

    @property
    def tokenizer(self) -> AnyTokenizer:
        """Of the sentence encoder."""
        return self.sentences.tokenizer

    def token_sums(self, tokens: Tokens) -> Integers:
        """N×C, by whichever router decides each text."""
        sums = self.table.token_sums(tokens)
        unsure = self._unsure(sums, tokens)
        if unsure.any():
            sums = sums.copy()
            sums[unsure] = self.sentences.token_sums(tokens.of_texts(unsure))
        return sums

    def reads_sentences(self, tokens: Tokens) -> Flags:
        """Which texts the sentence router decides."""
        return self._unsure(self.table.token_sums(tokens), tokens)

    def _unsure(self, sums: Integers, tokens: Tokens) -> Flags:
        """Whether the table's best score is less than the margin ahead of the second."""
        return self.leads(sums, tokens) < self.margin

    def leads(self, sums: Integers, tokens: Tokens) -> Floats:
        """How far the table's best score is ahead of the second. A text without tokens has nothing
        to read, so its lead is without end.

        sums: the table's.
        """
        second, best = np.partition(sums, -2, axis=1)[:, -2:].T
        ahead: Floats = (best - second) * self.step
        lengths = tokens.lengths
        return np.where(lengths, ahead / np.maximum(lengths, 1), np.inf)

    def rows(self, tokens: Tokens) -> Integers:
        """The logits of each token, as the router says that decides its text."""
        rows = self.table.rows(tokens)
        unsure = self.reads_sentences(tokens)
        if unsure.any():
            rows = rows.copy()
            chosen = np.repeat(unsure, tokens.lengths)
            rows[chosen] = self.sentences.rows(tokens.of_texts(unsure))
        return rows

    def arrays(self) -> Arrays:
        """What a release keeps of it."""
        table = self.table.arrays().items()
        first = {f"{TABLE_PREFIX}{name}": array for name, array in table}
        return self.sentences.arrays() | first

    def without(self, position: int) -> Cascade:
        """The cascade with one domain's column dropped."""
        return replace(
            self,
            table=self.table.without(position),
            sentences=self.sentences.without(position),
        )

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return {"margin": self.margin, "bits": self.sentences.bits}


# Compiling


def compile_router(
    encoder: TableEncoder, weights: Floats, margin: float = USUAL_MARGIN
) -> TokenTable | Cascade:
    """Weights as a router uses them: a table over tokens and words, or a cascade where the encoder
    reads sentences.
    """
    if encoder.sentences:
        return compile_cascade(encoder, weights, margin)
    return compile_table(encoder, weights)


def margin_for(*, private: bool) -> float:
    """The margin of a new router."""
    return NOISY_MARGIN if private else USUAL_MARGIN


def weight_columns(encoder: TableEncoder, domains: int) -> int:
    """How many columns the weights of a router over so many domains have."""
    return 2 * domains if encoder.sentences else domains


def without_domain(weights: Floats, position: int, domains: int) -> Floats:
    """Weights with a domain's columns dropped."""
    columns = np.arange(position, weights.shape[1], domains)
    return np.ascontiguousarray(np.delete(weights, columns, axis=1))


def compile_cascade(
    encoder: TableEncoder, weights: Floats, margin: float = USUAL_MARGIN
) -> Cascade:
    """The two routers of stacked weights."""
    features = encoder.sentences
    if features is None or weights.shape[0] != encoder.width + 1:
        raise ShapeMismatch(
            f"weights over {weights.shape[0]} features do not fit {encoder.name}"
        )
    whole, of_table = np.hsplit(weights, 2)
    rows = of_table_rows(encoder)
    exact = exact_table(encoder, whole[rows]), exact_table(encoder, of_table[rows])
    # both count in the same steps
    steps = np.maximum(*(table.steps for table in exact))
    tokens, table = (one.counted_in(steps) for one in exact)
    of_sentences = whole[encoder.table_width : -1] * encoder.scale
    fractions, bits = _in_fractions(of_sentences, table.step)
    return Cascade(table, SentenceTable(tokens, fractions, bits, features), margin)


def _in_fractions(exact: Floats, step: float) -> tuple[Steps, int]:
    """Weights as integers, in units of a power of two below the step, and which power."""
    largest = float(np.abs(exact).max()) or 1.0
    bits = int(np.floor(np.log2(MAX_SENTENCE_WEIGHT * step / (2 * largest))))
    weights = np.rint(np.ldexp(exact / step, bits)).astype(np.int32)
    return weights, bits


# Where the table of a cascade hands over to its sentence encoder, chosen on held-out text: for a
# share of texts that are read, or for an accuracy.


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
    reader: TextReader,
    texts: Mapping[str, Sequence[str]],
    *,
    share: float | None = None,
    accuracy: float | None = None,
) -> ChosenMargin:
    """The largest margin with which at most this share is read, or the smallest with this accuracy.

    texts: by domain, in the order of the cascade's columns.
    """
    flat = [text for domain_texts in texts.values() for text in domain_texts]
    sizes = [len(domain_texts) for domain_texts in texts.values()]
    labels = np.repeat(np.arange(len(sizes)), sizes)
    weights = np.repeat([1 / max(size, 1) for size in sizes], sizes) / len(sizes)
    tokens = reader.read(flat)
    leads = cascade.leads(cascade.table.token_sums(tokens), tokens)
    order = np.argsort(leads, kind="stable")
    by_table, by_sentences = (
        (router.token_sums(tokens).argmax(axis=1) == labels)[order]
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
