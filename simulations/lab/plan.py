"""What every part of the laboratory is given: settings, a seed, how much to do, where to work, and a memory.

Knows nothing of what the parts do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulations.lab.setting import Setting
from simulations.lab.shelf import Shelf

Tick = Callable[[], None]
Ticking = Callable[[str, int], AbstractContextManager[Tick]]


@contextmanager
def silent(label: str, total: int) -> Iterator[Tick]:
    yield lambda: None


@dataclass(frozen=True, slots=True)
class Plan:
    """
    settings: at least one.
    full:     the whole of it, for hours or a card; otherwise what two cores do in minutes.
    device:   auto, cpu, cuda or cuda:N, for what can use a card.
    work:     a folder for federations and other scratch, empty at the start.
    shelf:    remembers finished pieces of work by what decided them.
    ticking:  `with plan.ticking("kNN", 12) as tick:` shows a bar; tick() after each of 12 pieces of work.
    """

    settings: tuple[Setting, ...]
    work: Path
    shelf: Shelf
    encoder: str = "smollm2"
    full: bool = False
    device: str = "auto"
    seed: int = 1
    ticking: Ticking = field(default=silent)

    def facts(self) -> Mapping[str, Any]:
        """What decides results, apart from code: part of every key on the shelf."""
        digests = {setting.name: setting.digest for setting in self.settings}
        return {"settings": digests, "encoder": self.encoder, "full": self.full, "seed": self.seed}
