"""A small transformer made on the spot, with special tokens around a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.tiny import LETTERS, SPECIAL, tiny_definition

WIDTH = 32
ROWS = len(LETTERS) + 2
SHAPE: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
    "initializer_range": 0.3,
}


def make_model(folder: Path, seed: int = 0) -> Path:
    """A folder as `save_pretrained` writes it, with a tokenizer of single characters."""
    torch.manual_seed(seed)
    library: Any = transformers
    library.BertModel(library.BertConfig(**SHAPE)).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(with_surroundings())
    return folder


def with_surroundings() -> bytes:
    """The tiny tokenizer, with the special token before and after every text."""
    special, text = (
        {"SpecialToken": {"id": SPECIAL, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    )
    definition = json.loads(tiny_definition())
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [special, text, special],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {SPECIAL: {"id": SPECIAL, "ids": [0], "tokens": [SPECIAL]}},
    }
    return json.dumps(definition).encode()
