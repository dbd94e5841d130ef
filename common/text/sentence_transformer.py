"""Sentence encoders that are transformers: text → token ids → a vector on a public grid.

A model's numbers are floating-point, and their last bits differ from machine to machine. So the
vector is rounded coarsely; from there on everything is counted in integers. Knows nothing of where
models come from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from ridgeway.common.base.errors import DeviceError, EncoderError, first_line
from ridgeway.common.base.files import canonical_json, sha256
from ridgeway.common.base.machine import is_out_of_memory, one_torch_thread
from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.text.model_files import ModelFiles, imported, quiet
from ridgeway.common.text.sentence_network import SENTENCE_NORM
from ridgeway.common.text.tokenizer import (
    Floats,
    Ids,
    Integers,
    Tokenizer,
    first_tokens,
    shared_tokenizer,
)

LOCAL = "local"
"""What an encoder is called that came from a folder."""
MAX_MODEL_TOKENS = 256
"""How many tokens of a text a model reads, special ones included."""
MAX_MODEL_WIDTH = 1 << 10
"""With more numbers and the random features, products with weights would not be exact."""
ROUNDING_STEP = 32
"""Vectors of norm SENTENCE_NORM are rounded to multiples of this."""
GPU_PASS_TOKENS = 1 << 16

_OPTIONS: dict[str, Any] = {
    "version": 1,
    "pooling": "mean over all tokens, special ones included",
    "norm": SENTENCE_NORM,
    "step": ROUNDING_STEP,
    "limit": FEATURE_LIMIT,
}


@dataclass(frozen=True, eq=False, repr=False)
class TransformerEncoder:
    """text → token ids → a vector of about norm SENTENCE_NORM, no number beyond FEATURE_LIMIT.

    definition: the tokenizer.json.
    max_tokens: of a text that are read, special ones included.
    """

    files: ModelFiles
    definition: bytes
    width: int
    max_tokens: int
    name: str = LOCAL

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
            canonical_json(_OPTIONS | facts),
            self.files.digest().encode(),
            self.definition,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return shared_tokenizer(self.definition)

    @cached_property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.tokenizer.surroundings

    @property
    def _own_tokens(self) -> int:
        """How many tokens of a text are read, special ones not counted."""
        before, after = self._around
        return self.max_tokens - len(before) - len(after)

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
            chosen = np.flatnonzero(lengths == length)
            rows = self._framed(ids[starts[chosen][:, None] + np.arange(length)])
            model = _loaded(self, device)
            step = max(1, model.pass_tokens // rows.shape[1])
            for first in range(0, len(chosen), step):
                means = model.means(rows[first : first + step])
                vectors[chosen[first : first + step]] = on_grid(means)
        return vectors

    def on_device(self, device: str) -> Callable[[Ids, Integers], NDArray[np.int16]]:
        """The same, but for the rounding of numbers that lie between two."""
        return partial(self.vectors, device=device)

    def _framed(self, rows: Ids) -> Integers:
        """Texts of one length, between the special tokens that the model wants."""
        before, after = (np.tile(part, (len(rows), 1)) for part in self._around)
        return np.hstack([before, rows, after]).astype(np.int64)


def on_grid(means: Floats) -> NDArray[np.int16]:
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
_models: dict[tuple[str, str], TorchModel] = {}
"""By the encoder's fingerprint and the device."""


def _loaded(encoder: TransformerEncoder, device: str) -> TorchModel:
    """The encoder's model on a device, loaded once a process, when the first text comes."""
    key = encoder.fingerprint, device
    with _loading:
        if key not in _models:
            _models[key] = TorchModel(encoder.files, device)
        return _models[key]


# The model, by torch


class TorchModel:
    """A model in float32, on the CPU or on a GPU.

    On the CPU a pass reads one text, on one thread: then its vector depends on the text alone.

    pass_tokens: how many tokens it reads in one pass; at least one text in any case.
    """

    def __init__(self, files: ModelFiles, device: str) -> None:
        self._device = device
        self._model = _load(files, device)
        self.pass_tokens = 1 if device == "cpu" else GPU_PASS_TOKENS

    def means(self, ids: Integers) -> Floats:
        """The mean of each text's last hidden states, of N texts of n ids each: N × width."""
        import torch

        alone = one_torch_thread() if self._device == "cpu" else nullcontext()
        with alone, torch.inference_mode():
            there = torch.from_numpy(ids).to(self._device)
            hidden = self._model(
                input_ids=there, attention_mask=torch.ones_like(there)
            ).last_hidden_state
            means: Floats = hidden.double().mean(dim=1).cpu().numpy()
        return means


def _load(files: ModelFiles, device: str) -> Any:
    torch = imported("torch", "transformers")
    transformers = imported("transformers", "transformers")
    try:
        with quiet(transformers):
            model, report = transformers.AutoModel.from_pretrained(
                str(files.folder),
                output_loading_info=True,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
            )
    except (
        OSError,
        ValueError,
        KeyError,
        RuntimeError,
        ImportError,
        SafetensorError,
    ) as error:
        raise EncoderError(
            f"transformers cannot load the model in {files.folder}: {first_line(error)}"
        ) from error
    # a pooler comes after the states
    missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
    if missing:
        raise EncoderError(
            f"model weights are missing in {files.folder}, such as {missing[0]}"
        )
    try:
        return model.eval().requires_grad_(False).to(device, torch.float32)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceError(
            "not enough free GPU memory for the sentence encoder; free some, or"
            " use --device cpu"
        ) from error
