"""Experts: small language models fine-tuned one a domain, and what routers are worth when they send prompts to them.

    texts ──▶ Job ──▶ train an expert a domain ──▶ score every test document under every expert ──▶ Likelihoods
    Likelihoods + the routers' decisions ──▶ perplexity, and the paper's normalised performance ──▶ Part

The first line needs little of the project and few packages, so that it can run on another machine, one with a card:

    python -m simulations.lab.experts.convert MODEL            here: SmolLM2 in files that can be carried
    python -m simulations.lab.experts --data FOLDER --model MODEL --out SHELF --full --device cuda            there

What the second command writes are files of the laboratory's shelf: copied into the folder `cache` of a report, they
are taken by `ridgeway experiment experts --data FOLDER --full` instead of training anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulations.lab.findings import Part
    from simulations.lab.plan import Plan

KEY = "experts"
TITLE = "Answers of the experts that prompts are sent to"
CODE = 1
"""Changes when likelihoods would come out otherwise."""


def run(plan: Plan) -> Part:
    """Imported late: on a machine that only trains, much of what a plan needs is missing."""
    from simulations.lab.experts.part import run as run_part

    return run_part(plan)
