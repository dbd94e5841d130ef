"""The text that benchmarks run on: a folder that was named, else the built-in corpora."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ridgeway.simulations import corpora
from ridgeway.simulations.bench.measuring import BenchOptions


@dataclass(frozen=True, slots=True)
class BenchText:
    """training: the file of each domain. documents and prompts: its texts, and the test's."""

    training: dict[str, Path]
    documents: list[str]
    prompts: list[str]


def bench_text(options: BenchOptions) -> BenchText:
    folder = options.text
    if folder is None:
        folder = options.work / "built-in"
        corpora.write(corpora.builtin(), folder)
    found = corpora.read_corpora(folder)
    return BenchText(
        {corpus.name: folder / f"{corpus.name}{corpora.TRAIN}" for corpus in found},
        [text for corpus in found for text in corpus.train],
        [text for corpus in found for text in corpus.test],
    )
