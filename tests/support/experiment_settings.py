"""Small datasets for experiments: domains in letters of their own, over the tiny encoder, and a
plan for them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.simulations.experiments.dataset import Dataset, ExperimentPlan
from tests.support.tiny import tiny_encoder

WIDTH = 16
LETTERS = {
    "code": "0123456789., ",
    "law": "abcdefgh \n",
    "medicine": "nopqrstuv ,",
    "poetry": "ijklmwxyz .e",
}


def tiny_texts(domain: str, count: int) -> tuple[str, ...]:
    """Texts in a domain's letters, the same on every call."""
    chance = random.Random(domain)
    return tuple(
        f"{domain[0]}{number} " + "".join(chance.choices(LETTERS[domain], k=200))
        for number in range(count)
    )


def tiny_dataset(domains: Sequence[str] = tuple(LETTERS), train: int = 40) -> Dataset:
    texts = {name: tiny_texts(name, train + 10) for name in domains}
    return Dataset(
        "tiny",
        "made for tests",
        {name: domain_texts[:train] for name, domain_texts in texts.items()},
        {name: domain_texts[train:] for name, domain_texts in texts.items()},
    )


def tiny_plan(
    folder: Path, dataset: Dataset | None = None, seed: int = 1
) -> ExperimentPlan:
    """A plan whose work lies in a folder."""
    encoder = folder / "encoder"
    if not encoder.exists():
        save_encoder(tiny_encoder(WIDTH), encoder)
    return ExperimentPlan(
        (dataset or tiny_dataset(),), folder / "work", f"dir:{encoder}", seed=seed
    )
