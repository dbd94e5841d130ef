"""An expert is trained for every domain, one after the other, and scores every test document;
results are cached.

    texts ──▶ seek a rate (in full) ──▶ for each domain: begin, train, score ──▶ the mean of all
    weights, scored
    ──▶ Likelihoods

What is kept does not depend on the machine, so likelihoods that another machine has made are taken
over by copying their file into the cache. From likelihoods follow perplexity and the paper's
normalised performance of a choice of experts.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.devices import chosen
from ridgeway.common.base.errors import DeviceError, EncoderError
from ridgeway.common.encoding.model_files import imported
from ridgeway.common.encoding.tokenizer import Ids, Tokenizer, shared_tokenizer
from ridgeway.simulations.experiments.baselines.routing_method import task_of
from ridgeway.simulations.experiments.dataset import Dataset, split
from ridgeway.simulations.experiments.experts.trainer import (
    ExpertRecipe,
    Trainer,
    Weights,
    definition_of,
    digest_of,
    load,
)
from ridgeway.simulations.experiments.plan import ExperimentPlan, Ticking, silent

BASE = "base"
MERGED = "merged"
"""The model that was not trained, and the one whose weights are the mean of all experts'."""
DIGITS = 4
"""Of a document's log-likelihood, as it is kept."""
CODE = 1
"""Changes when likelihoods would come out otherwise."""
ENDS = ("<|endoftext|>", "</s>", "<eos>", "<end>")
"""What language models are taught to end a document with: the first of these that a tokenizer has
is taken.
"""

TEXTS_AT_ONCE = 64
"""Texts that are tokenised together."""
KEPT_LOSSES = 20
"""Means that are kept of the course of a training."""
FIRST_TOKENS = 32
"""Of a prompt, where routers see no more of it."""

FULL = ExpertRecipe(1_000_000, 512, 16, 0, (1e-4, 3e-4, 1e-3), 200_000, 30_000, 0, 512)
SHORT = ExpertRecipe(1024, 128, 1, 4, (5e-4,), 0, 0, 8, 64)

Documents = tuple[Ids, ...]
Costs = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Likelihoods:
    """
    models: BASE, an expert for each domain, MERGED.
    costs:  by domain, documents × models: the negative log-likelihood of each test document.
    tokens: by domain, how many tokens of each document were predicted.
    about:  how the experts came about.
    """

    domains: tuple[str, ...]
    models: tuple[str, ...]
    costs: Mapping[str, Costs]
    tokens: Mapping[str, NDArray[np.int64]]
    about: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "domains": list(self.domains),
            "models": list(self.models),
            "costs": {
                name: np.round(own, DIGITS).tolist() for name, own in self.costs.items()
            },
            "tokens": {name: own.tolist() for name, own in self.tokens.items()},
            "about": dict(self.about),
        }

    def perplexity(self, domain: str, model: str) -> float:
        """Of one model over all test documents of a domain."""
        return self._perplexity(domain, self.costs[domain][:, self.models.index(model)])

    def routed_perplexity(self, domain: str, places: Sequence[int]) -> float:
        """When each document of a domain is answered by the expert of the domain it is sent to."""
        experts = [self.models.index(self.domains[place]) for place in places]
        return self._perplexity(
            domain, self.costs[domain][np.arange(len(experts)), experts]
        )

    def random_perplexity(self, domain: str) -> float:
        """When experts are drawn by lot: the mean of what all draws would cost."""
        experts = [self.models.index(name) for name in self.domains]
        return self._perplexity(domain, self.costs[domain][:, experts].mean(axis=1))

    def _perplexity(self, domain: str, costs: Costs) -> float:
        return math.exp(float(costs.sum()) / max(1, int(self.tokens[domain].sum())))

    def normalised(self, domain: str, perplexity: float) -> float:
        """100 is what the domain's own expert reaches; more is better."""
        return 100.0 * self.perplexity(domain, domain) / perplexity

    def least(self, domain: str) -> list[int]:
        """For each document, the place of the expert that finds it likeliest."""
        experts = [self.models.index(name) for name in self.domains]
        return [int(place) for place in self.costs[domain][:, experts].argmin(axis=1)]


def from_json(value: Mapping[str, Any]) -> Likelihoods:
    """Law: it gives what to_json was called on, to DIGITS digits."""
    domains = tuple(value["domains"])
    models = tuple(value["models"])
    costs = {
        name: np.array(own, dtype=np.float64).reshape(-1, len(models))
        for name, own in value["costs"].items()
    }
    tokens = {
        name: np.array(own, dtype=np.int64) for name, own in value["tokens"].items()
    }
    return Likelihoods(domains, models, costs, tokens, value["about"])


@dataclass(frozen=True, slots=True)
class Scored:
    """dataset: its test texts are those that were scored. lack: what should have been done and
    could not.
    """

    dataset: Dataset
    recipe: ExpertRecipe
    likelihoods: Likelihoods
    lack: str = ""


class _NoGpu(DeviceError):
    """Training in full was asked for where it would take days."""


def scored_at_best(
    plan: ExperimentPlan, dataset: Dataset, model: Path | None
) -> Scored:
    """As the plan asks for; where a full training is neither kept nor possible, the short one, with
    the reason.
    """
    try:
        return scored(plan, dataset, FULL if plan.full else SHORT, model)
    except _NoGpu as error:
        return replace(
            scored(plan, dataset, SHORT, model),
            lack=f"{error}; the short training stands for it",
        )


def scored(
    plan: ExperimentPlan, dataset: Dataset, recipe: ExpertRecipe, model: Path | None
) -> Scored:
    """model: a folder; None is SmolLM2, which is looked for only if there is something to do."""
    tested = scored_texts(plan, dataset, recipe)
    key = result_key(tested, recipe, digest_of(model), plan.seed)
    device = next(iter(chosen(plan.device)), "cpu")

    def work() -> object:
        if recipe == FULL and device == "cpu" and plan.device == "auto":
            raise _NoGpu(
                f"this machine has no GPU to train experts for {dataset.name} in full;"
                " do it on one that has, with `python -m"
                " ridgeway.simulations.experiments`, and copy what it writes into the"
                " report's cache"
            )
        texts = expert_texts(tested, definition_of(model), recipe, plan.seed)
        return train_experts(
            texts, model, recipe, device, plan.seed, plan.ticking
        ).to_json()

    return Scored(tested, recipe, from_json(plan.cache.kept("experts", key, work)))


def scored_texts(
    plan: ExperimentPlan, dataset: Dataset, recipe: ExpertRecipe
) -> Dataset:
    """With the test texts that are scored: some of those that every router is shown."""
    shown = task_of(plan, dataset, plan.work).shown
    return replace(dataset, test=shown).sampled(
        plan.seed, test=recipe.documents or None
    )


def beginnings(
    dataset: Dataset, model: Path | None, count: int = FIRST_TOKENS
) -> Dataset:
    """The same dataset with only the first tokens of each test text."""
    known = shared_tokenizer(definition_of(model))
    test = {
        name: tuple(
            "".join(piece for _, piece in known.pieces(text)[:count]) for text in own
        )
        for name, own in dataset.test.items()
    }
    return replace(dataset, name=f"{dataset.name}-first-{count}", test=test)


def result_key(
    dataset: Dataset, recipe: ExpertRecipe, model: str, seed: int
) -> Mapping[str, Any]:
    """All that decides likelihoods, the machine apart. The dataset's test texts are those that are
    scored.
    """
    about = {**asdict(recipe), "rates": list(recipe.rates)}
    return {
        "setting": dataset.digest,
        "recipe": about,
        "model": model,
        "seed": seed,
        "code": CODE,
    }


# Texts


@dataclass(frozen=True, slots=True)
class ExpertTexts:
    """The tokens of every domain. end: the id between documents, and before the first token of
    each.
    """

    end: int
    fit: Mapping[str, Documents]
    held: Mapping[str, Documents]
    test: Mapping[str, Documents]

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.fit)


def expert_texts(
    dataset: Dataset, definition: bytes, recipe: ExpertRecipe, seed: int
) -> ExpertTexts:
    """Training documents in random order, as many as are needed; held-out ones are never trained
    on.
    """
    known = shared_tokenizer(definition)
    parts = split(dataset)
    return ExpertTexts(
        end_of(definition),
        {
            name: _enough(known, texts, recipe.tokens, seed)
            for name, texts in parts.fit.items()
        },
        {
            name: _enough(known, texts, recipe.held, seed)
            for name, texts in parts.held.items()
        },
        {name: _documents(known, texts) for name, texts in dataset.test.items()},
    )


def end_of(definition: bytes) -> int:
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(definition.decode())
    found = [place for place in map(backend.token_to_id, ENDS) if place is not None]
    if not found:
        raise EncoderError(
            f"the tokenizer has none of {', '.join(ENDS)}, and an expert needs to know"
            " where texts end"
        )
    return int(found[0])


def _documents(tokenizer: Tokenizer, texts: Sequence[str]) -> Documents:
    ids, lengths = tokenizer.encode_many(texts)
    return tuple(np.split(ids, np.cumsum(lengths)[:-1])) if len(texts) else ()


def _enough(
    tokenizer: Tokenizer, texts: Sequence[str], tokens: int, seed: int
) -> Documents:
    """Documents that have this many tokens together, or all of them, in an order that texts and
    seed alone decide.
    """
    found: list[Ids] = []
    texts = random.Random(seed).sample(texts, len(texts))
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        if sum(map(len, found)) >= tokens:
            break
        found.extend(_documents(tokenizer, texts[start : start + TEXTS_AT_ONCE]))
    return tuple(found)


def sequences(
    documents: Documents, end: int, tokens: int, length: int, seed: int
) -> NDArray[np.int64]:
    """Rows of `length` + 1 ids: documents behind one another, an end before each, in another order
    every round.

    A row begins with the last id of the row before, so that each id is predicted once.
    """
    rows = max(1, tokens // length)
    stream = [np.array([end])]
    chance = random.Random(seed)
    while (have := sum(map(len, stream))) <= rows * length:
        for ids in chance.sample(documents, len(documents)):
            stream += [ids, np.array([end])]
        if sum(map(len, stream)) == have:
            raise EncoderError("a domain has no text to train an expert on")
    flat = np.concatenate(stream).astype(np.int64)
    return np.stack(
        [flat[row * length : (row + 1) * length + 1] for row in range(rows)]
    )


# Training


def train_experts(
    texts: ExpertTexts,
    model: Path | None,
    recipe: ExpertRecipe,
    device: str,
    seed: int,
    ticking: Ticking = silent,
) -> Likelihoods:
    """Train and score. What comes out depends on texts, recipe and seed; in last digits, on the
    device.
    """
    begin = time.perf_counter()
    trainer = Trainer(load(model, device), recipe, device)

    def train(domain: str, rate: float, tokens: int) -> list[float]:
        """An expert of a domain, from the beginning. The losses on the way."""
        rows = sequences(texts.fit[domain], texts.end, tokens, recipe.length, seed)
        trainer.begin()
        batches = trainer.training_batches(rows)
        with ticking(f"training {domain}", len(batches)) as tick:
            return trainer.learn(batches, rate, tick)

    def trial(domain: str, rate: float) -> float:
        """After a short training, the cost of a token of the domain's held-out text."""
        train(domain, rate, recipe.trial)
        documents = texts.held[domain]
        costs = trainer.likelihoods(
            trainer.test_batches(documents, texts.end), len(documents)
        )
        return float(costs.sum()) / max(
            1, sum(min(len(ids), recipe.longest) for ids in documents)
        )

    with ticking("reading", len(texts.domains)) as tick:
        tests = {}
        for name, documents in texts.test.items():
            tests[name] = trainer.test_batches(documents, texts.end)
            tick()

    def costs() -> dict[str, Costs]:
        """By domain, what the model as it is now gives each test document."""
        return {
            name: trainer.likelihoods(own, len(texts.test[name]))
            for name, own in tests.items()
        }

    trials: dict[str, float] = {}
    rate = recipe.rates[0]
    if len(recipe.rates) > 1:
        trials = {
            f"{each:g}": float(
                np.mean([trial(domain, each) for domain in texts.domains])
            )
            for each in recipe.rates
        }
        rate = best_rate(trials)
    trainer.begin()
    scores = {BASE: costs()}
    losses = {}
    weights = []
    for domain in texts.domains:
        losses[domain] = course(train(domain, rate, recipe.tokens))
        scores[domain] = costs()
        weights.append(trainer.weights())
    trainer.begin(mean_weights(weights))
    scores[MERGED] = costs()
    by_domain = {
        name: np.stack([own[name] for own in scores.values()], axis=1)
        for name in texts.domains
    }
    if not all(np.isfinite(own).all() for own in by_domain.values()):
        raise DeviceError(
            "a model gave no finite likelihood; its training went astray: try a smaller"
            " learning rate"
        )
    tokens = {
        name: np.array([min(len(ids), recipe.longest) for ids in own], dtype=np.int64)
        for name, own in texts.test.items()
    }
    gpu = (
        "CPU"
        if device == "cpu"
        else str(imported("torch", "contextual").cuda.get_device_name(device))
    )
    seconds = round(time.perf_counter() - begin, 1)
    about = {
        "rate": rate,
        "trials": trials,
        "losses": losses,
        "seconds": seconds,
        "device": gpu,
    }
    return Likelihoods(texts.domains, tuple(scores), by_domain, tokens, about)


def best_rate(trials: Mapping[str, float]) -> float:
    """The one of least cost; a training that went astray costs no number, and is never the best."""
    return float(
        min(trials, key=lambda rate: (not math.isfinite(trials[rate]), trials[rate]))
    )


def mean_weights(weights: list[Weights]) -> Weights:
    """Tensor by tensor."""
    return [sum(own[1:], start=own[0]) / len(own) for own in zip(*weights, strict=True)]


def course(losses: list[float], most: int = KEPT_LOSSES) -> list[float]:
    """The means of at most this many stretches of a training."""
    return [
        round(float(part.mean()), 4)
        for part in np.array_split(losses, min(most, len(losses)))
    ]
