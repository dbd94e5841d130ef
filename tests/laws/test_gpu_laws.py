"""Laws of sums on a device: the bits of the CPU, whatever the samples and their blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.client.sums import gpu_gram
from ridgeway.client.sums.accumulate import (
    Accumulator,
    ExactGram,
    State,
    accumulators,
)
from ridgeway.client.sums.gpu_gram import GpuGram
from ridgeway.common.base.errors import DeviceError
from ridgeway.common.base.machine import gpus
from ridgeway.common.base.settings import (
    FEATURE_LIMIT,
    Sampling,
    WordFeatures,
)
from ridgeway.common.text.tokens import NO_RUNS, Tokens
from ridgeway.common.text.word_sketch import WordSketch
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
    WordSketch(options)
    for options in (WordFeatures(7, 300), WordFeatures(130, FEATURE_LIMIT))
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


def in_one_row(texts: Documents, words: WordSketch | None = None) -> Tokens:
    ids = np.array([number for text in texts for number in text], dtype=np.int32)
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    runs = NO_RUNS
    if words:
        spelt = [SPELT[number] for number in ids]
        stops = np.cumsum(list(map(len, spelt)), dtype=np.int64)
        runs = words.runs(np.frombuffer(b"".join(spelt), np.uint8), stops, lengths)
    return Tokens(ids, lengths, runs, ids[:0], lengths[:0])


def summed(
    accumulator: Accumulator, *batches: Documents, words: WordSketch | None = None
) -> State:
    for texts in batches:
        accumulator.add(in_one_row(texts, words))
    return accumulator.state()


def on(device: str) -> Callable[[int], ExactGram]:
    """Who multiplies on a device."""
    return partial(GpuGram, device=device)


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
    there = accumulators(table, sampling, words, gram=on(device))()
    ours = summed(there, texts, words=words)
    expected = summed(here, texts, words=words)
    assert_same(ours, expected)
    assert there.statistics(ours).equals(here.statistics(expected))


@on_every_device
@few_examples
@given(texts=documents(), cut=st.integers(0, 8), window=st.sampled_from([1, 5, 64]))
def test_dividing_documents_leaves_the_sums_unchanged(
    device: str, texts: Documents, cut: int, window: int
) -> None:
    """Also when the state is asked for in between, and in another order."""
    new = accumulators(tables(11, 40, 3), Sampling(window), gram=on(device))
    whole, divided, turned = new(), new(), new()
    expected = summed(whole, texts)
    summed(divided, texts[:cut])
    assert_same(summed(divided, texts[cut:]), expected)
    assert_same(summed(turned, texts[::-1]), expected)


@on_every_device
@few_examples
@given(
    counts=st.lists(
        st.tuples(st.integers(1, 70), st.sampled_from([1, 2, 8])), max_size=8
    ),
    width=st.sampled_from([1, 2, 129]),
    block=st.sampled_from([1, 7, gpu_gram.GPU_BLOCK_SAMPLES]),
)
def test_samples_in_any_blocks_add_up_as_on_the_cpu(
    device: str, counts: list[tuple[int, int]], width: int, block: int
) -> None:
    """Also where every feature is as large as features get, and samples count differently."""
    rolls = np.random.default_rng(len(counts))
    here = ExactGram(width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_gram, "GPU_BLOCK_SAMPLES", block)
        there = GpuGram(width, device)
    for size, times in counts:
        extreme = rolls.choice([-FEATURE_LIMIT, FEATURE_LIMIT], (size, width))
        drawn = rolls.integers(-FEATURE_LIMIT, FEATURE_LIMIT + 1, (size, width))
        samples = np.where(rolls.random() < 0.5, extreme, drawn).astype(np.int16)
        here.add(samples, times)
        there.add(samples, times)
    np.testing.assert_array_equal(there.triangle(), here.triangle())


@on_every_device
def test_sums_are_taken_before_they_are_too_large_to_be_exact(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the products could reach EXACT_LIMIT, those so far go to 64-bit integers."""
    monkeypatch.setattr("ridgeway.client.sums.accumulate.EXACT_LIMIT", 1 << 30)
    taken: list[int] = []
    real = GpuGram._take_sum

    def counted(gram: GpuGram) -> NDArray[np.float64]:
        taken.append(1)
        return real(gram)

    monkeypatch.setattr(GpuGram, "_take_sum", counted)
    gram = GpuGram(3, device)
    samples = np.full((gpu_gram.GPU_BLOCK_SAMPLES, 3), FEATURE_LIMIT, np.int16)
    for _ in range(5):
        gram.add(samples, 7)
    expected = 5 * 7 * len(samples) * FEATURE_LIMIT**2
    assert gram.triangle()[0] == expected
    assert len(taken) >= 5


# Devices that cannot multiply


def _broken(*_: object, **__: object) -> None:
    raise RuntimeError("many lines\nthis GPU is too old")


def _full(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError


@pytest.mark.parametrize(
    ("made", "sentence"),
    [(_broken, "this GPU is too old"), (_full, "not enough free memory on cpu")],
)
def test_a_device_that_fails_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, made: Callable[..., None], sentence: str
) -> None:
    """With the reason; where memory is missing, it says so."""
    monkeypatch.setattr(torch, "zeros", made)
    with pytest.raises(DeviceError, match=sentence):
        summed(accumulators(tables(11, 9, 2), Sampling(4), gram=on("cpu"))(), [[1, 2]])


def test_a_device_whose_products_are_not_exact_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as one that multiplies in fewer bits than it is asked for."""
    monkeypatch.setattr(torch, "float64", torch.float32)
    gpu_gram.check_products.cache_clear()  # refusals are not kept
    with pytest.raises(DeviceError, match="not exact"):
        gpu_gram.check_products("cpu")


@needs_gpu
def test_a_large_corpus_needs_no_more_memory_than_a_small_one() -> None:
    """On a GPU: what is allocated does not grow with what is summed."""
    rolls = np.random.default_rng(1)
    table = tables(5000, 256, 1)
    peaks = []
    for rounds in (2, 12):
        sums = accumulators(table, Sampling(16), gram=on("cuda:0"))()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(rounds):
            ids = rolls.integers(0, 5000, 1 << 21).astype(np.int32)
            lengths = np.array([1 << 21])
            sums.add(Tokens(ids, lengths, NO_RUNS, ids[:0], lengths[:0]))
        sums.state()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del sums
    assert peaks[1] <= peaks[0] * 1.01
