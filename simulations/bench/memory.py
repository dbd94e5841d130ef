"""The memory that `client prepare` needs for a corpus of a gigabyte: its largest resident size."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from simulations.bench.measuring import Result, at_most
from simulations.bench.text import BenchText

GIGABYTE = 10**9


def bench_memory(text: BenchText, work: Path) -> list[Result]:
    """The corpus is the benchmark's own text, over and over, until it is large enough."""
    corpus = work / "large.jsonl"
    _write(corpus, text)
    words = [str(corpus), "--domain", "large", "--out", str(work / "large.stats"), "--fresh", "--json"]
    command = [str(Path(sys.executable).with_name("ridgeway")), "client", "prepare", *words]
    done, peak = _measured(command)
    corpus.unlink()
    about = f"{done['tokens'] / 1e6:.0f} M tokens in {done['seconds']:.0f} s"
    return [at_most("prepare on 1 GB, memory in GB", peak, 1.5, f"{peak:.2f} GB", about)]


def _measured(command: list[str]) -> tuple[dict[str, Any], float]:
    """What a command prints, and its largest resident size in gigabytes: its own, not that of others before it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        printed = process.stdout.read() if process.stdout else b""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return json.loads(printed), used.ru_maxrss * 1024 / 1e9


def _write(path: Path, text: BenchText) -> None:
    size = 0
    lines = [json.dumps({"text": document}, ensure_ascii=False).encode() + b"\n" for document in text.documents]
    with path.open("wb") as file:
        for line in itertools.cycle(lines):
            size += file.write(line)
            if size >= GIGABYTE:
                return
