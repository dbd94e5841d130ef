"""Small transformers made on the spot: a bidirectional one with special tokens around a text, a causal one without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import transformers

from ridgeway.client.sums.accumulate import Accumulator
from ridgeway.common.encoding.encoder_sources import converted
from ridgeway.common.encoding.model_files import model_files
from ridgeway.common.encoding.transformer import Transformer, transformer
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
from tests.support.tiny import LETTERS, SPECIAL, tiny_definition

WIDTH = 32
ROWS = len(LETTERS) + 2
KINDS = ("bert", "llama")
Adding = TypeVar("Adding", bound=Accumulator)
SHAPE: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
}


def make_model(folder: Path, kind: str = "bert", seed: int = 0, **changes: Any) -> Path:
    """A folder as `save_pretrained` writes it, with a tokenizer of single characters."""
    torch.manual_seed(seed)
    options = {**SHAPE, "initializer_range": 0.3, **changes}
    library: Any = transformers
    if kind == "bert":
        library.BertModel(library.BertConfig(**options)).save_pretrained(folder)
    else:
        library.LlamaModel(library.LlamaConfig(num_key_value_heads=2, **options)).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(with_surroundings() if kind == "bert" else tiny_definition())
    return folder


def with_surroundings() -> bytes:
    """The tiny tokenizer, with the special token before and after every text."""
    special, text = {"SpecialToken": {"id": SPECIAL, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    definition = json.loads(tiny_definition())
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [special, text, special],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {SPECIAL: {"id": SPECIAL, "ids": [0], "tokens": [SPECIAL]}},
    }
    return json.dumps(definition).encode()


def tiny_contextual(folder: Path, kind: str = "bert", seed: int = 0) -> ContextualEncoder:
    """The encoder of a small model in a new folder; its model is loaded, so that no test has to find it."""
    encoder = converted("local", model_files(str(make_model(folder, kind, seed))))
    transformer(encoder, "cpu", folder)
    return encoder


@pytest.fixture(scope="module", params=KINDS, name="folder")
def model_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a small model of each kind will lie; test modules that import this fixture have it."""
    return tmp_path_factory.mktemp("models") / str(request.param)


@pytest.fixture(scope="module", name="encoder")
def tiny_model_encoder(folder: Path) -> ContextualEncoder:
    return tiny_contextual(folder, folder.name)


def loaded(encoder: ContextualEncoder) -> Transformer:
    return transformer(encoder, "cpu")


@cache
def plain_model(folder: Path) -> Any:
    """The same weights in float64, as transformers runs them by itself."""
    return transformers.AutoModel.from_pretrained(str(folder)).double().eval()


def plain_states(folder: Path, ids: list[int]) -> torch.Tensor:
    """The hidden states of one window's own tokens, from the definition: no batch, no padding."""
    around = [0] if (folder / "tokenizer.json").read_bytes() == with_surroundings() else []
    with torch.no_grad():
        states: torch.Tensor = plain_model(folder)(torch.tensor([around + ids + around])).last_hidden_state[0]
    return states[len(around) : len(around) + len(ids)]


def a_corpus(seed: int, count: int) -> list[list[int]]:
    """Documents of random ids, some of them empty."""
    rng = np.random.default_rng(seed)
    return [rng.integers(2, ROWS, rng.integers(0, 60)).tolist() for _ in range(count)]


def added(accumulator: Adding, texts: Sequence[Sequence[int]]) -> Adding:
    """The accumulator, after it took in these documents."""
    ids = np.array([number for text in texts for number in text], dtype=np.int32)
    accumulator.add(ids, np.array([len(text) for text in texts], dtype=np.int64))
    return accumulator
