"""The encoder: a tokenizer and a public integer table, with the fingerprint that all parties must
share.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import canonical_json, sha256
from ridgeway.common.base.settings import (
    DEFAULT,
    FEATURE_LIMIT,
    SENTENCE_SAMPLING,
    Sampling,
    WordFeatures,
)
from ridgeway.common.text.sentence_encoder import (
    SENTENCE,
    USE,
    SentenceEncoder,
    SentenceFeatures,
    named_sentence_encoder,
)
from ridgeway.common.text.tokenizer import Floats, Integers
from ridgeway.common.text.tokens import AnyTokenizer, TextReader, Tokens, tokenizer_of
from ridgeway.common.text.word_sketch import WordSketch

ENCODER_VERSION = 2
WORDS = "+words"
"""What an encoder's name ends in where it has features of words."""

_OPTIONS: dict[str, Any] = {
    "version": ENCODER_VERSION,
    "limit": FEATURE_LIMIT,
    "special_tokens": "dropped",
}


class HashedTable(NamedTuple):
    """A tokenizer, a table and a scale, with their hash."""

    definition: bytes
    table: NDArray[np.int16]
    scale: float
    digest: str

    @classmethod
    def of(
        cls, definition: bytes, table: NDArray[np.int16], scale: float
    ) -> HashedTable:
        shape = struct.pack("<QQ", *table.shape)
        little = np.ascontiguousarray(table, dtype="<i2").data
        digest = sha256(definition, shape, little, struct.pack("<d", scale))
        return cls(definition, table, scale, digest)

    def is_of(self, encoder: TableEncoder) -> bool:
        """Whether an encoder has these very ones."""
        return (
            self.definition is encoder.definition
            and self.table is encoder.table
            and self.scale == encoder.scale
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TableEncoder:
    """text → tokens → integer features.

    name:       what others may call it: `use`, `hf:NAME`, or `local` for what came from a folder;
                `+words` and `+sentence` follow where it has such features.
    definition: of the tokenizer, as it is fingerprinted and shipped.
    table:      V×h int16, no value beyond FEATURE_LIMIT; a token's embedding is `scale ·
                table[id]`.
    options:    the features of words beside those of tokens, if it has any.
    sentence_encoder: reads the text of each sample, if sentences have features.
    hashed:     the hash of tokenizer, table and scale; worked out, which takes long, where an
                encoder does not have those of another one.
    """

    name: str
    definition: bytes
    table: NDArray[np.int16]
    scale: float
    options: WordFeatures | None = None
    sentence_encoder: SentenceEncoder | None = None
    hashed: HashedTable | None = None
    fingerprint: str = field(init=False)
    reader: TextReader = field(init=False)

    def __post_init__(self) -> None:
        if (
            self.table.dtype != np.int16
            or self.table.ndim != 2
            or 0 in self.table.shape
        ):
            raise EncoderError(
                f"an encoder's table is V×h int16, not {self.table.dtype} of shape"
                f" {self.table.shape}"
            )
        if (
            int(self.table.max()) > FEATURE_LIMIT
            or int(self.table.min()) < -FEATURE_LIMIT
        ):
            raise EncoderError(
                f"the encoder's table has values beyond ±{FEATURE_LIMIT}; save it again"
            )
        if not 0 < self.scale < float("inf"):
            raise EncoderError(
                f"an encoder's scale must be positive, not {self.scale!r}"
            )
        tokenizer = tokenizer_of(self.definition)
        if tokenizer.rows > len(self.table):
            raise EncoderError(
                f"the tokenizer has {tokenizer.rows:,} ids, but the table has "
                f"{len(self.table):,} rows; use both of the same model"
            )
        sentences = self.sentence_encoder.tokenizer if self.sentence_encoder else None
        object.__setattr__(self, "reader", TextReader(tokenizer, self.words, sentences))
        hashed = self.hashed
        if hashed is None or not hashed.is_of(self):
            hashed = HashedTable.of(self.definition, self.table, self.scale)
            object.__setattr__(self, "hashed", hashed)
        options = canonical_json(_OPTIONS | self.more)
        fingerprint = sha256(hashed.digest.encode(), options)
        object.__setattr__(self, "fingerprint", fingerprint)

    @property
    def tokenizer(self) -> AnyTokenizer:
        return self.reader.tokenizer

    def read(self, texts: Sequence[str]) -> Tokens:
        """The tokens of texts, and all that the features are made of."""
        return self.reader.read(texts)

    @property
    def rows(self) -> int:
        return int(self.table.shape[0])

    @property
    def width(self) -> int:
        """How many features a sample has, the constant one not counted: those of tokens, of words
        and of sentences.
        """
        sentences = self.sentences
        return self.table_width + (sentences.width if sentences else 0)

    @property
    def table_width(self) -> int:
        """How many of them are of tokens and of words."""
        return int(self.table.shape[1]) + (self.options.width if self.options else 0)

    @property
    def more(self) -> dict[str, Any]:
        """What cards, manifests and the fingerprint say of it beyond its table of tokens."""
        more: dict[str, Any] = {}
        if self.options:
            more["words"] = asdict(self.options)
        if self.sentences:
            more["sentences"] = self.sentences.to_json()
        return more

    @property
    def words(self) -> WordSketch | None:
        """The features of words, if there are any."""
        return WordSketch(self.options) if self.options else None

    @property
    def sentences(self) -> SentenceFeatures | None:
        """The features of sentences, if there are any."""
        reader = self.sentence_encoder
        return SentenceFeatures(reader) if reader else None

    def __repr__(self) -> str:
        return (
            f"<TableEncoder {self.name} {self.rows}×{self.width}"
            f" {self.fingerprint[:12]}>"
        )


def check_kind(card: Mapping[str, Any]) -> None:
    """Raise unless a card or a manifest is of an encoder with a table."""
    for option in ("kind", "cosines"):
        if option in card:
            raise EncoderError(
                f"encoders with {option!r} are not supported; make it again with another"
                " encoder, such as use+words"
            )


def usual_sampling(encoder: TableEncoder) -> Sampling:
    """How documents are sampled unless somebody asks otherwise."""
    return SENTENCE_SAMPLING if encoder.sentences else DEFAULT.sampling


def word_features(card: Mapping[str, Any]) -> WordFeatures | None:
    """What a card or a manifest says of an encoder's features of words."""
    return WordFeatures.of_json(card["words"]) if "words" in card else None


def sentence_features(card: Mapping[str, Any]) -> SentenceEncoder | None:
    """The sentence encoder that a card or a manifest names, found on this machine."""
    if "sentences" not in card:
        return None
    named = card["sentences"]
    return named_sentence_encoder(str(named["name"]), str(named["fingerprint"]))


def with_words(encoder: TableEncoder, options: WordFeatures) -> TableEncoder:
    """The same encoder with features of words beside those of tokens."""
    name = encoder.name if encoder.options else encoder.name + WORDS
    return replace(encoder, name=name, options=options)


def with_sentences(encoder: TableEncoder, reader: SentenceEncoder) -> TableEncoder:
    """The same encoder with features of sentences behind all others."""
    ending = SENTENCE if reader.name == USE else f"{SENTENCE}:{reader.name}"
    return replace(encoder, name=encoder.name + ending, sentence_encoder=reader)


def split_sentence(name: str) -> tuple[str, str | None]:
    """The name or the source of an encoder without that of its sentence encoder, and the latter:
    "" is USE, None if there is none.
    """
    before, ending, after = name.rpartition(SENTENCE)
    if not ending or (after and not after.startswith(":")):
        return name, None
    return before, after.removeprefix(":")


def bare_name(name: str) -> str:
    """The name of an encoder, or its source, without what tells of more than a table of tokens."""
    return split_sentence(name)[0].removesuffix(WORDS)


def of_tokens_alone(encoder: TableEncoder) -> TableEncoder:
    """The same table of tokens alone."""
    name = bare_name(encoder.name)
    return replace(encoder, name=name, options=None, sentence_encoder=None)


def stacked(whole: Floats, of_table: Floats, encoder: TableEncoder) -> Floats:
    """The weights of both routers in one matrix, F×2C; the table knows nothing of sentences."""
    padded = np.zeros_like(whole)
    padded[of_table_rows(encoder)] = of_table
    return np.hstack([whole, padded])


def of_table_rows(encoder: TableEncoder) -> Integers:
    """Where the features of tokens and words stand among all, and the constant one."""
    return np.append(np.arange(encoder.table_width), encoder.width)


def quantise(embeddings: NDArray[Any]) -> tuple[NDArray[np.int16], float]:
    """The integer table nearest to V×h embeddings, and its scale. The same bits on every
    machine.
    """
    largest = float(np.abs(embeddings).max())
    if not np.isfinite(largest) or largest == 0:
        raise EncoderError(
            "the embedding table is all zero or not finite; the file is corrupt"
        )
    scale = largest / FEATURE_LIMIT
    table = np.empty(embeddings.shape, dtype=np.int16)
    for start in range(
        0, len(table), 4096
    ):  # in blocks, since float64 is four times the size
        block = slice(start, start + 4096)
        table[block] = np.rint(embeddings[block].astype(np.float64) / scale)
    return table, scale
