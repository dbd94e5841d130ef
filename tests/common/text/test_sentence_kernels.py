"""The compiled sentence network: each way to multiply gives numpy's bits, and what does not fit is
refused before it is read.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from math import prod
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeway.common.base import machine
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.machine import native, sentence_kernel
from ridgeway.common.base.operating_system import may_fork
from ridgeway.common.text import sentence_encoder
from ridgeway.common.text.sentence_network import (
    FEATURES,
    SENTENCE_WIDTH,
    SHAPES,
    SentenceWeights,
)
from tests.support.native import needs_native, without_native
from tests.support.sentence_networks import PIECES, encoder_of, random_network

pytestmark = needs_native

VARIANTS = ("plain", "avx2", "vnni")
NETWORKS = {"at its bounds": (1, 1.0), "usual": (2, 0.02), "small": (3, 0.005)}
LENGTHS = [1, 2, 3, 5, 6, 7, 30, 1, 31, 124, 125, 129, 512, 514, 700, 4]


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name not in native.sentence_variants():
        pytest.skip(f"this processor cannot run {name}")
    return name


@pytest.fixture(params=NETWORKS)
def numbers(request: pytest.FixtureRequest) -> SentenceWeights:
    return network(request.param)


@cache
def network(name: str) -> SentenceWeights:
    return random_network(*NETWORKS[name])


def compiled(numbers: SentenceWeights, variant: str = "") -> Any:
    return native.SentenceNetwork(**numbers.arrays(), variant=variant)


def ids_of(count: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, PIECES, count).astype(np.int32)


def vectors(
    made: Any, ids: NDArray[np.int32], lengths: NDArray[np.int64]
) -> NDArray[np.int16]:
    out = np.full((len(lengths), SENTENCE_WIDTH), -1, np.int16)
    made.vectors(ids, lengths, out)
    return out


def pieces(made: Any, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    out = np.full((len(ids), SENTENCE_WIDTH), -1, np.int32)
    made.pieces(ids, out)
    return out


# The bits


def test_vectors_are_those_of_numpy(variant: str, numbers: SentenceWeights) -> None:
    """Whatever the lengths, and where activations are cut off at their bounds."""
    lengths = np.array(LENGTHS, np.int64)
    ids = ids_of(lengths.sum())
    made = vectors(compiled(numbers, variant), ids, lengths)
    with without_native():
        assert (encoder_of(numbers)._vectors(ids, lengths) == made).all()


def test_rows_of_pieces_are_those_of_numpy(
    variant: str, numbers: SentenceWeights
) -> None:
    """Each token is read as if it were a text; the compiled module leaves out what is zero."""
    ids = ids_of(PIECES + 30)
    made = pieces(compiled(numbers, variant), ids)
    with without_native():
        assert (encoder_of(numbers).piece_rows(ids) == made).all()


def test_a_piece_s_row_is_what_the_dense_layers_read_of_it_as_a_text(
    variant: str, numbers: SentenceWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, as vectors of texts of one token are made."""
    ids = ids_of(30)
    made = pieces(compiled(numbers, variant), ids)
    read: list[NDArray[np.float64]] = []
    network = encoder_of(numbers)._network
    pooled = network._pooled

    def noted(*operands: Any) -> Any:
        read.append(pooled(*operands))
        return read[-1]

    monkeypatch.setattr(network, "_pooled", noted)
    network.vectors(ids, np.ones(len(ids), np.int64))
    assert np.array_equal(np.concatenate(read), made)


def test_a_vector_depends_on_its_text_alone(variant: str) -> None:
    """Not on the texts beside it, nor on their order or number."""
    made = compiled(network("usual"), variant)
    lengths = np.random.default_rng(5).integers(1, 60, 300)
    ids = ids_of(lengths.sum())
    together = vectors(made, ids, lengths)
    texts = np.split(ids, np.cumsum(lengths)[:-1])
    backwards = vectors(made, np.concatenate(texts[::-1]), lengths[::-1].copy())
    assert (backwards[::-1] == together).all()
    for number in (0, 1, 127, 128, 299):
        alone = vectors(made, texts[number], lengths[number : number + 1])
        assert (alone[0] == together[number]).all()


def test_nothing_is_read_of_no_texts(variant: str) -> None:
    made = compiled(network("usual"), variant)
    assert vectors(made, ids_of(0), np.zeros(0, np.int64)).shape == (0, SENTENCE_WIDTH)
    assert pieces(made, ids_of(0)).shape == (0, SENTENCE_WIDTH)


def test_one_network_serves_many_threads(variant: str) -> None:
    made = compiled(network("usual"), variant)
    batches = [ids_of(40, seed) for seed in range(24)]
    lengths = np.array([9, 30, 1])
    expected = [vectors(made, ids, lengths) for ids in batches]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda ids: vectors(made, ids, lengths), batches))
    assert np.array_equal(expected, found)


# The encoder


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_change_no_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of(network("usual"))
    lengths = np.array([*LENGTHS, *LENGTHS], np.int64)
    ids = ids_of(lengths.sum())
    expected = encoder.vectors(ids, lengths), encoder.piece_rows(ids)
    started = counted_threads(monkeypatch)
    monkeypatch.setattr(sentence_encoder, "cores", lambda: threads)
    monkeypatch.setattr(sentence_encoder, "BATCH_TOKENS", 300)
    assert (encoder.vectors(ids, lengths) == expected[0]).all()
    assert (encoder.piece_rows(ids) == expected[1]).all()
    assert started == ([] if threads == 1 else [threads, threads])


def test_a_short_text_starts_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a call beside one that has started some."""
    encoder = encoder_of(network("usual"))
    started = counted_threads(monkeypatch)
    monkeypatch.setattr(sentence_encoder, "cores", lambda: 8)
    encoder.vectors(ids_of(30), np.array([30]))
    with sentence_encoder._threads_started:
        encoder.vectors(ids_of(6000), np.full(12, 500))
    assert started == []


def counted_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    started = []

    class Counting(ThreadPoolExecutor):
        def __init__(self, threads: int, prefix: str) -> None:
            started.append(threads)
            super().__init__(threads, prefix)

    monkeypatch.setattr(sentence_encoder, "ThreadPoolExecutor", Counting)
    return started


def test_an_encoder_goes_to_other_processes() -> None:
    """Its network stays behind, and is made anew where it is needed."""
    encoder = encoder_of(network("usual"))
    ids = ids_of(50)
    lengths = np.array([20, 30])
    expected = encoder.vectors(ids, lengths)
    again = pickle.loads(pickle.dumps(encoder))
    assert (again.vectors(ids, lengths) == expected).all()
    if may_fork():
        with get_context("fork").Pool(1) as pool:
            assert (pool.apply(encoder.vectors, (ids, lengths)) == expected).all()
            assert (pool.apply(again.vectors, (ids, lengths)) == expected).all()


# The choice of a variant


def test_the_fastest_variant_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RIDGEWAY_KERNEL", raising=False)
    usable = native.sentence_variants()
    assert usable[-1] == "plain"
    assert compiled(network("usual")).variant == usable[0] == sentence_kernel()


def test_the_variable_names_the_variant(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIDGEWAY_KERNEL", variant)
    assert encoder_of(network("usual"))._compiled.variant == variant


def test_a_processor_that_loses_the_variant_gets_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a virtual machine moves: the vectors stay the same, and a variant that was asked for
    is missed in a sentence.
    """
    monkeypatch.delenv("RIDGEWAY_KERNEL", raising=False)
    encoder = encoder_of(network("usual"))
    ids = np.arange(40, dtype=np.int32)
    lengths = np.array([10, 30])
    expected = encoder.vectors(ids, lengths)

    class Moved:
        SentenceNetwork = native.SentenceNetwork

        @staticmethod
        def sentence_variants() -> list[str]:
            return ["plain"]

    for module in (sentence_encoder, machine):
        monkeypatch.setattr(module, "native", Moved)
    assert (encoder.vectors(ids, lengths) == expected).all()
    assert encoder._compiled.variant == "plain"
    monkeypatch.setenv("RIDGEWAY_KERNEL", "vnni")
    del vars(encoder)["_compiled"]
    with pytest.raises(InputError, match="vnni names no kernel of this processor"):
        encoder.vectors(ids, lengths)


def test_an_unknown_variant_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which says what the processor runs; the module itself refuses it as well."""
    monkeypatch.setenv("RIDGEWAY_KERNEL", "abacus")
    encoder = encoder_of(network("usual"))
    words = "RIDGEWAY_KERNEL=abacus names no kernel of this processor; it runs .*plain"
    with pytest.raises(InputError, match=words):
        encoder.vectors(ids_of(3), np.array([3]))
    with pytest.raises(ValueError, match="cannot run the variant abacus"):
        compiled(network("usual"), "abacus")


def test_the_version_names_the_variant() -> None:
    for name, code in (("plain", 0), ("abacus", 2)):
        done = subprocess.run(
            [sys.executable, "-m", "ridgeway", "--version"],
            env=os.environ | {"RIDGEWAY_KERNEL": name},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, "native yes (plain)" in done.stdout) == (
            code,
            name == "plain",
        )
        assert "Traceback" not in done.stderr


# What is refused


Change = Callable[[SentenceWeights], dict[str, Any]]


def with_weight(value: int) -> Change:
    """A row of `pool` with this weight everywhere."""

    def change(numbers: SentenceWeights) -> dict[str, Any]:
        weights = numbers.weights.copy()
        names = list(SHAPES)
        before = names[: names.index("pool")]
        start = sum(prod(SHAPES[name]) for name in before)
        weights[start : start + FEATURES] = value
        return {"weights": weights}

    return change


def with_number(name: str, place: tuple[int, int], value: int) -> Change:
    def change(numbers: SentenceWeights) -> dict[str, Any]:
        array = getattr(numbers, name).copy()
        array[place] = value
        return {name: array}

    return change


def shorter(name: str) -> Change:
    return lambda numbers: {name: getattr(numbers, name).ravel()[:-1]}


def of_type(name: str, kind: type) -> Change:
    return lambda numbers: {name: getattr(numbers, name).astype(kind)}


@pytest.mark.parametrize("name", SentenceWeights.__slots__)
@pytest.mark.parametrize("change", [shorter, lambda name: of_type(name, np.float32)])
def test_arrays_of_other_sizes_are_refused(
    name: str, change: Callable[[str], Change]
) -> None:
    numbers = network("usual")
    with pytest.raises(ValueError, match="do not fit together"):
        compiled(replace(numbers, **change(name)(numbers)))


@pytest.mark.parametrize(
    "change",
    [
        with_weight(52),
        with_weight(-128),
        with_number("scales", (0, 5), (1 << 20) + 1),
        with_number("scales", (0, 5), -(1 << 20) - 1),
        with_number("scales", (1, 5), (1 << 36) + 1),
        with_number("gains", (0, -1), (1 << 21) + 1),
        with_number("gains", (1, 0), -(1 << 40) - 1),
    ],
)
def test_numbers_out_of_their_bounds_are_refused(change: Change) -> None:
    """With them, a sum might not be exact."""
    numbers = network("usual")
    with pytest.raises(ValueError, match="out of its bounds"):
        compiled(replace(numbers, **change(numbers)))


def test_the_largest_weights_are_taken() -> None:
    numbers = network("usual")
    compiled(replace(numbers, **with_weight(51)(numbers)))


@pytest.mark.parametrize(
    ("ids", "lengths", "texts"),
    [
        ([5, PIECES], [2], 1),
        ([5, -1], [2], 1),
        ([5, 1 << 30], [1, 1], 2),
        ([5], [2], 1),
        ([5, 6], [1], 1),
        ([5], [1, 0], 2),
        ([5], [2, -1], 2),
        ([5] * 1025, [1025], 1),
        ([5, 6], [1 << 62, 1 << 62, 1 << 62, (1 << 62) + 2], 4),
        ([5], [1], 2),
        ([5], [1], 0),
    ],
)
def test_texts_that_do_not_fit_are_refused(
    ids: list[int], lengths: list[int], texts: int
) -> None:
    made = compiled(network("usual"))
    out = np.zeros((texts, SENTENCE_WIDTH), np.int16)
    with pytest.raises(ValueError, match="do not fit together"):
        made.vectors(np.array(ids, np.int32), np.array(lengths, np.int64), out)
    assert not out.any()


def test_buffers_of_another_kind_are_refused() -> None:
    made = compiled(network("usual"))
    ids, lengths = ids_of(2), np.array([2])
    out = np.zeros((1, SENTENCE_WIDTH), np.int16)
    rows = np.zeros((2, SENTENCE_WIDTH), np.int32)
    for operands in (
        (ids.astype(np.int64), lengths, out),
        (ids, lengths.astype(np.int32), out),
        (ids, lengths, out.astype(np.int32)),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            made.vectors(*operands)
    for others in (
        (ids.astype(np.int64), rows),
        (ids, rows[:1]),
        (ids, np.zeros((2, FEATURES), np.int32)),
        (ids, rows.astype(np.int16)),
        (np.array([5, PIECES], np.int32), rows),
        (np.array([-1, 5], np.int32), rows),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            made.pieces(*others)
    assert not rows.any()
    rows.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        made.pieces(ids, rows)
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        made.vectors(ids_of(4)[::2], lengths, out)
