"""Encoders as folders that can be carried: encoder.json, tokenizer.json, table.safetensors."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load, save

from ridgeway.common.base.errors import EncoderError, FormatError
from ridgeway.common.base.files import canonical_json, whole_folder
from ridgeway.common.encoding.table_encoder import (
    ENCODER_VERSION,
    TableEncoder,
    check_kind,
    sentence_features,
    word_features,
)

_FORMAT = "ridgeway.encoder"
_CARD = "encoder.json"
_TOKENIZER = "tokenizer.json"
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
    files = {_TOKENIZER: encoder.definition, _TABLE: save({"table": encoder.table})}
    if folder.exists() and {path.name for path in folder.iterdir()} not in (
        set(),
        {_CARD, *files},
    ):
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
    try:
        encoder = TableEncoder(
            str(card["name"]),
            (folder / _TOKENIZER).read_bytes(),
            load((folder / _TABLE).read_bytes())["table"],
            float(card["scale"]),
            word_features(card),
            sentence_features(card),
        )
    except FileNotFoundError as error:
        raise FormatError(
            f"{Path(error.filename).name} is missing in {folder}; save the encoder "
            "again"
        ) from None
    except (SafetensorError, KeyError, ValueError, TypeError, struct.error) as error:
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
