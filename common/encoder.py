"""The encoder: a tokenizer and a public integer table, with the fingerprint that all parties must share.

Knows numpy and its own folder format. Knows nothing of where tables come from, of corpora or of routing.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from common.errors import EncoderError, FormatError
from common.files import canonical_json, sha256, whole_folder
from common.settings import FEATURE_LIMIT
from common.tokenizer import Tokenizer, shared_tokenizer

FORMAT = "ridgeway.encoder"
VERSION = 1
FILES = {"encoder.json", "tokenizer.json", "table.safetensors"}
OPTIONS: dict[str, Any] = {"version": VERSION, "limit": FEATURE_LIMIT, "special_tokens": "dropped"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoder:
    """text → token ids → integer features.

    name:       what others may call it: `smollm2`, `hf:NAME`, or `local` for what came from a folder.
    definition: the tokenizer.json, as it is fingerprinted and shipped.
    table:      V×h int16, no value beyond FEATURE_LIMIT; a token's embedding is `scale · table[id]`.
    """

    name: str
    definition: bytes
    table: NDArray[np.int16]
    scale: float
    fingerprint: str = field(init=False)
    tokenizer: Tokenizer = field(init=False)

    def __post_init__(self) -> None:
        if self.table.dtype != np.int16 or self.table.ndim != 2 or 0 in self.table.shape:
            raise EncoderError(f"an encoder's table is V×h int16, not {self.table.dtype} of shape {self.table.shape}")
        if int(self.table.max()) > FEATURE_LIMIT or int(self.table.min()) < -FEATURE_LIMIT:
            raise EncoderError(f"the encoder's table has values beyond ±{FEATURE_LIMIT}; convert it again")
        if not 0 < self.scale < float("inf"):
            raise EncoderError(f"an encoder's scale is a positive number, not {self.scale!r}")
        tokenizer = shared_tokenizer(self.definition)
        if tokenizer.rows > len(self.table):
            raise EncoderError(
                f"the tokenizer knows {tokenizer.rows:,} ids but the table has {len(self.table):,} rows; "
                "they are not of one model"
            )
        object.__setattr__(self, "tokenizer", tokenizer)
        object.__setattr__(self, "fingerprint", _fingerprint(self.definition, self.table, self.scale))

    @property
    def rows(self) -> int:
        return int(self.table.shape[0])

    @property
    def width(self) -> int:
        return int(self.table.shape[1])

    def __repr__(self) -> str:
        return f"<Encoder {self.name} {self.rows}×{self.width} {self.fingerprint[:12]}>"


def _fingerprint(definition: bytes, table: NDArray[np.int16], scale: float) -> str:
    little = np.ascontiguousarray(table, dtype="<i2")
    shape = struct.pack("<QQ", *table.shape)
    return sha256(definition, shape, little.data, struct.pack("<d", scale), canonical_json(OPTIONS))


def quantise(embeddings: NDArray[Any]) -> tuple[NDArray[np.int16], float]:
    """The integer table nearest to V×h embeddings, and its scale. The same bits on every machine."""
    largest = float(np.abs(embeddings).max())
    if not np.isfinite(largest) or largest == 0:
        raise EncoderError("the embedding table holds no finite numbers other than zero; the file is damaged")
    scale = largest / FEATURE_LIMIT
    table = np.empty(embeddings.shape, dtype=np.int16)
    for start in range(0, len(table), 4096):  # in blocks, since float64 is four times the size
        block = slice(start, start + 4096)
        table[block] = np.rint(embeddings[block].astype(np.float64) / scale)
    return table, scale


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write the folder that `load_encoder` reads: encoder.json, tokenizer.json, table.safetensors."""
    card = {
        "format": FORMAT,
        "version": VERSION,
        "name": encoder.name,
        "scale": encoder.scale,
        "rows": encoder.rows,
        "width": encoder.width,
        "fingerprint": encoder.fingerprint,
    }
    if folder.exists() and {path.name for path in folder.iterdir()} not in (set(), FILES):
        raise EncoderError(f"{folder} is in use by something that is not an encoder; name another folder")
    with whole_folder(folder) as draft:
        (draft / "tokenizer.json").write_bytes(encoder.definition)
        (draft / "table.safetensors").write_bytes(save({"table": encoder.table}))
        (draft / "encoder.json").write_bytes(canonical_json(card))


def read_card(folder: Path) -> dict[str, Any]:
    """The small description of a saved encoder, without its table."""
    try:
        card = json.loads((folder / "encoder.json").read_bytes())
    except FileNotFoundError:
        raise EncoderError(f"{folder} holds no encoder; `ridgeway encoder save` writes one") from None
    except ValueError as error:
        raise FormatError(f"{folder / 'encoder.json'} is damaged ({error}); save the encoder again") from error
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise FormatError(f"{folder / 'encoder.json'} does not describe an encoder")
    if card.get("version") != VERSION:
        raise FormatError(
            f"{folder} holds an encoder of version {card.get('version')}, and this Ridgeway reads version {VERSION}"
        )
    return card


def load_encoder(folder: Path) -> Encoder:
    """Read a saved encoder and hold it against its fingerprint."""
    card = read_card(folder)
    try:
        definition = (folder / "tokenizer.json").read_bytes()
        table = load((folder / "table.safetensors").read_bytes())["table"]
        encoder = Encoder(str(card["name"]), definition, table, float(card["scale"]))
    except FileNotFoundError as error:
        raise FormatError(f"{folder} lacks {Path(error.filename).name}; save the encoder again") from None
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise FormatError(f"the encoder in {folder} is damaged ({error}); save it again") from error
    if encoder.fingerprint != card["fingerprint"]:
        raise FormatError(
            f"the encoder in {folder} has fingerprint {encoder.fingerprint[:12]} but its card says "
            f"{str(card['fingerprint'])[:12]}: a file was changed; save it again"
        )
    return encoder
