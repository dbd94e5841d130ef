"""A language model that learns and is examined: rows of ids in, training losses and log-likelihoods out.

The one place where experts run through a model. Imports torch when it is used. Knows nothing of domains.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.tokenizer import Ids
from simulations.lab.experts.base import take_off
from simulations.lab.experts.recipe import Recipe

if TYPE_CHECKING:
    import torch

NOTHING = -100
"""The label of what is not predicted: padding."""
PASS_TOKENS = {"cpu": 512, "cuda": 16_384}
Weights = list["torch.Tensor"]


@dataclass(frozen=True, slots=True)
class Rows:
    """What a model reads and what it should say.

    places: which documents the rows are. inputs: ids, or the states that a stem made of them.
    """

    places: tuple[int, ...]
    inputs: torch.Tensor
    labels: torch.Tensor


class Pupil:
    """A model with all it takes to train it again and again from the same beginning.

    Law: after `begin()` it is as it was when it was made.
    """

    def __init__(self, model: Any, recipe: Recipe, device: str) -> None:
        self._recipe, self._device = recipe, device
        self._stem = take_off(model, recipe.layers) if recipe.layers else None
        self._model = model.train()  # there is no dropout in it
        if self._stem is not None:
            model.get_input_embeddings().weight.requires_grad_(False)
            model.get_output_embeddings().weight.requires_grad_(False)
        self._start = self.weights()

    def weights(self) -> Weights:
        """A copy of what is trained."""
        return [each.detach().clone() for each in self._trained()]

    def begin(self, weights: Weights | None = None) -> None:
        """Take on these weights, or those of the beginning."""
        for each, value in zip(self._trained(), weights or self._start, strict=True):
            each.data.copy_(value)

    def _trained(self) -> Weights:
        return [each for each in self._model.parameters() if each.requires_grad]

    # Reading

    def lesson(self, sequences: NDArray[np.int64]) -> list[Rows]:
        """Training sequences in steps."""
        size = self._recipe.batch
        steps = [sequences[start : start + size] for start in range(0, len(sequences), size)]
        return [self._rows((), step[:, :-1], step[:, 1:]) for step in steps]

    def paper(self, documents: Sequence[Ids], end: int) -> list[Rows]:
        """Documents to be examined on, each cut and behind an `end`, so that its first token is predicted too."""
        cut = [ids[: self._recipe.longest] for ids in documents]
        return [self._padded(places, cut, end) for places in passes([len(ids) for ids in cut], self._pass_tokens)]

    @property
    def _pass_tokens(self) -> int:
        return PASS_TOKENS[self._device.partition(":")[0]]

    def _padded(self, places: Sequence[int], documents: Sequence[Ids], end: int) -> Rows:
        """Padding stands behind, where a causal model does not see it."""
        longest = max(len(documents[place]) for place in places)
        inputs = np.full((len(places), longest), end, dtype=np.int64)
        labels = np.full((len(places), longest), NOTHING, dtype=np.int64)
        for row, place in enumerate(places):
            ids = documents[place]
            inputs[row, 1 : len(ids)] = ids[:-1]
            labels[row, : len(ids)] = ids
        return self._rows(tuple(places), inputs, labels)

    def _rows(self, places: tuple[int, ...], inputs: NDArray[np.int64], labels: NDArray[np.int64]) -> Rows:
        import torch

        ids = torch.from_numpy(np.ascontiguousarray(inputs)).to(self._device)
        if self._stem is not None:
            with torch.no_grad():
                ids = self._stem(input_ids=ids).last_hidden_state
        return Rows(places, ids, torch.from_numpy(np.ascontiguousarray(labels)).to(self._device))

    # Learning

    def learn(self, lesson: Sequence[Rows], rate: float, tick: Callable[[], None]) -> list[float]:
        """Train on every step once: AdamW, the rate warmed up and then a cosine down to nothing. The losses."""
        import torch

        card = self._device != "cpu"
        options: dict[str, Any] = {"betas": (0.9, 0.95), "weight_decay": self._recipe.decay, "fused": card}
        optimiser, losses = torch.optim.AdamW(self._trained(), rate, **options), []
        for number, rows in enumerate(lesson):
            for group in optimiser.param_groups:
                group["lr"] = rate * slope(number, len(lesson), self._recipe.warmup)
            with torch.autocast("cuda", torch.bfloat16) if card else contextlib.nullcontext():
                loss = self._losses(rows).sum() / (rows.labels != NOTHING).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._trained(), self._recipe.clip)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            tick()
        return [float(loss) for loss in losses]

    def likelihoods(self, paper: Sequence[Rows], count: int) -> NDArray[np.float64]:
        """Of each of so many documents, the negative log-likelihood: 0 for one without tokens."""
        import torch

        found = np.zeros(count)
        with torch.inference_mode(), _matmuls("high"):
            for rows in paper:
                found[list(rows.places)] = self._losses(rows).double().sum(1).cpu().numpy()
        return found

    def _losses(self, rows: Rows) -> torch.Tensor:
        """rows × length: the cost of each token, 0 for padding."""
        import torch

        name = "inputs_embeds" if rows.inputs.is_floating_point() else "input_ids"
        scores = self._model(**{name: rows.inputs}).logits.float().flatten(0, 1)
        labels = rows.labels.flatten()
        losses = torch.nn.functional.cross_entropy(scores, labels, ignore_index=NOTHING, reduction="none")
        return losses.view_as(rows.labels)


@contextlib.contextmanager
def _matmuls(precision: str) -> Any:
    """On a card, products in TensorFloat-32: ten bits of each number, sums in float32."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def slope(step: int, steps: int, warmup: float) -> float:
    """The share of the learning rate at a step: up in a line, down in half a cosine."""
    risen = max(1, round(steps * warmup))
    if step < risen:
        return (step + 1) / risen
    return 0.5 * (1.0 + math.cos(math.pi * (step - risen) / max(1, steps - risen)))


def passes(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Documents that are read together: of like length, at most so many tokens with padding; empty ones not at all."""
    order = sorted((place for place, length in enumerate(lengths) if length), key=lambda place: lengths[place])
    found: list[list[int]] = []
    for place in order:
        if found and lengths[place] * (len(found[-1]) + 1) <= most:
            found[-1].append(place)
        else:
            found.append([place])
    return found
