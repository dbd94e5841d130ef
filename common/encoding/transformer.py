"""A transformer on a device: rows of token ids in, last hidden states out.

The one place where a model is loaded and run; torch and transformers are imported by the functions
that need them.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from ridgeway.common.base.devices import is_out_of_memory
from ridgeway.common.base.errors import DeviceError, EncoderError, first_line
from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.encoding.model_files import ModelFiles, imported
from ridgeway.common.encoding.model_rows import Frame, Rows
from ridgeway.common.encoding.tokenizer import Ids, Tokenizer
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
from ridgeway.common.encoding.windows import longest_window

if TYPE_CHECKING:
    import torch

EXTRA = "contextual"
PROBED_WINDOW = 64
PROBED_TOKENS = 4096
WALK_STRIDE = 40_503
"""How the walk through the vocabulary steps: about 0.618 of 2¹⁶, so that few ids come twice."""
UNBOUNDED_POSITIONS = 1 << 30
PASS_TOKENS = {"cpu": 2048, "cuda": 65_536}
"""How many tokens a model reads in one pass, unless the device turns out to be too small for that.
"""
MAX_STATE = np.iinfo(np.int16).max

_lock = threading.Lock()
_loaded: dict[tuple[str, str], Transformer] = {}
_counting = threading.Lock()
_inside = 0
_before = 1
"""How many threads are inside `one_thread`, and how many torch had before."""


class Transformer:
    """A model that is ready to run: bfloat16 on a GPU, float32 on the CPU.

    executor: the one thread that a GPU is best used from, since its libraries plan their work anew
              for each thread.
    """

    def __init__(self, model: Any, device: str, tokenizer: Tokenizer) -> None:
        self._model = model
        self.device = device
        self._prefix, self._suffix = tokenizer.surroundings
        self._positions = _positions(model)
        self.pass_tokens = PASS_TOKENS[device.partition(":")[0]]
        self.executor = None
        if device != "cpu":
            import torch

            self.executor = ThreadPoolExecutor(
                1, "gpu", initializer=torch.cuda.set_device, initargs=(device,)
            )
        self._copying: torch.cuda.Stream | None = None

    def frame(self, window: int, most: int | None = None) -> Frame:
        """How windows are laid out for this model. Raises if the longest, of `most` tokens, could
        not be read.
        """
        frame = Frame(self._prefix, self._suffix, window, self._positions)
        longest = (most or longest_window(window)) + frame.around
        if longest > self._positions:
            raise EncoderError(
                f"the model reads {self._positions:,} tokens at once, and windows of"
                f" {window} need up to {longest:,}; choose a smaller window"
            )
        return frame

    def hidden(self, rows: Rows) -> torch.Tensor:
        """rows × length × width: the last hidden states. Asynchronous on a GPU."""
        import torch

        ids = self._there(rows.ids).long()
        mask = (
            self._there(np.arange(rows.shape.length) < rows.used[:, None]).long()
            if rows.shape.padded
            else None
        )
        with torch.inference_mode():
            hidden: torch.Tensor = self._model(
                input_ids=ids, attention_mask=mask
            ).last_hidden_state
        return hidden

    def means(self, rows: Rows) -> torch.Tensor:
        """rows × width float32: each window's mean over its own tokens; nothing else of a row
        counts.
        """
        import torch

        hidden = self.hidden(rows)
        if rows.shape.padded:
            hidden = hidden.masked_fill(~self._there(rows.own)[:, :, None], 0.0)
        else:
            hidden = hidden[:, rows.first : rows.first + int(rows.counts[0])]
        return hidden.sum(1, dtype=torch.float32) / self._there(rows.counts)[:, None]

    def states(self, rows: Rows) -> NDArray[np.float32]:
        """The hidden states of the windows' own tokens, a row each, one window after the other."""
        found: NDArray[np.float32] = (
            self.hidden(rows)[self._there(rows.own)].float().cpu().numpy()
        )
        return found

    def _there(self, array: NDArray[Any]) -> torch.Tensor:
        """An array on the device. On a GPU it is copied on a stream of its own, so neither waits
        for the other.
        """
        import torch

        tensor = torch.from_numpy(array)
        if self.device == "cpu":
            return tensor
        self._copying = self._copying or torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._copying):
            there = tensor.to(self.device)
        there.record_stream(torch.cuda.current_stream(self.device))
        return there


def _positions(model: Any) -> int:
    """How many tokens a model reads at once. Kin of RoBERTa count positions from behind their
    padding's own.
    """
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not most:
        return UNBOUNDED_POSITIONS
    padding = [
        part.padding_idx
        for name, part in model.named_modules()
        if name.endswith("position_embeddings")
        and getattr(part, "padding_idx", None) is not None
    ]
    return int(most) - 1 - max(padding) if padding else int(most)


def transformer(
    encoder: ContextualEncoder, device: str, given: Path | None = None
) -> Transformer:
    """The encoder's model on a device; found, or taken from the folder `given`, verified and loaded
    once a process.
    """
    key = (encoder.fingerprint, device)
    with _lock:
        if key not in _loaded:
            imported("torch", EXTRA)  # what is missing first is said first
            model = _load(encoder.model(given), device)
            _loaded[key] = Transformer(model, device, encoder.tokenizer)
        elif given is not None:
            # a folder that is named must be right, even where it is not needed
            encoder.model(given)
        return _loaded[key]


def grid_states(
    model: Transformer, frame: Frame, scale: float, ids: Ids
) -> NDArray[np.int16]:
    """The hidden state of every token of one text on the public grid. The passes depend on this
    text alone.
    """
    lengths = np.array([len(ids)])
    pieces: dict[int, NDArray[np.float32]] = {}
    for rows in frame.rows(ids, lengths):
        step = max(1, model.pass_tokens // rows.shape.length)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            cuts = np.cumsum(part.counts)[:-1]
            pieces.update(
                zip(
                    part.places.tolist(),
                    np.split(_fitting(model, part), cuts),
                    strict=True,
                )
            )
    states = np.rint(
        np.concatenate([pieces[place] for place in sorted(pieces)]) / np.float32(scale)
    )
    if not np.abs(states).max(initial=0.0) <= MAX_STATE:
        raise EncoderError(
            "the model gave a hidden state that is far beyond all that its scale was"
            " made for, or no number at all; its files may be damaged: fetch the model"
            " again"
        )
    return states.astype(np.int16)


def _fitting(model: Transformer, rows: Rows) -> NDArray[np.float32]:
    """The hidden states of rows, in as many passes as the device's memory asks for."""
    try:
        return model.states(rows)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if len(rows) == 1:
            raise too_little_memory(
                f"one window of {rows.shape.length} tokens"
            ) from error
    half = len(rows) // 2
    return np.concatenate([_fitting(model, rows[:half]), _fitting(model, rows[half:])])


def too_little_memory(what: str) -> DeviceError:
    return DeviceError(
        f"the GPU has too little free memory for the model and {what}; free"
        " some, or use --device cpu"
    )


def measured(files: ModelFiles, tokenizer: Tokenizer) -> tuple[int, float]:
    """A model's width and public scale: what it gives for a walk through its vocabulary, in float32
    on the CPU.

    The largest hidden state is doubled and rounded up to a power of two, so that all machines
    agree.
    """
    model = Transformer(_load(files, "cpu"), "cpu", tokenizer)
    # ids from all over the vocabulary, special tokens left out; always the same ones
    plain = tokenizer.plain_ids
    ids = plain[np.arange(PROBED_TOKENS, dtype=np.int64) * WALK_STRIDE % len(plain)]
    lengths = np.full(PROBED_TOKENS // PROBED_WINDOW, PROBED_WINDOW)
    [rows] = model.frame(PROBED_WINDOW, PROBED_WINDOW).rows(ids, lengths)
    parts = [
        model.states(rows[start : start + 16]) for start in range(0, len(rows), 16)
    ]
    largest = max(float(np.abs(part).max()) for part in parts)
    if not 0 < largest < math.inf:
        raise EncoderError(
            f"the model in {files.folder} gives no finite numbers; its files are"
            " damaged"
        )
    return parts[0].shape[1], 2.0 ** math.ceil(math.log2(2 * largest)) / FEATURE_LIMIT


def _load(files: ModelFiles, device: str) -> Any:
    torch = imported("torch", EXTRA)
    transformers = imported("transformers", EXTRA)
    kind = torch.float32 if device == "cpu" else torch.bfloat16
    word = (
        "dtype"
        if int(transformers.__version__.partition(".")[0]) >= 5
        else "torch_dtype"
    )
    options = {
        word: kind,
        "use_safetensors": True,
        "trust_remote_code": False,
        "local_files_only": True,
    }
    try:
        with quiet(transformers):
            model, told = transformers.AutoModel.from_pretrained(
                str(files.folder), output_loading_info=True, **options
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
    if model.config.is_encoder_decoder:
        raise EncoderError(
            f"the model in {files.folder} has a decoder beside its encoder; name a"
            " model with only one"
        )
    # a pooler comes after the states
    missing = sorted(name for name in told["missing_keys"] if "pooler" not in name)
    if missing:
        raise EncoderError(
            f"the files in {files.folder} lack weights of the model, such as"
            f" {missing[0]}"
        )
    model.config.use_cache = False
    try:
        return model.eval().requires_grad_(False).to(device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise too_little_memory("its weights") from error


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """What the library says while it loads is not the user's concern."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch keep to the thread it is called in, so that the number of cores does not change a
    bit.

    As many threads as there are may be inside at once; the last to leave puts things back.
    """
    import torch

    global _inside, _before
    with _counting:
        if _inside == 0:
            _before = torch.get_num_threads()
        _inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _counting:
            _inside -= 1
            if _inside == 0:
                torch.set_num_threads(_before)
