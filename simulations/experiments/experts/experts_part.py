"""The part `experts`: for every dataset, experts' perplexities and what each router is worth that
chooses among them.

Takes likelihoods and the outcomes of trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ridgeway.common.base.errors import RidgewayError
from ridgeway.simulations.experiments.baselines.comparison import METHODS
from ridgeway.simulations.experiments.baselines.routing_method import (
    Decisions,
    of_outcome,
    task_of,
    tried,
)
from ridgeway.simulations.experiments.dataset import Dataset, Texts
from ridgeway.simulations.experiments.experts.trainer import NAME
from ridgeway.simulations.experiments.experts.training import (
    BASE,
    FIRST_TOKENS,
    FULL,
    MERGED,
    Likelihoods,
    Scored,
    beginnings,
    scored_at_best,
)
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report.report_tables import (
    Cell,
    Column,
    Plot,
    ReportPart,
    Series,
    Table,
)

KEY = "experts"
TITLE = "Answers of the experts that prompts are sent to"
CODE = 2
ROUTERS = ("knn", "modem", "bayes", "ir3de", "ridgeway")
QUICK_ROUTERS = ("bayes", "ir3de", "ridgeway")
"""Those without a sentence encoder: in a short run only they are tried on beginnings too."""
OWN = "the domain's own expert"
RANDOM = "random"
MODEL_NAMES = {
    BASE: "base model, not fine-tuned",
    MERGED: "experts average (mean of their weights)",
}
MEASURE = (
    "The paper's own measure: every domain has an expert, a test text is answered by"
    " the expert that a router picks for it, and the perplexity of the domain's own"
    " expert is divided by the perplexity reached in this way. 100 is as good as"
    " knowing the domain; more is possible where another expert finds a text likelier."
    " Routers see the whole of a test text, as in the paper, and in a second table only"
    " its beginning."
)


@dataclass(frozen=True, slots=True)
class NormalisedRow:
    """by_domain: normalised performance. right: the share of texts sent to their own domain, where
    texts are sent.
    """

    name: str
    by_domain: tuple[float, ...]
    right: float | None = None

    @property
    def mean(self) -> float:
        return fmean(self.by_domain)


def run(
    plan: ExperimentPlan, model: Path | None = None, routers: tuple[str, ...] = ROUTERS
) -> ReportPart:
    """model: a folder; None is SmolLM2."""
    found = {
        dataset.name: scored_at_best(plan, dataset, model) for dataset in plan.datasets
    }
    words = []
    tables = list[Table]()
    left_out = list[str]()
    for dataset in plan.datasets:
        own = found[dataset.name]
        begun = beginnings(own.dataset, model)
        quick = (
            routers
            if plan.full
            else tuple(key for key in routers if key in QUICK_ROUTERS)
        )
        whole, lacks = decisions(plan, dataset, own.dataset.test, routers)
        first, first_lacks = decisions(plan, begun, begun.test, quick)
        seen = f"the first {FIRST_TOKENS} tokens"
        note = f"{own.recipe.words()}. The best of each column is marked."
        tables += [
            perplexity_table(dataset.name, own.likelihoods, note),
            routed_table(own, whole, "", "whole test texts"),
            routed_table(own, first, f"-first-{FIRST_TOKENS}", f"{seen} of test texts"),
        ]
        words.append(_training(own, NAME if model is None else "the given model"))
        left_out += [*([own.lack] if own.lack else []), *lacks, *first_lacks]
        if skipped := [key for key in routers if key not in quick]:
            reason = "a short run has no time to embed texts twice; --full does it"
            left_out.append(
                f"{', '.join(skipped)} on {seen} in {dataset.name}: {reason}"
            )
    return ReportPart(
        KEY,
        TITLE,
        (*words, MEASURE),
        tuple(tables),
        tuple(course_plot(name, own) for name, own in found.items()),
        facts={
            name: (
                {"recipe": own.recipe.words()}
                | {
                    fact: own.likelihoods.about[fact]
                    for fact in ("rate", "trials", "seconds", "device")
                }
            )
            for name, own in found.items()
        },
        left_out=tuple(left_out),
    )


def _training(own: Scored, base: str) -> str:
    about = own.likelihoods.about
    how = "chosen on held-out training text" if about["trials"] else "fixed beforehand"
    short = (
        f" This is the short training; --full means {FULL.words()}, and needs a GPU."
        if own.recipe != FULL
        else ""
    )
    return (
        f"{own.dataset.name}: experts made from {base}, one a domain:"
        f" {own.recipe.words()}. Learning rate {about['rate']:g}, {how};"
        f" {about['seconds']:,.0f} seconds on {about['device']}. Picking the likeliest"
        " expert for every text in hindsight would give a normalised performance of"
        f" {hindsight(own.likelihoods):.1f}.{short}"
    )


# Decisions


def decisions(
    plan: ExperimentPlan, dataset: Dataset, tests: Texts, keys: Sequence[str]
) -> tuple[dict[str, Decisions], list[str]]:
    """Of every router that can be tried, in the order of a table; and for the others the reason.

    tests: some of the test texts that routers are shown, in their order.
    """
    found: dict[str, Decisions] = {}
    missing = []
    shown = task_of(plan, dataset, plan.work).shown
    with plan.ticking("routing", len(keys)) as tick:
        for key in keys:
            try:
                found |= of_outcome(
                    tried(plan, dataset, METHODS[key]), shown, dataset.test, tests
                )
            except RidgewayError as error:
                missing.append(f"{METHODS[key].made_of} in {dataset.name}: {error}")
            tick()
    return found, missing


def normalised_rows(
    likelihoods: Likelihoods, decisions: Mapping[str, Decisions]
) -> list[NormalisedRow]:
    """Experts alone, their average, chance, then the routers, then what routing is measured by."""
    own = likelihoods

    def row(
        name: str, perplexities: Sequence[float], right: float | None = None
    ) -> NormalisedRow:
        pairs = zip(own.domains, perplexities, strict=True)
        return NormalisedRow(
            name, tuple(own.normalised(domain, value) for domain, value in pairs), right
        )

    single = [
        row(model_words(model), [own.perplexity(name, model) for name in own.domains])
        for model in (*own.domains, MERGED)
    ]
    chance = row(
        RANDOM,
        [own.random_perplexity(name) for name in own.domains],
        100.0 / len(own.domains),
    )
    routers = [
        row(
            name,
            [own.routed_perplexity(domain, found[domain]) for domain in own.domains],
            _right(own, found),
        )
        for name, found in decisions.items()
    ]
    return [
        *single,
        chance,
        *routers,
        NormalisedRow(OWN, (100.0,) * len(own.domains), 100.0),
    ]


def _right(likelihoods: Likelihoods, found: Decisions) -> float:
    domains = enumerate(likelihoods.domains)
    return 100.0 * fmean(
        fmean(sent == place for sent in found[domain]) for place, domain in domains
    )


def hindsight(likelihoods: Likelihoods) -> float:
    """The mean when each text goes to the expert that finds it likeliest: no router can do
    better.
    """
    best = {name: likelihoods.least(name) for name in likelihoods.domains}
    return normalised_rows(likelihoods, {"hindsight": best})[-2].mean


# What is shown


def model_words(model: str) -> str:
    return MODEL_NAMES.get(model, f"{model} expert")


def perplexity_table(name: str, likelihoods: Likelihoods, note: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for model in likelihoods.models:
        values = [
            likelihoods.perplexity(domain, model) for domain in likelihoods.domains
        ]
        rows.append((model_words(model), *values, fmean(values)))
    columns = [
        Column(domain, digits=2, better="less")
        for domain in (*likelihoods.domains, "mean")
    ]
    title = f"Perplexity of each expert in each domain's test text, {name}"
    return Table(
        f"experts-perplexity-{name}",
        title,
        (Column("model"), *columns),
        tuple(rows),
        note,
    )


def routed_table(
    own: Scored, found: Mapping[str, Decisions], ending: str, seen: str
) -> Table:
    """One way to show texts to routers."""
    likelihoods = own.likelihoods
    name = own.dataset.name
    counts = ", ".join(
        f"{domain} {len(likelihoods.tokens[domain])}" for domain in likelihoods.domains
    )
    columns = [
        Column(domain, "%", better="more") for domain in (*likelihoods.domains, "mean")
    ]
    return Table(
        f"experts-normalised-{name}{ending}",
        f"Normalised performance, {name}: routers see {seen}",
        (Column("who answers"), *columns, Column("rightly sent", "%")),
        tuple(
            (row.name, *row.by_domain, row.mean, row.right)
            for row in normalised_rows(likelihoods, found)
        ),
        "100 is the domain's own expert. Random: the mean over all draws. Test texts:"
        f" {counts}.",
    )


def course_plot(name: str, own: Scored) -> Plot:
    """How the experts learnt: the mean loss of each stretch of their training, at its end."""
    tokens = own.recipe.tokens
    losses = own.likelihoods.about["losses"]
    series = [
        Series(
            domain,
            tuple(tokens * (place + 1) / len(each) for place in range(len(each))),
            tuple(each),
        )
        for domain, each in losses.items()
    ]
    title = f"Training of the experts, {name}"
    return Plot(
        f"experts-training-{name}", title, "tokens", "loss, nats a token", tuple(series)
    )
