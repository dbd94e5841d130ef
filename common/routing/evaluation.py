"""How well a router does on labelled text: accuracy, confusion, and a temperature that makes
confidence true.

  Accuracies are in percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import Confidence, Scope, Selector
from ridgeway.common.routing.decision import (
    SCOPE_COUNTS_SHAPE,
    Flags,
    Floats,
    Integers,
    confidences,
    distances,
    fit_scope,
    log_odds,
    scope_counts,
    winners,
)
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.token_table import RouterTable, tally_texts
from ridgeway.common.text.tokens import Tokens

_BINS = 10
_BEGINNING_TOKENS = (4, 8, 16, 32, 64, 128, 256)
"""Texts are also scored on beginnings of these lengths, as if they were prompts of that length. Two
tokens are none.
"""
CONFIDENCE_EDGES = (
    0.0,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.85,
    0.9,
    0.95,
    0.98,
    0.99,
    0.995,
    0.998,
    0.999,
)
"""Where the bins of confidence begin in which holders count; finer where confidence is high."""


CURVES = tuple(
    Confidence(half=half, tail=tail)
    for half in (4, 8, 16, 32, 64, 128)
    for tail in (0, 1 / 8, 1 / 4)
)
"""What is tried when confidence is calibrated, at temperature 1."""
PAIR = 1 << 32
"""Two counts stand in one number, the second times this; their sums over 10,000 holders stay far
below it.
"""
CALIBRATED_COUNTS = 1 << 17
"""What a holder counts to calibrate is multiplied, so that there are about so many: holders weigh
nearly the same.
"""


def paired(counts: Integers) -> Integers:
    """A row of counts with each two of them in one number. Law: sums of such rows are the pairs of
    the sums.
    """
    pairs = counts[0::2].copy()
    pairs[: counts.size // 2] += PAIR * counts[1::2]
    return pairs


def unpaired(pairs: Integers) -> Integers:
    """The inverse of `paired`, with a 0 after an odd number of counts; of other numbers, what is no
    counts.
    """
    return np.stack((pairs % PAIR, pairs // PAIR), axis=1).ravel()


Reliability = tuple[tuple[float, float, float], ...]
"""By bins of confidence: where each begins, the share of held-out prompts in it, and the share that
was right there.
"""


def reliability_of(shares: Floats) -> Reliability:
    """What a manifest keeps of the bins, B×2: of all prompts, those that fell into a bin, and those
    right in it.
    """
    rounded = shares.round(6).tolist()
    return tuple(
        (edge, met, right)
        for edge, (met, right) in zip(CONFIDENCE_EDGES, rounded, strict=True)
    )


def split_calibration(row: Integers, temperatures: int) -> tuple[Integers, Integers]:
    """What one domain's holders count to calibrate confidence, and to tell what belongs to any
    domain.
    """
    shape = _reliability_shape(temperatures)
    reliability, scope = np.split(row.ravel(), [prod(shape)])
    return reliability.reshape(shape), scope.reshape(SCOPE_COUNTS_SHAPE)


def calibration_size(temperatures: int) -> int:
    """How many numbers those are."""
    return prod(_reliability_shape(temperatures)) + prod(SCOPE_COUNTS_SHAPE)


def _reliability_shape(temperatures: int) -> tuple[int, ...]:
    return len(CURVES), temperatures, len(CONFIDENCE_EDGES), 2


@dataclass(frozen=True, slots=True)
class Evaluation:
    """confusion[i][j]: how many texts of domain i were routed to domain j, abstentions apart from
    the threshold.

    gap: how far confidence was from accuracy, in points, every domain weighing the same; None if it
         is not calibrated.
    """

    domains: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    gap: float | None = None

    @property
    def by_domain(self) -> dict[str, float]:
        """Percent of each domain's texts that were routed right; domains without texts are left
        out.
        """
        return {
            name: 100 * row[column] / sum(row)
            for column, (name, row) in enumerate(
                zip(self.domains, self.confusion, strict=True)
            )
            if sum(row)
        }

    @property
    def documents(self) -> int:
        return sum(map(sum, self.confusion))

    @property
    def accuracy(self) -> float:
        """The mean over the domains that had texts, in percent."""
        if not self.by_domain:
            raise InputError("there is no text to measure accuracy on")
        return sum(self.by_domain.values()) / len(self.by_domain)

    def mistakes(self, name: str) -> list[tuple[str, int]]:
        """The other domains to which texts of a domain were routed, with how many, the most
        frequent first.
        """
        row = self.confusion[self.domains.index(name)]
        wrong = [
            (other, count)
            for other, count in zip(self.domains, row, strict=True)
            if count and other != name
        ]
        return sorted(wrong, key=lambda pair: -pair[1])

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "domains": self.by_domain,
            "confusion": [list(row) for row in self.confusion],
            "order": list(self.domains),
            "unit": "percent",
            **({} if self.gap is None else {"gap": self.gap}),
        }


def evaluate(router: Router, texts: Mapping[str, Sequence[str]]) -> Evaluation:
    """Route every text; a text counts for the domain that is ahead, whether or not the router would
    abstain.
    """
    columns = {name: column for column, name in enumerate(router.domains)}
    confusion = []
    outcomes = list[tuple[float, bool, float]]()
    for name in router.domains:
        decisions = router.route_many(texts[name])
        best = [columns[decision.best] for decision in decisions]
        confusion.append(tuple(np.bincount(best, minlength=len(columns)).tolist()))
        outcomes += [
            (decision.confidence, decision.best == name, 1 / len(decisions))
            for decision in decisions
        ]
    gap = None
    if router.confidence.calibrated and outcomes:
        gap = confidence_gap(*map(np.array, zip(*outcomes, strict=True)))
    return Evaluation(router.domains, tuple(confusion), gap)


def beginnings_routed(
    router: Router, texts: Sequence[str], tokens: int
) -> tuple[Floats, Integers]:
    """The confidence in texts that end after `tokens` tokens (0: never), and the place of the
    domain ahead in each.

    Law: they are those of the router's decisions on such texts.
    """
    begun = router.reader.read(texts).first(tokens)
    counted = tally_texts(router.compiled, router.selector, begun)
    law = router.confidence
    apart = distances(law, counted.scores, counted.voters) / law.temperature
    return confidences(law, apart), winners(counted)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted temperature and curve, and the gap between confidence and accuracy before and after,
    in percent.

    scope:       what text belongs to any domain, if that could be learnt.
    reliability: of the texts and their beginnings, under the new temperature and curve.
    """

    temperature: float
    half: float
    tail: float
    gap_before: float
    gap_after: float
    texts: int
    scope: Scope | None = None
    reliability: Reliability = ()

    def confidence(self, plain: Confidence) -> Confidence:
        """plain: says when the router abstains."""
        return replace(
            plain,
            temperature=self.temperature,
            growth=0.0,
            half=self.half,
            tail=self.tail,
            calibrated=True,
            scope=self.scope,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Samples:
    """Scores of held-out texts and of their beginnings, so that short prompts are calibrated as
    well as long ones.
    """

    scores: Floats
    voters: Integers
    labels: Integers
    weights: Floats

    @property
    def right(self) -> Flags:
        right: Flags = self.scores.argmax(axis=1) == self.labels
        return right

    def apart(self, temperature: float, curve: Confidence) -> Floats:
        return distances(curve, self.scores, self.voters) / temperature

    def confidence(self, temperature: float, curve: Confidence) -> Floats:
        return confidences(curve, self.apart(temperature, curve))

    def surprise(self, temperature: float, curve: Confidence) -> float:
        """The negative log-likelihood of the labels."""
        logits = log_odds(curve, self.apart(temperature, curve))
        chosen = logits[np.arange(len(logits)), self.labels]
        return float(
            (self.weights * (np.log(np.exp(logits).sum(axis=1)) - chosen)).sum()
        )

    def fit_temperature(self, curve: Confidence) -> float:
        """The temperature of least surprise: the best of many, and then the best around it."""
        from scipy.optimize import minimize_scalar

        spread = float(np.ptp(self.scores, axis=1).max(initial=0.0))
        if spread == 0:
            return 1.0

        def surprise(heat: float) -> float:
            return self.surprise(float(np.exp(heat)), curve)

        heats = np.log(spread) + np.linspace(np.log(1e-4), np.log(1e3), 17)
        best = min(range(1, len(heats) - 1), key=lambda number: surprise(heats[number]))
        fitted = minimize_scalar(
            surprise,
            bounds=heats[[best - 1, best + 1]],
            method="bounded",
            options={"xatol": 1e-7},
        )
        return float(np.exp(fitted.x))

    def gap(self, temperature: float, curve: Confidence) -> float:
        return confidence_gap(
            self.confidence(temperature, curve), self.right, self.weights
        )

    def reliability(self, temperature: float, curve: Confidence) -> Reliability:
        bins = (
            np.searchsorted(
                CONFIDENCE_EDGES, self.confidence(temperature, curve), side="right"
            )
            - 1
        )
        shares = (self.weights, self.weights * self.right)
        count = len(CONFIDENCE_EDGES)
        met = np.stack(
            [np.bincount(bins, share, minlength=count) for share in shares], axis=1
        )
        return reliability_of(met / self.weights.sum())


def calibrate(router: Router, texts: Mapping[str, Sequence[str]]) -> Calibration:
    """The temperature and curve under which held-out text is most likely, every domain weighing the
    same.
    """
    samples = _samples(router, texts)
    if not len(samples.labels):
        raise InputError(
            "the held-out text holds no tokens, so nothing can be fitted on it"
        )
    fitted = [(samples.fit_temperature(curve), curve) for curve in CURVES]
    temperature, curve = min(
        fitted, key=lambda pair: round(samples.surprise(*pair), 12)
    )
    of_labels = (
        (label, samples.labels == label) for label in range(len(router.domains))
    )
    scope = fit_scope(
        scope_counts(samples.scores[chosen], samples.voters[chosen], label)
        for label, chosen in of_labels
    )
    return Calibration(
        temperature,
        curve.half,
        curve.tail,
        gap_before=samples.gap(router.confidence.temperature, router.confidence),
        gap_after=samples.gap(temperature, curve),
        texts=sum(map(len, texts.values())),
        scope=scope,
        reliability=samples.reliability(temperature, curve),
    )


def _samples(router: Router, texts: Mapping[str, Sequence[str]]) -> _Samples:
    parts = []
    for label, name in enumerate(router.domains):
        scores, voters = beginnings(
            router.compiled, router.selector, router.reader.read(texts[name])
        )
        size = len(scores)
        weight = 1 / max(size, 1) / len(router.domains)
        parts.append((scores, voters, np.full(size, label), np.full(size, weight)))
    return _Samples(*map(np.concatenate, zip(*parts, strict=True)))


def beginnings(
    compiled: RouterTable, selector: Selector, tokens: Tokens
) -> tuple[Floats, Integers]:
    """The scores of texts and of their beginnings, N×C, and how many tokens voted in each."""
    scores = []
    voters = []
    for limit in (*_BEGINNING_TOKENS, 0):
        begun = tokens.of_texts(tokens.lengths > limit).first(limit)
        counted = tally_texts(compiled, selector, begun)
        scores.append(counted.scores)
        voters.append(counted.voters)
    return np.concatenate(scores), np.concatenate(voters)


def confidence_gap(
    confidence: Floats,
    right: Flags,
    weights: Floats,
) -> float:
    """How far confidence is from the share that was right, over ten bins of confidence, in
    percent.
    """
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, weights * (confidence - right), minlength=_BINS)
    return float(100 * np.abs(gaps).sum() / weights.sum())
