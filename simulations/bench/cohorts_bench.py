"""Whole federations on this machine: seconds, memory, and one holder's own work.

A simulation reads and verifies once what many holders are sent alike. For the one holder that is
measured, all of that is forgotten before each of its answers, as if it were alone on its machine;
the encoder stays loaded.

Run as a module with a number of holders, the share that drops out and the mode of the round, it
simulates one federation in a process of its own and prints the figures.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_lowercase
from typing import Any, cast

from ridgeway.client.round.holder import Holder
from ridgeway.common.base.schema import Mode
from ridgeway.common.protocol.packet import Packet
from ridgeway.coordinator.round.progress import Event, ReleaseDelivered
from ridgeway.simulations.bench.measuring import (
    BenchOptions,
    Row,
    measured_apart,
    packet_bytes,
    peak_gb,
)
from ridgeway.simulations.shared_work import forget_shared_work
from ridgeway.simulations.simulate import DropoutsChosen, FederationSettled, simulate

ENCODER = "smollm2"
"""Of 576 features, as the aims are."""
_DOMAINS = 6
_DOCUMENTS = 20
_WORDS = 60
"""What every holder has: so many documents of so many words."""
_SECONDS_AIMS = {200: "≤ 60", 1000: "≤ 300"}


def rows(options: BenchOptions) -> Iterator[Row]:
    for holders in options.holders:
        yield from cohort_rows(
            holders,
            options.drop_rate,
            measured_apart(__name__, holders, options.drop_rate, "masked"),
        )


def cohort_rows(holders: int, drop_rate: float, found: dict[str, Any]) -> Iterator[Row]:
    name = f"{holders} holders masked, {drop_rate:.0%} drop out"
    own = sum(found["own"].values())
    steps = ", ".join(
        f"{step} {seconds * 1e3:.0f} ms" for step, seconds in found["own"].items()
    )
    yield Row(
        f"{name}: seconds",
        f"{found['seconds']:.1f} s",
        f"{found['cpu']:.0f} CPU s, of the coordinator {found['coordinator_cpu']:.0f}",
        found["seconds"],
        _SECONDS_AIMS.get(holders, ""),
    )
    yield Row(f"{name}: GB", f"{found['gb']:.2f} GB", "", found["gb"], "≤ 2")
    yield Row(f"{name}: CPU s of a holder", f"{own:.2f} s", steps, own, "≤ 1")
    megabytes = found["sent"] / 1e6
    yield Row(f"{name}: MB that a holder sends", f"{megabytes:.3f} MB", "", megabytes)


class OneHoldersWork:
    """The answers of one holder, measured in whichever process gives them, and written to a file.

    It is the last of those that do not drop out: what a process loads for its first holder is
    there by then.
    """

    def __init__(self, path: Path, answer: Callable[[Holder, Packet], Packet]) -> None:
        self._path = path
        self._answer = answer
        self._holders = list[str]()
        self.gb = 0.0

    def watch(self, event: Event) -> None:
        if isinstance(event, FederationSettled):
            self._holders = sorted(event.holders)
        if isinstance(event, DropoutsChosen):
            self._holders = [name for name in self._holders if name not in event.names]
        if isinstance(event, ReleaseDelivered):
            children = multiprocessing.active_children()
            self.gb = peak_gb() + sum(peak_gb(each.pid or 0) for each in children)

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


def write_corpora(folder: Path, holders: int) -> None:
    """Domains of random words, with as many documents as their holders need."""
    rng = random.Random(0)
    folder.mkdir()
    for number in range(min(_DOMAINS, holders)):
        words = ["".join(rng.choices(ascii_lowercase, k=6)) for _ in range(500)]
        texts = [
            " ".join(rng.choices(words, k=_WORDS))
            for _ in range(_DOCUMENTS * -(-holders // _DOMAINS))
        ]
        for kind, own in (("train", texts), ("test", texts[:10])):
            lines = "".join(json.dumps({"text": text}) + "\n" for text in own)
            (folder / f"domain{number}.{kind}.jsonl").write_text(lines)


def main(holders: int, drop_rate: float, mode: Mode = "masked") -> None:
    from ridgeway.client.client_app import holder_app
    from ridgeway.client.round.answers import answer

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own-work.jsonl"
        work = OneHoldersWork(path, answer)
        data = Path(folder) / "data"
        write_corpora(data, holders)
        simulate(
            Path(folder) / "work",
            work.watch,
            data=data,
            holders=holders,
            drop_rate=drop_rate,
            encoder=ENCODER,
            mode=mode,
            app=holder_app(work.answer),
        )
        answers = [json.loads(line) for line in path.read_text().splitlines()]
    own: dict[str, float] = {}
    for each in answers:
        own[each["step"]] = own.get(each["step"], 0.0) + each["seconds"]
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    coordinator = time.process_time()
    figures = {
        "seconds": time.perf_counter() - started,
        "cpu": coordinator + others.ru_utime + others.ru_stime,
        "coordinator_cpu": coordinator,
        "gb": work.gb,
        "own": own,
        "sent": sum(each["bytes"] for each in answers),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), cast(Mode, sys.argv[3]))
