"""The model that experts start from: out of a GGUF file, bit for bit what the file means."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.encoding.encoder_sources import smollm2_file
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import shared_tokenizer
from ridgeway.simulations.experiments.expert_training import definition_of, from_gguf, load

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


def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) / np.float32(8)


def write_gguf(path: Path, kind: str = "Q4_1") -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
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
    layers = {f"blk.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in SHAPES.items()}
    meant = {}
    for seed, (name, shape) in enumerate({"token_embd": (ROWS, WIDTH), **layers, "output_norm": (WIDTH,)}.items()):
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
    """Every tensor arrives under its other name, unchanged; rows of queries and keys in the other library's order."""
    meant = write_gguf(tmp_path / "a.gguf", kind)
    model = from_gguf(tmp_path / "a.gguf")
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert np.array_equal(state["model.embed_tokens.weight"], meant["token_embd"])
    assert np.array_equal(state["lm_head.weight"], meant["token_embd"])
    assert np.array_equal(state["model.norm.weight"], meant["output_norm"])
    assert np.array_equal(state["model.layers.1.mlp.down_proj.weight"], meant["blk.1.ffn_down"])
    assert np.array_equal(state["model.layers.0.self_attn.v_proj.weight"], meant["blk.0.attn_v"])
    rows = [head * 16 + half * 8 + place for head in range(HEADS) for place in range(8) for half in (0, 1)]
    assert np.array_equal(state["model.layers.1.self_attn.q_proj.weight"][rows], meant["blk.1.attn_q"])
    assert model.config.rope_parameters["rope_theta"] == 10_000.0
    assert model.dtype == torch.float32


def test_a_folder_without_a_model_is_one_sentence(tmp_path: Path) -> None:
    """Not a traceback of the library's."""
    with pytest.raises(EncoderError, match="no language model can be loaded"):
        load(tmp_path, "cpu")


def test_smollm2_speaks_english(smollm2: TableEncoder, smollm2_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real file: exact where it can be compared, and a model that predicts plain prose."""
    monkeypatch.setenv("RIDGEWAY_CACHE", str(smollm2_cache))
    assert definition_of(None) == smollm2.definition
    model = load(None, "cpu")
    table = model.get_input_embeddings().weight.detach().numpy()
    assert np.abs(np.rint(table / smollm2.scale) - smollm2.table).max() == 0
    text = "The capital of France is Paris. It is the largest city in the country, and it lies on the river Seine."
    ids = torch.tensor([[0, *shared_tokenizer(smollm2.definition).encode(text)]])
    with torch.inference_mode():
        cost = model(input_ids=ids, labels=ids).loss.item()
    assert cost < 3.0


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_smollm2_is_what_transformers_makes_of_the_file() -> None:
    """Its own reader of GGUF files, which needs accelerate, gives equal tensors."""
    path = smollm2_file()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name).state_dict()
    ours = load(None, "cpu").state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name].float()) for name in ours)
