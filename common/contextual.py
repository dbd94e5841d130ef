"""The contextual encoder: a tokenizer and a transformer whose last hidden states, on a public grid, are the features.

What stands here is its card: all that a coordinator needs. The model itself is found, and torch imported, only where
hidden states are computed. Knows nothing of sums or of routing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.encoder import FORMAT, VERSION, Encoder, load_encoder, read_card, save_encoder
from common.errors import EncoderError, FormatError, InputError
from common.files import canonical_json, sha256, whole_folder
from common.model_files import ModelFiles, find_model
from common.settings import CONTEXTUAL, DEFAULT, FEATURE_LIMIT, Sampling
from common.tokenizer import Tokenizer, plain_definition, shared_tokenizer

KIND = "contextual"
FILES = {"encoder.json", "tokenizer.json"}
OPTIONS: dict[str, Any] = {
    "version": VERSION,
    "kind": KIND,
    "limit": FEATURE_LIMIT,
    "special_tokens": "around every window, not counted",
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ContextualEncoder:
    """text → token ids → windows → hidden states → integer features.

    name:       what others may call it: `contextual:NAME`, or `local` for what came from a folder.
    definition: the tokenizer.json, as it is fingerprinted and shipped.
    scale:      a window's feature is the mean of its tokens' hidden states, divided by this and rounded.
    weights:    the hash of the model's config and weights.
    """

    name: str
    definition: bytes
    width: int
    scale: float
    weights: str
    fingerprint: str = field(init=False)
    tokenizer: Tokenizer = field(init=False)

    def __post_init__(self) -> None:
        if self.width < 1 or not 0 < self.scale < float("inf"):
            raise EncoderError(f"an encoder has a width and a positive scale, not {self.width} and {self.scale!r}")
        parts = (self.weights.encode(), struct.pack("<Qd", self.width, self.scale), canonical_json(OPTIONS))
        object.__setattr__(self, "tokenizer", shared_tokenizer(self.definition))
        object.__setattr__(self, "fingerprint", sha256(self.definition, *parts))

    @property
    def rows(self) -> int:
        return self.tokenizer.rows

    def model(self, given: Path | None = None) -> ModelFiles:
        """The model's files on this machine, held against the hash."""
        return find_model(self.weights, self.name, given)

    def __repr__(self) -> str:
        return f"<ContextualEncoder {self.name} width {self.width} {self.fingerprint[:12]}>"


AnyEncoder = Encoder | ContextualEncoder


def convert(name: str, files: ModelFiles) -> ContextualEncoder:
    """The encoder that a model gives; the model is run once to find its scale."""
    from common.transformer import measured

    definition, weights = plain_definition(files.tokenizer.read_bytes()), files.digest()
    width, scale = measured(files, shared_tokenizer(definition))
    return ContextualEncoder(name, definition, width, scale, weights)


def needs_table(encoder: AnyEncoder, what: str) -> Encoder:
    """The encoder, if it is a table; else one sentence on what cannot be done."""
    if isinstance(encoder, ContextualEncoder):
        raise EncoderError(
            f"{what} works on an encoder's table of embeddings, and a contextual encoder has none; it can be done for "
            "encoders such as smollm2 and hf:NAME_OR_DIR alone"
        )
    return encoder


def usual_sampling(encoder: AnyEncoder) -> Sampling:
    """How documents are sampled unless somebody asks otherwise."""
    return CONTEXTUAL if isinstance(encoder, ContextualEncoder) else DEFAULT.sampling


def check_sampling(encoder: AnyEncoder, sampling: Sampling) -> None:
    """Raise unless documents can be sampled so with this encoder."""
    if isinstance(encoder, ContextualEncoder) and not sampling.is_plain:
        raise InputError(
            f"{sampling} is not for a contextual encoder, which reads one window after another; leave the stride and "
            "the documents at 0"
        )


# Folders


def save_any(encoder: AnyEncoder, folder: Path) -> None:
    """Write the folder that `load_any` reads. Of a contextual encoder it holds the card and the tokenizer."""
    if isinstance(encoder, Encoder):
        save_encoder(encoder, folder)
        return
    if folder.exists() and {path.name for path in folder.iterdir()} not in (set(), FILES):
        raise EncoderError(f"{folder} is in use by something that is not such an encoder; name another folder")
    card = {
        "format": FORMAT,
        "version": VERSION,
        "kind": KIND,
        "name": encoder.name,
        "scale": encoder.scale,
        "rows": encoder.rows,
        "width": encoder.width,
        "weights": encoder.weights,
        "fingerprint": encoder.fingerprint,
    }
    with whole_folder(folder) as draft:
        (draft / "tokenizer.json").write_bytes(encoder.definition)
        (draft / "encoder.json").write_bytes(canonical_json(card))


def load_any(folder: Path) -> AnyEncoder:
    """Read a saved encoder of either kind and hold it against its fingerprint."""
    card = read_card(folder)
    if "kind" not in card:
        return load_encoder(folder)
    if card["kind"] != KIND:
        raise FormatError(f"{folder} holds an encoder of kind {card['kind']!r}, which this Ridgeway does not know")
    try:
        encoder = of_card(card, (folder / "tokenizer.json").read_bytes())
    except FileNotFoundError as error:
        raise FormatError(f"{folder} lacks {Path(error.filename).name}; save the encoder again") from None
    except (KeyError, ValueError, TypeError, struct.error) as error:
        raise FormatError(f"the encoder in {folder} is damaged ({error}); save it again") from error
    if encoder.fingerprint != card.get("fingerprint"):
        raise FormatError(
            f"the encoder in {folder} has fingerprint {encoder.fingerprint[:12]} but its card says "
            f"{str(card.get('fingerprint'))[:12]}: a file was changed; save it again"
        )
    return encoder


def of_card(card: dict[str, Any], definition: bytes) -> ContextualEncoder:
    """The encoder that a card, or the manifest of a release, describes."""
    return ContextualEncoder(
        str(card["name"]), definition, int(card["width"]), float(card["scale"]), str(card["weights"])
    )
