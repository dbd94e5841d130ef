"""Routers that look at nothing: one that guesses, and one for each expert that always takes the same.

What a router must be better than.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulations.lab.routers.task import Line, Method, Places, Task, Trained, Variant

NOTHING = {"kind": "nothing"}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Guessing(Trained):
    """Law: the same prompts in the same order are sent to the same domains."""

    domains: int
    seed: int

    def routed(self, prompts: Sequence[str]) -> Iterator[Places]:
        yield np.random.default_rng(self.seed).integers(self.domains, size=len(prompts))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Always(Trained):
    """A variant for each domain."""

    def routed(self, prompts: Sequence[str]) -> Iterator[Places]:
        return (np.full(len(prompts), place, dtype=np.int64) for place in range(len(self.variants)))


def _guess(task: Task) -> Trained:
    return Guessing(variants=[Variant("random", "", NOTHING)], domains=len(task.domains), seed=task.seed)


def _always(task: Task) -> Trained:
    return Always(variants=[Variant("always", name, NOTHING) for name in task.domains])


RANDOM = Method("random", "chance", _guess, {"random": Line(chosen="random")}, gathers=False)
SINGLE = Method("always", "one expert for everything", _always, {"always": Line(each="always {}")}, gathers=False)
