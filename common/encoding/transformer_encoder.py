"""The contextual encoder: a tokenizer and a transformer whose last hidden states, on a public grid,
are the features.

What stands here is its card: all that a coordinator needs. The model itself is found, and torch
imported, only where hidden states are computed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import EncoderError, InputError
from ridgeway.common.base.files import canonical_json, sha256
from ridgeway.common.base.settings import (
    CONTEXTUAL_SAMPLING,
    DEFAULT,
    FEATURE_LIMIT,
    SENTENCE_SAMPLING,
    Sampling,
)
from ridgeway.common.encoding.model_files import ModelFiles, find_model
from ridgeway.common.encoding.table_encoder import ENCODER_VERSION, TableEncoder
from ridgeway.common.encoding.tokenizer import Tokenizer, shared_tokenizer

KIND = "contextual"
_OPTIONS: dict[str, Any] = {
    "version": ENCODER_VERSION,
    "kind": KIND,
    "limit": FEATURE_LIMIT,
    "special_tokens": "around every window, not counted",
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ContextualEncoder:
    """text → token ids → windows → hidden states → integer features.

    name:       what others may call it: `contextual:NAME`, or `local` for what came from a folder.
    definition: the tokenizer.json, as it is fingerprinted and shipped.
    scale:      a window's feature is the mean of its tokens' hidden states, divided by this and
                rounded.
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
            raise EncoderError(
                f"an encoder has a width and a positive scale, not {self.width} and"
                f" {self.scale!r}"
            )
        parts = (
            self.weights.encode(),
            struct.pack("<Qd", self.width, self.scale),
            canonical_json(_OPTIONS),
        )
        object.__setattr__(self, "tokenizer", shared_tokenizer(self.definition))
        object.__setattr__(self, "fingerprint", sha256(self.definition, *parts))

    @property
    def rows(self) -> int:
        return self.tokenizer.rows

    def model(self, given: Path | None = None) -> ModelFiles:
        """The model's files on this machine, held against the hash."""
        return find_model(self.weights, self.name, given)

    def __repr__(self) -> str:
        return (
            f"<ContextualEncoder {self.name} width {self.width}"
            f" {self.fingerprint[:12]}>"
        )


AnyEncoder = TableEncoder | ContextualEncoder


def needs_table(encoder: AnyEncoder, what: str) -> TableEncoder:
    """The encoder, if it is a table; else one sentence on what cannot be done."""
    if isinstance(encoder, ContextualEncoder):
        raise EncoderError(
            f"{what} works on an encoder's table of embeddings, and a contextual"
            " encoder has none; it can be done for encoders such as smollm2 and"
            " hf:NAME_OR_DIR alone"
        )
    return encoder


def usual_sampling(encoder: AnyEncoder) -> Sampling:
    """How documents are sampled unless somebody asks otherwise."""
    if isinstance(encoder, ContextualEncoder):
        return CONTEXTUAL_SAMPLING
    return SENTENCE_SAMPLING if encoder.sentences else DEFAULT.sampling


def check_sampling(encoder: AnyEncoder, sampling: Sampling) -> None:
    """Raise unless documents can be sampled so with this encoder."""
    if isinstance(encoder, ContextualEncoder) and not sampling.is_plain:
        raise InputError(
            f"{sampling} is not for a contextual encoder, which reads one window after"
            " another; leave all but its window and max_tokens at 0"
        )


def of_card(card: dict[str, Any], definition: bytes) -> ContextualEncoder:
    """The encoder that a card, or the manifest of a release, describes."""
    return ContextualEncoder(
        str(card["name"]),
        definition,
        int(card["width"]),
        float(card["scale"]),
        str(card["weights"]),
    )
