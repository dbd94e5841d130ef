"""Sentence networks of random numbers, some of them at their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.text.piece_model import double_array
from ridgeway.common.text.sentence_encoder import UseEncoder
from ridgeway.common.text.sentence_network import (
    CHUNKS,
    FEATURES,
    LARGEST_ACTIVATION,
    LEVELS,
    PROJECTED,
    SENTENCE_WIDTH,
    SHAPES,
    TANH_LIMIT,
    SentenceWeights,
)
from ridgeway.common.text.unigram import PieceTokenizer

PIECES = 300
"""The rows of the tables here."""
ROWS = sum(rows for rows, _ in SHAPES.values())


def random_network(seed: int, share: float = 1.0) -> SentenceWeights:
    """A network whose numbers are drawn up to this share of their bounds. With all of it, most
    activations are cut off, and sums of products come near to 32 bits.
    """
    chance = np.random.default_rng(seed)

    def drawn(most: int, shape: Any) -> NDArray[np.int64]:
        bound = int(most * share)
        numbers = chance.integers(-bound, bound + 1, shape)
        return np.where(chance.random(shape) < 0.3, bound, numbers)

    weights = []
    for rows, columns in SHAPES.values():
        # the sizes of a row's weights add up to less than 2^16
        most = min(127, ((1 << 16) - 1) // columns)
        weights.append(drawn(most, (rows, columns)).ravel())
    scales = np.stack([drawn(1 << 20, ROWS), drawn(1 << 36, ROWS)])
    normalised = PROJECTED + FEATURES
    gains = np.stack([drawn(1 << 21, normalised), drawn(1 << 40, normalised)])
    return SentenceWeights(
        chance.integers(0, LEVELS, (PIECES, SENTENCE_WIDTH)).astype(np.uint8),
        drawn((1 << 15) - 1, (CHUNKS, LEVELS)).astype(np.int16),
        np.concatenate(weights).astype(np.int8),
        scales,
        gains,
        drawn(LARGEST_ACTIVATION, 2 * TANH_LIMIT + 1).astype(np.int16),
    )


def encoder_of(numbers: SentenceWeights) -> UseEncoder:
    """The encoder of a network, with a tokenizer of two pieces."""
    tokenizer = PieceTokenizer(
        double_array({"▁".encode(): 1, b"a": 2}),
        np.array([-20, -3, -2], np.float32),
        double_array({b"\t": 0}),
        np.frombuffer(b" \0", np.uint8),
    )
    return UseEncoder("", tokenizer, numbers)
