"""Models that are sentence encoders: folders of BERT-like Hugging Face models in safetensors, and
where this machine saw them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import cache_folder, canonical_json, write_whole
from ridgeway.common.encoding.model_files import model_files, read_json, read_note
from ridgeway.common.encoding.sentence_transformer import (
    MAX_MODEL_TOKENS,
    TransformerEncoder,
)
from ridgeway.common.encoding.tokenizer import plain_definition

MODEL_VARIABLE = "RIDGEWAY_SENTENCE_MODEL"
"""Names the folder of a release's sentence encoder, where this machine has not seen it yet."""
MINILM = "minilm"
MINILM_GONE = (
    "this version does not read sentences by minilm; use +sentence, or +sentence:DIR "
    "with the folder of a model in safetensors, such as all-MiniLM-L6-v2"
)


def find_transformer(source: str) -> TransformerEncoder:
    """The encoder of a model's folder."""
    if source == MINILM:
        raise EncoderError(MINILM_GONE)
    if not Path(source).is_dir():
        raise EncoderError(
            f"there is no sentence encoder {source!r}; use the folder of a model"
        )
    encoder = _of_folder(source)
    _remember(encoder.fingerprint, Path(source))
    return encoder


def find_local(fingerprint: str) -> TransformerEncoder:
    """The encoder of this fingerprint out of the folder that the environment names, else out of
    the one where it was seen before.
    """
    folder = os.environ.get(MODEL_VARIABLE) or read_note(_note(fingerprint), "folder")
    encoder = find_transformer(folder) if folder and Path(folder).is_dir() else None
    if encoder is None or encoder.fingerprint != fingerprint:
        seen = (
            f"the one in {folder} is {encoder.fingerprint[:12]}"
            if encoder
            else "not here"
        )
        raise EncoderError(
            f"its sentence encoder is {fingerprint[:12]}, a model in a folder, and "
            f"{seen}; set {MODEL_VARIABLE} to the right folder"
        )
    return encoder


def _remember(fingerprint: str, folder: Path) -> None:
    path = str(folder.resolve())
    if read_note(_note(fingerprint), "folder") != path:
        write_whole(_note(fingerprint), canonical_json({"folder": path}))


def _note(fingerprint: str) -> Path:
    return cache_folder() / "models" / f"{fingerprint}.json"


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
        files,
        plain_definition(files.tokenizer.read_bytes()),
        width,
        min(MAX_MODEL_TOKENS, _positions(config)),
    )


def _positions(config: dict[str, Any]) -> int:
    """How many tokens a model surely reads. Kin of RoBERTa count positions from behind their
    padding's own.
    """
    most = int(config.get("max_position_embeddings") or MAX_MODEL_TOKENS)
    padding = int(config.get("pad_token_id") or 0)
    return most - 1 - padding
