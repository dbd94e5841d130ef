"""A transformer's hidden states: what summing them adds to its bare forward passes, and how far
they differ between devices.

Sums are timed on a random model of MiniLM-L6's shape and random ids, over the same windows in the
same passes. Features are compared on text: the CPU runs a model in float32, a GPU in bfloat16, and
everything after the features is exact, so this is all there is to differ between machines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.sums.transformer_sums import ContextualSums
from ridgeway.common.base.settings import (
    CONTEXTUAL_SAMPLING,
    DEFAULT,
    FEATURE_LIMIT,
    Sampling,
)
from ridgeway.common.cli.terminal import ticking
from ridgeway.common.encoding.model_rows import Rows
from ridgeway.common.encoding.tokenizer import first_tokens
from ridgeway.common.encoding.transformer import Transformer
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
from ridgeway.common.encoding.windows import window_starts
from ridgeway.simulations.bench.device import Device
from ridgeway.simulations.bench.measuring import Result, at_most, figure, medians
from ridgeway.simulations.bench.random_corpus import DEFINITION, Batch, draw
from ridgeway.simulations.bench.sum_methods import OurSums

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
MAX_EXTRA_SECONDS_RATIO: Final = 0.10
MAX_HIDDEN_STATE: Final = 32.0
"""No hidden state of a random model is as large: its last layer is normalised to length √h."""

DOCUMENTS_PER_DOMAIN: Final = 150
MAX_TOKENS_PER_DOCUMENT: Final = 1024
ROWS_PER_PASS: Final = 64

Features = NDArray[np.float64]


class RecordingTransformer(Transformer):
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
    device: Device, threads: int, shape: Mapping[str, int] = SHAPE, tokens: int = TOKENS
) -> list[Result]:
    """What the sums add to the seconds of the model itself."""
    definition = json.dumps(DEFINITION).encode()
    encoder = ContextualEncoder(
        "random",
        definition,
        shape["hidden_size"],
        MAX_HIDDEN_STATE / FEATURE_LIMIT,
        "0" * 64,
    )
    bare = random_model(shape, device)
    model = RecordingTransformer(bare, device.name, encoder.tokenizer)
    sums = OurSums(
        [lambda: ContextualSums(model, encoder, Sampling(window=WINDOW))], threads
    )
    rounds = []
    with ticking("contextual", ROUNDS) as tick:
        for _ in range(ROUNDS):
            rounds.append(
                _seconds(
                    device,
                    model,
                    bare,
                    sums,
                    draw("uniform", tokens, shape["vocab_size"])[1],
                )
            )
            tick()
    ours, theirs = medians(rounds)
    words = [f"{tokens / seconds / 1e6:.4g} M tokens/s" for seconds in (ours, theirs)]
    name = "contextual sums, seconds beyond the bare forward passes"
    return [at_most(name, (ours - theirs) / theirs, MAX_EXTRA_SECONDS_RATIO, *words)]


def random_model(shape: Mapping[str, int], device: Device) -> Any:
    """A BERT without a pooler, of the kind of number that the device is used with."""
    import torch
    import transformers

    config: Any = transformers.BertConfig
    model: Any = transformers.BertModel
    made = model(config(**shape), add_pooling_layer=False).eval().requires_grad_(False)
    return made.to(torch.bfloat16 if device.is_gpu else torch.float32).to(device.name)


def _seconds(
    device: Device,
    model: RecordingTransformer,
    bare: Any,
    sums: OurSums,
    parts: Sequence[Batch],
) -> tuple[float, float]:
    """The seconds of ours and of the bare passes over new windows, after an untimed run that keeps
    the passes.
    """
    inputs = [
        _inputs(rows, device) for rows in model.record(lambda: sums.statistics(parts))
    ]

    def forward() -> None:
        import torch

        with torch.inference_mode():
            for ids, mask in inputs:
                bare(input_ids=ids, attention_mask=mask)

    theirs = device.seconds(forward)
    return device.seconds(lambda: sums.statistics(parts)), theirs


def _inputs(rows: Rows, device: Device) -> tuple[Any, Any]:
    """What a pass is given, on the device already."""
    import torch

    ids = torch.from_numpy(rows.ids).long().to(device.name)
    used = torch.from_numpy(
        (np.arange(rows.shape.length) < rows.used[:, None]).astype(np.int64)
    )
    return ids, used.to(device.name) if rows.shape.padded else None


# Features on two devices


def bench_features(
    encoder: ContextualEncoder,
    texts: dict[str, list[str]],
    here: Transformer,
    there: Transformer,
) -> list[Result]:
    """texts: some documents of each domain; a router is solved on the features of `here` and asked
    about both.
    """
    pieces = [
        _windows(encoder, documents[:DOCUMENTS_PER_DOMAIN], here, there)
        for documents in texts.values()
    ]
    owners = np.repeat(np.arange(len(pieces)), [len(piece[0]) for piece in pieces])
    one, other = (np.concatenate(column) for column in zip(*pieces, strict=True))
    apart = np.abs(one - other)
    about = f"{len(one):,} windows of {len(pieces)} domains"
    spread = f"features have a root mean square of {np.sqrt((one**2).mean()):.1f}"
    same, score = _decisions(one * encoder.scale, other * encoder.scale, owners)
    return [
        figure("features that differ, share", float((apart > 0).mean()), "", about),
        figure(
            "features that differ by more than one unit, share",
            float((apart > 1).mean()),
            "",
            about,
        ),
        figure(
            "difference, root mean square, units",
            float(np.sqrt((apart**2).mean())),
            "",
            spread,
        ),
        figure(
            "largest difference, units",
            float(apart.max()),
            "",
            f"the largest feature is {np.abs(one).max():.0f}",
        ),
        figure("windows that go to the same domain, share", same, "", about),
        figure("largest difference of a score", score, "", "scores lie about 0 and 1"),
    ]


def _windows(
    encoder: ContextualEncoder,
    documents: list[str],
    here: Transformer,
    there: Transformer,
) -> tuple[Features, Features]:
    """The features of all windows of some documents, by both."""
    ids, lengths = first_tokens(
        *encoder.tokenizer.encode_many(documents), MAX_TOKENS_PER_DOCUMENT
    )
    window = CONTEXTUAL_SAMPLING.window
    found = [
        np.empty((len(window_starts(lengths, window)), encoder.width)) for _ in range(2)
    ]
    for rows in here.frame(window).rows(ids, lengths):
        for start in range(0, len(rows), ROWS_PER_PASS):
            part = rows[start : start + ROWS_PER_PASS]
            for target, model in zip(found, (here, there), strict=True):
                target[part.places] = np.rint(
                    model.means(part).cpu().numpy().astype(np.float64) / encoder.scale
                )
    return found[0], found[1]


def _decisions(
    one: Features, other: Features, owners: NDArray[np.int64]
) -> tuple[float, float]:
    """The share of windows that a router sends to the same domain either way, and how far scores
    differ at most.
    """
    constant = np.ones((len(one), 1))
    features, moved = (np.hstack((part, constant)) for part in (one, other))
    gram = features.T @ features
    gram[np.diag_indices_from(gram)] += DEFAULT.ridge.value * gram.diagonal().mean()
    weights = np.linalg.solve(gram, features.T @ np.eye(int(owners.max()) + 1)[owners])
    scores = features @ weights
    others = moved @ weights
    same = (scores.argmax(axis=1) == others.argmax(axis=1)).mean()
    return float(same), float(np.abs(scores - others).max())
