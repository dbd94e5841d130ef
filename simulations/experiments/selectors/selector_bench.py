"""One dataset in tokens, and routers over it under other settings, made by the code of client and
coordinator.

    texts ──▶ tokens (once) ──▶ sums of a domain ──▶ total ──▶ weights ──▶ a table ──▶ accuracy

Training text is divided: what is held out is in no sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import UnsolvableTotal
from ridgeway.common.base.settings import (
    DEFAULT,
    FEATURE_LIMIT,
    PAPER,
    Preset,
    Selector,
)
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.common.routing.token_table import (
    TokenTable,
    compile_table,
    counted_in,
    normalised_columns,
    tally,
    winners,
)
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.coordinator.solving.solve import solve
from ridgeway.coordinator.solving.total import add_up
from ridgeway.simulations.experiments.baselines.token_routers import (
    SMOOTHINGS,
    compiled,
    log_likelihoods,
)
from ridgeway.simulations.experiments.dataset import (
    Dataset,
    DomainTokens,
    Texts,
    Tokens,
    split,
    sums_of,
)

OURS = "ours"
PAPERS = "the paper's"
BAYES = "naive Bayes"


@dataclass(frozen=True, slots=True)
class TableRouter:
    """A way to route by a table over tokens. table: the table of some tokens alone, in their
    order.
    """

    table: Callable[[Ids], TokenTable]
    rule: Selector


class LabelledTexts:
    """Texts of all domains in one row, with what is right; only the rows of a table that they use
    are compiled.
    """

    def __init__(self, library: DomainTokens) -> None:
        self._domains = tuple(library)
        ids = np.concatenate([own.ids for own in library.values()])
        self._used, places = np.unique(ids, return_inverse=True)
        self._places = places.astype(np.int32)
        self._lengths = np.concatenate([own.lengths for own in library.values()])
        self._right = np.repeat(
            np.arange(len(library)), [len(own.lengths) for own in library.values()]
        )

    def accuracy(self, method: TableRouter | None) -> float | None:
        """Percent of texts routed right, the mean over domains; None where there are no texts or no
        router.
        """
        if method is None or not len(self._lengths):
            return None
        best = winners(
            tally(method.table(self._used), method.rule, self._places, self._lengths)
        )
        confusion = np.zeros((len(self._domains), len(self._domains)), dtype=np.int64)
        np.add.at(confusion, (self._right, best), 1)
        return Evaluation(self._domains, tuple(map(tuple, confusion.tolist()))).accuracy


class SelectorBench:
    """Law: every text is tokenised once, and sums over all of the training text are taken once for
    each sampling.
    """

    def __init__(self, encoder: TableEncoder, dataset: Dataset, seed: int) -> None:
        self.encoder = encoder
        self.dataset = dataset
        self.seed = seed
        self.domains = tuple(sorted(dataset.domains))
        self._all_sums = cache(lambda sampling: sums_of(encoder, sampling, self.fit))

    @cached_property
    def fit(self) -> DomainTokens:
        return self._tokens(split(self.dataset).fit)

    @cached_property
    def held(self) -> DomainTokens:
        return self._tokens(split(self.dataset).held)

    @cached_property
    def test(self) -> DomainTokens:
        return self._tokens(self.dataset.test)

    @cached_property
    def tests(self) -> tuple[LabelledTexts, LabelledTexts]:
        """On the test, and on held-out training text."""
        return LabelledTexts(self.test), LabelledTexts(self.held)

    def _tokens(self, texts: Texts) -> DomainTokens:
        return {
            name: Tokens(*self.encoder.tokenizer.encode_many(texts[name]))
            for name in self.domains
        }

    def drawn(self, most: int, draw: int = 0) -> DomainTokens:
        """Of each domain's training text at most `most` tokens."""
        return {
            name: own.drawn(most, f"{self.seed} {draw} {name}")
            for name, own in self.fit.items()
        }

    # Routers

    def router(
        self,
        preset: Preset = DEFAULT,
        library: DomainTokens | None = None,
        encoder: TableEncoder | None = None,
    ) -> TableRouter:
        """The router of a preset: over all of the training text unless other text is named. Raises
        UnsolvableTotal.
        """
        used = encoder or self.encoder
        texts = library or self.fit
        whole = used is self.encoder and texts is self.fit
        parts = (
            self._all_sums(preset.sampling)
            if whole
            else sums_of(used, preset.sampling, texts)
        )
        prepared = [
            Prepared(name, used.name, used.fingerprint, preset.sampling, own)
            for name, own in parts.items()
        ]
        total = add_up(prepared, preset.weighting)
        weights = solve(total.statistics, used.scale, preset.ridge).weights
        final = normalised_columns(weights) if preset.normalise_columns else weights
        return TableRouter(
            lambda rows: compile_table(used.table[rows], used.scale, final),
            preset.selector,
        )

    def bayes(self, library: DomainTokens | None = None) -> TableRouter:
        """Naive Bayes over token counts, every domain as likely; what is added to counts, held-out
        text chooses.
        """
        texts = (library or self.fit).values()
        counts = np.stack(
            [np.bincount(own.ids, minlength=self.encoder.rows) for own in texts], axis=1
        )

        def method(logits: NDArray[np.float64]) -> TableRouter:
            return TableRouter(lambda used: compiled(logits[used]), Selector("average"))

        methods = [method(log_likelihoods(counts, added)) for added in SMOOTHINGS]
        return max(methods, key=lambda method: self.tests[1].accuracy(method) or 0.0)

    def tried(
        self,
        preset: Preset = DEFAULT,
        library: DomainTokens | None = None,
        encoder: TableEncoder | None = None,
    ) -> TableRouter | None:
        """The router of a preset; None where the sums have none: too little text for so small a
        λ.
        """
        try:
            return self.router(preset, library, encoder)
        except UnsolvableTotal:
            return None

    def contenders(
        self, library: DomainTokens | None = None
    ) -> dict[str, TableRouter | None]:
        """Our router, the published one and naive Bayes."""
        ours, papers = (self.tried(preset, library) for preset in (DEFAULT, PAPER))
        return {OURS: ours, PAPERS: papers, BAYES: self.bayes(library)}


def coarser(encoder: TableEncoder, bits: int) -> TableEncoder:
    """The encoder with its table counted in this many bits and a sign: no value beyond 2^bits."""
    factor = 2.0**bits / FEATURE_LIMIT
    # float32 holds these products exactly
    table = np.rint(encoder.table * np.float32(factor)).astype(np.int16)
    return TableEncoder(encoder.name, encoder.definition, table, encoder.scale / factor)


def coarser_logits(
    encoder: TableEncoder, method: TableRouter, bits: int
) -> TableRouter:
    """The same router with the logits of its compiled table counted in this many bits and a
    sign.
    """
    whole = method.table(np.arange(encoder.rows, dtype=np.int32))
    exact = whole.logits.astype(np.float64) * whole.step
    step = float(np.abs(exact).max()) / 2**bits
    return TableRouter(lambda rows: counted_in(step, exact[rows]), method.rule)
