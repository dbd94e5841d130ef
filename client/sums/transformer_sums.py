"""Sums over a contextual encoder's windows, on the CPU or on a GPU.

Windows wait until there are enough of one shape, and every pass over a shape has the same number of
rows. So a window's features depend on the window alone: not on its neighbours, on the order of
documents or on where work was interrupted.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ridgeway.client.sums.accumulate import ExactGram, GramSums, State
from ridgeway.common.base.devices import is_out_of_memory
from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.settings import FEATURE_LIMIT, Sampling
from ridgeway.common.encoding.model_rows import Rows, Shape
from ridgeway.common.encoding.transformer import (
    Transformer,
    one_thread,
    too_little_memory,
    transformer,
)
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
from ridgeway.common.encoding.windows import Layer
from ridgeway.common.statistics.sums import Integers, triangle_size

if TYPE_CHECKING:
    import torch

MAX_PASSES_AHEAD = 8
"""The passes that may wait for a GPU's thread before the thread that brings more waits too."""
ODD_PASS_DIVISOR = 4
"""Passes over windows of other lengths are this many times smaller: few windows wait, and little is
filled up.
"""


class Gram(Protocol):
    """Σ φφᵀ over samples that lie on the device."""

    def add(self, samples: Any) -> None: ...
    def triangle(self) -> Integers: ...


class LateSums(GramSums):
    """Sums whose model is loaded when the first document comes: where nothing is new, none
    comes.
    """

    def __init__(
        self, encoder: ContextualEncoder, sampling: Sampling, device: str
    ) -> None:
        self._encoder = encoder
        self._sampling = sampling
        self._device = device
        self._sums: ContextualSums | None = None

    def add_layers(self, found: Sequence[Layer]) -> None:
        if self._sums is None:
            self._sums = ContextualSums(
                transformer(self._encoder, self._device), self._encoder, self._sampling
            )
        self._sums.add_layers(found)

    def state(self) -> State:
        if self._sums is None:
            return {
                "gram": np.zeros(triangle_size(self._encoder.width + 1), dtype=np.int64)
            }
        return self._sums.state()


class ContextualSums(GramSums):
    """Sums over windows whose features a transformer gives."""

    def __init__(
        self, model: Transformer, encoder: ContextualEncoder, sampling: Sampling
    ) -> None:
        import torch

        self._model = model
        self._scale = encoder.scale
        self._sampling = sampling
        self._frame = model.frame(sampling.window)
        self._usual = self._frame.shape(sampling.window)
        self._waiting: dict[Shape, Rows] = {}
        self._gram = _gram(model.device, encoder.width)
        self._largest = torch.zeros((), device=model.device)
        self._asked: deque[Future[None]] = deque()

    def add_layers(self, found: Sequence[Layer]) -> None:
        for layer in found:
            for rows in self._frame.rows_between(layer.ids, layer.bounds):
                counted = rows[np.repeat(np.arange(len(rows)), layer.times)]
                waiting = self._waiting.pop(rows.shape, None)
                self._pass_full(counted if waiting is None else waiting + counted)

    def _pass_full(self, rows: Rows) -> None:
        """Take in as many full passes as there are; the rest waits."""
        start = 0
        while len(rows) >= start + (size := self._size(rows.shape)):
            self._ask(rows[start : start + size], size)
            start += size
        if len(rows) > start:
            self._waiting[rows.shape] = rows[start:]

    def _size(self, shape: Shape) -> int:
        share = 1 if shape == self._usual else ODD_PASS_DIVISOR
        return max(1, self._model.pass_tokens // share // shape.length)

    def _ask(self, rows: Rows, real: int) -> None:
        """Have a pass taken in: at once, or by the thread that a GPU has. What goes wrong there is
        raised later.
        """
        if self._model.executor is None:
            self._take(rows, real)
            return
        self._asked.append(self._model.executor.submit(self._take, rows, real))
        while len(self._asked) > MAX_PASSES_AHEAD:
            self._asked.popleft().result()

    def _take(self, rows: Rows, real: int) -> None:
        """Add the features of the first `real` rows; a pass that is too large for the device is
        made in two.
        """
        import torch

        means = self._means(rows)
        if means is None:
            # two halves of one size, and the row that may be left
            half = len(rows) // 2
            for start in range(0, min(real, len(rows)), half):
                part = rows[start : start + half]
                self._take(part, min(real - start, len(part)))
            return
        features = torch.round(means[:real] / self._scale)
        self._largest = torch.maximum(self._largest, features.abs().max())
        if self._model.device == "cpu":
            self._check()
        samples = features.to(torch.int16)
        self._gram.add(
            samples.numpy() if isinstance(self._gram, ExactGram) else samples
        )

    def _means(self, rows: Rows) -> torch.Tensor | None:
        """The windows' means, or None if the device's memory does not hold a pass of this size:
        smaller ones follow.
        """
        import torch

        try:
            with (
                one_thread()
                if self._model.device == "cpu"
                else contextlib.nullcontext()
            ):
                return self._model.means(rows)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                raise too_little_memory(
                    f"one window of {rows.shape.length} tokens"
                ) from error
        self._model.pass_tokens = max(1, self._model.pass_tokens // 2)
        torch.cuda.empty_cache()
        return None

    def state(self) -> State:
        """The sums so far. What waits is taken in: its pass is filled up with rows that are not
        counted.
        """
        waiting, self._waiting = self._waiting, {}
        for rows in waiting.values():
            while len(rows) > (
                size := self._size(rows.shape)
            ):  # passes became smaller meanwhile
                self._ask(rows[:size], size)
                rows = rows[size:]
            self._ask(rows[np.resize(np.arange(len(rows)), size)], len(rows))
        while self._asked:
            self._asked.popleft().result()
        return (
            self._sums()
            if self._model.executor is None
            else self._model.executor.submit(self._sums).result()
        )

    def _sums(self) -> State:
        self._check()
        return {"gram": self._gram.triangle()}

    def _check(self) -> None:
        """Raise if any feature so far lies beyond the public bound. Waits for the device."""
        if not self._largest.item() <= FEATURE_LIMIT:
            raise EncoderError(
                f"a window's feature lies beyond ±{FEATURE_LIMIT}, the bound that all"
                " parties share, and nothing is ever clipped; this model goes far"
                " beyond its scale on such text, so the cohort needs another encoder"
            )


def _gram(device: str, width: int) -> Gram:
    if device == "cpu":
        return ExactGram(width)
    import torch

    from ridgeway.client.sums.gpu.block_gram import BlockGram

    return BlockGram(torch.device(device), width)
