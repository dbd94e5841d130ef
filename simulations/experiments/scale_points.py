"""One point of how a cost grows, measured in a process of its own:

    python -m ridgeway.simulations.experiments.scale_points AXIS VALUE

prints the figures of the point as JSON. CPU seconds are of all processes and threads.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from itertools import cycle
from operator import add
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from ridgeway.client.round.holder import Holder
from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.machine import one_blas_thread
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.records import Mode
from ridgeway.common.base.settings import DEFAULT, PLAIN_ENCODER, Ridge, Sampling
from ridgeway.common.protocol.messages import SealedSums
from ridgeway.common.protocol.packet import Packet, seal_packet
from ridgeway.common.routing.router import Router
from ridgeway.common.statistics import vector_size
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.sentence_encoder import SENTENCE
from ridgeway.coordinator.round.progress import Event, ReleaseDelivered
from ridgeway.coordinator.solving.solve import draft, sign, solve
from ridgeway.simulations.bench.bench_inputs import (
    BenchText,
    bench_text,
    draw,
    random_encoder,
)
from ridgeway.simulations.bench.measuring import (
    BenchOptions,
    peak_gb,
    resident_bytes,
    seconds_in_turns,
)
from ridgeway.simulations.bench.serving_bench import (
    ROUTE,
    TOKENS,
    prompts_of,
    put_load,
    ridgeway_serve,
)
from ridgeway.simulations.bench.sums_bench import DEFAULT_CHOICES, make_release
from ridgeway.simulations.corpora import Corpus, write
from ridgeway.simulations.experiments.dataset import builtin_dataset, in_turn
from ridgeway.simulations.experiments.routers import summed, summed_texts
from ridgeway.simulations.local_grid import forget_shared_work
from ridgeway.simulations.simulate import FederationSettled, simulate_federation

Figures = dict[str, float | None]
_ENCODER = PLAIN_ENCODER
"""Of holders and domains."""
_REPEATS = 3

_DOMAINS = 6
_DOCUMENTS = 20
_WORDS = 60
"""What every holder has: so many documents of so many words."""

_TEXTS = 600
_PROMPTS = 60
"""Of all made-up domains together, at least; and how many are routed."""
RANDOM_ROWS = 2048
RANDOM_TOKENS = 32_768
RANDOM_DOMAINS = 4
WINDOW = Sampling(window=16)
DEALT = Sampling(window=64)

_FEW = 30
_LEAST_CPU_S = 0.5
"""Prompts are routed for at least as long."""


def documents(megabytes: int, work: Path) -> Figures:
    """`client prepare` over so much text, with all defaults."""
    text = bench_text(BenchOptions(work))
    path = work / "text.jsonl"
    _write_lines(list(text.training.values()), megabytes * 1_000_000, path)
    encoder = find_encoder(DEFAULT.encoder)
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


# Holders


def holders(mode: Mode) -> Callable[[int, Path], Figures]:
    """A whole federation, and one of its holders."""

    def measure(count: int, work: Path) -> Figures:
        from ridgeway.client.client_app import holder_app
        from ridgeway.client.round.answers import answer

        holder = OneHoldersWork(work / "own-work.jsonl", answer)
        write_corpora(work / "data", count)
        simulate_federation(
            work / "federation",
            holder.watch,
            data=work / "data",
            holders=count,
            encoder=_ENCODER,
            mode=mode,
            app=holder_app(holder.answer),
        )
        answers = holder.answers()
        coordinator = time.process_time()
        processes = _children_cpu_seconds()
        return {
            "holders": count,
            "CPU s": coordinator + processes,
            # of a small one, which runs in one process, it cannot be told
            "of the coordinator, CPU s": coordinator if processes else None,
            "of a holder, CPU s": sum(answer["seconds"] for answer in answers),
            "a holder sends, MB": sum(answer["bytes"] for answer in answers) / 1e6,
            "memory, GB": holder.gb,
        }

    return measure


class OneHoldersWork:
    """The answers of one holder, measured in whichever process gives them, and written to a file.

    A simulation reads and verifies once what many holders are sent alike. All of that is forgotten
    before each of this holder's answers, as if it were alone on its machine; the encoder stays
    loaded. It is the last: what a process loads for its first holder is there by then.
    """

    def __init__(self, path: Path, answer: Callable[[Holder, Packet], Packet]) -> None:
        self._path = path
        self._answer = answer
        self._holders = list[str]()
        self.gb = 0.0

    def watch(self, event: Event) -> None:
        if isinstance(event, FederationSettled):
            self._holders = sorted(event.holders)
        if isinstance(event, ReleaseDelivered):
            children = multiprocessing.active_children()
            self.gb = peak_gb() + sum(peak_gb(child.pid or 0) for child in children)

    def answer(self, holder: Holder, request: Packet) -> Packet:
        if holder.folder.name != self._holders[-1]:
            return self._answer(holder, request)
        forget_shared_work()
        started = time.process_time()
        reply = self._answer(holder, request)
        seconds = time.process_time() - started
        facts = {
            "step": json.loads(request.header)["kind"],
            "seconds": seconds,
            "bytes": packet_bytes(reply),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")
        return reply

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()]


def packet_bytes(packet: Packet) -> int:
    """Of a header, a signature and numbers."""
    blobs = sum(memoryview(blob).nbytes for blob in packet.blobs)
    return len(packet.header) + len(packet.signature) + blobs


def write_corpora(folder: Path, holders: int) -> None:
    """Domains of random words, with as many documents as their holders need."""
    rng = random.Random(0)
    for number in range(min(_DOMAINS, holders)):
        words = ["".join(rng.choices(ascii_lowercase, k=6)) for _ in range(500)]
        texts = [
            " ".join(rng.choices(words, k=_WORDS))
            for _ in range(_DOCUMENTS * -(-holders // _DOMAINS))
        ]
        name = f"domain{number}"
        write([Corpus(name, tuple(texts), tuple(texts[:10]))], folder)


# Domains and features


def domains(count: int, work: Path) -> Figures:
    """A message, the solve and a release, of texts that are dealt out to made-up domains."""
    dataset = builtin_dataset()
    texts = in_turn(dataset.train, max(_TEXTS, count))
    encoder = find_encoder(_ENCODER)
    parts = [
        summed_texts(encoder, DEALT, f"domain-{index:03}", texts[index::count])
        for index in range(count)
    ]
    identity = Identity.generate()
    folder = work / "release"
    made = draft(parts, encoder, DEFAULT_CHOICES)
    sign(made, identity, folder)
    total = made.total.statistics
    router = Router.load(folder)
    solving, *routing = seconds_in_turns(
        lambda: solve(total, encoder.scale, DEFAULT_CHOICES.ridge),
        *(partial(router.route, text) for text in in_turn(dataset.test, _PROMPTS)),
        rounds=_REPEATS,
        clock=time.process_time,
    )
    released = sum(path.stat().st_size for path in folder.iterdir())
    return {
        "domains": count,
        "a sealed message, MB": 1e-6 * sealed_bytes(*total.shape),
        "solving, CPU s": solving,
        "a release, MB": 1e-6 * released,
        "routing a prompt, CPU ms": 1e3 * statistics.median(routing),
    }


def features(width: int, work: Path) -> Figures:
    """A message, sums and the solve over the width of a random encoder."""
    encoder = random_encoder(RANDOM_ROWS, width)
    _, batches = draw(RANDOM_TOKENS, RANDOM_ROWS)
    sums_of = partial(summed, encoder.table, WINDOW, batches)
    (summing,) = seconds_in_turns(sums_of, rounds=1, clock=time.process_time)
    sums = sums_of()
    placed = [sums.placed(index, RANDOM_DOMAINS) for index in range(RANDOM_DOMAINS)]
    total = reduce(add, placed)
    (solving,) = seconds_in_turns(
        lambda: solve(total, encoder.scale, Ridge()),
        rounds=_REPEATS,
        clock=time.process_time,
    )
    return {
        "features": width,
        "a sealed message, MB": 1e-6 * sealed_bytes(width + 1, RANDOM_DOMAINS),
        "summing, CPU s": summing,
        "solving, CPU s": solving,
    }


def sealed_bytes(features: int, domains: int) -> int:
    """Of a holder's sums under masks: what is under masks is noise, and zeros weigh as much."""
    message = SealedSums(session="0" * 64, lot="statistics")
    identity = Identity.generate()
    blob = bytes(8 * vector_size(features, domains))
    return packet_bytes(
        seal_packet(message, identity, round="0" * 32, reply_to="0" * 64, blobs=[blob])
    )


# Routing and serving


def prompt_tokens(tokens: int, work: Path) -> Figures:
    """Routing one prompt of so many tokens, by the table alone and with every sentence read."""
    text = bench_text(BenchOptions(work))
    long = "\n".join(text.documents)
    release = _release(text, work, DEFAULT.encoder + SENTENCE)
    prompts = prompts_of(long, tokens)
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
    release = _release(text, work, DEFAULT.encoder)
    prompts = prompts_of("\n".join(text.documents), TOKENS)
    bodies = [{"prompt": prompt} for prompt in prompts]
    with ridgeway_serve(work, str(release)) as server:
        asyncio.run(put_load(server, ROUTE, bodies, connections))  # warms up
        load = asyncio.run(put_load(server, ROUTE, bodies, connections))
        memory = resident_bytes("VmRSS", server.pid)
    return {
        "clients": connections,
        "CPU of a request, ms": load.cpu_ms,
        "median, ms": load.p50_ms,
        "99th percentile, ms": load.p99_ms,
        "memory, MB": memory / 1e6,
    }


def _release(text: BenchText, work: Path, source: str) -> Path:
    """Of a few documents of each domain: what a prompt costs does not depend on how many."""
    few = {}
    for domain, path in text.training.items():
        few[domain] = work / f"few-{path.name}"
        few[domain].write_bytes(b"".join(path.read_bytes().splitlines(True)[:_FEW]))
    encoder = find_encoder(source)
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
    return time.process_time() + _children_cpu_seconds()


def _children_cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


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
