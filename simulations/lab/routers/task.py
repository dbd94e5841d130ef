"""What a router is asked to do in a comparison, and what it looks like to the code that compares.

Knows settings. Knows nothing of any router.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.encoder import Encoder
from common.errors import EncoderError
from simulations.lab.plan import Plan
from simulations.lab.setting import Setting, Split, Texts, split

Places = NDArray[np.int64]
"""For each prompt, the place of a domain among the setting's."""

SHOWN = 30
"""In a short run routers are compared on so many test texts of a domain: a sentence encoder has no time for more."""


@dataclass(frozen=True, slots=True)
class Task:
    """
    setting: all of the text.
    shown:   the test texts that all routers are compared on: all of them in a full run.
    work:    a folder of this task's own, which need not be there yet.
    """

    setting: Setting
    shown: Texts
    encoder: str
    full: bool
    device: str
    seed: int
    work: Path

    @property
    def domains(self) -> tuple[str, ...]:
        return self.setting.domains

    def split(self, most: int | None = None) -> Split:
        """The training text divided, with at most so many texts of a domain."""
        return split(self.setting.sampled(self.seed, train=most))

    def static_encoder(self) -> Encoder:
        """The encoder, if it is a table."""
        from common.encoder_sources import find_encoder

        found = find_encoder(self.encoder)
        if not isinstance(found, Encoder):
            raise EncoderError(f"{self.encoder} is no table over tokens, and this router needs one")
        return found


def task_of(plan: Plan, setting: Setting, work: Path) -> Task:
    shown = setting if plan.full else setting.sampled(plan.seed, test=SHOWN)
    return Task(setting, shown.test, plan.encoder, plan.full, plan.device, plan.seed, work)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to set a router's hyper-parameters.

    line:  which variants are chosen among: one row of a table, or a few, come of each line.
    words: what sets it apart from the others of its line.
    shape: what the time for one prompt depends on; see `timing`.
    """

    line: str
    words: str
    shape: Mapping[str, Any]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Trained(ABC):
    """A router that has learnt, in all its variants.

    note:  what was decided on the way, in words.
    held:  the texts to choose among the variants on.
    aside: seconds of the learning that were spent on something else.
    """

    variants: Sequence[Variant]
    note: str = ""
    held: Texts = field(default_factory=dict)
    aside: float = 0.0

    @abstractmethod
    def routed(self, prompts: Sequence[str]) -> Iterator[Places]:
        """Where each variant sends the prompts."""


@dataclass(frozen=True, slots=True)
class Line:
    """The rows that come of a line: of every variant (`{}` stands for its words), of the one that did best on
    held-out text, and of the one that did best on the test, which nobody can know beforehand."""

    each: str = ""
    chosen: str = ""
    best: str = ""


@dataclass(frozen=True, slots=True)
class Method:
    """A kind of router.

    made_of:  what it is made of, in a few words.
    gathers:  whether it needs all domains' text in one place.
    sentence: whether it runs a sentence encoder on every text, and so on few of them in a short run.
    decides:  production's settings that its results depend on, in words.
    code:     counted up when results would change.
    """

    key: str
    made_of: str
    fit: Callable[[Task], Trained]
    lines: Mapping[str, Line]
    gathers: bool = True
    sentence: bool = False
    decides: str = ""
    code: int = 1


def labelled(texts: Texts) -> tuple[list[str], Places]:
    """All texts in one row, and the place of each one's domain."""
    labels = [place for place, own in enumerate(texts.values()) for _ in own]
    return [text for own in texts.values() for text in own], np.array(labels, dtype=np.int64)
