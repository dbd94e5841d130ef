"""What every part of the experiments is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ridgeway.common.encoding.encoder_sources import find_encoder
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.simulations.experiments.dataset import Dataset

SHORT_TRAIN_TEXTS = 300
SHORT_TEST_TEXTS = 30
"""Of a domain in a short run: sentence encoders have no time for more."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """
    datasets: at least one.
    work:     a folder for federations and other scratch.
    full:     everything, for hours or a GPU; otherwise what two cores do in minutes.
    device:   auto, cpu, cuda or cuda:N.
    learnt:   what parts have learnt so far in this process, which they share.
    """

    datasets: tuple[Dataset, ...]
    work: Path
    encoder: str = "smollm2"
    full: bool = False
    device: str = "auto"
    seed: int = 1
    learnt: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def once(self, dataset: Dataset, name: str, make: Callable[[], T]) -> T:
        """What was made of a dataset under this name, made at the first call."""
        key = (dataset.digest, name)
        if key not in self.learnt:
            self.learnt[key] = make()
        found: T = self.learnt[key]
        return found

    def short(self, count: int) -> int | None:
        """A limit that holds in a short run only."""
        return None if self.full else count

    def table_encoder(self) -> TableEncoder:
        return find_encoder(self.encoder)

    def key(self) -> dict[str, Any]:
        """What decides results, apart from code."""
        return {
            "datasets": {dataset.name: dataset.digest for dataset in self.datasets},
            "encoder": self.encoder,
            "full": self.full,
            "seed": self.seed,
        }
