"""The sums of the compiled module, over rows of tables and runs of letters, are numpy's; what does
not fit together is refused before it is read.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.common.base.machine import native
from ridgeway.common.base.settings import FEATURE_LIMIT, WordFeatures
from ridgeway.common.text.word_sketch import Runs, WordSketch
from tests.support.native import needs_native

pytestmark = needs_native

SEEDS = st.integers(0, 1 << 32).map(np.random.default_rng)


def random_runs(rolls: np.random.Generator, tokens: int, buckets: int) -> Runs:
    """Runs of any buckets, some of them behind those of the last token."""
    sizes = rolls.integers(0, 9, tokens)
    codes = rolls.integers(0, 2 * buckets, sizes.sum() + rolls.integers(3))
    return Runs(codes.astype(np.uint16), np.cumsum(sizes))


# Rows of windows


def row_means(
    table: NDArray[np.int16],
    ids: NDArray[np.int32],
    bounds: NDArray[np.int64],
    words: int = 0,
    *more: Any,
) -> NDArray[np.int16]:
    width = table.shape[1]
    means = np.full((len(bounds) - 1, width + words), -1, np.int16)
    native.row_means(table, width, ids, bounds, means, *more)
    return means


@given(rolls=SEEDS, words=st.sampled_from([1, 5, 768]), long=st.booleans())
def test_rows_of_windows_are_those_of_numpy(
    rolls: np.random.Generator, words: int, long: bool
) -> None:
    """Means of table rows, and behind them the features of words."""
    width = int(rolls.integers(1, 70))
    limit = FEATURE_LIMIT
    table = rolls.integers(-limit, limit + 1, (7, width)).astype(np.int16)
    sizes = rolls.integers(1, 600 if long else 9, rolls.integers(0, 5))
    bounds = np.cumsum([rolls.integers(3), *sizes])
    count = int(bounds[-1] + rolls.integers(3))
    ids = rolls.integers(0, 7, count).astype(np.int32)
    positions = rolls.integers(0, 20, count).astype(np.int32)
    runs = random_runs(rolls, 20, words)
    sketch = WordSketch(WordFeatures(words, int(rolls.integers(1, limit + 1))))
    amplitude = sketch.options.amplitude
    made = row_means(table, ids, bounds, words, positions, *runs, words, amplitude)
    n = np.diff(bounds)[:, None]
    sums = [
        table[ids[first:last]].sum(0, dtype=np.int64)
        for first, last in pairwise(bounds)
    ]
    expected = (2 * np.array(sums).reshape(-1, width) + n) // (2 * n)
    assert np.array_equal(made[:, :width], expected)
    assert np.array_equal(row_means(table, ids, bounds), expected)
    features = sketch.window_features(runs, positions, bounds)
    assert np.array_equal(made[:, width:], features)


def wrong_windows() -> list[dict[str, Any]]:
    """Changes to arguments that fit: two windows of three tokens, with four buckets."""
    return [
        {"table": np.zeros(3, np.int16)},
        {"width": 0},
        {"width": -2},
        {"ids": np.array([0, 1, 2], np.int32)},
        {"ids": np.array([0, -1, 1], np.int32)},
        {"bounds": np.array([0, 1, 4])},
        {"bounds": np.array([0, 0, 3])},
        {"bounds": np.array([-1, 1, 3])},
        {"bounds": b""},
        {"means": np.zeros(11, np.int16)},
        {"positions": np.array([0, 1], np.int32)},
        {"positions": np.array([0, 1, 3], np.int32)},
        {"positions": np.array([0, -1, 1], np.int32)},
        {"codes": np.array([0, 1, 8], np.uint16)},
        {"codes": np.array([0, 1], np.uint16)},
        {"codes": b"12345"},
        {"stops": np.array([1, 2, 1 << 62])},
        {"stops": np.array([1, 0, 3])},
        {"stops": np.array([-1, 0, 3])},
        {"stops": b"1234567"},
        {"stops": b""},
        {"words": 0},
        {"words": -1},
        {"words": 3},
        {"words": 1 << 15},
        {"amplitude": -1},
        {"amplitude": FEATURE_LIMIT + 1},
    ]


@pytest.mark.parametrize("changes", wrong_windows())
def test_windows_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    """Neither are they read, nor is anything written."""
    means = np.zeros((2, 6), np.int16)
    operands: dict[str, Any] = {
        "table": np.ones((2, 2), np.int16),
        "width": 2,
        "ids": np.array([0, 1, 1], np.int32),
        "bounds": np.array([0, 1, 3]),
        "means": means,
        "positions": np.array([0, 1, 2], np.int32),
        "codes": np.array([0, 1, 7], np.uint16),
        "stops": np.array([1, 2, 3]),
        "words": 4,
        "amplitude": 9,
    }
    with pytest.raises(ValueError, match="do not fit together"):
        native.row_means(*(operands | changes).values())
    assert not means.any()
    native.row_means(*operands.values())
    assert means.any()


def test_windows_take_all_of_what_words_are_given_by() -> None:
    """Or none of it."""
    means = np.zeros((1, 2), np.int16)
    ids = np.zeros(1, np.int32)
    bounds = np.array([0, 1])
    some = np.ones((1, 2), np.int16), 2, ids, bounds, means
    codes = np.zeros(0, np.uint16)
    operands: list[Any]
    for more in ([ids], [ids, codes]):
        operands = [*some, *more]
        with pytest.raises(ValueError, match="do not fit together"):
            native.row_means(*operands)


# Sums of texts


def sums_of(
    ids: NDArray[np.int32],
    counts: NDArray[np.int64],
    table: NDArray[np.int16],
    shifts: NDArray[np.uint8],
    *words: Any,
) -> NDArray[np.int64]:
    width = table.shape[1]
    made = native.token_sums(ids, counts, table, width, shifts, *words)
    return np.frombuffer(made, np.int64).reshape(len(counts), width)


def sums_by_numpy(
    ids: NDArray[np.int32],
    counts: NDArray[np.int64],
    table: NDArray[np.int16],
    shifts: NDArray[np.uint8],
    buckets: NDArray[np.int32] | None = None,
    runs: Runs | None = None,
) -> NDArray[np.int64]:
    texts = np.repeat(np.arange(len(counts)), counts)
    sums = np.zeros((len(counts), table.shape[1]), np.int64)
    if len(table):
        np.add.at(sums, texts, table[ids].astype(np.int64))
    if buckets is not None and runs is not None:
        codes = runs.codes[: runs.stops[-1] if len(runs.stops) else 0].astype(np.int64)
        owners = np.repeat(texts, np.diff(runs.stops, prepend=0))
        signs = 2 * (codes & 1) - 1
        np.add.at(sums, owners, signs[:, None] * buckets[codes >> 1].astype(np.int64))
    return sums << shifts.astype(np.int64)


@given(
    rolls=SEEDS,
    width=st.sampled_from([1, 2, 3, 4, 9, 10, 17, 150]),
    rows=st.sampled_from([0, 1, 9]),
    heights=st.sampled_from([1, 5, 700, 1 << 14]),
)
def test_sums_of_texts_are_those_of_numpy(
    rolls: np.random.Generator, width: int, rows: int, heights: int
) -> None:
    """With words and without; a table without rows says nothing of any id."""
    counts = rolls.integers(0, 30, rolls.integers(0, 5))
    tokens = int(counts.sum())
    ids = rolls.integers(0, rows or 1 << 30, tokens).astype(np.int32)
    table = rolls.integers(-(1 << 15), 1 << 15, (rows, width)).astype(np.int16)
    shifts = rolls.integers(0, 17, width).astype(np.uint8)
    expected = sums_by_numpy(ids, counts, table, shifts)
    assert np.array_equal(sums_of(ids, counts, table, shifts), expected)
    buckets = rolls.integers(-(1 << 31), 1 << 31, (heights, width)).astype(np.int32)
    runs = random_runs(rolls, tokens, heights)
    expected = sums_by_numpy(ids, counts, table, shifts, buckets, runs)
    made = sums_of(ids, counts, table, shifts, buckets, *runs)
    assert np.array_equal(made, expected)


def test_sums_of_long_texts_lose_nothing() -> None:
    """The largest rows of more tokens than add up in 32 bits, and of more runs."""
    tokens = 200_000
    ids = np.zeros(tokens, np.int32)
    counts = np.array([tokens - 1, 1])
    table = np.array([[-(1 << 15), (1 << 15) - 1]], np.int16)
    shifts = np.array([8, 0], np.uint8)
    buckets = np.array([[-(1 << 31), (1 << 31) - 1]], np.int32)
    codes = np.ones(tokens, np.uint16)
    runs = Runs(codes, np.arange(1, tokens + 1))
    expected = sums_by_numpy(ids, counts, table, shifts, buckets, runs)
    assert np.array_equal(sums_of(ids, counts, table, shifts, buckets, *runs), expected)
    assert expected[0].tolist() == [
        -(((1 << 31) + (1 << 15)) * (tokens - 1) << 8),
        ((1 << 31) + (1 << 15) - 2) * (tokens - 1),
    ]


def wrong_texts() -> list[dict[str, Any]]:
    """Changes to arguments that fit: two texts of three tokens, with four buckets."""
    return [
        {"ids": np.array([0, 1, 2], np.int32)},
        {"ids": np.array([0, -1, 1], np.int32)},
        {"ids": b"12345"},
        {"counts": np.array([1, 1])},
        {"counts": np.array([1, 3])},
        {"counts": np.array([4, -1])},
        {"counts": np.array([1 << 62, 1 << 62, 1 << 62, (1 << 62) + 3])},
        {"counts": b"1234567"},
        {"table": np.zeros(3, np.int16)},
        {"width": 0},
        {"width": -2},
        {"width": 1 << 24},
        {"shifts": b"\0"},
        {"shifts": b"\0\0\0"},
        {"shifts": b"\0\x11"},
        {"buckets": np.zeros(7, np.int32)},
        {"buckets": np.zeros((3, 2), np.int32)},
        {"buckets": np.zeros((0, 2), np.int32)},
        {"buckets": np.zeros(((1 << 15) + 1, 2), np.int32)},
        {"codes": np.array([0, 1, 8], np.uint16)},
        {"codes": np.array([0, 1], np.uint16)},
        {"codes": b"12345"},
        {"stops": np.array([1, 2])},
        {"stops": np.array([1, 2, 1 << 62])},
        {"stops": np.array([1, 0, 3])},
        {"stops": np.array([-1, 0, 3])},
        {"stops": b"1234567"},
    ]


@pytest.mark.parametrize("changes", wrong_texts())
def test_texts_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    """Before anything is read."""
    operands: dict[str, Any] = {
        "ids": np.array([0, 1, 1], np.int32),
        "counts": np.array([1, 2]),
        "table": np.ones((2, 2), np.int16),
        "width": 2,
        "shifts": b"\0\x10",
        "buckets": np.ones((4, 2), np.int32),
        "codes": np.array([0, 1, 7], np.uint16),
        "stops": np.array([1, 2, 3]),
    }
    with pytest.raises(ValueError, match="do not fit together"):
        native.token_sums(*(operands | changes).values())
    native.token_sums(*operands.values())


def test_texts_take_all_of_what_words_are_given_by() -> None:
    """Or none of it."""
    ids = np.zeros(1, np.int32)
    some: tuple[Any, ...] = ids, np.array([1]), np.ones((1, 2), np.int16), 2, b"\0\0"
    buckets = np.ones((1, 2), np.int32)
    codes = np.zeros(0, np.uint16)
    for more in ((buckets,), (buckets, codes)):
        with pytest.raises(ValueError, match="do not fit together"):
            native.token_sums(*some, *more)
