"""A language model in a compact folder: the quantised blocks of a GGUF file under Hugging Face's names of tensors.

    model-1.safetensors …  raw blocks, each file small enough to be carried
    packed.json            kind and shape of every tensor, and the hash of the file they come from
    config.json, tokenizer.json

Unpacked, the tensors are, bit for bit, the float32 values that the GGUF file means; `gguf` is needed only to pack.
Knows numpy, safetensors and the two kinds of blocks that SmolLM2's file holds. Knows nothing of torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import EncoderError, FormatError
from common.files import canonical_json, sha256_of_file, whole_folder, write_whole
from common.hub import imported

CONTENTS = "packed.json"
FORMAT = {"format": "ridgeway packed model", "version": 1}
LARGEST_FILE = 40_000_000
BLOCK = 32
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
CONFIG = {
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "max_position_embeddings": "llama.context_length",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
    "rope_theta": "llama.rope.freq_base",
    "vocab_size": "llama.vocab_size",
}


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor as it lies in a file. shape: of the tensor that it means."""

    name: str
    kind: str
    shape: tuple[int, ...]
    raw: Bytes


# Blocks → numbers


def unpacked(tensor: Packed) -> Floats:
    """The float32 values that blocks mean."""
    return KINDS[tensor.kind](tensor.raw).reshape(tensor.shape)


def _float32(raw: Bytes) -> Floats:
    return raw.view("<f4").astype(np.float32)


def _q8_0(raw: Bytes) -> Floats:
    """Blocks of a scale and 32 whole numbers of 8 bits."""
    blocks = raw.reshape(-1, 2 + BLOCK)
    return _half(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_1(raw: Bytes) -> Floats:
    """Blocks of a scale, a least value and 32 numbers of 4 bits: the low halves of 16 bytes, then the high ones."""
    blocks = raw.reshape(-1, 4 + BLOCK // 2)
    halves = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return _half(blocks[:, :2]) * halves.astype(np.float32) + _half(blocks[:, 2:4])


def _half(pairs: Bytes) -> Floats:
    return np.ascontiguousarray(pairs).view("<f2").astype(np.float32)


KINDS = {"F32": _float32, "Q8_0": _q8_0, "Q4_1": _q4_1}


# A GGUF file → a folder


def pack(source: Path, tokenizer: bytes, folder: Path) -> None:
    """Write the compact folder of a GGUF file of Llama's kind."""
    reader = imported("gguf", "client").GGUFReader(source)
    config = {key: reader.fields[field].contents() for key, field in CONFIG.items()}
    heads = {"attn_q": int(config["num_attention_heads"]), "attn_k": int(config["num_key_value_heads"])}
    tensors = [_packed(tensor, heads) for tensor in reader.tensors]
    tied = all(tensor.name != "lm_head.weight" for tensor in tensors)
    with whole_folder(folder) as made:
        write_whole(made / "tokenizer.json", tokenizer)
        write_whole(
            made / "config.json", canonical_json({"model_type": "llama", **config, "tie_word_embeddings": tied})
        )
        _write(tensors, sha256_of_file(source), made)


def _packed(tensor: Any, heads: Mapping[str, int]) -> Packed:
    kind, part = tensor.tensor_type.name, tensor.name.removesuffix(".weight").rpartition(".")[2]
    if kind not in KINDS or part not in NAMES:
        raise EncoderError(
            f"the tensor {tensor.name} of kind {kind} is not known here; only Llama's own in {', '.join(KINDS)} are"
        )
    shape = tuple(int(size) for size in reversed(tensor.shape))
    raw = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(shape[0], -1)
    raw = _halves_apart(raw, heads[part]) if part in heads else raw
    return Packed(_name(tensor.name, part), kind, shape, raw)


def _name(name: str, part: str) -> str:
    block = re.match(r"blk\.(\d+)\.", name)
    return f"model.layers.{block[1]}.{NAMES[part]}.weight" if block else f"{NAMES[part]}.weight"


def _halves_apart(rows: Bytes, heads: int) -> Bytes:
    """GGUF turns neighbouring rows of a head together, Hugging Face the rows of its two halves."""
    return np.ascontiguousarray(rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape))


def _write(tensors: list[Packed], source: str, folder: Path) -> None:
    from safetensors.numpy import save_file

    listed: dict[str, Any] = {}
    for number, group in enumerate(_groups(tensors), 1):
        file = f"model-{number}.safetensors"
        save_file({tensor.name: tensor.raw for tensor in group}, folder / file)
        listed |= {each.name: {"file": file, "kind": each.kind, "shape": list(each.shape)} for each in group}
    write_whole(folder / CONTENTS, canonical_json({**FORMAT, "source": source, "tensors": listed}))


def _groups(tensors: list[Packed]) -> Iterator[list[Packed]]:
    group: list[Packed] = []
    for tensor in tensors:
        if group and sum(each.raw.nbytes for each in [*group, tensor]) > LARGEST_FILE:
            yield group
            group = []
        group.append(tensor)
    yield group


# A folder → numbers


def unpack(folder: Path) -> dict[str, Floats]:
    """Every tensor of a compact folder, by its name. Raises FormatError if something of it is missing."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    tensors = contents(folder)["tensors"]
    try:
        files = {name: load_file(folder / name) for name in {each["file"] for each in tensors.values()}}
        return {
            name: unpacked(Packed(name, each["kind"], tuple(each["shape"]), files[each["file"]][name]))
            for name, each in tensors.items()
        }
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise FormatError(f"{folder} is not a whole packed model ({error}); carry all of its files") from error


def contents(folder: Path) -> dict[str, Any]:
    """What packed.json says. Raises FormatError if it is of another kind."""
    found: dict[str, Any] = json.loads((folder / CONTENTS).read_bytes())
    if {key: found.get(key) for key in FORMAT} != FORMAT:
        raise FormatError(f"{folder} is a packed model of another version; pack it again with this one")
    return found
