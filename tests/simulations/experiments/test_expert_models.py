"""The model that experts start from: out of a GGUF file, bit for bit what the file means."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ridgeway.simulations.experiments.expert_training import from_gguf

KINDS = {"Q4_1": gguf.GGMLQuantizationType.Q4_1, "Q8_0": gguf.GGMLQuantizationType.Q8_0}
WIDTH, INNER, ROWS, HEADS, SHARED, LAYERS = 64, 96, 44, 4, 2, 2
SHAPES = {
    "attn_norm": (WIDTH,),
    "ffn_norm": (WIDTH,),
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH // 2, WIDTH),
    "attn_v": (WIDTH // 2, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}


def drawn(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(
        shape, dtype=np.float32
    ) / np.float32(8)


def write_gguf(path: Path, kind: str = "Q4_1") -> dict[str, NDArray[np.float32]]:
    """A small model's file, and the values that it means by its own names."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(SHARED)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(ROWS)
    layers = {
        f"blk.{layer}.{name}": shape
        for layer in range(LAYERS)
        for name, shape in SHAPES.items()
    }
    meant = {}
    for seed, (name, shape) in enumerate(
        {"token_embd": (ROWS, WIDTH), **layers, "output_norm": (WIDTH,)}.items()
    ):
        values = drawn(shape, seed)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
            meant[name] = values
        else:
            raw = gguf.quants.quantize(values, KINDS[kind])
            writer.add_tensor(f"{name}.weight", raw, raw_dtype=KINDS[kind])
            meant[name] = gguf.quants.dequantize(raw, KINDS[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_what_its_file_means(kind: str, tmp_path: Path) -> None:
    """Every tensor arrives under its other name, unchanged; rows of queries and keys in the other
    library's order.
    """
    meant = write_gguf(tmp_path / "a.gguf", kind)
    model = from_gguf(tmp_path / "a.gguf")
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert np.array_equal(state["model.embed_tokens.weight"], meant["token_embd"])
    assert np.array_equal(state["lm_head.weight"], meant["token_embd"])
    assert np.array_equal(state["model.norm.weight"], meant["output_norm"])
    assert np.array_equal(
        state["model.layers.1.mlp.down_proj.weight"], meant["blk.1.ffn_down"]
    )
    assert np.array_equal(
        state["model.layers.0.self_attn.v_proj.weight"], meant["blk.0.attn_v"]
    )
    rows = [
        head * 16 + half * 8 + index
        for head in range(HEADS)
        for index in range(8)
        for half in (0, 1)
    ]
    assert np.array_equal(
        state["model.layers.1.self_attn.q_proj.weight"][rows], meant["blk.1.attn_q"]
    )
    assert model.config.rope_parameters["rope_theta"] == 10_000.0
    assert model.dtype == torch.float32
