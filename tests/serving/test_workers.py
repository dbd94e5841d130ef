"""Several processes that serve at one address: what they share, and how they are renewed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families

from ridgeway.common.web.api_keys import RateLimiter, rate_of
from ridgeway.common.web.workers import SharedTimes, merged_metrics
from tests.support.commands import Workshop
from tests.support.fake_expert import Expert, Part
from tests.support.in_process import Clock
from tests.support.serving import Serving, prompt_for, release_of, write_experts
from tests.support.waiting import wait_for, wait_for_end

SOME_EVIDENCE = 2
"""The logit of a domain's letter: of a few letters it is no proof."""
KEEP_ALIVE_S = 2


@pytest.mark.slow
def test_workers_are_renewed_under_load_without_a_failed_request(
    tmp_path: Path,
) -> None:
    """SIGHUP replaces both while clients ask, over kept and over new connections; metrics are those
    of all together.
    """
    release_of(tmp_path / "release", ["code", "law"])
    with Serving(
        tmp_path,
        tmp_path / "release",
        "--workers",
        "2",
        settings={"keep_alive": KEEP_ALIVE_S},
    ) as serving:
        before = serving.children()
        assert len(before) == 2
        stopped = threading.Event()
        failures: list[object] = []
        asked = [0, 0, 0]

        def ask(number: int) -> None:
            kept = httpx.Client(base_url=serving.url, trust_env=False, timeout=60.0)
            headers = {"connection": "close"} if number == 0 else {}
            answered = time.monotonic()
            while not stopped.wait(0.01):
                was_idle = time.monotonic() - answered > KEEP_ALIVE_S / 2
                try:
                    answer = kept.post(
                        "/v1/route", json={"prompt": "hello"}, headers=headers
                    )
                    asked[number] += 1
                    if answer.status_code != 200:
                        failures.append(answer.status_code)
                except httpx.HTTPError as error:
                    if not was_idle:  # on a busy machine; its connection was closed
                        failures.append(error)
                answered = time.monotonic()
            kept.close()

        clients = [
            threading.Thread(target=ask, args=(number,), daemon=True)
            for number in range(3)
        ]
        for client in clients:
            client.start()
        wait_for("clients ask", lambda: min(asked) > 20)
        os.kill(serving.pid, signal.SIGHUP)
        wait_for(
            "both are renewed",
            lambda: len(serving.children() - before) == 2 == len(serving.children()),
        )
        sofar = sum(asked)
        wait_for("clients go on", lambda: sum(asked) > sofar + 20)
        stopped.set()
        for client in clients:
            client.join()
        assert not failures, failures[:3]
        wait_for(
            "all requests are counted together",
            lambda: (
                serving.metric(
                    "ridgeway_requests_total", path="/v1/route", status="200"
                )
                == sum(asked)
            ),
        )
        victim = min(serving.children())
        os.kill(victim, signal.SIGKILL)
        wait_for(
            "another is started",
            lambda: victim not in serving.children() and len(serving.children()) == 2,
        )
        serving.http.close()
        assert serving.stop() == 0


@pytest.mark.slow
def test_any_worker_knows_what_another_was_asked(tmp_path: Path) -> None:
    """A response goes on where it lies, and a session stays, whichever worker the next connection
    comes to.
    """
    domains = ["code", "law"]
    release_of(tmp_path / "release", domains, strength=SOME_EVIDENCE)

    def answering(name: str) -> Part:
        answer = json.dumps({"id": "resp_1", "model": name, "choices": []}).encode()
        return lambda asked: asked.reply(200, answer)

    with contextlib.ExitStack() as stack:
        experts = {
            name: stack.enter_context(Expert(answering(name))) for name in domains
        }
        file = write_experts(
            tmp_path / "experts.toml",
            {name: expert.url for name, expert in experts.items()},
        )
        options = "--workers", "2", "--experts", file
        serving = stack.enter_context(Serving(tmp_path, tmp_path / "release", *options))

        def ask(path: str, **body: Any) -> tuple[str, str]:
            headers = {"x-session-id": "one"}
            answer = httpx.post(
                f"{serving.url}{path}",
                json={"model": "auto", **body},
                headers=headers,
                trust_env=False,
                verify=False,
            )
            assert answer.status_code == 200, answer.text
            return answer.headers["x-ridgeway-expert"], answer.headers[
                "x-ridgeway-reason"
            ]

        code, law = (prompt_for(name, domains) for name in domains)
        assert ask("/v1/responses", input=code)[0] == "code"
        assert {
            ask("/v1/responses", input=law, previous_response_id="resp_1")
            for _ in range(12)
        } == {("code", "sticky")}
        assert (
            ask("/v1/chat/completions", messages=[{"role": "user", "content": code}])[0]
            == "code"
        )
        short = [{"role": "user", "content": law[:3]}]
        assert {ask("/v1/chat/completions", messages=short) for _ in range(12)} == {
            ("code", "sticky")
        }


UNSTEADY = """
import os, signal, sys, time
from pathlib import Path
from ridgeway.common.base.errors import InputError
from ridgeway.common.web.workers import Supervisor
folder = Path(sys.argv[1])
def work(worker):
    begun = folder / f"{len(list(folder.iterdir()))}-{os.getpid()}"
    begun.touch()
    if begun.name.startswith(("1-", "2-")):
        raise InputError("not yet")
    worker.started()
    time.sleep(600)
sys.exit(Supervisor(1, work, folder).run())
"""


@pytest.mark.slow
def test_a_worker_that_cannot_start_again_is_tried_until_it_can(tmp_path: Path) -> None:
    """Else a service would go on with fewer and fewer."""
    with subprocess.Popen(
        [sys.executable, "-c", UNSTEADY, tmp_path], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for("the first works", lambda: len(list(tmp_path.iterdir())) == 1)
            first = int(next(tmp_path.iterdir()).name.partition("-")[2])
            os.kill(first, signal.SIGKILL)
            wait_for("the fourth works", lambda: len(list(tmp_path.iterdir())) == 4)
            process.terminate()
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert said.count("a worker could not start; trying again") == 2


DYING = """
import os, signal, sys, time
from pathlib import Path
from ridgeway.common.web.workers import RETIRE, Supervisor
folder = Path(sys.argv[1])
def work(worker):
    mine = folder / f"{len(list(folder.iterdir()))}-{os.getpid()}"
    mine.touch()
    def retire(*_):  # while it is waited for, the other old one dies
        for each in folder.iterdir():
            if each.name.startswith(("0-", "1-")) and each != mine:
                os.kill(int(each.name[2:]), signal.SIGKILL)
        time.sleep(2.5)
        os._exit(0)
    signal.signal(RETIRE, retire)
    worker.started()
    time.sleep(600)
sys.exit(Supervisor(2, work, folder).run())
"""


@pytest.mark.slow
def test_workers_that_die_while_they_are_renewed_do_not_end_the_service(
    tmp_path: Path,
) -> None:
    """Whoever has gone already needs no telling."""
    with subprocess.Popen(
        [sys.executable, "-c", DYING, tmp_path], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for("both work", lambda: len(list(tmp_path.iterdir())) == 2)
            time.sleep(1.0)
            process.send_signal(signal.SIGHUP)
            wait_for(
                "others work",
                lambda: (
                    len(list(tmp_path.iterdir())) == 4 or process.poll() is not None
                ),
            )
            time.sleep(3.0)
            assert process.poll() is None
            process.terminate()
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0


STEADY = """
import signal, sys
from pathlib import Path
from ridgeway.common.web.workers import Supervisor
def work(worker):
    worker.started()
    signal.pause()
sys.exit(Supervisor(2, work, Path(sys.argv[1])).run())
"""


@pytest.mark.slow
def test_a_service_that_is_stopped_while_a_worker_starts_ends(tmp_path: Path) -> None:
    """The signal comes as soon as there is a second process, ten times."""
    for _ in range(10):
        with subprocess.Popen([sys.executable, "-c", STEADY, tmp_path]) as process:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            while len(children.read_text().split()) < 2:
                assert process.poll() is None
            process.terminate()
            try:
                wait_for_end(process)
            finally:
                process.kill()
        assert process.returncode == 0


@pytest.mark.slow
def test_workers_that_cannot_begin_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = Workshop(tmp_path).run(
        "serve", tmp_path / "empty", "--workers", "2", "--port", "18999"
    )
    assert done.code == 2
    assert done.stderr.count("contains no release") == 1


def test_a_rate_holds_for_all_processes_together(tmp_path: Path) -> None:
    """Two limiters over one file let through what one would; and each name has its own."""
    clock, rate = Clock(), rate_of(5.0)
    alone = RateLimiter(clock)
    both = [RateLimiter(clock, None, SharedTimes(tmp_path / "rates")) for _ in range(2)]
    for turn in range(60):
        expected = alone.wait_s("shop", rate)
        assert both[turn % 2].wait_s("shop", rate) == pytest.approx(expected)
        clock.now += 0.07
    assert both[0].wait_s("other", rate) == 0


def test_metrics_of_several_processes_add_up() -> None:
    """Counts and streams are sums, other measures the largest; of a process that has ended, counts
    alone remain.
    """

    def process(counted: float, measured: float) -> bytes:
        registry = CollectorRegistry()
        Counter(
            "asked", 'With "quotes"', ("path",), namespace="ridgeway", registry=registry
        ).labels('a"\\b').inc(counted)
        Gauge("streams", "Now", namespace="ridgeway", registry=registry).set(measured)
        Gauge("alarm", "Now", namespace="ridgeway", registry=registry).set(measured)
        Histogram(
            "seconds", "Times", namespace="ridgeway", registry=registry, buckets=(1.0,)
        ).observe(counted)
        return generate_latest(registry)

    texts = [
        (process(1, 1), True),
        (process(2, float("nan")), True),
        (process(4, 9), False),
        (process(1, 3), True),
    ]
    samples = {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(merged_metrics(texts).decode())
        for sample in family.samples
    }
    assert samples["ridgeway_asked_total", ""] == 8
    assert (
        samples["ridgeway_seconds_bucket", "1.0"] == 2
        and samples["ridgeway_seconds_count", ""] == 4
    )
    assert samples["ridgeway_alarm", ""] == 3
    assert merged_metrics([(merged_metrics(texts), True)]) == merged_metrics(texts)
