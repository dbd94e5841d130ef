"""The text that benchmarks run on: the corpora beside the project where they are, else the built-in ones.

Knows folders of DOMAIN.train.jsonl. Knows nothing of timing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from simulations import corpora

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data" / "reasoning"


@dataclass(frozen=True, slots=True)
class BenchText:
    """train: files to prepare; prompts: test texts to route; name: what to call it in the results."""

    name: str
    folder: Path
    domains: tuple[str, ...]

    def train(self, domain: str) -> Path:
        return self.folder / f"{domain}.train.jsonl"

    @property
    def documents(self) -> list[str]:
        return [text for domain in self.domains for text in _texts(self.train(domain))]

    @property
    def prompts(self) -> list[str]:
        return [text for domain in self.domains for text in _texts(self.folder / f"{domain}.test.jsonl")]


def bench_text(work: Path) -> BenchText:
    folder, name = BESIDE, "reasoning"
    if not folder.is_dir():
        folder, name = work / "data", "built-in corpora"
        corpora.write(corpora.builtin(), folder)
    domains = sorted(path.name.removesuffix(".train.jsonl") for path in folder.glob("*.train.jsonl"))
    return BenchText(name, folder, tuple(domains))


def _texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        return [json.loads(line)["text"] for line in lines]
