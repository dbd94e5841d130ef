"""The text that benchmarks run on: the corpora beside the project where they are, else the built-in
ones.
"""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.simulations import corpora

DATA_FOLDER = IMPORT_ROOT.parent / "shared" / "data"


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
    def by_domain(self) -> dict[str, list[str]]:
        return {domain: _texts(self.train(domain)) for domain in self.domains}

    @property
    def prompts(self) -> list[str]:
        return [
            text
            for domain in self.domains
            for text in _texts(self.folder / f"{domain}.test.jsonl")
        ]


def bench_text(work: Path) -> BenchText:
    folder = DATA_FOLDER / "reasoning"
    name = "the corpora beside the project"
    if not folder.is_dir():
        folder = work / "data" / "built-in"
        name = "the built-in corpora"
        corpora.write(corpora.builtin(), folder)
    return replace(
        folder_text(folder),
        name=name,
        files=tuple(sorted(folder.parent.glob("*/*.train.jsonl"))),
    )


def folder_text(folder: Path) -> BenchText:
    files = tuple(sorted(folder.glob("*.train.jsonl")))
    if not files:
        raise InputError(
            f"{folder} holds no DOMAIN.train.jsonl, so there is no text to measure on"
        )
    domains = tuple(path.name.removesuffix(".train.jsonl") for path in files)
    return BenchText(str(folder), files, folder, domains)


def repeated(text: BenchText, megabytes: float, work: Path) -> BenchText:
    """The same text over and over, in files of its own, until it is of some size; text that is
    larger stays.
    """
    size = sum(path.stat().st_size for path in text.files)
    if size >= megabytes * 1e6:
        return text
    folder = work / "repeated"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files: list[Path] = []
    size = 0
    for path in itertools.cycle(text.files):
        files.append(folder / f"{len(files):05}-{path.name}")
        shutil.copyfile(path, files[-1])
        size += path.stat().st_size
        if size >= megabytes * 1e6:
            return replace(
                text,
                name=f"{text.name}, repeated to {size / 1e6:.0f} MB",
                files=tuple(files),
            )
    raise InputError("text without a single character cannot be repeated")


def _texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        return [json.loads(line)["text"] for line in lines]
