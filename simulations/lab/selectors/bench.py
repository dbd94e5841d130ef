"""One setting in tokens, and routers over it under other settings, made by the code of client and coordinator.

    texts ──▶ tokens (once) ──▶ sums of a domain ──▶ total ──▶ weights ──▶ a table ──▶ accuracy

Training text is divided: what is held out is in no sums. Knows nothing of figures, tables or words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from client.accumulate import accumulators
from common.compiled import CompiledTable, compile_table, counted_in, normalised_columns
from common.encoder import Encoder
from common.evaluation import Evaluation
from common.selectors import tally, winners
from common.settings import DEFAULT, FEATURE_LIMIT, PAPER, Preset, Ridge, Sampling, Selector
from common.statistics import Integers, Statistics
from common.statistics_file import Prepared
from common.threads import cores
from common.tokenizer import Ids, first_tokens
from coordinator.solve import solve
from coordinator.total import add_up
from simulations.lab.routers.tables import SMOOTHINGS, compiled, log_likelihoods
from simulations.lab.selectors.typing_errors import mistyped
from simulations.lab.setting import Setting, Split, Texts, split

BATCH_TOKENS = 1 << 15
"""So many tokens are summed at a time, which bounds the memory that small windows take."""

OURS, PAPERS, BAYES = "ours", "the paper's", "naive Bayes"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tokens:
    """Texts as token ids in one row, `lengths` of them each."""

    ids: Ids
    lengths: Integers

    def first(self, limit: int) -> Tokens:
        """The first so many tokens of each text; 0 keeps all."""
        return Tokens(*first_tokens(self.ids, self.lengths, limit))

    def drawn(self, most: int, seed: str) -> Tokens:
        """Texts in an order that the seed decides, up to so many tokens together: the last of them is cut.

        Law: what is drawn for fewer tokens stands first in what is drawn for more.
        """
        order = np.random.default_rng(list(seed.encode())).permutation(len(self.lengths))
        ends = np.cumsum(self.lengths)
        kept = order[: 1 + int(np.searchsorted(np.cumsum(self.lengths[order]), most))]
        parts = [self.ids[ends[place] - self.lengths[place] : ends[place]] for place in kept.tolist()]
        lengths = self.lengths[kept].copy()
        lengths[-1] -= max(0, int(lengths.sum()) - most)
        return Tokens(np.concatenate(parts)[:most], lengths)


Library = Mapping[str, Tokens]
"""Tokens by domain."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way to route by a table over tokens. table: the table of some tokens alone, in their order."""

    table: Callable[[Ids], CompiledTable]
    rule: Selector


class Exam:
    """Texts of all domains in one row, with what is right; only the rows of a table that they use are compiled."""

    def __init__(self, library: Library) -> None:
        self._domains = tuple(library)
        ids = np.concatenate([own.ids for own in library.values()])
        self._used, places = np.unique(ids, return_inverse=True)
        self._places = places.astype(np.int32)
        self._lengths = np.concatenate([own.lengths for own in library.values()])
        self._right = np.repeat(np.arange(len(library)), [len(own.lengths) for own in library.values()])

    def accuracy(self, method: Method) -> float | None:
        """Percent of texts routed right, the mean over domains; None where there are no texts."""
        if not len(self._lengths):
            return None
        best = winners(tally(method.table(self._used), method.rule, self._places, self._lengths))
        confusion = np.zeros((len(self._domains), len(self._domains)), dtype=np.int64)
        np.add.at(confusion, (self._right, best), 1)
        return Evaluation(self._domains, tuple(map(tuple, confusion.tolist()))).accuracy


class Bench:
    """Law: every text is tokenised once, and sums over all of the training text are taken once for each sampling."""

    def __init__(self, encoder: Encoder, setting: Setting, seed: int) -> None:
        self.encoder, self.setting, self.seed = encoder, setting, seed
        self.domains = tuple(sorted(setting.domains))
        self._sums: dict[Sampling, dict[str, Statistics]] = {}
        self._typed: dict[tuple[float, int | None], Library] = {}

    @cached_property
    def fit(self) -> Library:
        return self._tokens(self._split.fit)

    @cached_property
    def held(self) -> Library:
        return self._tokens(self._split.held)

    @cached_property
    def test(self) -> Library:
        return self._tokens(self.setting.test)

    @cached_property
    def exams(self) -> tuple[Exam, Exam]:
        """On the test, and on held-out training text."""
        return Exam(self.test), Exam(self.held)

    @cached_property
    def _split(self) -> Split:
        return split(self.setting)

    def _tokens(self, texts: Texts) -> Library:
        return {name: Tokens(*self.encoder.tokenizer.encode_many(texts[name])) for name in self.domains}

    def typed(self, rate: float, most: int | None) -> Library:
        """The test as a hurried hand would type it, of each domain at most so many texts."""
        if (rate, most) not in self._typed:
            texts = self.setting.sampled(self.seed, test=most).test
            wrong = {name: tuple(mistyped(text, rate, self.seed) for text in own) for name, own in texts.items()}
            self._typed[rate, most] = self._tokens(wrong)
        return self._typed[rate, most]

    def drawn(self, most: int, draw: int = 0) -> Library:
        """Of each domain's training text at most so many tokens."""
        return {name: own.drawn(most, f"{self.seed} {draw} {name}") for name, own in self.fit.items()}

    # Routers

    def router(
        self,
        preset: Preset = DEFAULT,
        *,
        library: Library | None = None,
        encoder: Encoder | None = None,
        ridge: Ridge | None = None,
    ) -> Method:
        """The router of a preset: over all of the training text unless other text is named. Raises UnsolvableTotal."""
        used = encoder or self.encoder
        sums = self._all_sums(preset.sampling) if library is None and encoder is None else None
        parts = sums or sums_of(used, preset.sampling, library or self.fit)
        prepared = [Prepared(name, used.name, used.fingerprint, preset.sampling, own) for name, own in parts.items()]
        total = add_up(prepared, preset.weighting)
        weights = solve(total.statistics, used.scale, ridge or preset.ridge).weights
        final = normalised_columns(weights) if preset.normalise_columns else weights
        return Method(lambda rows: compile_table(used.table[rows], used.scale, final), preset.selector)

    def _all_sums(self, sampling: Sampling) -> dict[str, Statistics]:
        if sampling not in self._sums:
            self._sums[sampling] = sums_of(self.encoder, sampling, self.fit)
        return self._sums[sampling]

    def bayes(self, library: Library | None = None) -> Method:
        """Naive Bayes over token counts, every domain as likely; what is added to counts, held-out text chooses."""
        texts = (library or self.fit).values()
        counts = np.stack([np.bincount(own.ids, minlength=self.encoder.rows) for own in texts], axis=1)
        methods = [_by_logits(log_likelihoods(counts, added)) for added in SMOOTHINGS]
        return max(methods, key=lambda method: self.exams[1].accuracy(method) or 0.0)

    def contenders(self, library: Library | None = None) -> dict[str, Callable[[], Method]]:
        """Our router, the published one and naive Bayes, each made when it is called for."""
        return {
            OURS: lambda: self.router(DEFAULT, library=library),
            PAPERS: lambda: self.router(PAPER, library=library),
            BAYES: lambda: self.bayes(library),
        }


def _by_logits(exact: NDArray[np.float64]) -> Method:
    return Method(lambda used: compiled(exact[used]), Selector("average"))


def sums_of(encoder: Encoder, sampling: Sampling, library: Library) -> dict[str, Statistics]:
    """Each domain's raw sums."""
    make = accumulators(encoder.table, sampling)
    found = {}
    for name, own in library.items():
        accumulator = make()
        for batch in batches(own):
            accumulator.add(batch.ids, batch.lengths)
        found[name] = accumulator.statistics(accumulator.state(), cores())
    return found


def batches(tokens: Tokens) -> list[Tokens]:
    """The same texts in pieces of about BATCH_TOKENS tokens; none is cut."""
    ends = np.cumsum(tokens.lengths)
    cuts = np.flatnonzero(np.diff(ends // BATCH_TOKENS, append=-1))
    bounds = np.concatenate(([0], ends[cuts]))
    pieces = zip(np.split(tokens.lengths, cuts[:-1] + 1), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return [Tokens(tokens.ids[start:end], lengths) for lengths, start, end in pieces]


def coarser(encoder: Encoder, bits: int) -> Encoder:
    """The encoder with its table counted in so many bits and a sign: no value beyond 2^bits."""
    factor = 2.0**bits / FEATURE_LIMIT
    table = np.rint(encoder.table * np.float32(factor)).astype(np.int16)  # float32 holds these products exactly
    return Encoder(encoder.name, encoder.definition, table, encoder.scale / factor)


def coarser_logits(encoder: Encoder, method: Method, bits: int) -> Method:
    """The same router with the logits of its compiled table counted in so many bits and a sign."""
    whole = method.table(np.arange(encoder.rows, dtype=np.int32))
    exact = whole.logits.astype(np.float64) * whole.step
    step = float(np.abs(exact).max()) / 2**bits
    return Method(lambda rows: counted_in(step, exact[rows]), method.rule)


def accuracies(exams: Sequence[Exam], method: Method | None) -> list[float | None]:
    """On each exam; None where there is no router."""
    return [None if method is None else exam.accuracy(method) for exam in exams]
