"""Small datasets for experiments: domains in letters of their own, over the tiny encoder, and a
plan for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.simulations.experiments.dataset import Dataset, ExperimentPlan
from tests.support.corpora_on_disk import LETTERS, sentences
from tests.support.tiny import tiny_encoder

WIDTH = 16


def tiny_dataset(domains: Sequence[str] = tuple(LETTERS), train: int = 40) -> Dataset:
    texts = {name: tuple(sentences(name, train + 10)) for name in domains}
    return Dataset(
        "tiny",
        "made for tests",
        {name: domain_texts[:train] for name, domain_texts in texts.items()},
        {name: domain_texts[train:] for name, domain_texts in texts.items()},
    )


def tiny_plan(folder: Path, dataset: Dataset | None = None) -> ExperimentPlan:
    """A plan whose work lies in a folder."""
    encoder = folder / "encoder"
    if not encoder.exists():
        save_encoder(tiny_encoder(WIDTH), encoder)
    source = f"dir:{encoder}"
    return ExperimentPlan((dataset or tiny_dataset(),), folder / "work", source, source)
