"""The router of a contextual encoder: weights that are applied to hidden states once a text is
there.

The logits of a text's own tokens become a small table, counted in the same steps for every text, so
that selectors, confidence and explanations work on it as on a table of all tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import ShapeMismatch
from ridgeway.common.base.settings import FEATURE_LIMIT, Sampling
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.encoding.transformer_encoder import AnyEncoder, ContextualEncoder
from ridgeway.common.routing.sentence_table import compile_cascade, compile_tokens
from ridgeway.common.routing.token_table import (
    MAX_LOGIT_STEPS,
    Lengths,
    RouterTable,
    TokenTable,
    counted_in,
    step_for,
    sums_by_reading,
)

if TYPE_CHECKING:
    from ridgeway.common.encoding.model_rows import Frame
    from ridgeway.common.encoding.transformer import Transformer

States = Callable[[Ids], NDArray[np.int16]]
"""The hidden states of one text's tokens on the public grid, n×h."""


class HiddenStateTable:
    """weights: F×C over hidden states in their own units, the last row belonging to the constant
    feature.

    Law: a text's logits depend on the text alone, not on those it is routed with.
    """

    runs_a_model: ClassVar[bool] = True

    def __init__(
        self, weights: NDArray[np.float64], scale: float, states: States
    ) -> None:
        self._weights = weights
        self._scale = scale
        self._states = states
        bounds = FEATURE_LIMIT * scale * np.abs(weights[:-1]).sum(axis=0) + np.abs(
            weights[-1]
        )
        self.step = step_for(float(bounds.max()))

    @property
    def domains(self) -> int:
        return int(self._weights.shape[1])

    def token_sums(self, ids: Ids, lengths: Lengths) -> NDArray[np.int64]:
        """N×C, the summed logits of texts."""
        return sums_by_reading(self, ids, lengths)

    def read(self, ids: Ids, lengths: Lengths) -> tuple[TokenTable, Ids]:
        """A table of these very tokens, and the places of the tokens in it."""
        texts = np.split(ids, np.cumsum(lengths)[:-1])
        logits = [self._logits(self._states(text)) for text in texts if len(text)]
        exact = np.concatenate(logits or [np.zeros((1, self.domains))])
        # A state far beyond the encoder's scale says as much as 32 bits hold: an error would tell
        # of the text.
        most = (2 * MAX_LOGIT_STEPS - 1) * self.step
        return counted_in(self.step, np.clip(exact, -most, most)), np.arange(
            len(ids), dtype=np.int32
        )

    def _logits(self, states: NDArray[np.int16]) -> NDArray[np.float64]:
        if states.shape[1] + 1 != len(self._weights):
            raise ShapeMismatch(
                f"weights over {len(self._weights)} features do not fit states of"
                f" {states.shape[1]}"
            )
        exact: NDArray[np.float64] = (
            states.astype(np.float64) @ (self._weights[:-1] * self._scale)
            + self._weights[-1]
        )
        return exact

    def arrays(self) -> dict[str, NDArray[Any]]:
        """A release keeps nothing but the weights, which it has anyway."""
        return {}

    def without(self, position: int) -> HiddenStateTable:
        """The readout with one domain's column dropped."""
        weights = np.ascontiguousarray(np.delete(self._weights, position, axis=1))
        return HiddenStateTable(weights, self._scale, self._states)


def compile_router(
    encoder: AnyEncoder, sampling: Sampling, weights: NDArray[np.float64]
) -> RouterTable:
    """Weights as a router uses them: tables over tokens and words, or a readout of hidden states.

    Runs no model.
    """
    if not isinstance(encoder, TableEncoder):
        return HiddenStateTable(weights, encoder.scale, model_states(encoder, sampling))
    if encoder.sentences:
        return compile_cascade(encoder, weights)
    return compile_tokens(encoder, weights)


def model_states(
    encoder: ContextualEncoder,
    sampling: Sampling,
    model: Path | None = None,
    device: str = "auto",
) -> States:
    """Hidden states by the encoder's model, which is found and loaded when the first text comes.

    model:  the folder of the model, if it is not known on this machine.
    device: where the model runs: auto, cpu, cuda, or one GPU such as cuda:0. Of several GPUs, the
            first.
    """

    @cache
    def ready() -> tuple[Transformer, Frame]:
        from ridgeway.common.base.devices import chosen
        from ridgeway.common.encoding.transformer import transformer

        loaded = transformer(encoder, next(iter(chosen(device)), "cpu"), model)
        return loaded, loaded.frame(sampling.window)

    def states(ids: Ids) -> NDArray[np.int16]:
        from ridgeway.common.encoding.transformer import grid_states

        return grid_states(*ready(), encoder.scale, ids)

    return states
