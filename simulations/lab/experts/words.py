"""What tables of normalised performance come to, in sentences: measured figures, and turns that depend on them.

Knows nothing of experts but their rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simulations.lab.experts.likelihoods import BASE, Likelihoods
from simulations.lab.experts.recipe import FULL, Recipe
from simulations.lab.experts.tables import OWN, RANDOM, Row, mean
from simulations.lab.routers.ours import OURS as OUR_METHOD

OURS = OUR_METHOD.lines["ours"].chosen
LEVEL = 0.05
"""Means that differ by less are level: the tables show one digit."""


def measure_words() -> str:
    """The measure, as the paper has it."""
    return (
        "The paper's own measure: every domain has an expert, a test text is answered by the expert that a router "
        "picks for it, and the perplexity of the domain's own expert is divided by the perplexity reached in this way. "
        "100 is as good as knowing the domain; more is possible where another expert finds a text likelier. "
        "Routers see the whole of a test text, as in the paper, and in a second table only its beginning."
    )


def training_words(name: str, base: str, recipe: Recipe, likelihoods: Likelihoods) -> str:
    about: Mapping[str, Any] = likelihoods.about
    how = "chosen on held-out training text" if about["trials"] else "fixed beforehand"
    own = mean([likelihoods.perplexity(domain, domain) for domain in likelihoods.domains])
    before = mean([likelihoods.perplexity(domain, BASE) for domain in likelihoods.domains])
    short = f" This is the short training; --full means {FULL.words()}, and needs a card." if recipe != FULL else ""
    return (
        f"{name}: experts made from {base}, one a domain: {recipe.words()}. Learning rate {about['rate']:g}, {how}; "
        f"{about['seconds']:,.0f} seconds on {about['device']}. Mean perplexity of an expert in its own domain "
        f"{own:.2f}, of the base model {before:.2f}.{short}"
    )


def result_words(name: str, seen: str, rows: Sequence[Row], best: float) -> str:
    """Who reaches what, and who is ahead of whom."""
    routers = routers_of(rows)
    if not routers:
        return f"{name}, {seen}: no router could be tried."
    figures = "; ".join(f"{row.name}: {row.mean:.1f}" for row in best_of_kinds(routers))
    chance = next(row.mean for row in rows if row.name == RANDOM)
    return (
        f"{name}, {seen}: normalised performance, mean over domains, the best variant of each kind: {figures}; "
        f"random: {chance:.1f}. {ahead(routers)} "
        f"Picking the likeliest expert for every text in hindsight would give {best:.1f}."
    )


def best_of_kinds(routers: Sequence[Row]) -> list[Row]:
    """Of the rows whose names begin with the same word, the one of the highest mean; the highest first."""
    kinds: dict[str, Row] = {}
    for row in routers:
        kind = re.split(r"\W", row.name)[0]
        if kind not in kinds or row.mean > kinds[kind].mean:
            kinds[kind] = row
    return sorted(kinds.values(), key=lambda row: -row.mean)


def routers_of(rows: Sequence[Row]) -> list[Row]:
    """Those that look at a text: they stand between chance and the measure itself."""
    names = [row.name for row in rows]
    return list(rows[names.index(RANDOM) + 1 : names.index(OWN)])


def ahead(routers: Sequence[Row]) -> str:
    """One sentence on who has the highest mean, with ours placed in it where it is there."""
    top = max(row.mean for row in routers)
    first = [row.name for row in routers if top - row.mean < LEVEL]
    ours = next((row.mean for row in routers if row.name == OURS), None)
    if ours is None:
        return f"Ahead: {', '.join(first)}."
    if OURS in first:
        level = [name for name in first if name != OURS]
        return f"{OURS} is ahead{', level with ' + ' and '.join(level) if level else ' of all others'}."
    return f"{first[0]} is ahead of {OURS} by {top - ours:.1f}."
