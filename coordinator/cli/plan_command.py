"""ridgeway plan: the accuracy to expect of a private round, before it is run."""

from __future__ import annotations

from itertools import product
from typing import Annotated

from ridgeway.common.cli.terminal import Json, TextTable, option, show
from ridgeway.common.privacy.accountant import check_privacy
from ridgeway.common.privacy.noise import PrivacyMode
from ridgeway.coordinator.accuracy_plan import (
    MAX_NOISE,
    SENTENCES_FIT,
    TOKENS_FIT,
    forecast,
)


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
        for fit, mode in product((SENTENCES_FIT, TOKENS_FIT), modes):
            made = forecast(mode, documents, domains, cost, delta, fit)
            forecasts.append({"epsilon": cost, **made.to_json()})
            accuracies = (made.expected, made.least, made.most)
            shares = (f"{100 * share:.0f} %" for share in accuracies)
            noise = f"{made.noise:.3f}"
            rows.append([f"{cost:g}", made.encoder, mode, *shares, noise])
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
                "encoder",
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
