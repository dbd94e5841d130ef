"""The memory that `client prepare` needs for a corpus of a gigabyte: its largest resident size."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from simulations.bench.measuring import Result, at_most
from simulations.bench.text import BenchText

GIGABYTE = 10**9
LOOKS_EVERY_S = 0.02


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
    """What a command prints, and its largest resident size in gigabytes, looked at until it ends.

    What the system tells afterwards would include the size of whoever started it.
    """
    largest = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while process.poll() is None:
            largest = max(largest, _resident(process.pid))
            time.sleep(LOOKS_EVERY_S)
        printed = process.stdout.read() if process.stdout else b""
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return json.loads(printed), largest / 1e9


def _resident(pid: int) -> int:
    """The largest resident size of a process so far, in bytes; 0 if it has just ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0


def _write(path: Path, text: BenchText) -> None:
    size = 0
    lines = [json.dumps({"text": document}, ensure_ascii=False).encode() + b"\n" for document in text.documents]
    with path.open("wb") as file:
        for line in itertools.cycle(lines):
            size += file.write(line)
            if size >= GIGABYTE:
                return
