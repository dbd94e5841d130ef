"""How the service ends: readiness fails first, what is under way is finished, and what is cut says
so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from threading import Semaphore

import httpx
import pytest

from tests.support.fake_expert import (
    WORDS,
    Expert,
    hangs_after_two,
    step_by_step,
)
from tests.support.serving import (
    Serving,
    complaint,
    release_of,
    tokens_of,
    word_of,
    write_experts,
)
from tests.support.waiting import wait_for

DOMAINS = ("code", "law")


@contextlib.contextmanager
def served(folder: Path, expert: Expert, **settings: float) -> Iterator[Serving]:
    release_of(folder / "release", DOMAINS)
    urls = dict.fromkeys(DOMAINS, expert.url)
    file = write_experts(folder / "experts.toml", urls)
    with Serving(
        folder, folder / "release", "--experts", file, settings=settings
    ) as serving:
        yield serving


@pytest.mark.slow
def test_what_is_under_way_is_finished_and_readiness_fails_first(
    tmp_path: Path,
) -> None:
    """After SIGTERM the listener stays: new requests are answered and told to come elsewhere next,
    and streams end.
    """
    steps = Semaphore(1)
    with (
        Expert(step_by_step(steps)) as expert,
        served(tmp_path, expert, drain=60) as serving,
    ):
        with serving.streamed("code") as stream:
            events = tokens_of(stream.iter_lines())
            assert word_of(next(events)) == WORDS[0]
            serving.ask_to_end()
            with httpx.Client(base_url=serving.url, trust_env=False) as other:
                wait_for(
                    "readiness fails", lambda: other.get("/readyz").status_code == 503
                )
                assert complaint(other.get("/readyz"))["code"] == "draining"
                routed = other.post("/v1/route", json={"prompt": "hello"})
                assert routed.status_code == 200
                assert routed.headers["connection"] == "close"
                assert other.get("/healthz").status_code == 200
            for _ in range(len(WORDS)):
                steps.release()
            assert [word_of(event) for event in events] == [*WORDS[1:], "[DONE]"]
        serving.http.close()
        assert serving.exit_code() == 0


@pytest.mark.slow
def test_a_stream_that_is_cut_ends_with_an_error_and_a_last_chunk(
    tmp_path: Path,
) -> None:
    """When the time is over, a client of a stream that has no end gets an event that says so, and a
    whole answer.
    """
    with (
        Expert(hangs_after_two) as expert,
        served(tmp_path, expert, drain=0.5) as serving,
    ):
        with serving.streamed("code") as stream:
            events = tokens_of(stream.iter_lines())
            assert [word_of(next(events)) for _ in range(2)] == list(WORDS[:2])
            serving.ask_to_end()
            last = list(events)  # raises if the answer is not ended as HTTP wants it
            assert [event["error"]["code"] for event in last] == ["stopping"]
        assert serving.exit_code() == 0
