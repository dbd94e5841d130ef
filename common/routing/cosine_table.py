"""The router of an encoder with cosines: what tokens say, by a table, and what the cosines of the
whole text say.

Cosines are of a text's mean, so no table of tokens holds them: the encoder's own table is found
when the first text comes, and one small product is taken for each. Where tokens are looked at one
by one, each says what the text's cosines say beside what it says itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderError, FormatError, ShapeMismatch
from ridgeway.common.base.settings import MAX_WINDOW_TOKENS
from ridgeway.common.encoding.cosine_features import Cosines
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids, Numbers
from ridgeway.common.encoding.word_sketch import WordSketch
from ridgeway.common.routing.token_table import (
    RouterTable,
    TokenTable,
    compile_table,
    of_logits,
)
from ridgeway.common.routing.word_table import WordTable, compile_words

TextCosines = Callable[[Ids, NDArray[np.int64]], NDArray[np.int16]]
"""The cosines of texts whose ids stand in one row, `lengths` of them each: N×K."""

FINE = 12
"""Weights of cosines are counted in steps over 2 to this power, since cosines are large numbers."""

MAX_WORDS_LEFT_OUT = 256
"""Of texts of more words it is not told what leaving each out changes."""


@dataclass(frozen=True, eq=False, repr=False)
class CosineTable:
    """linear:    what tokens, and their letters, say.

    weights:   K×C int64, what each cosine says, in units of `step` / 2¹².
    amplitude: the largest cosine.
    texts:     gives the cosines of texts.
    Law: a text's logits depend on the text alone, and fit 32 bits for each of its tokens.
    """

    linear: TokenTable | WordTable
    weights: NDArray[np.int64]
    amplitude: int
    texts: TextCosines

    runs_a_model: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if (
            self.weights.dtype != np.int64
            or self.weights.ndim != 2
            or self.weights.shape[1] != self.domains
        ):
            raise FormatError("what cosines say is int64 with a column a domain")
        if self.largest_row >= 1 << 31:
            raise FormatError(
                "what a token and the cosines of its text say together does not fit 32"
                " bits"
            )

    @property
    def step(self) -> float:
        return self.linear.step

    @property
    def domains(self) -> int:
        return self.linear.domains

    @property
    def largest_row(self) -> int:
        """No token says more of a domain."""
        said = self.amplitude * int(np.abs(self._exact).sum(axis=0).max(initial=0))
        return self.linear.largest_row + (said >> FINE) + 1

    @cached_property
    def _exact(self) -> NDArray[np.float64]:
        return self.weights.astype(np.float64)

    def said(self, ids: Ids, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """What the cosines of each text say, N×C. Products and sums lie below 2⁵³, so float64 holds
        them exactly.
        """
        products = (self.texts(ids, lengths).astype(np.float64) @ self._exact).astype(
            np.int64
        )
        return products + (1 << FINE - 1) >> FINE

    def token_sums(self, ids: Numbers, lengths: Numbers) -> NDArray[np.int64]:
        """N×C, the summed logits of texts whose ids stand in one row, `lengths` of them each."""
        own = np.frombuffer(lengths, dtype=np.int64)
        said = self.said(np.frombuffer(ids, dtype=np.int32), own) * own[:, None]
        return said + self.linear.token_sums(ids, lengths)

    def read(self, ids: Ids, lengths: NDArray[np.int64]) -> tuple[TokenTable, Ids]:
        """A table of these very tokens, each with what the cosines of its text say, and their
        places in it.
        """
        table, places = self.linear.read(ids, lengths)
        rows = table.logits.take(places, axis=0) + np.repeat(
            self.said(ids, lengths), lengths, axis=0
        )
        rows = rows if len(rows) else np.zeros((1, self.domains), dtype=np.int64)
        return of_logits(rows.astype(np.int32), self.step), np.arange(
            len(ids), dtype=np.int32
        )

    def shifts(self, ids: Ids, tokens: Sequence[int]) -> NDArray[np.float64]:
        """How much more than its share by length each word of a text has in what the text's cosines
        say, W×C.

        A word has what changes if it is left out, and of what no single word accounts for, all have
        the same.
        tokens: how many each word has.
        """
        count = len(ids)
        words = len(tokens)
        sizes = np.array(tokens, dtype=np.int64)
        if not 0 < words <= MAX_WORDS_LEFT_OUT:
            return np.zeros((words, self.domains))
        whole = self.said(ids, np.array([count]))
        owners = np.repeat(np.arange(words), sizes)
        others = np.concatenate([ids[owners != word] for word in range(words)])
        changes = (whole - self.said(others, count - sizes)).astype(np.float64)
        rest = (whole - changes.sum(axis=0)) / words
        shifts: NDArray[np.float64] = (
            changes + rest - whole * (sizes / count)[:, None]
        ) * self.step
        return shifts

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a release keeps of it; the encoder's table is too large for that."""
        return self.linear.arrays() | {"cosines": self.weights}

    def without(self, position: int) -> CosineTable:
        """The table with one domain's column dropped."""
        weights = np.ascontiguousarray(np.delete(self.weights, position, axis=1))
        return replace(self, linear=self.linear.without(position), weights=weights)


def compile_rows(
    table: NDArray[np.int16],
    scale: float,
    words: WordSketch | None,
    weights: NDArray[np.float64],
    cosines: Cosines | None = None,
    texts: TextCosines | None = None,
) -> RouterTable:
    """Weights over the features of a table's tokens, of words, and cosines, as a router uses them.

    texts: gives the cosines of texts, if it is not to be done by this table.
    """
    if cosines is None:
        return (
            compile_table(table, scale, weights)
            if words is None
            else compile_words(table, scale, words, weights)
        )
    if weights.shape[0] != cosines.inputs + cosines.width + 1:
        raise ShapeMismatch(
            f"weights over {weights.shape[0]} features do not fit {cosines.width}"
            " cosines and the rest"
        )
    linear = np.delete(weights, np.s_[cosines.inputs : -1], axis=0)
    own = weights[cosines.inputs : -1] * scale
    amplitude = cosines.options.amplitude
    room = amplitude * float(np.abs(own).sum(axis=0).max())
    compiled: TokenTable | WordTable = (
        compile_table(table, scale, linear, room)
        if words is None
        else compile_words(table, scale, words, linear, room)
    )
    fine = np.rint(own / (compiled.step / (1 << FINE))).astype(np.int64)
    return CosineTable(
        compiled, fine, amplitude, texts or text_cosines(table, words, cosines)
    )


def text_cosines(
    table: NDArray[np.int16], words: WordSketch | None, cosines: Cosines
) -> TextCosines:
    """The cosines of texts by a table: of their first tokens, as many as a sample may have; 0 of an
    empty text.
    """

    def means(ids: Ids) -> NDArray[np.int16]:
        used, counts = np.unique(ids, return_counts=True)
        size = len(ids)
        sums = counts @ table[used].astype(np.int64)
        own = ((2 * sums + size) // (2 * size)).astype(np.int16)
        return (
            own
            if words is None
            else np.append(own, words.window_features(ids, np.array([0, size])))
        )

    def found(ids: Ids, lengths: NDArray[np.int64]) -> NDArray[np.int16]:
        samples = np.zeros((len(lengths), cosines.inputs), dtype=np.int16)
        for place, (size, end) in enumerate(
            zip(lengths.tolist(), np.cumsum(lengths).tolist(), strict=True)
        ):
            if size:
                samples[place] = means(ids[end - size : end][:MAX_WINDOW_TOKENS])
        values = cosines.of(samples)
        values[lengths == 0] = 0
        return values

    return found


def late_cosines(find: Callable[[], TableEncoder]) -> TextCosines:
    """The cosines of texts by the table of an encoder, which is found when the first text comes."""

    @cache
    def ready() -> TextCosines:
        encoder = find()
        if encoder.cosines is None:
            raise EncoderError(f"{encoder.name} has no cosines")
        return text_cosines(encoder.table, encoder.words, encoder.cosines)

    return lambda ids, lengths: ready()(ids, lengths)


def side_by_side(one: RouterTable, other: RouterTable) -> RouterTable | None:
    """The columns of two tables in one, so that they are added up together; None where that cannot
    be.
    """
    try:
        if isinstance(one, TokenTable) and isinstance(other, TokenTable):
            return TokenTable(
                np.hstack([one.logits, other.logits]), one.step, one.entropies
            )
        if isinstance(one, WordTable) and isinstance(other, WordTable):
            logits = np.hstack([one.logits, other.logits])
            buckets = np.hstack([one.buckets, other.buckets])
            return replace(one, logits=logits, buckets=buckets)
        if isinstance(one, CosineTable) and isinstance(other, CosineTable):
            linear = side_by_side(one.linear, other.linear)
            if isinstance(linear, TokenTable | WordTable):
                return replace(
                    one, linear=linear, weights=np.hstack([one.weights, other.weights])
                )
    except FormatError:  # each fits 32 bits, but not both together
        pass
    return None
