"""Laws of sums on a device: the bits of the CPU, whatever the shapes, the pieces and the way of
multiplying.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.client.sums import gpu_gram, gpu_sums
from ridgeway.client.sums.accumulate import (
    Accumulator,
    ExactGram,
    State,
    accumulators,
    gram_of_counts,
)
from ridgeway.client.sums.gpu_gram import (
    COLUMNS,
    ROWS,
    BlockGram,
    combined,
    split,
    write_samples,
)
from ridgeway.client.sums.gpu_sums import (
    GpuTable,
    gpu_accumulators,
    weighted_gram,
)
from ridgeway.common.base.errors import BoundExceeded, DeviceError
from ridgeway.common.base.machine import gpus
from ridgeway.common.base.settings import (
    FEATURE_LIMIT,
    Sampling,
    WordFeatures,
)
from ridgeway.common.statistics import Integers
from ridgeway.common.text.word_sketch import Spelling, WordSketch
from tests.support.seeds import few_examples

needs_gpu = pytest.mark.skipif(not gpus(), reason="no CUDA device here")
on_every_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda:0", marks=needs_gpu)]
)

Documents = list[list[int]]

SPELT = [
    b" a",
    b"bcd",
    b"",
    b", ",
    "é".encode(),
    b"a",
    b" abcdef",
    b"9",
    b"\n",
    b"bcbcbc",
    b" x y z",
]
SKETCHES = [
    WordSketch(
        options,
        Spelling(
            np.frombuffer(b"".join(SPELT), np.uint8), np.cumsum([0, *map(len, SPELT)])
        ),
    )
    for options in (WordFeatures(7, 300), WordFeatures(130, FEATURE_LIMIT, 3, 5))
]


def tables(rows: int, width: int, seed: int) -> NDArray[np.int16]:
    rolls = np.random.default_rng(seed)
    table = rolls.integers(-FEATURE_LIMIT, FEATURE_LIMIT + 1, (rows, width)).astype(
        np.int16
    )
    table[rolls.integers(0, rows)] = FEATURE_LIMIT
    table[rolls.integers(0, rows)] = -FEATURE_LIMIT
    return table


def documents() -> st.SearchStrategy[Documents]:
    lengths = st.sampled_from([0, 1, 2, 3, 5, 17, 64, 95, 96, 97, 130])
    return st.lists(lengths, max_size=5).map(
        lambda sizes: [[(7 * n + k) % 11 for k in range(n)] for n in sizes]
    )


def in_one_row(texts: Documents) -> tuple[NDArray[np.int32], Integers]:
    ids = np.array([number for text in texts for number in text], dtype=np.int32)
    return ids, np.array([len(text) for text in texts], dtype=np.int64)


def summed(accumulator: Accumulator, *batches: Documents) -> State:
    for texts in batches:
        accumulator.add(*in_one_row(texts))
    return accumulator.state()


def one(
    table: NDArray[np.int16],
    sampling: Sampling,
    device: str,
    words: WordSketch | None = None,
) -> Callable[[], Accumulator]:
    """A maker of the accumulators that work on a device."""
    return gpu_accumulators(table, sampling, device, words)[0]


def assert_same(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert values.dtype == other[name].dtype == np.int64
        np.testing.assert_array_equal(values, other[name])


@on_every_device
@few_examples
@given(
    texts=documents(),
    window=st.sampled_from([1, 2, 7, 64]),
    limit=st.sampled_from([0, 1, 50]),
    width=st.sampled_from([1, 3, 128, 130]),
    more=st.sampled_from([(0,), (70,), (64,), (70, 10), (0, 40)]),
    words=st.sampled_from([None, *SKETCHES]),
    seed=st.integers(0, 99),
)
def test_a_device_gives_the_bits_of_the_cpu(
    device: str,
    texts: Documents,
    window: int,
    limit: int,
    width: int,
    more: tuple[int, ...],
    words: WordSketch | None,
    seed: int,
) -> None:
    """Odd lengths, single tokens, empty documents, windows apart, whole documents, units and words
    included.
    """
    table, sampling = tables(11, width, seed), Sampling(window, limit, *more)
    here = accumulators(table, sampling, words)()
    there = one(table, sampling, device, words)()
    ours = summed(there, texts)
    expected = summed(here, texts)
    assert_same(ours, expected)
    assert there.statistics(ours).equals(here.statistics(expected))


@on_every_device
@few_examples
@given(texts=documents(), cut=st.integers(0, 8), window=st.sampled_from([1, 5, 64]))
def test_dividing_documents_leaves_the_sums_unchanged(
    device: str, texts: Documents, cut: int, window: int
) -> None:
    """Also when the state is asked for in between, and in another order."""
    new = one(tables(11, 40, 3), Sampling(window), device)
    whole, divided, turned = new(), new(), new()
    expected = summed(whole, texts)
    summed(divided, texts[:cut])
    assert_same(summed(divided, texts[cut:]), expected)
    assert_same(summed(turned, texts[::-1]), expected)


@on_every_device
def test_small_blocks_and_small_slots_change_nothing(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that fill up many times and ids that travel in many pieces give the same sums."""
    rolls = np.random.default_rng(5)
    texts = [
        rolls.integers(0, 11, size).tolist() for size in rolls.integers(0, 40, 100)
    ]
    table, sampling = tables(11, 20, 4), Sampling(3)
    expected = summed(accumulators(table, sampling)(), texts)
    monkeypatch.setattr(gpu_gram, "_BLOCK_BYTES", 2 * ROWS * 2 * COLUMNS)
    monkeypatch.setattr(gpu_gram, "MIN_COLUMNS", COLUMNS)
    monkeypatch.setattr(gpu_sums, "SLOT_TOKENS", 300)
    assert_same(summed(one(table, sampling, device)(), texts), expected)


@on_every_device
def test_words_that_are_sketched_in_pieces_are_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a window has more tokens than a piece, and where no token has a letter."""
    rolls = np.random.default_rng(6)
    table, sampling = tables(11, 5, 4), Sampling(8, stride=9, units=10)
    monkeypatch.setattr(gpu_sums, "_TOKENS_AT_ONCE", 20)
    for last in (3, 10):
        sizes = rolls.integers(0, 40, 4)
        texts = [rolls.integers(2, last + 1, size).tolist() for size in sizes]
        here = accumulators(table, sampling, SKETCHES[1])()
        there = one(table, sampling, device, SKETCHES[1])()
        assert_same(summed(there, texts), summed(here, texts))


@on_every_device
@few_examples
@given(
    columns=st.sampled_from([COLUMNS, 3 * COLUMNS]),
    seed=st.integers(0, 99),
    extreme=st.booleans(),
)
def test_products_are_exact(
    device: str, columns: int, seed: int, extreme: bool
) -> None:
    """Also where every digit is as large as digits get, and over several blocks."""
    rolls = np.random.default_rng(seed)
    values = [-64, 64] if extreme else list(range(-64, 65))
    planes = rolls.choice(np.array(values, dtype=np.int8), (2 * ROWS, columns))
    samples = planes[:ROWS].astype(np.int64) * 64 + planes[ROWS:]
    total = torch.zeros(2 * ROWS, 2 * ROWS, dtype=torch.int64, device=device)
    for times in (1, 3):
        gpu_gram.add_products(torch.from_numpy(planes).to(device), total, times)
    np.testing.assert_array_equal(
        np.triu(combined(total).numpy()), np.triu(4 * samples @ samples.T)
    )


def test_the_largest_block_stays_within_32_bits() -> None:
    """A block's products of digits, all as large as they get, are below 2³¹."""
    assert gpu_gram.MAX_COLUMNS * 64 * 64 < 1 << 31


@given(
    values=st.lists(st.integers(-FEATURE_LIMIT, FEATURE_LIMIT), min_size=1, max_size=50)
)
def test_digits_fit_in_eight_bits_and_give_the_number_back(values: list[int]) -> None:
    """x = 64·high + low, for every feature there can be."""
    numbers = torch.tensor(values, dtype=torch.int16)
    high, low = split(numbers)
    assert int(high.abs().max()) <= 64
    assert int(low.min()) >= -32
    assert int(low.max()) < 32
    planes = torch.zeros(2 * ROWS, COLUMNS, dtype=torch.int8)
    write_samples(numbers[:, None], planes, 3)
    digits = planes[[0, ROWS], 3 : 3 + len(values)].int()
    assert (64 * digits[0] + digits[1]).tolist() == values


@on_every_device
@few_examples
@given(counts=st.lists(st.integers(1, 70), max_size=5), width=st.sampled_from([2, 129]))
def test_samples_in_any_pieces_add_up_as_on_the_cpu(
    device: str, counts: list[int], width: int
) -> None:
    """What a transformer's features go through."""
    rolls = np.random.default_rng(len(counts))
    here = ExactGram(width)
    there = BlockGram(torch.device(device), width)
    for size in counts:
        samples = rolls.integers(
            -FEATURE_LIMIT, FEATURE_LIMIT + 1, (size, width)
        ).astype(np.int16)
        here.add(samples)
        there.add(torch.from_numpy(samples).to(device))
    np.testing.assert_array_equal(there.triangle(), here.triangle())


@on_every_device
@few_examples
@given(
    counts=st.lists(
        st.integers(0, 1 << 30) | st.integers(0, 1 << 35), min_size=4, max_size=4
    )
)
def test_counts_of_billions_are_weighted_exactly(
    device: str, counts: list[int]
) -> None:
    """The same integers as on the CPU, where they are held against Python's own."""
    table, numbers = tables(4, 5, 8), np.array(counts, dtype=np.int64)
    there = weighted_gram(GpuTable(table, device).values, numbers)
    np.testing.assert_array_equal(there, gram_of_counts(table, numbers))


def test_counts_that_could_overflow_are_refused() -> None:
    """As on the CPU."""
    with pytest.raises(BoundExceeded):
        weighted_gram(
            GpuTable(tables(2, 2, 1), "cpu").values, np.array([1 << 37, 1 << 37])
        )


# Memory that runs out


def test_sums_go_on_when_a_block_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planes are made smaller, and the sums are the same."""
    real, sizes = gpu_gram.Block, []

    class Full(real):  # type: ignore[valid-type, misc]
        def __init__(self, device: torch.device, rows: int, columns: int) -> None:
            sizes.append(columns)
            if columns > 3000:
                raise torch.OutOfMemoryError
            super().__init__(device, rows, columns)

    monkeypatch.setattr(gpu_gram, "Block", Full)
    table, sampling, texts = (
        tables(11, 9, 2),
        Sampling(4),
        [[1, 2, 3, 4, 5, 6, 7, 8, 9]] * 50,
    )
    there, here = one(table, sampling, "cpu")(), accumulators(table, sampling)()
    assert_same(summed(there, texts), summed(here, texts))
    assert len(sizes) > 1
    assert sizes[-1] <= 3000


@on_every_device
@pytest.mark.parametrize("window", [1, 4])
def test_an_accumulator_that_is_let_go_holds_nothing(device: str, window: int) -> None:
    """Its memory is free at once for the next one, without waiting for the garbage collector."""
    accumulator = one(tables(11, 9, 2), Sampling(window), device)()
    summed(accumulator, [[1, 2, 3]])
    gone = weakref.ref(accumulator)
    gc.disable()
    try:
        del accumulator
        assert gone() is None
    finally:
        gc.enable()


# Devices that cannot multiply


EXACT_PRODUCTS = gpu_gram.add_products


def _forgetful(planes: torch.Tensor, total: torch.Tensor, times: int) -> None:
    """Right over the first columns, and blind to all others."""
    EXACT_PRODUCTS(planes[:, :COLUMNS].contiguous(), total, times)


def _broken(*_: object) -> None:
    raise RuntimeError("many lines\nthis GPU is too old")


def _full(*_: object) -> None:
    raise torch.OutOfMemoryError


@pytest.mark.parametrize(
    ("products", "words"),
    [
        (_broken, "this GPU is too old"),
        (_forgetful, "not exact"),
        (_full, "not enough free GPU memory"),
    ],
)
def test_a_device_that_cannot_multiply_is_an_error(
    monkeypatch: pytest.MonkeyPatch, products: Callable[..., None], words: str
) -> None:
    """One sentence, with the reason; where memory is missing, it says so."""
    monkeypatch.setattr(gpu_gram, "add_products", products)
    gpu_gram.check_products.cache_clear()  # refusals are not kept
    with pytest.raises(DeviceError, match=words):
        summed(one(tables(11, 9, 2), Sampling(4), "cpu")(), [[1, 2, 3]])


@needs_gpu
def test_a_large_corpus_needs_no_more_memory_than_a_small_one() -> None:
    """On a GPU: what is allocated does not grow with what is summed."""
    rolls = np.random.default_rng(1)
    table = tables(5000, 256, 1)
    peaks = []
    for rounds in (2, 12):
        sums = one(table, Sampling(16), "cuda:0")()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(rounds):
            sums.add(
                rolls.integers(0, 5000, 1 << 21).astype(np.int32), np.array([1 << 21])
            )
        sums.state()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del sums
    assert peaks[1] <= peaks[0] * 1.01


@needs_gpu
def test_a_gpu_with_little_memory_gives_the_same_sums() -> None:
    """Blocks are made smaller until they fit."""
    table, sampling = tables(2000, 700, 6), Sampling(8)
    ids = np.random.default_rng(3).integers(0, 2000, 300_000).astype(np.int32)
    lengths = np.full(300, 1000)
    here = accumulators(table, sampling)()
    here.add(ids, lengths)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(
        (torch.cuda.memory_reserved() + (150 << 20)) / total
    )
    try:
        there = one(table, sampling, "cuda:0")()
        there.add(ids, lengths)
        assert_same(there.state(), here.state())
        assert there._gram.capacity < gpu_gram._BLOCK_BYTES // (2 * 768)  # type: ignore[attr-defined]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
