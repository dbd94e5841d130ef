"""One point of how a cost grows, measured in a process of its own:

    python -m ridgeway.simulations.experiments.scale_points AXIS VALUE

prints the figures of the point as JSON. CPU seconds are of all processes and threads.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.schema import Mode
from ridgeway.common.base.settings import DEFAULT, WordFeatures
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.encoding.encoder_sources import find_encoder
from ridgeway.common.encoding.sentence_features import SENTENCE
from ridgeway.common.encoding.table_encoder import WORDS, with_words
from ridgeway.common.routing.router import Router
from ridgeway.simulations.bench.bench_text import BenchText, bench_text
from ridgeway.simulations.bench.measuring import (
    BenchOptions,
    measured_apart,
    peak_gb,
)
from ridgeway.simulations.bench.peers.gateway_peers import (
    server_cpu_seconds,
    server_memory,
)
from ridgeway.simulations.bench.route_bench import make_release
from ridgeway.simulations.bench.serving_bench import (
    ROUTE,
    TOKENS,
    prompts_of,
    put_load,
    ridgeway_serve,
)
from ridgeway.simulations.experiments.dataset import builtin_dataset, in_turn
from ridgeway.simulations.experiments.size_costs import domain_costs, width_costs

Figures = dict[str, float | None]
_ENCODER = "smollm2"
_FEW = 30
_LEAST_CPU_S = 0.5
"""Prompts are routed for at least as long."""


def documents(megabytes: int, work: Path) -> Figures:
    """`client prepare` over so much text, with all defaults."""
    text = bench_text(BenchOptions(work))
    path = work / "text.jsonl"
    _write_lines(list(text.training.values()), megabytes * 1_000_000, path)
    encoder = with_words(find_encoder(_ENCODER), WordFeatures())
    job = PrepareJob((path,), "scale", DEFAULT.sampling, 0.0, ("text",), cores())
    before = _cpu_seconds()
    prepare(job, encoder, work / "cache")
    spent = _cpu_seconds() - before
    return {"text, MB": megabytes, "CPU s": spent, "memory, GB": peak_gb()}


def _write_lines(files: list[Path], size: int, path: Path) -> None:
    """Lines of the files, over and over, until there are so many bytes."""
    lines = [line for file in files for line in file.read_bytes().splitlines(True)]
    with path.open("wb") as file:
        for line in cycle(lines):
            if file.tell() + len(line) > size:
                return
            file.write(line)


def holders(mode: Mode) -> Callable[[int, Path], Figures]:
    """A whole federation, and one of its holders."""

    def measure(count: int, work: Path) -> Figures:
        module = "ridgeway.simulations.bench.cohorts_bench"
        return federation_figures(count, measured_apart(module, count, 0, mode))

    return measure


def federation_figures(count: int, found: dict[str, Any]) -> Figures:
    """Of what a federation of `bench cohorts` prints. A small one runs in one process, so that the
    coordinator's part of it cannot be told.
    """
    own: dict[str, float] = found["own"]
    coordinator: float = found["coordinator_cpu"]
    return {
        "holders": count,
        "CPU s": found["cpu"],
        "of the coordinator, CPU s": None
        if coordinator == found["cpu"]
        else coordinator,
        "of a holder, CPU s": sum(own.values()),
        "a holder sends, MB": found["sent"] / 1e6,
        "memory, GB": found["gb"],
    }


def domains(count: int, work: Path) -> Figures:
    """A message, the solve and a release over domains that share some texts."""
    dataset = builtin_dataset()
    texts = in_turn(dataset.train, max(600, count))
    prompts = in_turn(dataset.test, 60)
    encoder = find_encoder(_ENCODER)
    costs = domain_costs(encoder, texts, prompts, count, work / "release")
    return {"domains": count, **costs}


def features(width: int, work: Path) -> Figures:
    """A message, sums and the solve over the width of a random encoder."""
    return {"features": width, **width_costs(width)}


def prompt_tokens(tokens: int, work: Path) -> Figures:
    """Routing one prompt of so many tokens, by the table alone and with every sentence read."""
    text = bench_text(BenchOptions(work))
    long = "\n".join(text.documents)
    release = _release(text, work, WORDS + SENTENCE)
    tokenizer = Tokenizer.from_file(str(release / "tokenizer.json"))
    prompts = prompts_of(tokenizer, long, tokens)
    table = Router.load(release, sentences="never")
    table.make_fast()
    reader = Router.load(release, sentences="always")
    reader.make_fast()
    return {
        "tokens": tokens,
        "the table, CPU ms": _milliseconds(table, prompts),
        "with sentences, CPU ms": _milliseconds(reader, prompts),
    }


def clients(connections: int, work: Path) -> Figures:
    """`POST /v1/route` over so many connections, which ask again when they have their answer."""
    text = bench_text(BenchOptions(work))
    release = _release(text, work, WORDS)
    tokenizer = Tokenizer.from_file(str(release / "tokenizer.json"))
    prompts = prompts_of(tokenizer, "\n".join(text.documents), TOKENS)
    bodies = [{"prompt": prompt} for prompt in prompts]
    with ridgeway_serve(work, str(release)) as server:
        asyncio.run(put_load(server, ROUTE, bodies, connections))  # warms up
        before = server_cpu_seconds(server)
        load = asyncio.run(put_load(server, ROUTE, bodies, connections))
        spent = server_cpu_seconds(server) - before
        memory = server_memory(server)
    return {
        "clients": connections,
        "CPU of a request, ms": 1e3 * spent / load.requests,
        "median, ms": load.p50_ms,
        "99th percentile, ms": load.p99_ms,
        "memory, MB": memory / 1e6,
    }


def _release(text: BenchText, work: Path, endings: str) -> Path:
    """Of a few documents of each domain: what a prompt costs does not depend on how many."""
    few = {}
    for domain, path in text.training.items():
        few[domain] = work / f"few-{path.name}"
        few[domain].write_bytes(b"".join(path.read_bytes().splitlines(True)[:_FEW]))
    encoder = find_encoder(_ENCODER + endings)
    return make_release(encoder, replace(text, training=few), work)


def _milliseconds(router: Router, prompts: list[str]) -> float:
    """CPU milliseconds of one prompt, the median over prompts that take turns."""
    router.route(prompts[0])
    times = list[float]()
    started = time.process_time()
    while time.process_time() < started + _LEAST_CPU_S or len(times) < 3:
        before = time.process_time()
        router.route(prompts[len(times) % len(prompts)])
        times.append(time.process_time() - before)
    return 1e3 * statistics.median(times)


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


MEASURES: dict[str, Callable[[int, Path], Figures]] = {
    "documents": documents,
    "masked-holders": holders("masked"),
    "private-holders": holders("private"),
    "domains": domains,
    "features": features,
    "prompt-tokens": prompt_tokens,
    "clients": clients,
}
"""What is measured at a point, by axis; the first figure is the place on the axis."""


def main(axis: str, value: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ridgeway-scale-") as work,
        one_blas_thread(),
    ):
        found = MEASURES[axis](value, Path(work))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
