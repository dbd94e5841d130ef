"""A gateway under everything at once, for as long as is asked: `python -m tests.support.soak
SECONDS`.

Releases follow each other, workers are killed and renewed, experts fail in every way, and hostile
clients ask beside those who only want an answer. Of these, each request must be answered whole; one
that was under way when a worker was killed may be lost, and a stream whose expert broke off must
end with an error. Then the memory must have stayed, the log must be JSON without a word of any
prompt, and the service must end in good order while streams run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support import fake_expert as faulty
from tests.support.fake_expert import END, Asked, Expert, Part, token, well
from tests.support.in_process import CHATS
from tests.support.serving import (
    SECRET,
    Serving,
    chat,
    prompt_for,
    release_of,
    write_experts,
)

DOMAINS = ("code", "law")
WORKERS = 2
ASKING = 3
MAX_MEMORY = 512 * 1024**2
GROWTH = 1.15
"""The most that the last third of a long run may hold, as a multiple of the second."""
LONG_S = 300.0
"""A shorter run says nothing of growth."""
KILL_EVERY_S = 7.0
RENEW_EVERY_S = 17.0
RELEASE_EVERY_S = 2.0
BEFORE_A_KILL_S = 2.0


def cut_cleanly(asked: Asked) -> None:
    asked.stream([token("one")])


def tells_an_error(asked: Asked) -> None:
    asked.stream([token("one"), b'data: {"error": {"message": "boom"}}\n\n', END])


WHOLE_FAULTS: tuple[Part, ...] = (
    faulty.fails,
    faulty.dies_at_once,
    faulty.half_a_body,
    faulty.broken_json,
    faulty.hangs,
    faulty.endless_body,
    faulty.too_many,
    faulty.not_http,
)
STREAM_FAULTS: tuple[Part, ...] = (
    faulty.fails,
    faulty.dies_at_once,
    faulty.hangs,
    faulty.html,
    faulty.broken_events,
    cut_cleanly,
    tells_an_error,
)


def faults() -> Part:
    """Each request meets the next fault; every third is answered well, so that the expert is not
    left alone.
    """
    whole = itertools.cycle(WHOLE_FAULTS)
    streamed = itertools.cycle(STREAM_FAULTS)
    turns = itertools.count()
    good = well("law")

    def part(asked: Asked) -> None:
        with contextlib.suppress(ValueError):  # whoever asked was killed meanwhile
            is_streamed = bool(asked.json.get("stream"))
            (
                good
                if next(turns) % 3 == 0
                else next(streamed if is_streamed else whole)
            )(asked)

    return part


@dataclass
class SoakReport:
    """What happened; problems: what should not have."""

    answers: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)

    def thirds(self) -> list[int]:
        """The most memory that a worker held in each third of the run."""
        began, ended = self.memory[0][0], self.memory[-1][0]
        third = (ended - began) / 3 or 1.0
        peaks = [0, 0, 0]
        for when, held in self.memory:
            index = min(2, int((when - began) / third))
            peaks[index] = max(peaks[index], held)
        return peaks


@dataclass
class Soak:
    """One run."""

    serving: Serving
    release: Path
    report: SoakReport = field(default_factory=SoakReport)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, seconds: float) -> None:
        jobs: list[Callable[[], None]] = [
            *[self.ask_whole] * ASKING,
            *[self.ask_streams] * ASKING,
            self.leave,
            self.send_halves,
            self.send_much,
            self.send_nonsense,
            self.read_nothing,
            self.publish,
            self.kill,
            self.renew,
            self.measure,
        ]
        threads = [threading.Thread(target=self._guarded, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        self.stopped.wait(seconds)
        self.stopped.set()
        for thread in threads:
            thread.join(90)
            if thread.is_alive():
                self._problem(f"{thread.name} has not ended")

    def _problem(self, words: str) -> None:
        self.report.problems.append(words)

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self._problem(f"{job.__name__}: {type(error).__name__}: {error}")
            self.stopped.set()

    # Those who want an answer

    def ask_whole(self) -> None:
        while not self.stopped.is_set():
            domain = random.choice(DOMAINS)
            body = chat("auto", prompt_for(domain, DOMAINS))
            if answer := self._answer(body):
                self._judge("whole", answer, [200])

    def ask_streams(self) -> None:
        while not self.stopped.is_set():
            domain = random.choice(DOMAINS)
            body = chat("auto", prompt_for(domain, DOMAINS), stream=True)
            answer = self._answer(body)
            if answer is None:
                continue
            is_whole = answer.text.endswith("data: [DONE]\n\n")
            has_error = (
                '"code":"expert_broken_off"' in answer.text
                or '"code":"expert_failed"' in answer.text
            )
            self.report.answers[
                f"stream {answer.status_code} {'whole' if is_whole else 'broken'}"
            ] += 1
            is_told = domain == "law" and has_error and "[DONE]" not in answer.text
            if answer.status_code != 200 or not (is_whole or is_told):
                self._problem(
                    f"stream of {domain}: {answer.status_code} {answer.text[-200:]}"
                )

    def _answer(self, body: Any) -> httpx.Response | None:
        """The answer to a chat; None if there was none, since nobody can answer for a worker that
        was killed.
        """
        began = time.monotonic()
        try:
            return self._post(json=body, timeout=60.0)
        except httpx.HTTPError as error:
            ended = time.monotonic()
            if any(began - 1.0 <= kill <= ended for kill in self.report.kills):
                self.report.answers["lost with a worker"] += 1
            else:
                self._problem(f"lost: {type(error).__name__} {error}")
        return None

    def _judge(
        self, kind: str, answer: httpx.Response, expected: Collection[int]
    ) -> None:
        self.report.answers[f"{kind} {answer.status_code}"] += 1
        if answer.status_code not in expected:
            self._problem(f"{kind}: {answer.status_code} {answer.text[:200]}")

    def _post(self, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.serving.url}{CHATS}", trust_env=False, **options)

    # Those who do not

    def leave(self) -> None:
        """In the middle of an answer."""
        while not self.stopped.wait(0.2):
            body = chat(
                "auto", prompt_for("law", DOMAINS), stream=random.random() < 0.5
            )
            with contextlib.suppress(httpx.HTTPError):
                self._post(json=body, timeout=0.05)

    def send_halves(self) -> None:
        """Heads and bodies that do not end."""
        while not self.stopped.is_set():
            with contextlib.ExitStack() as stack:
                for number in range(20):
                    connection = stack.enter_context(self._connection())
                    with contextlib.suppress(OSError):
                        connection.sendall(
                            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                        )
                        if number % 2:
                            connection.sendall(
                                b"content-type: application/json\r\ncontent-length: 500000\r\n\r\n"
                                + b"{" * 9000
                            )
                self.stopped.wait(2.0)

    def send_much(self) -> None:
        """Prompts of nearly 4 MiB."""
        text = f"{SECRET} {prompt_for('law', DOMAINS)} " * 70_000
        while not self.stopped.wait(0.5):
            if answer := self._answer(chat("auto", text[:3_900_000])):
                self._judge("long", answer, (200, 503))

    def send_nonsense(self) -> None:
        bodies = [
            b"{",
            b"[]",
            b'{"model": 7}',
            b"\xff\xfe",
            b'{"model": "auto", "messages": []}',
            b"[" * 60_000,
        ]
        for body in itertools.cycle(bodies):
            if self.stopped.wait(0.1):
                return
            headers = {"content-type": "application/json"}
            with contextlib.suppress(httpx.HTTPError):
                answer = self._post(content=SECRET.encode() + body, headers=headers)
                if not 400 <= answer.status_code < 500:
                    self._problem(f"nonsense: {answer.status_code} {answer.text[:200]}")

    def read_nothing(self) -> None:
        """Streams that nobody takes."""
        body = json.dumps(chat("pours", "x", stream=True)).encode()
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: "
            b"application/json\r\n"
        )
        while not self.stopped.is_set():
            with self._connection() as connection:
                with contextlib.suppress(OSError):
                    connection.sendall(
                        head + b"content-length: %d\r\n\r\n" % len(body) + body
                    )
                self.stopped.wait(5.0)

    def _connection(self) -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", httpx.URL(self.serving.url).port or 0), 30
        )

    # What an operator does, and what befalls

    def publish(self) -> None:
        for number in itertools.count(2):
            if self.stopped.wait(RELEASE_EVERY_S):
                return
            release_of(self.release, DOMAINS, number=number)

    def kill(self) -> None:
        """The oldest worker, unless it is the only one."""
        while not self.stopped.wait(KILL_EVERY_S):
            workers = self.serving.children()
            if len(workers) >= WORKERS:
                self.report.kills.append(time.monotonic())
                os.kill(min(workers), signal.SIGKILL)

    def renew(self) -> None:
        while not self.stopped.wait(RENEW_EVERY_S):
            os.kill(self.serving.pid, signal.SIGHUP)

    def measure(self) -> None:
        while not self.stopped.wait(0.25):
            for pid in self.serving.children():
                with contextlib.suppress(OSError):
                    resident = re.search(
                        r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()
                    )
                    if resident is not None:
                        self.report.memory.append(
                            (time.monotonic(), int(resident[1]) * 1024)
                        )


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Serving]:
    """`law` fails in every way and has a fallback; `code` is well, and `pours` answers without an
    end.
    """
    release_of(folder / "release", DOMAINS, number=1)
    parts = {
        "code": well("code"),
        "law": faults(),
        "pours": faulty.pours,
        "generalist": well("generalist"),
    }
    with contextlib.ExitStack() as stack:
        urls = {
            name: stack.enter_context(Expert(part)).url for name, part in parts.items()
        }
        short = {"timeout": 1.0, "silence": 1.0}
        file = write_experts(folder / "experts.toml", urls, "generalist", law=short)
        settings = {
            "workers": WORKERS,
            "log_format": "json",
            "log_level": "info",
            "drain": 5.0,
        }
        with Serving(
            folder, folder / "release", "--experts", file, settings=settings
        ) as serving:
            while serving.said.count('"serving ') < WORKERS:
                time.sleep(0.05)
            time.sleep(BEFORE_A_KILL_S)
            yield serving


def soak(folder: Path, seconds: float) -> SoakReport:
    with served(folder) as serving:
        run = Soak(serving, folder / "release")
        run.run(seconds)
        report = run.report
        code = serving.stop()
        if code:
            report.problems.append(f"it ended with {code}")
        said = serving.said
    lines = said.splitlines()
    report.answers["lines of the log"] = len(lines)
    report.problems += [
        f"not JSON: {line[:200]}" for line in lines if not _is_json(line)
    ]
    report.problems += [
        f"a prompt in the log: {line[:200]}"
        for line in lines
        if SECRET in line or "Traceback" in line
    ]
    peaks = report.thirds()
    if max(peaks) > MAX_MEMORY:
        report.problems.append(f"a worker held {max(peaks) >> 20} MiB")
    if seconds >= LONG_S and peaks[2] > GROWTH * peaks[1]:
        report.problems.append(f"memory grew: {[peak >> 20 for peak in peaks]} MiB")
    return report


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def main() -> int:
    seconds = float(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="ridgeway-soak-") as folder:
        report = soak(Path(folder), seconds)
    for name, count in sorted(report.answers.items()):
        print(f"{name:<24}{count:>10,}")
    print(f"{'workers killed':<24}{len(report.kills):>10,}")
    print(
        "most memory of a worker in each third:",
        ", ".join(f"{peak >> 20} MiB" for peak in report.thirds()),
    )
    for problem in report.problems[:50]:
        print("PROBLEM", problem)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
