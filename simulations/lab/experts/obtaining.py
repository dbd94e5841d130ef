"""Likelihoods of a setting, made now or taken from the shelf; and the settings they are about.

What is kept does not depend on the machine, so likelihoods that another machine has made are taken over by copying
their file into the shelf's folder. Knows nothing of routers but how many test texts they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from common.devices import chosen
from common.errors import DeviceError
from common.tokenizer import Tokenizer, shared_tokenizer
from simulations.lab.experts.base import DIGEST, definition_of, digest_of, packed_smollm2
from simulations.lab.experts.job import job
from simulations.lab.experts.likelihoods import Likelihoods, from_json
from simulations.lab.experts.making import Telling, make
from simulations.lab.experts.recipe import FULL, SHORT, Recipe, result_key
from simulations.lab.plan import Plan
from simulations.lab.routers.task import task_of
from simulations.lab.setting import Setting, Texts

SHELF = "experts"
FIRST = 32
"""A prompt's first tokens, where routers see no more of it."""


@dataclass(frozen=True, slots=True)
class Obtained:
    """setting: its test texts are those that were scored. lack: what should have been done and could not."""

    setting: Setting
    recipe: Recipe
    likelihoods: Likelihoods
    lack: str = ""


class _NoCard(DeviceError):
    """Training in full was asked for where it would take days."""


def at_best(plan: Plan, setting: Setting, model: Path | None, telling: Telling) -> Obtained:
    """As the plan asks for; where a full training is neither kept nor possible, the short one, with the reason."""
    try:
        return obtained(plan, setting, recipe_of(plan), model, telling)
    except _NoCard as error:
        return replace(
            obtained(plan, setting, SHORT, model, telling), lack=f"{error}; the short training stands for it"
        )


def obtained(plan: Plan, setting: Setting, recipe: Recipe, model: Path | None, telling: Telling) -> Obtained:
    """model: a folder; None is SmolLM2, which is looked for only if there is something to do."""
    few = scored(plan, setting, recipe)
    key = result_key(few, recipe, DIGEST if model is None else digest_of(model), plan.seed)
    device = next(iter(chosen(plan.device)), "cpu")

    def work() -> object:
        if recipe == FULL and device == "cpu" and plan.device == "auto":
            raise _NoCard(
                f"this machine has no card to train experts for {setting.name} in full; do it on one that has, with "
                "`python -m simulations.lab.experts`, and copy what it writes into the report's cache"
            )
        folder = model or packed_smollm2()
        todo = job(few, definition_of(folder), recipe, plan.seed)
        return make(todo, folder, recipe, device, plan.seed, telling).to_json()

    return Obtained(few, recipe, from_json(plan.shelf.kept(SHELF, key, work)))


def recipe_of(plan: Plan) -> Recipe:
    return FULL if plan.full else SHORT


def scored(plan: Plan, setting: Setting, recipe: Recipe) -> Setting:
    """With the test texts that are scored: some of those that every router is shown."""
    shown = task_of(plan, setting, plan.work).shown
    return replace(setting, test=shown).sampled(plan.seed, test=recipe.documents or None)


def beginnings(setting: Setting, model: Path | None, count: int = FIRST) -> Setting:
    """The same setting, where of each test text only the first tokens of a model are there."""
    known = shared_tokenizer(definition_of(model))
    return replace(setting, name=f"{setting.name}-first-{count}", test=_begun(setting.test, known, count))


def _begun(texts: Texts, tokenizer: Tokenizer, count: int) -> Texts:
    return {
        name: tuple("".join(piece for _, piece in tokenizer.pieces(text)[:count]) for text in own)
        for name, own in texts.items()
    }
