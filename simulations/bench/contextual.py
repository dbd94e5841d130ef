"""Sums over a transformer's hidden states beside its bare forward passes, over the same windows in the same passes.

The model is of MiniLM-L6's shape and random; so are the ids. Knows contextual sums. Knows nothing of text or files.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from client.contextual import ContextualSums
from common.contextual import ContextualEncoder
from common.settings import FEATURE_LIMIT, Sampling
from common.transformer import Transformer
from common.windows import Rows
from simulations.bench.device import Device
from simulations.bench.drawn import DEFINITION, Batch, draw
from simulations.bench.measuring import Result, Tick, at_most
from simulations.bench.summing import Summing

SHAPE: Final = {
    "vocab_size": 30_522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
WINDOW: Final = 64
TOKENS: Final = 4_000_000
ROUNDS: Final = 3
EXTRA: Final = 0.10
LARGEST: Final = 32.0
"""No hidden state of a random model is as large: its last layer is normalised to length √h."""


class Recording(Transformer):
    """The model as the accumulator knows it, which can keep the passes that it is asked for."""

    passes: list[Rows] | None = None

    def means(self, rows: Rows) -> Any:
        if self.passes is not None:
            self.passes.append(rows)
        return super().means(rows)

    def record(self, work: Callable[[], object]) -> list[Rows]:
        self.passes = []
        work()
        kept, self.passes = self.passes, None
        return kept


def bench_contextual(
    device: Device, threads: int, tick: Tick, shape: dict[str, int] | None = None, tokens: int = TOKENS
) -> list[Result]:
    """What the sums add to the seconds of the model itself."""
    shape = shape or SHAPE
    encoder = ContextualEncoder(
        "random", json.dumps(DEFINITION).encode(), shape["hidden_size"], LARGEST / FEATURE_LIMIT, "0" * 64
    )
    bare = random_model(shape, device)
    model = Recording(bare, device.name, encoder.tokenizer)
    summing = Summing([lambda: ContextualSums(model, encoder, Sampling(window=WINDOW))], threads)
    laps = []
    for _ in range(ROUNDS):
        laps.append(_lap(device, model, bare, summing, draw("uniform", tokens, shape["vocab_size"])[1]))
        tick()
    ours, theirs = (statistics.median(column) for column in zip(*laps, strict=True))
    words = [f"{tokens / seconds / 1e6:.4g} M tokens/s" for seconds in (ours, theirs)]
    return [at_most("contextual sums, seconds beyond the bare forward passes", (ours - theirs) / theirs, EXTRA, *words)]


def random_model(shape: dict[str, int], device: Device) -> Any:
    """A BERT without a pooler, of the kind of number that the device is used with."""
    import torch
    import transformers

    config: Any = transformers.BertConfig
    model: Any = transformers.BertModel
    made = model(config(**shape), add_pooling_layer=False).eval().requires_grad_(False)
    return made.to(torch.bfloat16 if device.is_card else torch.float32).to(device.name)


def _lap(device: Device, model: Recording, bare: Any, summing: Summing, parts: Sequence[Batch]) -> tuple[float, float]:
    """The seconds of ours and of the bare passes over new windows, after an untimed run that keeps the passes."""
    inputs = [_inputs(rows, device) for rows in model.record(lambda: summing.statistics(parts))]

    def forward() -> None:
        import torch

        with torch.inference_mode():
            for ids, mask in inputs:
                bare(input_ids=ids, attention_mask=mask)

    theirs = device.seconds(forward)
    return device.seconds(lambda: summing.statistics(parts)), theirs


def _inputs(rows: Rows, device: Device) -> tuple[Any, Any]:
    """What a pass is given, on the device already."""
    import torch

    ids = torch.from_numpy(rows.ids).long().to(device.name)
    used = torch.from_numpy((np.arange(rows.shape.length) < rows.used[:, None]).astype(np.int64))
    return ids, used.to(device.name) if rows.shape.padded else None
