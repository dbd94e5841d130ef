"""Sentence encoders that are transformers: text → token ids → a vector on a public grid.

A model's numbers are floating-point, and their last bits differ from machine to machine. So the
vector is rounded coarsely; from there on everything is counted in integers. Knows nothing of where
models come from, nor of what runs them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import canonical_json, sha256
from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.encoding.sentence_network import SENTENCE_NORM, Integers
from ridgeway.common.encoding.tokenizer import Ids, first_tokens, shared_tokenizer

MAX_MODEL_TOKENS = 256
"""How many tokens of a text a model reads, special ones included."""
MAX_MODEL_WIDTH = 1 << 10
"""With more numbers and the random features, products with weights would not be exact."""
ROUNDING_STEP = 32
"""Vectors of norm SENTENCE_NORM are rounded to multiples of this."""

_OPTIONS: dict[str, Any] = {
    "version": 1,
    "pooling": "mean over all tokens, special ones included",
    "norm": SENTENCE_NORM,
    "step": ROUNDING_STEP,
    "limit": FEATURE_LIMIT,
}


class SentenceModel(Protocol):
    """A model that is ready to run.

    pass_tokens: how many tokens it reads in one pass; at least one text in any case.
    """

    pass_tokens: int

    def means(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The mean of each text's last hidden states, of N texts of n ids each: N × width."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class TransformerEncoder:
    """text → token ids → a vector of about norm SENTENCE_NORM, no number beyond FEATURE_LIMIT.

    name:       what others may call it; `local` for what came from a folder.
    definition: the tokenizer.json.
    weights:    the hash of the model's files.
    max_tokens: of a text that are read, special ones included.
    load:       brings the model to a device, such as `cpu`; called when the first text comes.
    """

    name: str
    definition: bytes
    weights: str
    width: int
    max_tokens: int
    load: Callable[[str], SentenceModel]

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_MODEL_WIDTH:
            raise EncoderError(
                f"this sentence encoder has {self.width:,} dimensions, and at most "
                f"{MAX_MODEL_WIDTH:,} are supported; use a smaller model"
            )
        if self._own_tokens < 1:
            raise EncoderError(
                f"the sentence encoder reads {self.max_tokens} tokens, too few for "
                "any text; use another model"
            )

    @cached_property
    def fingerprint(self) -> str:
        facts = {"width": self.width, "max_tokens": self.max_tokens}
        return sha256(
            canonical_json(_OPTIONS | facts), self.weights.encode(), self.definition
        )

    @cached_property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return shared_tokenizer(self.definition).surroundings

    @property
    def _own_tokens(self) -> int:
        """How many tokens of a text are read, special ones not counted."""
        before, after = self._around
        return self.max_tokens - len(before) - len(after)

    def encode_many(self, texts: Sequence[str]) -> tuple[Ids, Integers]:
        """The ids of each text that are read, all in one row, and how many each has."""
        tokenizer = shared_tokenizer(self.definition)
        return first_tokens(*tokenizer.encode_many(texts), self._own_tokens)

    def vectors(
        self, ids: Ids, lengths: Integers, device: str = "cpu"
    ) -> NDArray[np.int16]:
        """The vectors of texts, a row each; zeros of a text without tokens.

        ids: of all texts in one row. Texts of one length are read together, without padding.
        """
        vectors = np.zeros((len(lengths), self.width), np.int16)
        ids, lengths = first_tokens(ids, lengths, self._own_tokens)
        starts = np.cumsum(lengths) - lengths
        for length in np.unique(lengths[lengths > 0]).tolist():
            places = np.flatnonzero(lengths == length)
            rows = self._framed(ids[starts[places][:, None] + np.arange(length)])
            model = _loaded(self, device)
            step = max(1, model.pass_tokens // rows.shape[1])
            for first in range(0, len(places), step):
                means = model.means(rows[first : first + step])
                vectors[places[first : first + step]] = on_grid(means)
        return vectors

    def on_device(self, device: str) -> Callable[[Ids, Integers], NDArray[np.int16]]:
        """The same, but for the rounding of numbers that lie between two."""
        return partial(self.vectors, device=device)

    def _framed(self, rows: Ids) -> NDArray[np.int64]:
        """Texts of one length, between the special tokens that the model wants."""
        before, after = (np.tile(part, (len(rows), 1)) for part in self._around)
        return np.hstack([before, rows, after]).astype(np.int64)


def on_grid(means: NDArray[np.float64]) -> NDArray[np.int16]:
    """The nearest vectors of the public grid to means, of whatever length these are."""
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise EncoderError(
            "the sentence encoder returns NaN or infinity; its files are corrupt"
        )
    steps = np.rint(means / norms * (SENTENCE_NORM // ROUNDING_STEP))
    bounded = (steps * ROUNDING_STEP).clip(-FEATURE_LIMIT, FEATURE_LIMIT)
    vectors: NDArray[np.int16] = bounded.astype(np.int16)
    return vectors


_loading = threading.Lock()
_models: dict[tuple[str, str], SentenceModel] = {}
"""By the encoder's fingerprint and the device."""


def _loaded(encoder: TransformerEncoder, device: str) -> SentenceModel:
    """The encoder's model on a device, loaded once a process."""
    key = encoder.fingerprint, device
    with _loading:
        if key not in _models:
            _models[key] = encoder.load(device)
        return _models[key]
