"""Small settings for the laboratory: domains in letters of their own, over the tiny encoder, and a plan for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from common.encoder import save_encoder
from simulations.lab.plan import Plan
from simulations.lab.setting import Setting
from simulations.lab.shelf import Shelf
from tests.tiny import tiny_encoder

WIDTH = 16
LETTERS = {"code": "0123456789., ", "law": "abcdefgh \n", "medicine": "nopqrstuv ,", "poetry": "ijklmwxyz .e"}


def tiny_texts(domain: str, count: int) -> tuple[str, ...]:
    """Texts in a domain's letters, the same on every call."""
    chance = random.Random(domain)
    return tuple(f"{domain[0]}{number} " + "".join(chance.choices(LETTERS[domain], k=200)) for number in range(count))


def tiny_setting(domains: Sequence[str] = tuple(LETTERS), train: int = 40) -> Setting:
    texts = {name: tiny_texts(name, train + 10) for name in domains}
    return Setting(
        "tiny",
        "made for tests",
        {name: own[:train] for name, own in texts.items()},
        {name: own[train:] for name, own in texts.items()},
    )


def tiny_plan(folder: Path, setting: Setting | None = None, seed: int = 1) -> Plan:
    """A plan whose work and memory lie in a folder."""
    encoder = folder / "encoder"
    if not encoder.exists():
        save_encoder(tiny_encoder(WIDTH), encoder)
    return Plan((setting or tiny_setting(),), folder / "work", Shelf(folder / "shelf"), f"dir:{encoder}", seed=seed)
