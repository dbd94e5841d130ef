"""`python -m simulations.lab.experts`: train and score experts, on this machine or on one that has little installed.

Needs numpy, torch, transformers, tokenizers, safetensors and typer. What it writes are files of the laboratory's shelf:
copied into the folder `cache` of a report, they are taken over by it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from common.terminal import run, step, ticking
from simulations.lab.experts.making import Telling
from simulations.lab.experts.obtaining import Obtained, beginnings, obtained, recipe_of
from simulations.lab.plan import Plan
from simulations.lab.setting import folder_setting
from simulations.lab.shelf import Shelf

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def experts(
    data: Annotated[list[Path], typer.Option(metavar="DIR", help="A folder of corpora; may be given again.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A folder for the shelf's files.")],
    model: Annotated[Path | None, typer.Option(metavar="DIR", help="A packed model. (default: SmolLM2)")] = None,
    full: Annotated[bool, typer.Option("--full", help="As much as a card can do.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    seed: Annotated[int, typer.Option(help="Everything random is drawn from it.")] = 1,
    routers: Annotated[str, typer.Option(help="Routers to try on the first tokens of test texts: knn,modem.")] = "",
) -> None:
    """Train an expert for each domain and score every test text under all of them."""
    settings = tuple(folder_setting(folder) for folder in data)
    with tempfile.TemporaryDirectory(prefix="ridgeway-") as work:
        plan = Plan(settings, Path(work), Shelf(out), "smollm2", full, device, seed, ticking)
        for setting in settings:
            found = obtained(plan, setting, recipe_of(plan), model, Telling(ticking, step))
            _show(found)
            if routers:
                _try(plan, found, model, routers.split(","))


def _show(found: Obtained) -> None:
    """Perplexity in every domain, for each model."""
    likelihoods, about = found.likelihoods, found.likelihoods.about
    step("scored", found.setting.name, f"{about['seconds']:.0f} s", about["device"], f"rate {about['rate']:g}")
    print(found.setting.name, *likelihoods.domains, sep="\t")
    for model in likelihoods.models:
        print(model, *(f"{likelihoods.perplexity(name, model):.2f}" for name in likelihoods.domains), sep="\t")


def _try(plan: Plan, found: Obtained, model: Path | None, keys: list[str]) -> None:
    from simulations.lab.routers.registry import method
    from simulations.lab.routers.trying import evaluation, tried

    setting = beginnings(found.setting, model)
    for key in keys:
        for row in tried(plan, setting, method(key))["rows"]:
            step("tried", row["name"], setting.name, f"{evaluation(setting.domains, row['routed']).accuracy:.1f} %")


if __name__ == "__main__":
    sys.exit(run(typer.main.get_command(app)))
