"""ridgeway plan: the accuracy to expect of a private round, before it is run."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeway.common.cli.options import Json
from ridgeway.common.cli.terminal import emit_json, table


def plan(
    documents: Annotated[
        int, typer.Option(min=1, help="Documents of each domain, about.")
    ],
    domains: Annotated[
        int, typer.Option(min=2, help="How many domains there are.")
    ] = 5,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="ε of the round; may be given again. (default: 1)"),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ of the round.")] = 1e-8,
    json: Json = False,
) -> None:
    """Predict how accurate a router under noise will be, by a formula that was held against
    simulations.

    The range spans text of three kinds, from one-line requests to pages of books, with a prior of
    built-in text. It holds for prompts that are like the domains' documents; for others, accuracy
    is lower.
    """
    from ridgeway.common.privacy.privacy_settings import check_privacy
    from ridgeway.coordinator.accuracy_plan import MAX_NOISE, forecast

    rows = []
    found = []
    for each in epsilon or [1.0]:
        check_privacy("full", each, delta)
        for mode in ("columns", "full"):
            told = forecast(
                "full" if mode == "full" else "columns", documents, domains, each, delta
            )
            found.append({"epsilon": each, **told.to_json()})
            shares = (
                f"{100 * share:.0f} %"
                for share in (told.expected, told.least, told.most)
            )
            rows.append([f"{each:g}", mode, *shares, f"{told.noise:.3f}"])
    if json:
        emit_json(
            {
                "documents": documents,
                "domains": domains,
                "delta": delta,
                "forecasts": found,
            }
        )
        return
    table(
        ("ε", "privacy", "accuracy", "at least", "at most", "noise on a mean"),
        rows,
        numbers_from=2,
    )
    print(
        "at least, at most: over text of three kinds; noise on a mean: beside"
        " documents, whose length is 1"
    )
    if max(each["noise_on_a_mean"] for each in found) > MAX_NOISE:
        print(
            "with so much noise nothing was simulated: take more documents, or a larger"
            " ε, or a guess for what it is"
        )
