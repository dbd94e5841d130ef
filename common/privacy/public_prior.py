"""The public prior: where documents lie and how they vary, learnt from text that anybody may read,
in integers.

    public texts → mean embeddings → their mean μ and covariance S → μ and P = S^(−1/2), rounded → a
    file

Where the encoder reads sentences, their vectors have a mean and a whitening of their own, learnt
from rows of tokens that are drawn at random, as frequent as the tokenizer says.

A document is seen through the prior before noise is added (`document_vectors`), so that a small
amount of noise is enough. The prior comes with the terms of a round. It cannot weaken a holder's
privacy, whatever stands in it: every document is bounded in integers afterwards. A bad one costs
accuracy alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ridgeway.common.base.errors import EncoderMismatch, FormatError, InputError
from ridgeway.common.base.files import canonical_json, sha256, write_whole
from ridgeway.common.base.settings import FEATURE_LIMIT, PRIVATE_ENCODER
from ridgeway.common.privacy.built_in_text import built_in_text, this_machine
from ridgeway.common.text.sentence_encoder import UseEncoder
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import Ids

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_FORMAT = "ridgeway.prior"
_VERSION = 1
_PREFIXES = ("", "sentence_")
"""What stands before the names of a whitening's numbers: that of tokens, that of sentences."""
MEAN_BITS = 8
"""A document's mean embedding is rounded to this many binary places of the table's unit."""

MAX_ROW_SUM = 1 << 31
"""No row of the whitening has so large a sum of absolute values: then a float64 product with the
difference of two means, which is at most 2²¹, stays below 2⁵³ and is exact in whatever order a
machine adds.
"""

MAX_SCALE_BITS = 64
MAX_CHUNK_TOKENS = 1 << 17
"""Rows of the table are summed in 32 bits up to this many, and then in 64."""

FREQUENT_IDS = 100
TOKENS_PER_TEXT = 64
"""Beside public documents, tokens drawn by Zipf's law, of this rank and number, say how any text
may vary: vocabularies give small ids to frequent tokens.
"""

MIN_GROUP_TEXTS = 20

SALADS = 6000
SALAD_TOKENS = 8
SALAD_RIDGE = 0.3
"""The prior of sentences is that of so many rows of so many random tokens, with this share of the
mean variance added everywhere. Held-out text of four sets is routed as well with it as with a prior
of built-in text.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Whitening:
    """z = 2^(−scale_bits) · matrix · (x − mean): in z, public text varies alike in all directions.

    mean:   h integers, in units of 2⁻⁸ of a feature's.
    matrix: h×h int32; scaled so that ‖z‖² is about 1 for public text, with x in a feature's unit.
    """

    mean: Integers
    matrix: NDArray[np.int32]
    scale_bits: int

    def __post_init__(self) -> None:
        width = self.mean.size
        if (
            self.mean.shape != (width,)
            or self.matrix.shape != (width, width)
            or not width
        ):
            raise FormatError(
                f"a prior has h and h×h numbers, not {self.mean.shape} and "
                f"{self.matrix.shape}"
            )
        if self.mean.dtype != np.int64 or self.matrix.dtype != np.int32:
            raise FormatError(
                f"a prior is int64 and int32, not {self.mean.dtype} and"
                f" {self.matrix.dtype}"
            )
        if (
            np.abs(self.mean).max() > FEATURE_LIMIT << MEAN_BITS
            or not 0 <= self.scale_bits <= MAX_SCALE_BITS
        ):
            raise FormatError(
                "the prior's mean or scale is out of range; make it again"
            )
        if np.abs(self.matrix.astype(np.int64)).sum(axis=1).max() >= MAX_ROW_SUM:
            raise FormatError(
                "the prior's whitening is too large for exact arithmetic; make it again"
            )

    @property
    def width(self) -> int:
        return self.mean.size

    @property
    def numbers(self) -> tuple[memoryview, memoryview]:
        return (
            np.ascontiguousarray(self.mean, "<i8").data,
            np.ascontiguousarray(self.matrix, "<i4").data,
        )

    @property
    def centre(self) -> Floats:
        """The mean in a feature's unit."""
        return np.asarray(np.ldexp(self.mean.astype(np.float64), -MEAN_BITS))

    @property
    def scaled(self) -> Floats:
        """The matrix as it is meant."""
        return np.asarray(np.ldexp(self.matrix.astype(np.float64), -self.scale_bits))

    def whitened(self, sums: Integers, counts: Integers) -> Integers:
        """matrix · (x − mean) for x = sums/counts, rounded to 2⁻⁸; zeros where nothing was counted.

        Exact: a float64 product of integers that stay below 2⁵³.
        """
        divisor = np.maximum(counts, 1)[:, None]
        means = ((sums << MEAN_BITS + 1) + divisor) // (2 * divisor)
        means[counts == 0] = self.mean
        apart = (means - self.mean).astype(np.float64)
        return np.asarray((apart @ self.matrix.T.astype(np.float64)).astype(np.int64))


@dataclass(frozen=True, eq=False, repr=False)
class PublicPrior:
    """How the tokens of documents are whitened, and their sentences, if the encoder reads them.

    encoder: the fingerprint of the encoder that it is for.
    """

    encoder: str
    tokens: Whitening
    sentences: Whitening | None = None

    @cached_property
    def fingerprint(self) -> str:
        shape = canonical_json({"version": _VERSION} | self.facts())
        numbers = (number for block in self.blocks for number in block.numbers)
        return sha256(_FORMAT.encode(), shape, *numbers)

    @property
    def blocks(self) -> tuple[Whitening, ...]:
        return (self.tokens, self.sentences) if self.sentences else (self.tokens,)

    @property
    def width(self) -> int:
        return sum(block.width for block in self.blocks)

    def facts(self) -> dict[str, Any]:
        """What it says beside its numbers."""
        bits = {
            f"{prefix}scale_bits": block.scale_bits
            for prefix, block in zip(_PREFIXES, self.blocks, strict=False)
        }
        return {"encoder": self.encoder, **bits}

    def must_fit(self, encoder: TableEncoder) -> None:
        """Raise unless the prior was made with this encoder."""
        if self.encoder != encoder.fingerprint:
            raise EncoderMismatch(
                f"the prior is for encoder {self.encoder[:12]}, not {encoder.name} "
                f"({encoder.fingerprint[:12]}); make one with `ridgeway prior make`"
            )

    def __repr__(self) -> str:
        return f"<PublicPrior {self.width} {self.fingerprint[:12]}>"


def built_in_prior(encoder: TableEncoder) -> PublicPrior:
    """The prior of text that this machine has anyway. Machines may differ in it, so one is made and
    handed on.
    """
    return make_prior(encoder, list(built_in_text(this_machine()).values()))


def make_prior(encoder: TableEncoder, groups: Sequence[Sequence[str]]) -> PublicPrior:
    """The prior of public texts; how groups of them differ from each other does not count as
    variation.

    Groups of a few texts are taken together. Sentences need no text.
    """
    check_private_encoder(encoder)
    large = [group for group in groups if len(group) >= MIN_GROUP_TEXTS]
    small = [text for group in groups if len(group) < MIN_GROUP_TEXTS for text in group]
    means = [_means(encoder, group) for group in (*large, small)]
    means = [vectors for vectors in means if len(vectors)]
    if not means:
        raise InputError("no text for a prior; give a folder of public text")
    centre = np.mean([vectors.mean(axis=0) for vectors in means], axis=0)
    apart = [vectors - vectors.mean(axis=0) for vectors in means]
    within = sum(part.T @ part for part in apart) / sum(map(len, means))
    whitening = _inverse_root(within + _token_covariance(encoder) / TOKENS_PER_TEXT)
    tokens = _rounded(centre, whitening / np.sqrt(len(centre)))
    reader = encoder.sentence_encoder
    sentences = _of_sentences(reader) if isinstance(reader, UseEncoder) else None
    return PublicPrior(encoder.fingerprint, tokens, sentences)


def check_private_encoder(encoder: TableEncoder) -> None:
    """Raise InputError unless private rounds know this encoder's features."""
    reader = encoder.sentence_encoder
    if encoder.options or not (reader is None or isinstance(reader, UseEncoder)):
        raise InputError(
            "private rounds support token features and USE sentence features only, "
            f"not {encoder.name}; use --encoder {PRIVATE_ENCODER}"
        )


def _of_sentences(reader: UseEncoder) -> Whitening:
    drawn = np.random.default_rng(0).choice(
        reader.frequencies.size,
        size=SALADS * SALAD_TOKENS,
        p=reader.frequencies,
    )
    lengths = np.full(SALADS, SALAD_TOKENS)
    vectors = reader.vectors(drawn.astype(np.int32), lengths).astype(np.float64)
    covariance = np.cov(vectors.T, bias=True)
    covariance[np.diag_indices_from(covariance)] += (
        SALAD_RIDGE * covariance.diagonal().mean()
    )
    width = len(covariance)
    whitening = _inverse_root(covariance) / np.sqrt(width)
    return _rounded(vectors.mean(axis=0), whitening)


def _means(encoder: TableEncoder, texts: Sequence[str]) -> Floats:
    ids, lengths = encoder.tokenizer.encode_many(texts)
    sums = token_sums(ids, lengths, encoder.table)[lengths > 0]
    return np.asarray(sums / lengths[lengths > 0, None], dtype=np.float64)


def token_sums(ids: Ids, lengths: Integers, table: NDArray[np.int16]) -> Integers:
    """The sum of the table's rows over each document, whose ids stand in one row, `lengths` of them
    each.
    """
    from scipy.sparse import csr_array

    used, columns = np.unique(ids, return_inverse=True)
    chunks = np.maximum(1, -(-lengths // MAX_CHUNK_TOKENS))
    first = np.concatenate([[0], np.cumsum(chunks)])
    order = np.arange(first[-1]) - np.repeat(first[:-1], chunks)
    ends = np.repeat(np.cumsum(lengths) - lengths, chunks) + order * MAX_CHUNK_TOKENS
    bounds = np.append(ends, len(ids))
    picks = csr_array(
        (np.ones(len(ids), np.int32), columns, bounds), shape=(len(ends), len(used))
    )
    parts = np.asarray(picks @ table[used].astype(np.int32), dtype=np.int64)
    return (
        np.asarray(np.add.reduceat(parts, first[:-1], axis=0))
        if len(lengths)
        else parts
    )


def _token_covariance(encoder: TableEncoder) -> Floats:
    ids = encoder.tokenizer.plain_ids
    shares = 1 / (ids + float(FREQUENT_IDS))
    shares /= shares.sum()
    rows = encoder.table[ids].astype(np.float64)
    mean = shares @ rows
    return np.asarray((rows * shares[:, None]).T @ rows - np.outer(mean, mean))


def _inverse_root(covariance: Floats) -> Floats:
    values, vectors = np.linalg.eigh(covariance)
    floor = values[-1] * len(values) * np.finfo(np.float64).eps
    return np.asarray((vectors / np.sqrt(np.maximum(values, floor))) @ vectors.T)


def _rounded(centre: Floats, whitening: Floats) -> Whitening:
    """The finest integers that stay exact: rounding adds at most half a unit to each number of a
    row.
    """
    largest = float(np.abs(whitening).sum(axis=1).max())
    room = (MAX_ROW_SUM - len(whitening)) / largest
    bits = min(int(np.floor(np.log2(room))), MAX_SCALE_BITS)
    matrix = np.rint(np.ldexp(whitening, bits)).astype(np.int32)
    mean = np.rint(np.ldexp(centre, MEAN_BITS)).astype(np.int64)
    return Whitening(mean, matrix, bits)


# As bytes and as a file


def prior_bytes(prior: PublicPrior) -> bytes:
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "fingerprint": prior.fingerprint,
        **prior.facts(),
    }
    parts: dict[str, NDArray[Any]] = {}
    for prefix, block in zip(_PREFIXES, prior.blocks, strict=False):
        parts[f"{prefix}mean"] = block.mean
        parts[f"{prefix}whitening"] = block.matrix
    return save(parts, {"ridgeway": canonical_json(header).decode()})


def prior_of_bytes(content: bytes) -> PublicPrior:
    """The prior that was written so; raises FormatError if anything was changed."""
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(
            json.loads(content[8 : 8 + size])["__metadata__"]["ridgeway"]
        )
        parts: dict[str, Any] = load(content)
        if (header["format"], header["version"]) != (_FORMAT, _VERSION):
            raise FormatError(
                f"it is {header['format']} of version {header['version']}, not a "
                f"prior of {_VERSION}"
            )
        prefixes = _PREFIXES if "sentence_scale_bits" in header else _PREFIXES[:1]
        blocks = (
            Whitening(
                parts[f"{prefix}mean"],
                parts[f"{prefix}whitening"],
                header[f"{prefix}scale_bits"],
            )
            for prefix in prefixes
        )
        prior = PublicPrior(header["encoder"], *blocks)
        if prior.fingerprint != header["fingerprint"]:
            raise FormatError("its numbers were changed after it was written")
    except FormatError as error:
        raise FormatError(
            f"the prior is unusable: {error}; ask for it again"
        ) from error
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        raise FormatError(
            f"not a prior, or corrupt ({error}); ask for it again"
        ) from error
    return prior


def write_prior(prior: PublicPrior, path: Path) -> None:
    write_whole(path, prior_bytes(prior))


def read_prior(path: Path) -> PublicPrior:
    """Read a prior from its file; one that is missing, changed or something else is an error that
    names the file.
    """
    if not path.is_file():
        raise InputError(
            f"there is no prior {path}; create one with `ridgeway prior make`"
        )
    try:
        return prior_of_bytes(path.read_bytes())
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
