"""Exact sums beside the published way, on the same ids and the same device; and whether they are
exact.

Ours is measured from ids in the machine's memory to checked statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from ridgeway.client.sums.prepare import makers
from ridgeway.common.base.settings import Sampling
from ridgeway.common.cli.terminal import ticking
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.encoding.windows import window_starts
from ridgeway.common.statistics.sums import Statistics
from ridgeway.simulations.bench.device import Device
from ridgeway.simulations.bench.measuring import (
    Result,
    Tick,
    at_least,
    at_most,
    exactly,
    medians,
)
from ridgeway.simulations.bench.random_corpus import Batch, Kind, draw, random_encoder
from ridgeway.simulations.bench.sum_methods import DefinedSums, OurSums, PublishedSums

KINDS: Final[tuple[Kind, ...]] = ("uniform", "Zipf")
ROUNDS: Final = 3
WARM_BATCHES: Final = 16
SAME_MEMORY_RATIO: Final = 1.001


@dataclass(frozen=True, slots=True)
class Case:
    """One way of summing, how much of it is measured, and what it is held against.

    tokens:    what ours sums in each round.
    published: how many of the same tokens the published way sums.
    checked:   over so many tokens the sums are compared bit for bit with another way.
    """

    window: int
    rows: int
    width: int
    tokens: int
    published: int
    checked: int
    aim: float

    @property
    def name(self) -> str:
        return f"sums, w={self.window}, h={self.width}"

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.width

    @property
    def sampling(self) -> Sampling:
        return Sampling(window=self.window)

    def samples(self, parts: Sequence[Batch]) -> int:
        """How many windows the documents make: the mass of their statistics."""
        return sum(len(window_starts(lengths, self.window)) for _, lengths in parts)


GPU_CASES = (
    Case(
        64,
        128_256,
        2048,
        tokens=256_000_000,
        published=4_000_000,
        checked=1 << 17,
        aim=60.0,
    ),
    Case(
        1,
        128_256,
        2048,
        tokens=100_000_000,
        published=4_000_000,
        checked=1 << 12,
        aim=200.0,
    ),
)
CPU_CASES = (
    Case(
        64, 49_152, 576, tokens=4_000_000, published=200_000, checked=1 << 17, aim=10.0
    ),
    Case(
        1, 49_152, 576, tokens=9_000_000, published=200_000, checked=1 << 12, aim=50.0
    ),
    Case(
        1, 49_152, 2048, tokens=9_000_000, published=24_000, checked=1 << 12, aim=100.0
    ),
)


class _Rates(NamedTuple):
    """Tokens a second of ours and of the published way."""

    ours: float
    published: float


def bench_sums(device: Device, threads: int) -> list[Result]:
    """Every case of the device over both kinds of ids."""
    cases = GPU_CASES if device.is_gpu else CPU_CASES
    results: list[Result] = []
    with ticking("sums", len(cases) * len(KINDS) * ROUNDS) as tick:
        for shape, group in groupby(cases, key=lambda case: case.shape):
            encoder = random_encoder(*shape)
            published = PublishedSums(encoder.table, device, threads)
            for case in group:
                results += _CaseBench(
                    case, encoder, device, published, threads
                ).results(tick)
    return results


class _CaseBench:
    def __init__(
        self,
        case: Case,
        encoder: TableEncoder,
        device: Device,
        published: PublishedSums,
        threads: int,
    ) -> None:
        self._case = case
        self._encoder = encoder
        self._device = device
        self._published = published
        self._ours = OurSums(
            makers(encoder, case.sampling, device.gpus, threads), threads
        )

    def results(self, tick: Tick) -> list[Result]:
        ids, parts = draw("uniform", self._case.published, self._case.rows)
        batch = self._published.choose_batch(ids)
        self._ours.statistics(parts[:WARM_BATCHES])
        found: list[Result] = []
        for kind in KINDS:
            rounds = []
            checks = []
            for _ in range(ROUNDS):
                rates, exact = self._round(
                    *draw(kind, self._case.tokens, self._case.rows)
                )
                rounds.append(rates)
                checks.append(exact)
                tick()
            rates = _Rates(*medians(rounds))
            found += _compared(self._case, kind, rates, all(checks), batch)
        return [*found, self._memory()] if self._device.is_gpu else found

    def _round(self, ids: Ids, parts: list[Batch]) -> tuple[_Rates, bool]:
        """The rates over new ids, and whether the sums are exact."""
        published = self._published.tokens_a_second(ids[: self._case.published])
        made: list[Statistics] = []
        seconds = self._device.seconds(
            lambda: made.append(self._ours.statistics(parts))
        )
        exact = made[0].mass == self._case.samples(parts) and self._is_exact(
            _slice(parts[0], self._case.checked)
        )
        return _Rates(len(ids) / seconds, published), exact

    def _is_exact(self, part: Batch) -> bool:
        """Beside the CPU's accumulators where a GPU is measured and they can be used here, else
        the definition.
        """
        gram = self._ours.statistics([part]).gram
        if self._device.is_gpu and find_spec("scipy") and find_spec("threadpoolctl"):
            cpu = OurSums(makers(self._encoder, self._case.sampling, (), 1), 1)
            return bool(np.array_equal(gram, cpu.statistics([part]).gram))
        return bool(
            np.array_equal(
                gram, DefinedSums(self._encoder.table, self._case.sampling).gram([part])
            )
        )

    def _memory(self) -> Result:
        """The GPU's memory does not grow with the text."""
        case = self._case
        peaks = []
        for tokens in (case.tokens // 4, case.tokens):
            parts = draw("uniform", tokens, case.rows)[1]
            peaks.append(self._device.peak_bytes(partial(self._ours.statistics, parts)))
        name = (
            f"{case.name}, peak memory of the GPU, {case.tokens / 1e6:g} to"
            f" {case.tokens / 4e6:g} M tokens"
        )
        words = [f"{peak / 1e9:.3f} GB" for peak in reversed(peaks)]
        return at_most(name, peaks[1] / peaks[0], SAME_MEMORY_RATIO, *words)


def _compared(
    case: Case, kind: Kind, rates: _Rates, exact: bool, batch: int
) -> list[Result]:
    name = f"{case.name}, {kind} ids"
    beside = f"{_million(rates.published)} in batches of {batch:,}"
    slices = f"{ROUNDS} slices of {case.checked:,} tokens"
    ratio = rates.ours / rates.published
    return [
        at_least(
            f"{name}, to the published way",
            ratio,
            case.aim,
            _million(rates.ours),
            beside,
        ),
        exactly(
            f"{name}, equal bit for bit",
            float(exact),
            1.0,
            "yes" if exact else "NO",
            slices,
        ),
    ]


def _slice(part: Batch, tokens: int) -> Batch:
    """The first tokens of a batch, the last document cut."""
    ids, lengths = part
    ends = np.minimum(np.cumsum(lengths), tokens)
    kept = np.diff(ends, prepend=0)
    return ids[: int(ends[-1])], kept[kept > 0]


def _million(rate: float) -> str:
    return f"{rate / 1e6:.4g} M tokens/s"
