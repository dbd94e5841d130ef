"""Likelihoods and decisions as tables: perplexity, and the paper's normalised performance.

Knows nothing of how either came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulations.lab.experts.deciding import Decisions
from simulations.lab.experts.likelihoods import BASE, MERGED, Likelihoods
from simulations.lab.experts.recipe import Recipe
from simulations.lab.findings import Cell, Column, Plot, Series, Table

OWN = "the domain's own expert"
RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Row:
    """by_domain: normalised performance. right: the share of texts sent to their own domain, where texts are sent."""

    name: str
    by_domain: tuple[float, ...]
    right: float | None = None

    @property
    def mean(self) -> float:
        return mean(self.by_domain)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def model_words(model: str) -> str:
    words = {BASE: "base model, not fine-tuned", MERGED: "experts average (mean of their weights)"}
    return words.get(model, f"{model} expert")


def perplexity_table(name: str, likelihoods: Likelihoods, note: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for model in likelihoods.models:
        values = [likelihoods.perplexity(domain, model) for domain in likelihoods.domains]
        rows.append((model_words(model), *values, mean(values)))
    columns = [Column(domain, digits=2, better="less") for domain in (*likelihoods.domains, "mean")]
    title = f"Perplexity of each expert in each domain's test text, {name}"
    return Table(f"experts-perplexity-{name}", title, (Column("model"), *columns), tuple(rows), note)


def course_plot(name: str, likelihoods: Likelihoods, recipe: Recipe) -> Plot:
    """How the experts learnt: the mean loss of each stretch of their training, at its end."""
    losses = likelihoods.about["losses"]
    series = [
        Series(domain, tuple(recipe.tokens * (place + 1) / len(own) for place in range(len(own))), tuple(own))
        for domain, own in losses.items()
    ]
    title = f"Training of the experts, {name}"
    return Plot(f"experts-training-{name}", title, "tokens", "loss, nats a token", tuple(series))


def normalised_rows(likelihoods: Likelihoods, decisions: Mapping[str, Decisions]) -> list[Row]:
    """Experts alone, their average, chance, then the routers, then what routing is measured by."""
    single = [_of_model(likelihoods, model) for model in (*likelihoods.domains, MERGED)]
    chance = [likelihoods.normalised(name, likelihoods.random_perplexity(name)) for name in likelihoods.domains]
    routers = [_of_router(likelihoods, name, found) for name, found in decisions.items()]
    own = Row(OWN, (100.0,) * len(likelihoods.domains), 100.0)
    return [*single, Row(RANDOM, tuple(chance), 100.0 / len(likelihoods.domains)), *routers, own]


def _of_model(likelihoods: Likelihoods, model: str) -> Row:
    values = [likelihoods.normalised(name, likelihoods.perplexity(name, model)) for name in likelihoods.domains]
    return Row(model_words(model), tuple(values))


def _of_router(likelihoods: Likelihoods, name: str, decisions: Decisions) -> Row:
    values = [
        likelihoods.normalised(domain, likelihoods.routed_perplexity(domain, decisions[domain]))
        for domain in likelihoods.domains
    ]
    shares = [
        mean([float(sent == place) for sent in decisions[domain]]) for place, domain in enumerate(likelihoods.domains)
    ]
    return Row(name, tuple(values), 100.0 * mean(shares))


def hindsight(likelihoods: Likelihoods) -> float:
    """The mean when each text goes to the expert that finds it likeliest: no router can do better."""
    best = {name: likelihoods.least(name) for name in likelihoods.domains}
    return _of_router(likelihoods, "hindsight", best).mean


def normalised_table(key: str, title: str, domains: Sequence[str], rows: Sequence[Row], note: str) -> Table:
    columns = [Column(domain, "%", better="more") for domain in (*domains, "mean")]
    cells = tuple((row.name, *row.by_domain, row.mean, row.right) for row in rows)
    return Table(key, title, (Column("who answers"), *columns, Column("rightly sent", "%")), cells, note)
