"""A small causal language model over single characters, and settings that its experts can learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.tiny import LETTERS, tiny_definition

ROWS = len(LETTERS) + 2


def make_language_model(folder: Path) -> Path:
    """Three layers, tied embeddings; a folder as `save_pretrained` writes it."""
    torch.manual_seed(0)
    library: Any = transformers
    config = library.LlamaConfig(
        vocab_size=ROWS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=160,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    library.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tiny_definition())
    return folder
