"""Encoders as folders that can be carried: encoder.json, tokenizer.json and, of a table,
table.safetensors.
"""

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
    sentence_features,
    word_features,
)
from ridgeway.common.encoding.transformer_encoder import KIND, AnyEncoder, of_card

_FORMAT = "ridgeway.encoder"
_CARD = "encoder.json"
_TOKENIZER = "tokenizer.json"
_TABLE = "table.safetensors"


def save_encoder(encoder: AnyEncoder, folder: Path) -> None:
    """Write the folder that `load_encoder` reads. Of a contextual encoder it holds the card and the
    tokenizer.
    """
    card = {
        "format": _FORMAT,
        "version": ENCODER_VERSION,
        "name": encoder.name,
        "scale": encoder.scale,
        "rows": encoder.rows,
        "width": encoder.width,
        "fingerprint": encoder.fingerprint,
    }
    files = {_TOKENIZER: encoder.definition}
    what = "such an encoder"
    if isinstance(encoder, TableEncoder):
        files[_TABLE], what = save({"table": encoder.table}), "an encoder"
        card |= encoder.more
    else:
        card |= {"kind": KIND, "weights": encoder.weights}
    if folder.exists() and {path.name for path in folder.iterdir()} not in (
        set(),
        {_CARD, *files},
    ):
        raise EncoderError(
            f"{folder} is in use by something that is not {what}; name another folder"
        )
    with whole_folder(folder) as draft:
        for name, content in (*files.items(), (_CARD, canonical_json(card))):
            (draft / name).write_bytes(content)


def read_card(folder: Path) -> dict[str, Any]:
    """The small description of a saved encoder, without its table."""
    try:
        card = json.loads((folder / _CARD).read_bytes())
    except FileNotFoundError:
        raise EncoderError(
            f"{folder} holds no encoder; `ridgeway encoder save` writes one"
        ) from None
    except ValueError as error:
        raise FormatError(
            f"{folder / _CARD} is damaged ({error}); save the encoder again"
        ) from error
    if not isinstance(card, dict) or card.get("format") != _FORMAT:
        raise FormatError(f"{folder / _CARD} does not describe an encoder")
    if card.get("version") != ENCODER_VERSION:
        raise FormatError(
            f"{folder} holds an encoder of version {card.get('version')}, and this"
            f" Ridgeway reads version {ENCODER_VERSION}"
        )
    return card


def load_encoder(folder: Path) -> AnyEncoder:
    """Read a saved encoder of either kind and hold it against its fingerprint."""
    card = read_card(folder)
    if card.get("kind", KIND) != KIND:
        raise FormatError(
            f"{folder} holds an encoder of kind {card['kind']!r}, which this Ridgeway"
            " does not know"
        )
    try:
        definition = (folder / _TOKENIZER).read_bytes()
        encoder: AnyEncoder
        if "kind" in card:
            encoder = of_card(card, definition)
        else:
            table = load((folder / _TABLE).read_bytes())["table"]
            encoder = TableEncoder(
                str(card["name"]),
                definition,
                table,
                float(card["scale"]),
                word_features(card),
                sentence_features(card),
            )
    except FileNotFoundError as error:
        raise FormatError(
            f"{folder} lacks {Path(error.filename).name}; save the encoder again"
        ) from None
    except (SafetensorError, KeyError, ValueError, TypeError, struct.error) as error:
        raise FormatError(
            f"the encoder in {folder} is damaged ({error}); save it again"
        ) from error
    if encoder.fingerprint != card.get("fingerprint"):
        raise FormatError(
            f"the encoder in {folder} has fingerprint {encoder.fingerprint[:12]} but"
            f" its card says {str(card.get('fingerprint'))[:12]}: a file was changed;"
            " save it again"
        )
    return encoder
