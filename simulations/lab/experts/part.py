"""The part `experts`: for every setting, experts' perplexities and what each router is worth that chooses among them.

Knows how the pieces fit together. Knows nothing of how they work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.lab.experts import KEY, TITLE
from simulations.lab.experts.base import NAME
from simulations.lab.experts.deciding import Decided, decided
from simulations.lab.experts.making import Telling
from simulations.lab.experts.obtaining import FIRST, Obtained, at_best, beginnings
from simulations.lab.experts.tables import course_plot, hindsight, normalised_rows, normalised_table, perplexity_table
from simulations.lab.experts.words import measure_words, result_words, training_words
from simulations.lab.findings import Part, Plot, Table
from simulations.lab.plan import Plan
from simulations.lab.setting import Setting

ROUTERS = ("knn", "modem", "bayes", "ir3de", "ridgeway")
QUICK = ("bayes", "ir3de", "ridgeway")
"""Those without a sentence encoder: in a short run only they are tried on beginnings too."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one setting gives to the part."""

    words: tuple[str, ...]
    tables: tuple[Table, ...]
    facts: Mapping[str, Any]
    plots: tuple[Plot, ...]
    left_out: tuple[str, ...]


def run(plan: Plan, model: Path | None = None, routers: tuple[str, ...] = ROUTERS) -> Part:
    """model: a folder; None is SmolLM2."""
    found = {setting.name: _setting(plan, setting, model, routers) for setting in plan.settings}
    return Part(
        KEY,
        TITLE,
        (*(words for each in found.values() for words in each.words), measure_words()),
        tuple(table for each in found.values() for table in each.tables),
        tuple(plot for each in found.values() for plot in each.plots),
        facts={name: each.facts for name, each in found.items()},
        left_out=tuple(words for each in found.values() for words in each.left_out),
    )


def _setting(plan: Plan, setting: Setting, model: Path | None, routers: tuple[str, ...]) -> Found:
    obtained = at_best(plan, setting, model, Telling(plan.ticking))
    whole = decided(plan, setting, obtained.setting.test, routers)
    quick = routers if plan.full else tuple(key for key in routers if key in QUICK)
    begun = beginnings(obtained.setting, model)
    short = decided(plan, begun, begun.test, quick)
    base = NAME if model is None else "the given model"
    note = f"{obtained.recipe.words()}. The best of each column is marked."
    first = f"the first {FIRST} tokens"
    pieces = [
        _routed(obtained, whole, "", "whole test texts"),
        _routed(obtained, short, f"-first-{FIRST}", f"{first} of test texts"),
    ]
    skipped = _skipped(setting.name, first, [key for key in routers if key not in quick])
    return Found(
        (*(words for words, _ in pieces), training_words(setting.name, base, obtained.recipe, obtained.likelihoods)),
        (perplexity_table(setting.name, obtained.likelihoods, note), *(table for _, table in pieces)),
        facts_of(obtained),
        (course_plot(setting.name, obtained.likelihoods, obtained.recipe),),
        (*([obtained.lack] if obtained.lack else []), *whole.left_out, *short.left_out, *skipped),
    )


def facts_of(obtained: Obtained) -> Mapping[str, Any]:
    about = obtained.likelihoods.about
    return {
        "recipe": obtained.recipe.words(),
        **{name: about[name] for name in ("rate", "trials", "seconds", "device")},
    }


def _routed(obtained: Obtained, found: Decided, ending: str, seen: str) -> tuple[str, Table]:
    """The words and the table of one way to show texts to routers."""
    likelihoods, name = obtained.likelihoods, obtained.setting.name
    rows = normalised_rows(likelihoods, found.by_router)
    counts = ", ".join(f"{domain} {len(likelihoods.tokens[domain])}" for domain in likelihoods.domains)
    table = normalised_table(
        f"experts-normalised-{name}{ending}",
        f"Normalised performance, {name}: routers see {seen}",
        likelihoods.domains,
        rows,
        f"100 is the domain's own expert. Random: the mean over all draws. Test texts: {counts}.",
    )
    return result_words(name, f"routers see {seen}", rows, hindsight(likelihoods)), table


def _skipped(name: str, seen: str, keys: list[str]) -> tuple[str, ...]:
    if not keys:
        return ()
    return (f"{', '.join(keys)} on {seen} in {name}: a short run has no time to embed texts twice; --full does it",)
