"""The public prior: where documents lie and how they vary, learnt from text that anybody may read,
in integers.

    public texts → runs of letters → their mean μ and covariance S → μ and P = S^(−1/2), rounded

Sentence vectors have a mean and a whitening of their own, learnt from rows of tokens that are drawn
at random, as frequent as the tokenizer says.

A document is seen through the prior before noise is added (`document_vectors`), so that a small
amount of noise is enough. The prior comes with the terms of a round. It cannot weaken a holder's
privacy, whatever stands in it: every document is bounded in integers afterwards. A bad one costs
accuracy alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
from ridgeway.common.text.sentence_encoder import UseEncoder
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokens import Tokens

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_FORMAT = "ridgeway.prior"
_VERSION = 2
_PREFIXES = ("letters_", "sentence_")
"""What stands before the names of a whitening's numbers."""
MEAN_BITS = 8
"""A document's mean is rounded to this many binary places of a feature's unit."""

MAX_ROW_SUM = 1 << 31
"""No row of the whitening has so large a sum of absolute values: then a float64 product with the
difference of two means, which is at most 2²¹, stays below 2⁵³ and is exact in whatever order a
machine adds.
"""

MAX_SCALE_BITS = 64

PUBLIC_TEXT = Path(__file__).parent / "public_text"
"""DOMAIN.txt, a question in each line, some with their answers: the text of the built-in prior."""
PUBLIC_TEXT_SHA256 = "d6cc7a9ae8f0c4eb904f89f5149887e112413fe0d30a706fa5b2fd4434a7e215"

LETTER_BUCKETS = 384
"""Into so many buckets a document's runs of letters are counted: an encoder has a multiple of
them.
"""
LETTERS_RIDGE = 0.1
"""This share of the mean variance is added everywhere: a few texts do not tell all."""

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

        x is cut off at FEATURE_LIMIT: a token may have any number of letters.

        Exact: a float64 product of integers that stay below 2⁵³.
        """
        divisor = np.maximum(counts, 1)[:, None]
        means = ((sums << MEAN_BITS + 1) + divisor) // (2 * divisor)
        limit = FEATURE_LIMIT << MEAN_BITS
        means = np.clip(means, -limit, limit)
        means[counts == 0] = self.mean
        apart = (means - self.mean).astype(np.float64)
        return np.asarray((apart @ self.matrix.T.astype(np.float64)).astype(np.int64))


@dataclass(frozen=True, eq=False, repr=False)
class PublicPrior:
    """How the runs of letters of documents are whitened, and their sentences.

    encoder: the fingerprint of the encoder that it is for.
    sentences: left out where letters are solved alone.
    """

    encoder: str
    letters: Whitening
    sentences: Whitening | None = None

    @cached_property
    def fingerprint(self) -> str:
        shape = canonical_json({"version": _VERSION} | self.facts())
        numbers = (number for block in self.blocks for number in block.numbers)
        return sha256(_FORMAT.encode(), shape, *numbers)

    @property
    def blocks(self) -> tuple[Whitening, ...]:
        return (self.letters, self.sentences) if self.sentences else (self.letters,)

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
    """The prior of the text in the package."""
    return make_prior(encoder, list(_public_text()))


def _public_text() -> Iterator[str]:
    files = sorted(PUBLIC_TEXT.glob("*.txt"))
    content = [path.read_bytes() for path in files]
    if sha256(*content) != PUBLIC_TEXT_SHA256:
        raise FormatError(
            "the text of the built-in prior was changed; install Ridgeway again"
        )
    for text in content:
        yield from text.decode().splitlines()


def make_prior(encoder: TableEncoder, texts: Sequence[str]) -> PublicPrior:
    """The prior of public texts. Sentences need no text."""
    reader = private_reader(encoder)
    tokens = encoder.read(texts)
    filled = tokens.lengths > 0
    if not filled.any():
        raise InputError("no text for a prior; give a folder of public text")
    means = letter_sums(encoder, tokens)[filled] / tokens.lengths[filled, None]
    # as documents are, which may have many letters in few tokens
    cut_off = np.clip(means, -FEATURE_LIMIT, FEATURE_LIMIT)
    letters = _whitening(cut_off, LETTERS_RIDGE)
    return PublicPrior(encoder.fingerprint, letters, _of_sentences(reader))


def private_reader(encoder: TableEncoder) -> UseEncoder:
    """The sentence encoder of an encoder whose features private rounds know. Raises InputError
    for another.
    """
    reader = encoder.sentence_encoder
    words = encoder.options
    if not (
        isinstance(reader, UseEncoder) and words and words.width % LETTER_BUCKETS == 0
    ):
        raise InputError(
            f"private rounds need runs of letters and USE sentence features, not "
            f"{encoder.name}; use --encoder {PRIVATE_ENCODER}"
        )
    return reader


def private_width(encoder: TableEncoder) -> int:
    """How many numbers stand for a document in private rounds."""
    return LETTER_BUCKETS + private_reader(encoder).width


def letter_sums(encoder: TableEncoder, tokens: Tokens) -> Integers:
    """The sum of the features of each text's runs of letters, N×LETTER_BUCKETS, over its tokens."""
    assert encoder.options is not None
    codes, stops = tokens.runs
    texts = len(tokens.lengths)
    ends = np.append(0, stops)[np.cumsum(tokens.lengths)]
    owners = np.repeat(np.arange(texts), np.diff(ends, prepend=0))
    buckets = (codes >> 1) // (encoder.options.width // LETTER_BUCKETS)
    counts = np.bincount(
        owners * LETTER_BUCKETS + buckets,
        2.0 * (codes & 1) - 1,
        texts * LETTER_BUCKETS,
    )
    sums = encoder.options.amplitude * counts.astype(np.int64)
    return np.asarray(sums.reshape(texts, LETTER_BUCKETS))


def _of_sentences(reader: UseEncoder) -> Whitening:
    drawn = np.random.default_rng(0).choice(
        reader.frequencies.size,
        size=SALADS * SALAD_TOKENS,
        p=reader.frequencies,
    )
    lengths = np.full(SALADS, SALAD_TOKENS)
    vectors = reader.vectors(drawn.astype(np.int32), lengths).astype(np.float64)
    return _whitening(vectors, SALAD_RIDGE)


def _whitening(rows: Floats, ridge: float) -> Whitening:
    """That of rows of public text, with a share of the mean variance added everywhere."""
    covariance = np.cov(rows.T, bias=True)
    covariance[np.diag_indices_from(covariance)] += ridge * covariance.diagonal().mean()
    inverse_root = _inverse_root(covariance) / np.sqrt(len(covariance))
    return _rounded(rows.mean(axis=0), inverse_root)


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
        blocks = (
            Whitening(
                parts[f"{prefix}mean"],
                parts[f"{prefix}whitening"],
                header[f"{prefix}scale_bits"],
            )
            for prefix in _PREFIXES
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
