"""Ctrl-C, a polite end and a rude one: a run of `prepare` that was ended goes on where it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ridgeway.client.sums.prepare import PART_INTERVAL_S
from ridgeway.common.text.encoder_files import save_encoder
from tests.support.commands import Finished, Workshop
from tests.support.tiny import tiny_encoder
from tests.support.waiting import MAX_WAIT_S, wait_for

RECORDS = 800
SLOW = """
import sys, time
from ridgeway.__main__ import main
from ridgeway.client.sums import prepare

def slowly(*batch):
    time.sleep(0.1)
    take(*batch)

prepare.BATCH_CHARACTERS, take, prepare._Run._take = 1 << 14, prepare._Run._take, slowly
prepare.PART_INTERVAL_S = float(sys.argv.pop(1))
main()
"""
"""The command with small batches and a pause before each: it needs seconds, and no core. Before its
own words come the seconds between two parts.
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """An encoder, and a corpus of some fifty batches: law.jsonl."""
    made = Workshop(tmp_path_factory.mktemp("workshop"))
    save_encoder(tiny_encoder(), made / "encoder")
    words = "it is a law of the land that work once done is not done again, "
    lines = (
        json.dumps({"text": f"{number} {words * 16}"}) + "\n"
        for number in range(RECORDS)
    )
    (made / "law.jsonl").write_text("".join(lines))
    return made


@pytest.fixture(scope="module")
def uninterrupted(shop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run in one go on all cores, with a cache of its own: whole.stats."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return shop.prepare(
        "law.jsonl --domain law --out whole.stats --json",
        RIDGEWAY_CACHE=cache,
    )


class Running:
    """A slow `prepare` on one thread that is to be ended before it is done."""

    def __init__(
        self, shop: Workshop, cache: Path, out: str, part_interval_s: float
    ) -> None:
        options = f"--encoder {shop.encoder} --domain law --out {out} --threads 1"
        words = f"client prepare law.jsonl --json {options}"
        self.cache = cache
        self.process = subprocess.Popen(
            [sys.executable, "-c", SLOW, str(part_interval_s), *words.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=shop.environment(RIDGEWAY_CACHE=str(cache)),
            cwd=shop.folder,
        )

    def must_run(self) -> None:
        assert self.process.poll() is None, (
            "the run was over before it could be ended: the corpus is too small"
        )

    def wait_for(self, reached: Callable[[], bool]) -> None:
        def seen() -> bool:
            self.must_run()
            return reached()

        wait_for("the run has come to the middle", seen, poll_s=0.02)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self, number: int) -> Finished:
        self.must_run()
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=MAX_WAIT_S)
        return Finished(self.process.returncode, out.decode(), err.decode())

    def listens(self) -> bool:
        """Whether the command has begun to look for signals: then, and only then, it catches
        SIGTERM.
        """
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def parts(self) -> list[Path]:
        return list(self.cache.rglob("*.part"))


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="looks into /proc"
)


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a run ended that was asked to, and the cache that it left."""

    finished: Finished
    cache: Path


@pytest.fixture(
    scope="module", params=[signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"]
)
def stopped(
    request: pytest.FixtureRequest,
    shop: Workshop,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stopped:
    """A run that was asked to stop in the middle."""
    cache = tmp_path_factory.mktemp("cache")
    with Running(shop, cache, "resumed.stats", PART_INTERVAL_S) as running:
        running.wait_for(running.listens)
        time.sleep(0.4)
        return Stopped(running.end(request.param), cache)


@needs_proc
def test_a_stopped_run_ends_with_130_and_no_output(
    shop: Workshop, stopped: Stopped
) -> None:
    """No traceback, no half of a file; what was summed lies in the cache."""
    assert stopped.finished.code == 130
    assert "Traceback" not in stopped.finished.stderr
    assert stopped.finished.stdout == ""
    assert not [path for path in shop.folder.iterdir() if "resumed" in path.name]
    assert [path.suffix for path in stopped.cache.rglob("*") if path.is_file()] == [
        ".part"
    ]


@needs_proc
def test_a_stopped_run_says_that_nothing_is_lost(stopped: Stopped) -> None:
    """That it is stopping, at once; and in the end one sentence: the same command goes on."""
    at_once, *words = stopped.finished.stderr.strip().splitlines()
    assert at_once.startswith("stopping ")
    assert words == [
        "ridgeway: interrupted; finished parts are kept, and the same command resumes"
    ]


@needs_proc
def test_a_stopped_run_goes_on_to_the_same_bytes(
    shop: Workshop, stopped: Stopped, uninterrupted: Finished
) -> None:
    """The statistics, and what is said of the corpus, are those of a run in one go."""
    done = shop.prepare(
        "law.jsonl --domain law --out again.stats --json",
        RIDGEWAY_CACHE=str(stopped.cache),
    )
    assert (done.code, uninterrupted.code) == (0, 0), done.stderr
    assert (shop / "again.stats").read_bytes() == (shop / "whole.stats").read_bytes()
    for name in "documents held_out empty replaced tokens samples digest".split():
        assert done.json[name] == uninterrupted.json[name]


def test_a_killed_run_goes_on_to_the_same_bytes(
    shop: Workshop, tmp_path: Path, uninterrupted: Finished
) -> None:
    """A power cut between or within two parts costs time and nothing else."""
    with Running(shop, tmp_path, "killed.stats", 0.2) as running:
        running.wait_for(lambda: len(running.parts()) >= 2)
        killed = running.end(signal.SIGKILL)
    assert killed.code == -signal.SIGKILL
    assert not (shop / "killed.stats").exists()
    done = shop.prepare(
        "law.jsonl --domain law --out killed.stats --json",
        RIDGEWAY_CACHE=str(tmp_path),
    )
    assert done.code == 0, done.stderr
    assert (shop / "killed.stats").read_bytes() == (shop / "whole.stats").read_bytes()
    assert done.json["tokens"] == uninterrupted.json["tokens"]
