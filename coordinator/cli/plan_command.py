"""ridgeway plan: the accuracy to expect of a private round, before it is run, and its formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import PRIVATE_ENCODER
from ridgeway.common.cli.terminal import Json, TextTable, option, show
from ridgeway.common.privacy.accountant import check_privacy, rho_for, surely_noised
from ridgeway.common.privacy.noise import (
    VECTOR_LENGTH,
    PrivacyMode,
    moved_square,
    row_unit,
)
from ridgeway.coordinator.solving.calibration import rightly_chosen

# How accurate a router of a private round will be, before anybody is asked: a formula, checked
# against simulations.
#
# A document of a domain scores higher there than elsewhere by d standard deviations, so it is
# routed rightly with the probability that one of C normal numbers, moved by d, is the largest.
# Noise on a domain's mean direction, σ√h/n for n documents and σ in lengths of a row, widens what
# scores vary by. With products of documents, routers also learn how documents vary, and d grows
# from what the prior alone gives to what full knowledge would, the further their eigenvalues stand
# above their noise. d depends on the text: a Fit has it for three sets, fitted on held-out training
# documents with the built-in prior.


@dataclass(frozen=True, slots=True)
class KindOfText:
    """by_prior, by_products: d without noise, with the prior's variation and with the documents'
    own.

    blur: by how much noise on means widens scores.
    """

    name: str
    by_prior: float
    by_products: float
    blur: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What simulations with PRIVATE_ENCODER gave.

    width: of a document's vector.
    half_known, steepness: products tell half of what they could where the noise on their
    eigenvalues is so many times their mean.
    """

    width: int
    kinds: tuple[KindOfText, ...]
    half_known: float
    steepness: float


FIT = Fit(
    width=896,
    kinds=(
        KindOfText("one-line requests of ten like domains", 2.739, 2.965, 1.433),
        KindOfText("questions and answers of four domains", 2.736, 3.595, 0.863),
        KindOfText("pages of books of five domains", 2.650, 3.392, 0.946),
    ),
    half_known=9.841,
    steepness=1.796,
)

FIT_ERROR = 0.04
MAX_NOISE = 0.54
"""What a simulation may differ by from the formula, and the noise on a mean up to which there are
any: from 300 documents a domain on, with ε = 1 or more. The 132 means of two that it was fitted to,
of all domains and of three or four, differ by a point in the root mean square and by 3.3 at most.
"""


@dataclass(frozen=True, slots=True)
class Forecast:
    """expected: of the kinds of text, the middle one; least and most: the others, each wider by
    FIT_ERROR.
    """

    mode: PrivacyMode
    noise: float
    by_kind: dict[str, float]

    @property
    def expected(self) -> float:
        return median(self.by_kind.values())

    @property
    def least(self) -> float:
        return max(0.0, min(self.by_kind.values()) - FIT_ERROR)

    @property
    def most(self) -> float:
        return min(1.0, max(self.by_kind.values()) + FIT_ERROR)

    def to_json(self) -> dict[str, Any]:
        return {
            "encoder": PRIVATE_ENCODER,
            "privacy": self.mode,
            "noise_on_a_mean": self.noise,
            "expected": self.expected,
            "least": self.least,
            "most": self.most,
            "by_kind": self.by_kind,
        }


def forecast(
    mode: PrivacyMode,
    documents: int,
    domains: int,
    epsilon: float,
    delta: float,
) -> Forecast:
    """What to expect of this many documents a domain."""
    if documents < 1 or domains < 2:
        raise InputError(
            "a router needs at least two domains and one document of each, not"
            f" {domains} and {documents}"
        )
    sigma = 1 / math.sqrt(2 * float(rho_for(epsilon, delta)))
    noise = (
        sigma
        * math.sqrt(FIT.width * moved_square(mode))
        / (row_unit(mode) * VECTOR_LENGTH * documents)
    )
    shares = {
        kind.name: _accuracy(kind, mode, documents, domains, sigma, noise)
        for kind in FIT.kinds
    }
    return Forecast(mode, noise, shares)


def _accuracy(
    kind: KindOfText,
    mode: PrivacyMode,
    documents: int,
    domains: int,
    sigma: float,
    noise: float,
) -> float:
    square = kind.by_prior**2
    if mode == "full":
        # under masks, with one holder a domain
        shares = domains / surely_noised(domains)
        edge = sigma * math.sqrt(2 * FIT.width * shares) / (documents * domains)
        unknown = (edge * FIT.width / FIT.half_known) ** FIT.steepness
        square += (kind.by_products**2 - square) / (1 + unknown)
    return rightly_chosen(math.sqrt(square / (1 + kind.blur * noise**2)), domains)


def plan(
    documents: Annotated[
        int, option("Approximate number of documents per domain.", min=1)
    ],
    domains: Annotated[int, option("Number of domains.", min=2)] = 5,
    epsilon: Annotated[
        list[float] | None, option("ε of the round; repeatable. (default: 1)")
    ] = None,
    delta: Annotated[float, option("δ of the round.")] = 1e-8,
    json: Json = False,
) -> None:
    """Predict the accuracy of a private round.

    The formula was checked against simulations.

    The range covers three kinds of text, from one-line requests to pages of books, with a prior of
    built-in text. It holds for prompts that resemble the domains' documents; for others, accuracy
    is lower.
    """
    rows = []
    forecasts = []
    modes: tuple[PrivacyMode, ...] = ("columns", "full")
    for cost in epsilon or [1.0]:
        check_privacy("full", cost, delta)
        for mode in modes:
            made = forecast(mode, documents, domains, cost, delta)
            forecasts.append({"epsilon": cost, **made.to_json()})
            accuracies = (made.expected, made.least, made.most)
            shares = (f"{100 * share:.0f} %" for share in accuracies)
            noise = f"{made.noise:.3f}"
            rows.append([f"{cost:g}", mode, *shares, noise])
    most_noise = max(facts["noise_on_a_mean"] for facts in forecasts)
    show(
        {
            "documents": documents,
            "domains": domains,
            "delta": delta,
            "forecasts": forecasts,
        },
        TextTable(
            (
                "ε",
                "privacy",
                "accuracy",
                "at least",
                "at most",
                "noise on a mean",
            ),
            rows,
        ),
        "at least, at most: range over three kinds of text; noise on a mean: relative"
        " to a document's length of 1",
        "no simulation covers this much noise, so the forecast is a guess; use more"
        " documents or a larger ε"
        if most_noise > MAX_NOISE
        else None,
        json=json,
    )
