"""The memory that `client prepare` needs for a corpus of a gigabyte: its largest resident size."""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
from pathlib import Path

from simulations.bench.measuring import Result, at_most
from simulations.bench.text import BenchText

GIGABYTE = 10**9


def bench_memory(text: BenchText, work: Path) -> list[Result]:
    """The corpus is the benchmark's own text, over and over, until it is large enough."""
    corpus = work / "large.jsonl"
    _write(corpus, text)
    words = [str(corpus), "--domain", "large", "--out", str(work / "large.stats"), "--fresh", "--json"]
    command = [str(Path(sys.executable).with_name("ridgeway")), "client", "prepare", *words]
    done = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    corpus.unlink()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    about = f"{done['tokens'] / 1e6:.0f} M tokens in {done['seconds']:.0f} s"
    return [at_most("prepare on 1 GB, memory in GB", peak, 1.5, f"{peak:.2f} GB", about)]


def _write(path: Path, text: BenchText) -> None:
    size = 0
    lines = [json.dumps({"text": document}, ensure_ascii=False).encode() + b"\n" for document in text.documents]
    with path.open("wb") as file:
        for line in itertools.cycle(lines):
            size += file.write(line)
            if size >= GIGABYTE:
                return
