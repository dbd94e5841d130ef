"""USE-multilingual's network in whole numbers: token ids → sentence vectors, by numpy or torch.

A token's row goes through three chains of two convolutions, over 2, 3 and 5 tokens; what comes
out is normalised, summed over the tokens, and goes through a dense net of four layers.

Numbers of fixed point: activations of tokens have 8 bits after the point, those of a sentence 10,
and normalised ones 20. Weights are 8-bit numbers and a scale of 24 bits after the point. Every
step is a sum, a product, or a quotient or root that is rounded down, so that each machine has the
same bits. `native/sentences.c` is the same computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.text.tokenizer import Ids, Integers, first_tokens

if TYPE_CHECKING:
    import torch


SENTENCE_WIDTH = 512
SENTENCE_NORM = 1 << 13
MAX_SENTENCE_TOKENS = 512
"""How many tokens of a text are read; its first ones."""

BEGIN = 1
END = 2
"""The ids of the tokens that the network wants before and after a text."""

CHUNKS = 17
"""A token's row is read by the scale of `id % CHUNKS`."""
LEVELS = 64
"""How many values a number of the table has."""

BRANCHES = ((2, 0), (3, 1), (5, 2))
"""How many tokens a convolution spans, and how many of them stand before its own."""
BRANCH = 256
PROJECTED = BRANCH * len(BRANCHES)
FEATURES = SENTENCE_WIDTH + PROJECTED
HIDDEN_WIDTH = 320
TEXT_GAP = 2
"""Rows of zeros between texts, so that no convolution reaches into another text."""
NO_TOKEN = -1
"""What stands in the place of such a row's id."""

SHAPES = {
    "project": (PROJECTED, SENTENCE_WIDTH),
    **{f"first{span}": (BRANCH, span * BRANCH) for span, _ in BRANCHES},
    **{f"second{span}": (BRANCH, span * BRANCH) for span, _ in BRANCHES},
    "pool": (SENTENCE_WIDTH, FEATURES),
    "dense0": (HIDDEN_WIDTH, SENTENCE_WIDTH),
    "skip1": (HIDDEN_WIDTH, SENTENCE_WIDTH),
    "dense1": (HIDDEN_WIDTH, HIDDEN_WIDTH),
    "dense2": (SENTENCE_WIDTH, HIDDEN_WIDTH),
    "skip3": (SENTENCE_WIDTH, HIDDEN_WIDTH),
    "dense3": (SENTENCE_WIDTH, SENTENCE_WIDTH),
}
"""The rows and columns of each layer's weights, in the order in which they are kept."""

TOKEN_BITS = 8
HEAD_BITS = 10
UNIT_BITS = 20
SCALE_BITS = 24
ROOT_BITS = 10
NORM_BITS = 6
LARGEST_ACTIVATION = (1 << 15) - 1
"""Of an activation that is multiplied by weights."""
LARGEST_SUMMAND = 1 << 20
"""Of an activation that is normalised: the squares of 1,280 of them add up within 52 bits."""
LARGEST_WEIGHTS = (1 << 31) // (LARGEST_ACTIVATION + 1)
"""Of the sum of the sizes of a row of weights: its products add up within 31 bits, and those times
a scale of 20 bits within 51.
"""
TANH_LIMIT = 8 << HEAD_BITS
"""The tangent of what is larger is 1, to 15 bits but one."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SentenceWeights:
    """The network's public numbers.

    table:   rows × 512 uint8, each below LEVELS.
    values:  CHUNKS × LEVELS int16, what the numbers of the table stand for.
    weights: int8, the layers of SHAPES one after another, each row by row.
    scales:  2 × rows int64: what a row's products are multiplied by, and what is added then.
    gains:   2 × (768 + 1,280) int64: the same of the two normalisations.
    tanh:    int16, the tangent of −TANH_LIMIT to TANH_LIMIT times LARGEST_ACTIVATION.
    """

    table: NDArray[np.uint8]
    values: NDArray[np.int16]
    weights: NDArray[np.int8]
    scales: Integers
    gains: Integers
    tanh: NDArray[np.int16]

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def layers(self) -> Iterator[tuple[str, NDArray[np.int8], Integers]]:
        """Each layer's name, weights and scales."""
        start = 0
        row = 0
        for name, (rows, columns) in SHAPES.items():
            stop = start + rows * columns
            weights = self.weights[start:stop].reshape(rows, columns)
            yield name, weights, self.scales[:, row : row + rows]
            start = stop
            row += rows


def framed(ids: Ids, lengths: Integers) -> tuple[Ids, Integers]:
    """What the network reads of texts whose ids stand in one row: of each that is not empty the
    first tokens, between begin and end.
    """
    ids, lengths = first_tokens(ids, lengths, MAX_SENTENCE_TOKENS)
    lengths = lengths[lengths > 0]
    stops = np.cumsum(lengths)
    borders = np.stack([stops - lengths, stops], axis=1)
    return np.insert(ids, borders.ravel(), [BEGIN, END] * len(lengths)), lengths + 2


class SentenceNetwork:
    """The network over float64 arrays of numpy or torch, which hold whole numbers below 2^53, or
    such numbers of fixed point.

    Their sums and products are exact in any order. A quotient of such whole numbers rounds down to
    the right whole number, and so does the root of one below 2^52.

    xp:    the library.
    array: makes an array of the library out of one of numpy.
    sums:  adds up the rows of each text, whose lengths it is given.
    """

    def __init__(
        self,
        numbers: SentenceWeights,
        xp: ModuleType,
        array: Callable[[Any], Any],
        sums: Callable[[Any, Integers], Any],
    ) -> None:
        self._xp = xp
        self._array = array
        self._sums = sums
        self._table = array(numbers.table)
        self._values = array(numbers.values.ravel().astype(np.float64))
        self._tanh = array(numbers.tanh.astype(np.float64))
        gains = array(numbers.gains.astype(np.float64))
        self._gains = gains[:, :PROJECTED] / (1 << SCALE_BITS)
        self._pool_gains = gains[:, PROJECTED:]
        self._layers = {
            name: (
                array(np.ldexp(weights.T * scale.astype(np.float64), -SCALE_BITS)),
                array(np.ldexp(offset.astype(np.float64), -SCALE_BITS)),
            )
            for name, weights, (scale, offset) in numbers.layers()
        }

    def vectors(self, ids: Ids, lengths: Integers) -> Any:
        """The vectors of texts as `framed` gives them."""
        unit = self._normalised(self._features(ids, lengths))
        sums = self._sums(unit, lengths)
        return self._head(sums, self._array(lengths[:, None].astype(np.float64)))

    def piece_rows(self, ids: Ids) -> Any:
        """What goes into the dense layers of tokens, each read alone: N×SENTENCE_WIDTH, with
        HEAD_BITS after the point.
        """
        lengths = np.ones(len(ids), np.int64)
        unit = self._normalised(self._features(ids, lengths))
        return self._pooled(unit, self._array(lengths[:, None].astype(np.float64)))

    def _features(self, ids: Ids, lengths: Integers) -> Any:
        """The features of tokens, whose rows have gaps between texts on the way."""
        owners = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(ids)) + TEXT_GAP * (owners + 1)
        spread = np.full(len(ids) + TEXT_GAP * (len(lengths) + 1), NO_TOKEN)
        spread[positions] = ids
        gaps = self._array(np.flatnonzero(spread == NO_TOKEN))
        token = self._array(spread)

        chunks = (token % CHUNKS)[:, None]
        embedded = self._values[LEVELS * chunks + self._table[token]]
        projected = self._scaled("project", embedded)
        activations = self._normalised(self._cut(projected, LARGEST_SUMMAND))
        gain, offset = self._gains
        activations *= gain
        activations += offset
        self._xp.floor(activations, out=activations)
        self._cut(activations)[gaps] = 0
        parts = [embedded]
        for number, (span, before) in enumerate(BRANCHES):
            start = number * BRANCH
            inputs = activations[:, start : start + BRANCH]
            hidden = self._convolved(f"first{span}", inputs, span, before)
            self._cut(hidden)[gaps] = 0
            outputs = self._convolved(f"second{span}", hidden, span, before)
            parts.append(self._cut(outputs, LARGEST_SUMMAND))
        return self._xp.concatenate(parts, 1)[self._array(positions)]

    def _convolved(self, layer: str, inputs: Any, span: int, before: int) -> Any:
        """A convolution, cut off below zero, and its input."""
        first = TEXT_GAP - before
        last = len(inputs) - TEXT_GAP - before
        windows = [inputs[first + shift : last + shift] for shift in range(span)]
        outputs = self._scaled(layer, self._xp.concatenate(windows, 1))
        whole = self._xp.zeros_like(inputs)
        kept = whole[TEXT_GAP:-TEXT_GAP]
        self._xp.clip(outputs, 0, None, out=kept)
        kept += inputs[TEXT_GAP:-TEXT_GAP]
        return whole

    def _head(self, sums: Any, lengths: Any) -> Any:
        """Sums over texts of normalised features → the vectors of the texts."""
        floor = self._xp.floor
        mean = self._pooled(sums, lengths)
        first = self._cut(self._scaled("dense0", mean).clip(0))
        second = self._scaled("skip1", mean) + self._scaled("dense1", first)
        second = self._cut(second.clip(0))
        third = self._cut(self._scaled("dense2", second).clip(0))
        last = self._scaled("skip3", second) + self._scaled("dense3", third)
        last = last.clip(-TANH_LIMIT, TANH_LIMIT)
        entries = self._xp.asarray(last, dtype=self._xp.int64) + TANH_LIMIT
        bent = self._tanh[entries]
        norm = self._root((bent * bent).sum(1)[:, None] * (1 << 2 * NORM_BITS))
        rounded = floor((bent * (2 * SENTENCE_NORM << NORM_BITS) + norm) / (2 * norm))
        return rounded.clip(-FEATURE_LIMIT, FEATURE_LIMIT)

    def _pooled(self, sums: Any, lengths: Any) -> Any:
        """Sums over texts of normalised features → what goes into the dense layers."""
        root = self._root(lengths * (1 << 2 * ROOT_BITS))
        # the sum over √length, rounded
        gain, offset = self._pool_gains
        total = sums * gain + lengths * offset
        unit = root * (1 << ROOT_BITS)
        pooled = self._xp.floor((2 * total + unit) / (2 * unit))
        return self._cut(self._scaled("pool", self._cut(pooled), root))

    # Large arrays are changed in their places: on a GPU, to move them takes longest.

    def _cut(self, values: Any, limit: int = LARGEST_ACTIVATION) -> Any:
        """The values themselves, within their bounds: usually those of what is multiplied by
        weights.
        """
        return self._xp.clip(values, -limit, limit, out=values)

    def _scaled(self, layer: str, inputs: Any, times: Any = 1) -> Any:
        """Rounded products with a layer's weights."""
        weights, offset = self._layers[layer]
        products = inputs @ weights
        products += offset * times + 0.5
        return self._xp.floor(products, out=products)

    def _normalised(self, inputs: Any) -> Any:
        """The rows themselves, less their means and divided by their norms, with UNIT_BITS after
        the point.
        """
        floor = self._xp.floor
        columns = inputs.shape[1]
        mean = floor((2 * inputs.sum(1)[:, None] + columns) / (2 * columns))
        inputs -= mean
        norm = self._root(self._xp.einsum("ij,ij->i", inputs, inputs)[:, None])
        inverse = floor((1 << 2 * UNIT_BITS) / norm) / (1 << UNIT_BITS)
        inputs *= inverse
        return floor(inputs, out=inputs)

    def _root(self, squares: Any) -> Any:
        """The whole square root of numbers below 2^52; 1 of zero."""
        return self._xp.floor(self._xp.sqrt(squares)).clip(1)


# USE's network by torch, on a GPU or a CPU: the same bits as by numpy.
#
# Products are taken in float64, which holds their sums exactly.


_BATCH_TOKENS = 1 << 17
"""How many tokens are taken at once."""


class TorchSentences:
    """The network on one device."""

    def __init__(self, numbers: SentenceWeights, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._network = SentenceNetwork(numbers, torch, self._tensor, self._sums)

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        import torch

        return torch.tensor(np.asarray(array), device=self._device)

    def _sums(self, rows: torch.Tensor, lengths: Integers) -> torch.Tensor:
        import torch

        return torch.segment_reduce(rows, "sum", lengths=self._tensor(lengths))

    def vectors(self, ids: Ids, lengths: Integers) -> NDArray[np.int16]:
        """What `UseEncoder.vectors` gives."""
        import torch

        vectors = torch.zeros(
            (len(lengths), SENTENCE_WIDTH), dtype=torch.int16, device=self._device
        )
        filled = np.flatnonzero(lengths)
        ids, lengths = framed(ids, lengths)
        stops = np.cumsum(lengths)
        batches = (stops - 1) // _BATCH_TOKENS
        for batch in range(int(batches.max(initial=-1)) + 1):
            first, last = np.searchsorted(batches, [batch, batch + 1])
            if first == last:
                continue
            start = stops[first] - lengths[first]
            made = self._network.vectors(
                ids[start : stops[last - 1]], lengths[first:last]
            )
            vectors[self._tensor(filled[first:last])] = made.to(torch.int16)
        return np.asarray(vectors.cpu())
