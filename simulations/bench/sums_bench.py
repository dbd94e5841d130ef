"""Exact sums beside the published way, on the same ids and the same device; and whether they are exact.

Ours is measured from ids in the machine's memory to checked statistics; on a card also from ids that lie there already.
Knows what is compared with what. Knows nothing of text or files.
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
from ridgeway.simulations.bench.device import Ceilings, Device, measure_ceilings
from ridgeway.simulations.bench.measuring import Result, Tick, at_least, at_most, exactly, figure, medians
from ridgeway.simulations.bench.random_corpus import Batch, Kind, draw, random_encoder
from ridgeway.simulations.bench.sum_methods import DefinedSums, OurSums, PublishedSums, card_tokens_a_second

KINDS: Final[tuple[Kind, ...]] = ("uniform", "Zipf")
ROUNDS: Final = 3
WARM_BATCHES: Final = 16
OF_CEILING: Final = 0.5
WIDTHS: Final = (384, 576, 2048, 4096)
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


CARD_CASES = (
    Case(64, 128_256, 2048, tokens=256_000_000, published=4_000_000, checked=1 << 17, aim=60.0),
    Case(1, 128_256, 2048, tokens=100_000_000, published=4_000_000, checked=1 << 12, aim=200.0),
)
CPU_CASES = (
    Case(64, 49_152, 576, tokens=4_000_000, published=200_000, checked=1 << 17, aim=10.0),
    Case(1, 49_152, 576, tokens=9_000_000, published=200_000, checked=1 << 12, aim=50.0),
    Case(1, 49_152, 2048, tokens=9_000_000, published=24_000, checked=1 << 12, aim=100.0),
)


class _Rates(NamedTuple):
    """Tokens a second of ours, of the published way, and of ours with ids on the card (0 if not measured)."""

    ours: float
    published: float
    on_card: float


def bench_sums(device: Device, threads: int) -> list[Result]:
    """Every case of the device over both kinds of ids, and the ceilings of the device."""
    cases = CARD_CASES if device.is_card else CPU_CASES
    with ticking("sums", 1 + len(cases) * len(KINDS) * ROUNDS) as tick:
        ceilings = measure_ceilings(device, *cases[0].shape)
        tick()
        results: list[Result] = []
        for shape, group in groupby(cases, key=lambda case: case.shape):
            encoder = random_encoder(*shape)
            published = PublishedSums(encoder.table, device, threads)
            for case in group:
                results += _CaseBench(case, encoder, device, published, threads).results(ceilings, tick)
    products = [result for width in WIDTHS for result in _products(device, width)] if device.is_card else []
    return [*results, *products, *ceilings.results(device, cases[0].width)]


def _products(device: Device, width: int) -> list[Result]:
    """What the ways of multiplying take for one block on this card; the fastest is the one that is used."""
    import torch

    from ridgeway.client.sums.gpu.digit_planes import ROWS, rounded
    from ridgeway.client.sums.gpu.product_methods import TRIAL_COLUMNS, fastest

    choice = fastest(torch.device(device.name), rounded(width, ROWS))
    name = f"products of {TRIAL_COLUMNS:,} samples, h={width}"
    others = "; ".join(f"{way} was passed over: {why}" for way, why in choice.passed_over.items())
    return [
        figure(f"{name}, {way}, ms", seconds * 1e3, "taken" if way == choice.name else "", others or device.name)
        for way, seconds in choice.seconds.items()
    ]


class _CaseBench:
    def __init__(
        self, case: Case, encoder: TableEncoder, device: Device, published: PublishedSums, threads: int
    ) -> None:
        self._case, self._encoder, self._device, self._published = case, encoder, device, published
        self._ours = OurSums(makers(encoder, case.sampling, device.cards, threads), threads)

    def results(self, ceilings: Ceilings, tick: Tick) -> list[Result]:
        ids, parts = draw("uniform", self._case.published, self._case.rows)
        batch = self._published.choose_batch(ids)
        self._ours.statistics(parts[:WARM_BATCHES])
        found: list[Result] = []
        for kind in KINDS:
            rounds, checks = [], []
            for _ in range(ROUNDS):
                rates, exact = self._round(*draw(kind, self._case.tokens, self._case.rows))
                rounds.append(rates)
                checks.append(exact)
                tick()
            rates = _Rates(*medians(rounds))
            found += _compared(self._case, kind, rates, all(checks), batch)
            if rates.on_card:
                found += _of_card(self._case, kind, rates, ceilings)
        return [*found, self._memory()] if self._device.is_card else found

    def _round(self, ids: Ids, parts: list[Batch]) -> tuple[_Rates, bool]:
        """The rates over new ids, and whether the sums are exact."""
        published = self._published.tokens_a_second(ids[: self._case.published])
        made: list[Statistics] = []
        seconds = self._device.seconds(lambda: made.append(self._ours.statistics(parts)))
        exact = made[0].mass == self._case.samples(parts) and self._is_exact(_slice(parts[0], self._case.checked))
        on_card = 0.0
        if self._device.is_card and self._case.window > 1:
            on_card = card_tokens_a_second(self._encoder, self._case.sampling, self._device, parts)
        return _Rates(len(ids) / seconds, published, on_card), exact

    def _is_exact(self, part: Batch) -> bool:
        """Beside the CPU's accumulators where a card is measured and they can be used here, else the definition."""
        gram = self._ours.statistics([part]).gram
        if self._device.is_card and find_spec("scipy") and find_spec("threadpoolctl"):
            cpu = OurSums(makers(self._encoder, self._case.sampling, (), 1), 1)
            return bool(np.array_equal(gram, cpu.statistics([part]).gram))
        return bool(np.array_equal(gram, DefinedSums(self._encoder.table, self._case.sampling).gram([part])))

    def _memory(self) -> Result:
        """The card's memory does not grow with the text."""
        case, peaks = self._case, []
        for tokens in (case.tokens // 4, case.tokens):
            parts = draw("uniform", tokens, case.rows)[1]
            peaks.append(self._device.peak_bytes(partial(self._ours.statistics, parts)))
        name = f"{case.name}, peak memory of the card, {case.tokens / 1e6:g} to {case.tokens / 4e6:g} M tokens"
        words = [f"{peak / 1e9:.3f} GB" for peak in reversed(peaks)]
        return at_most(name, peaks[1] / peaks[0], SAME_MEMORY_RATIO, *words)


def _compared(case: Case, kind: Kind, rates: _Rates, exact: bool, batch: int) -> list[Result]:
    name = f"{case.name}, {kind} ids"
    beside = f"{_million(rates.published)} in batches of {batch:,}"
    slices = f"{ROUNDS} slices of {case.checked:,} tokens"
    ratio = rates.ours / rates.published
    return [
        at_least(f"{name}, to the published way", ratio, case.aim, _million(rates.ours), beside),
        exactly(f"{name}, equal bit for bit", float(exact), 1.0, "yes" if exact else "NO", slices),
    ]


def _of_card(case: Case, kind: Kind, rates: _Rates, ceilings: Ceilings) -> list[Result]:
    """What the card does once ids are there, beside what it could do and beside the published way."""
    name, rate, theirs = f"{case.name}, {kind} ids on the card", rates.on_card, rates.published
    allowed = ceilings.tokens(case.width, case.window)
    bounds = [
        ("its memory", ceilings.by_memory(case.width)),
        ("its matrix products", ceilings.by_products(case.width, case.window)),
    ]
    return [
        figure(f"{name}, to the published way", rate / theirs, _million(rate), _million(theirs)),
        at_least(f"{name}, to what the card allows", rate / allowed, OF_CEILING, _million(rate), _million(allowed)),
        *(figure(f"{name}, to {what}", rate / most, _million(rate), _million(most)) for what, most in bounds),
    ]


def _slice(part: Batch, tokens: int) -> Batch:
    """The first tokens of a batch, the last document cut."""
    ids, lengths = part
    ends = np.minimum(np.cumsum(lengths), tokens)
    kept = np.diff(ends, prepend=0)
    return ids[: int(ends[-1])], kept[kept > 0]


def _million(rate: float) -> str:
    return f"{rate / 1e6:.4g} M tokens/s"
