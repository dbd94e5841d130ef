"""A job done: an expert is trained for every domain, one after the other, and scores every test document.

    seek a rate (in full) ──▶ for each domain: begin, learn, score ──▶ the mean of all weights, scored ──▶ Likelihoods

Knows pupils and jobs. Knows nothing of routers, nor of where results are kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import DeviceError
from simulations.lab.experts.base import load
from simulations.lab.experts.job import Job, sequences
from simulations.lab.experts.likelihoods import BASE, MERGED, Likelihoods
from simulations.lab.experts.pupil import Pupil, Rows, Weights
from simulations.lab.experts.recipe import Recipe
from simulations.lab.plan import Ticking, silent

KEPT_LOSSES = 20
"""Of the course of a training, so many means are kept."""


@dataclass(frozen=True, slots=True)
class Telling:
    """How work is shown while it goes on: a bar, and a line a finished piece."""

    ticking: Ticking = silent
    line: Callable[[str, str, str], None] = lambda word, what, figures: None


@dataclass(slots=True)
class Class:
    """All that happens to one model over a job."""

    pupil: Pupil
    job: Job
    recipe: Recipe
    seed: int
    telling: Telling
    papers: dict[str, list[Rows]] = field(init=False)

    def __post_init__(self) -> None:
        with self.telling.ticking("reading", len(self.job.domains)) as tick:
            self.papers = {}
            for name, documents in self.job.test.items():
                self.papers[name] = self.pupil.paper(documents, self.job.end)
                tick()

    def train(self, domain: str, rate: float, tokens: int) -> list[float]:
        """An expert of a domain, from the beginning. The losses on the way."""
        rows = sequences(self.job.fit[domain], self.job.end, tokens, self.recipe.length, self.seed)
        self.pupil.begin()
        lesson = self.pupil.lesson(rows)
        with self.telling.ticking(f"training {domain}", len(lesson)) as tick:
            return self.pupil.learn(lesson, rate, tick)

    def examine(self) -> dict[str, list[float]]:
        """By domain, what the model as it is now gives each test document."""
        return {
            name: self.pupil.likelihoods(paper, len(self.job.test[name])).tolist()
            for name, paper in self.papers.items()
        }

    def held_cost(self, domain: str) -> float:
        """Of a token of the domain's held-out text."""
        documents = self.job.held[domain]
        costs = self.pupil.likelihoods(self.pupil.paper(documents, self.job.end), len(documents))
        return float(costs.sum()) / max(1, sum(min(len(ids), self.recipe.longest) for ids in documents))

    def trials(self) -> dict[str, float]:
        """For each learning rate, the mean cost of held-out text over domains, after a short training."""
        found: dict[str, list[float]] = {f"{rate:g}": [] for rate in self.recipe.rates}
        for domain in self.job.domains:
            for rate in self.recipe.rates:
                self.train(domain, rate, self.recipe.trial)
                found[f"{rate:g}"].append(self.held_cost(domain))
                self.telling.line("tried", f"{domain}, rate {rate:g}", f"held-out {found[f'{rate:g}'][-1]:.4f}")
        return {rate: sum(costs) / len(costs) for rate, costs in found.items()}


def make(job: Job, model: Path, recipe: Recipe, device: str, seed: int, telling: Telling | None = None) -> Likelihoods:
    """Train and score. What comes out depends on the job, the recipe and the seed; in last digits, on the device."""
    begin, told = time.perf_counter(), telling or Telling()
    school = Class(Pupil(load(model, device), recipe, device), job, recipe, seed, told)
    trials = school.trials() if len(recipe.rates) > 1 else {}
    rate = best_rate(trials) if trials else recipe.rates[0]
    school.pupil.begin()
    scores, losses, weights = {BASE: school.examine()}, {}, []
    for domain in job.domains:
        losses[domain] = school.train(domain, rate, recipe.tokens)
        scores[domain] = school.examine()
        weights.append(school.pupil.weights())
        told.line("trained", domain, f"loss {losses[domain][0]:.3f} to {losses[domain][-1]:.3f}")
    school.pupil.begin(mean(weights))
    scores[MERGED] = school.examine()
    about = {
        "rate": rate,
        "trials": trials,
        "losses": {domain: course(own) for domain, own in losses.items()},
        "seconds": round(time.perf_counter() - begin, 1),
        "device": device_words(device),
    }
    return _likelihoods(job, recipe, scores, about)


def best_rate(trials: Mapping[str, float]) -> float:
    """The one of least cost; a training that went astray costs no number, and is never the best."""
    return float(min(trials, key=lambda rate: (not math.isfinite(trials[rate]), trials[rate])))


def mean(weights: list[Weights]) -> Weights:
    """Tensor by tensor."""
    return [sum(own[1:], start=own[0]) / len(own) for own in zip(*weights, strict=True)]


def course(losses: list[float], most: int = KEPT_LOSSES) -> list[float]:
    """The means of at most so many stretches of a training."""
    return [round(float(part.mean()), 4) for part in np.array_split(losses, min(most, len(losses)))]


def device_words(device: str) -> str:
    if device == "cpu":
        return "CPU"
    import torch

    return str(torch.cuda.get_device_name(device))


def _likelihoods(
    job: Job, recipe: Recipe, scores: Mapping[str, Mapping[str, list[float]]], about: Mapping[str, Any]
) -> Likelihoods:
    models = (BASE, *job.domains, MERGED)
    costs = {name: np.array([scores[model][name] for model in models]).T for name in job.domains}
    lengths = {name: np.array([len(ids) for ids in job.test[name]], dtype=np.int64) for name in job.domains}
    tokens = {name: np.minimum(own, recipe.longest) for name, own in lengths.items()}
    if not all(np.isfinite(own).all() for own in costs.values()):
        raise DeviceError("a model gave no finite likelihood; its training went astray: try a smaller learning rate")
    return Likelihoods(job.domains, models, costs, tokens, about)
