"""A router in the manner of MoDEM: a transformer fine-tuned to say which domain a text is from.

Cross-entropy, AdamW, batches of 16, gradients clipped to norm 1, a cosine schedule with a warm-up. The learning rate
and the number of epochs are chosen on held-out text. Knows nothing of where texts come from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.errors import DeviceError, EncoderError
from common.model_files import model_files
from simulations.lab.routers.sentences import NAME, SentenceEncoder, batches, find_minilm, first_device
from simulations.lab.routers.task import Line, Method, Places, Task, Trained, Variant, labelled
from simulations.lab.setting import Split, Texts

if TYPE_CHECKING:
    import torch

DEBERTA, VARIABLE = "microsoft/deberta-v3-small", "RIDGEWAY_DEBERTA"
BATCH, CLIP, WARM_UP, DECAY, DROPOUT = 16, 1.0, 0.1, 0.01, 0.1


@dataclass(frozen=True, slots=True)
class Recipe:
    """texts: of a domain, held-out ones with them. tokens: of a text."""

    texts: int
    tokens: int
    epochs: int
    rates: tuple[float, ...]

    def __str__(self) -> str:
        return f"at most {self.texts:,} texts a domain and {self.tokens} tokens a text"


FULL = Recipe(texts=1750, tokens=256, epochs=5, rates=(1e-5, 3e-5, 1e-4, 3e-4))
SHORT = Recipe(texts=50, tokens=64, epochs=2, rates=(3e-4,))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Classifier(Trained):
    encoder: SentenceEncoder
    head: torch.nn.Linear

    def routed(self, prompts: Sequence[str]) -> Iterator[Places]:
        yield classified(self.encoder, self.head, self.encoder.ids(prompts))


@dataclass(frozen=True, slots=True)
class Stage:
    """How far the learning had come at the end of an epoch; the state is that of the encoder and the head."""

    score: float
    words: str
    state: Any


def classified(encoder: SentenceEncoder, head: Any, ids: Sequence[Sequence[int]]) -> Places:
    """The place of the domain of each text."""
    import torch

    places = np.empty(len(ids), dtype=np.int64)
    order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    with torch.inference_mode():
        for part in batches(order, encoder.batch):
            places[part] = head(encoder.pooled([ids[place] for place in part])).argmax(1).cpu().numpy()
    return places


def fit_with(base: Path, words: str, recipe: Recipe, task: Task) -> Classifier:
    """The state of the best epoch at the best rate; of equals the first."""
    import torch

    parts = task.split(recipe.texts)
    device = first_device(task.device)
    with torch.random.fork_rng(devices=[] if device == "cpu" else [device]):
        stages = (stage for rate in recipe.rates for stage in stages_of(base, device, parts, recipe, rate, task.seed))
        best = next(stages)
        for stage in stages:
            best = stage if stage.score > best.score else best
    encoder, head = blank(base, device, recipe.tokens, len(task.domains))
    encoder.model.load_state_dict(best.state[0])
    head.load_state_dict(best.state[1])
    return Classifier(
        variants=[Variant("modem", best.words, {"kind": "classifier", "base": words, "tokens": recipe.tokens})],
        note=f"{words}, {recipe}; {best.words} of {recipe.epochs}",
        encoder=encoder,
        head=head,
    )


def blank(base: Path, device: str, tokens: int, domains: int) -> tuple[SentenceEncoder, Any]:
    """The encoder before any fine-tuning, and a head that knows nothing."""
    import torch

    encoder = SentenceEncoder(base, device, tokens)
    return encoder, torch.nn.Linear(encoder.width, domains).to(device)


def stages_of(base: Path, device: str, parts: Split, recipe: Recipe, rate: float, seed: int) -> Iterator[Stage]:
    """Learn at one rate; a stage after each epoch."""
    import torch

    torch.manual_seed(seed)
    encoder, head = blank(base, device, recipe.tokens, len(parts.domains))
    texts, labels = labelled(parts.fit)
    ids, targets = encoder.ids(texts), torch.tensor(labels, device=device)
    weights = [*encoder.model.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(weights, lr=rate, weight_decay=DECAY)
    schedule = _cosine(optimiser, recipe.epochs * -(-len(ids) // BATCH))
    chance = np.random.default_rng(seed)
    for epoch in range(recipe.epochs):
        encoder.model.train()
        for part in batches(chance.permutation(len(ids)).tolist(), BATCH):
            pooled = torch.nn.functional.dropout(encoder.pooled([ids[place] for place in part]), DROPOUT)
            torch.nn.functional.cross_entropy(head(pooled), targets[part]).backward()
            torch.nn.utils.clip_grad_norm_(weights, CLIP)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
        encoder.model.eval()
        state = [{name: value.clone() for name, value in each.state_dict().items()} for each in (encoder.model, head)]
        yield Stage(_score(encoder, head, parts.held), f"learning rate {rate:g}, epoch {epoch + 1}", state)


def _cosine(optimiser: torch.optim.Optimizer, steps: int) -> Any:
    import transformers

    return transformers.get_cosine_schedule_with_warmup(optimiser, int(WARM_UP * steps), steps)


def _score(encoder: SentenceEncoder, head: Any, held: Texts) -> float:
    """The mean over the domains that have held-out texts."""
    texts, labels = labelled(held)
    if not texts:
        return 0.0
    right = classified(encoder, head, encoder.ids(texts)) == labels
    return float(np.mean([right[labels == place].mean() for place in np.unique(labels)]))


def find_base(full: bool) -> tuple[Path, str]:
    """The transformer to begin with, and its name: in a full run DeBERTa, if it can be had, else the smaller one."""
    if not full:
        return find_minilm(), NAME
    try:
        return model_files(os.environ.get(VARIABLE, DEBERTA)).folder, "DeBERTa-v3-small"
    except EncoderError:
        return find_minilm(), f"{NAME}, since DeBERTa-v3-small could not be had"


def _fit(task: Task) -> Trained:
    if task.full and task.device == "auto" and first_device(task.device) == "cpu":
        raise DeviceError(
            "fine-tuning in full takes hours without a card; do it on a machine that has one, with `python -m "
            "simulations.lab.routers`, and copy what it writes into the report's cache, or ask for --device cpu"
        )
    return fit_with(*find_base(task.full), FULL if task.full else SHORT, task)


MODEM = Method(
    "modem",
    "a transformer fine-tuned as a classifier",
    _fit,
    {"modem": Line(chosen="MoDEM-like classifier")},
    sentence=True,
)
