"""The text that benchmarks run on: the corpora beside the project where they are, else the built-in ones.

Knows folders of DOMAIN.train.jsonl. Knows nothing of timing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from simulations import corpora

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@dataclass(frozen=True, slots=True)
class BenchText:
    """files: all there is to prepare; folder and domains: those that prompts are routed over."""

    name: str
    files: tuple[Path, ...]
    folder: Path
    domains: tuple[str, ...]

    def train(self, domain: str) -> Path:
        return self.folder / f"{domain}.train.jsonl"

    @property
    def documents(self) -> list[str]:
        return [text for path in self.files for text in _texts(path)]

    @property
    def prompts(self) -> list[str]:
        return [text for domain in self.domains for text in _texts(self.folder / f"{domain}.test.jsonl")]


def bench_text(work: Path) -> BenchText:
    folder, name = BESIDE / "reasoning", "the corpora beside the project"
    if not folder.is_dir():
        folder, name = work / "data" / "built-in", "the built-in corpora"
        corpora.write(corpora.builtin(), folder)
    files = sorted(folder.parent.glob("*/*.train.jsonl"))
    domains = sorted(path.name.removesuffix(".train.jsonl") for path in folder.glob("*.train.jsonl"))
    return BenchText(name, tuple(files), folder, tuple(domains))


def _texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        return [json.loads(line)["text"] for line in lines]
