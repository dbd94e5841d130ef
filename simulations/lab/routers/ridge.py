"""The paper's own router by production's code: sums over single tokens, ridge regression, and its three selectors.

The preset `paper` follows the published code; the line `written` follows the paper's text, which does not normalise
columns. Knows production's preset and solving.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from common.compiled import CompiledTable
from common.contextual import AnyEncoder
from common.encoder import Encoder
from common.files import write_whole
from common.settings import PAPER, Sampling, Selector
from common.statistics_file import Prepared
from common.threads import cores
from simulations.lab.routers.tables import VOTERS, Served, Tables, table_shape, words_of
from simulations.lab.routers.task import Line, Method, Task, Trained, Variant
from simulations.lab.setting import Texts

RULES = {
    "entropy": (True, [Selector("entropy", k) for k in VOTERS]),
    "all": (True, [Selector("all")]),
    "average": (True, [Selector("average")]),
    "written": (False, [Selector("entropy", k) for k in VOTERS]),
}
"""For each line, whether columns are normalised, and the selectors to choose among."""


def prepared(texts: Texts, encoder: AnyEncoder, folder: Path, sampling: Sampling, holdout: float) -> list[Prepared]:
    """Each domain's sums, as its holder would make them."""
    from client.prepare import Job, prepare

    parts = []
    for name, own in texts.items():
        path = folder / f"{name}.jsonl"
        write_whole(path, "".join(json.dumps({"text": text}) + "\n" for text in own).encode())
        job = Job((path,), name, sampling, holdout, ("text",), cores())
        parts.append(prepare(job, encoder, folder / "cache").prepared)
    return parts


def solved(parts: list[Prepared], encoder: Encoder, *, normalise: bool) -> CompiledTable:
    """The table of a router over the sorted domains."""
    from common.router import Confidence
    from coordinator.publish import Choices, draft

    choices = Choices(PAPER.weighting, PAPER.ridge, normalise, PAPER.selector, Confidence())
    made = draft(parts, encoder, choices).compiled
    assert isinstance(made, CompiledTable)
    return made


def _fit(task: Task) -> Trained:
    encoder, split = task.static_encoder(), task.split()
    texts = {name: split.fit[name] for name in sorted(split.fit)}
    parts = prepared(texts, encoder, task.work, PAPER.sampling, PAPER.holdout)
    tables = {normalise: solved(parts, encoder, normalise=normalise) for normalise in (True, False)}
    rules = [(line, normalise, rule) for line, (normalise, own) in RULES.items() for rule in own]
    return Tables(
        variants=[Variant(line, words_of(rule), table_shape(rule)) for line, _, rule in rules],
        note=f"windows of one token, λ = {PAPER.ridge.value:g}, sums over tokens",
        held=split.held,
        tokenizer=encoder.tokenizer,
        order=np.array([task.domains.index(part.domain) for part in parts]),
        served=[Served(tables[normalise], rule) for _, normalise, rule in rules],
    )


IR3DE = Method(
    "ir3de",
    "the same embeddings, ridge regression, token by token",
    _fit,
    {
        "entropy": Line(chosen="IR3DE, k chosen on held-out text", best="IR3DE, best k on the test, as in the paper"),
        "all": Line(chosen="IR3DE-all"),
        "average": Line(chosen="IR3DE-avg"),
        "written": Line(
            chosen="IR3DE without column norm, k chosen on held-out text",
            best="IR3DE without column norm, best k on the test",
        ),
    },
    gathers=False,
    decides=repr(PAPER),
)
