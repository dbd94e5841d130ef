"""The text that benchmarks run on: a folder that was named, else the built-in corpora."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.jsonl import jsonl_texts
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
    files = sorted(folder.glob(f"*{corpora.TRAIN}"))
    tests = sorted(folder.glob(f"*{corpora.TEST}"))
    if not files or not tests:
        raise InputError(
            f"{folder} holds no DOMAIN{corpora.TRAIN} and DOMAIN{corpora.TEST}, so"
            " there is no text to measure on"
        )
    training = {path.name.removesuffix(corpora.TRAIN): path for path in files}
    return BenchText(training, _texts(files), _texts(tests))


def _texts(files: list[Path]) -> list[str]:
    found: list[str] = []
    for path in files:
        with path.open(encoding="utf-8", newline="\n") as lines:
            found += jsonl_texts(lines, ["text"], str(path))
    return found


def repeated(files: list[Path], megabytes: float, folder: Path) -> list[Path]:
    """As many copies of the files as have this size; files that are larger stay."""
    size = sum(path.stat().st_size for path in files)
    times = math.ceil(megabytes * 1e6 / size)
    if times <= 1:
        return files
    folder.mkdir()
    return [
        Path(shutil.copyfile(path, folder / f"{time}-{path.name}"))
        for time in range(times)
        for path in files
    ]
