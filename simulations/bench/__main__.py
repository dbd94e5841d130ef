"""Run every benchmark, print a table, and write the figures as JSON. Exits non-zero if an aim was missed.

With --large, only the memory of `client prepare` on a gigabyte of text is measured, which takes several minutes; with
--masking, only secure aggregation.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from common.encoder_sources import find_encoder
from common.files import write_whole
from common.terminal import step, table
from simulations.bench.federation import bench_federation
from simulations.bench.masking import bench_masking
from simulations.bench.measuring import Result
from simulations.bench.memory import bench_memory
from simulations.bench.preparing import bench_prepare
from simulations.bench.reference import bench_reference
from simulations.bench.routing import bench_command, bench_route, make_release
from simulations.bench.text import BenchText, bench_text

WORK = Path("bench-run")


def main(arguments: list[str]) -> int:
    WORK.mkdir(exist_ok=True)
    if "--masking" in arguments:
        return _report("masking", "none", _masking())
    text = bench_text(WORK)
    if "--large" in arguments:
        return _report("large", text.name, bench_memory(text, WORK))
    return _report("bench", text.name, _ratios(text))


def _report(name: str, text: str, results: list[Result]) -> int:
    _show(results)
    path = WORK / f"{name}.json"
    write_whole(path, json.dumps(_facts(text, results), indent=2).encode())
    step("wrote", str(path))
    return 0 if all(result.reached for result in results) else 1


def _ratios(text: BenchText) -> list[Result]:
    encoder = find_encoder("smollm2")
    release = make_release(encoder, text, WORK)
    step("measuring", "route", text.name)
    results = [*bench_route(release, text), *bench_command(release)]
    step("measuring", "sums", text.name)
    results += bench_reference(encoder, text)
    step("measuring", "prepare", text.name)
    results += bench_prepare(encoder, text, WORK)
    results += _masking()
    step("measuring", "a federation", "built-in text")
    return results + bench_federation()


def _masking() -> list[Result]:
    step("measuring", "masking", "random numbers")
    return bench_masking()


def _facts(text: str, results: list[Result]) -> dict[str, Any]:
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    return {"text": text, **machine, "results": [result.to_json() for result in results]}


def _show(results: list[Result]) -> None:
    rows = [
        [one.name, f"{one.ratio:.3g}", one.aim, "yes" if one.reached else "NO", one.ours, one.theirs] for one in results
    ]
    table(["what", "ratio", "aim", "reached", "ours", "beside it"], rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
