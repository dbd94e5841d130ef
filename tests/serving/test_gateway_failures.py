"""The gateway when something fails: experts that cannot answer, streams that break, clients that
go, new files.
"""

from __future__ import annotations

import json
from pathlib import Path
from threading import Semaphore
from typing import Any
from urllib.parse import unquote

import pytest

from ridgeway.serving.expert_link import MAX_FAILURES, PAUSE_S
from tests.support.fake_expert import (
    END,
    Asked,
    Expert,
    completion,
    fails,
    hangs,
    hangs_after_two,
    step_by_step,
    token,
    unauthorised,
    wait_for,
    well,
)
from tests.support.in_process import (
    DOMAINS,
    EVERYONE,
    Fleet,
    Local,
    answered_by,
    everyone,
)
from tests.support.serving import (
    chat,
    leaving,
    prompt_for,
    release_of,
    tokens_of,
    word_of,
)
from tests.support.waiting import PATIENCE_S

# When an expert cannot answer


def test_a_mistake_that_the_expert_finds_is_the_clients(local: Local) -> None:
    """Its answer is passed on as it is."""
    body = (
        b'{"error": {"message": "n is too large", "type": "invalid_request_error",'
        b' "param": "n", "code": null}}'
    )
    for status in (400, 413, 422):
        local.all_domains(lambda asked, status=status: asked.reply(status, body))  # type: ignore[misc]
        response = local.chat(n=10**6)
        assert (response.status_code, response.content) == (status, body)
        assert unquote(response.headers["x-ridgeway-expert"]) == local.ahead


def test_a_full_expert_is_busy(fleet: Fleet) -> None:
    """Whoever comes when all its places are taken goes to the fallback; named, it is asked to
    wait.
    """
    steps = Semaphore(1)
    local = fleet.serve(everyone(max_concurrent=1))
    local.all_domains(step_by_step(steps))
    with local.streamed() as first:
        assert answered_by(local.chat()) == ("generalist", "busy")
        refused = local.chat(local.ahead)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        steps.release(10)
        first.read()
    local.all_domains(well("free"))
    assert local.chat(local.ahead).status_code == 200


def test_a_kept_connection_that_was_closed_is_replaced(local: Local) -> None:
    """The expert has closed it without an answer, so the request is sent once more, on a new
    one.
    """

    def keeps_then_closes(asked: Asked) -> None:
        body = completion("law")
        asked.send(
            b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % len(body)
            + body
        )
        if len(local.experts["law"].asked) == 1:
            asked.connection.recv(
                65536
            )  # the second request comes here, and is not answered

    local.experts["law"].part = keeps_then_closes
    assert local.chat("law").status_code == 200
    assert local.chat("law").status_code == 200
    assert len(local.experts["law"].asked) == 2
    assert local.counted("expert_requests_total", expert="law", outcome="ok") == 2


def test_an_expert_that_fails_again_and_again_is_left_alone(
    local: Local, caplog: pytest.LogCaptureFixture
) -> None:
    """After five failures it is not asked; after ten seconds one request tries, and its success
    ends that.

    The log says both once, by the expert's name and nothing else.
    """
    law = local.experts["law"]
    law.part = fails
    for _ in range(MAX_FAILURES):
        assert local.chat("law").status_code == 502
    refused = local.chat("law")
    assert (refused.status_code, refused.headers["retry-after"]) == (
        503,
        f"{PAUSE_S:g}",
    )
    assert len(law.asked) == MAX_FAILURES
    assert local.states()["law"] == "down"
    assert local.counted("expert_up", expert="law") == 0
    law.part = well("law")
    local.clock.now += PAUSE_S
    assert local.chat("law").status_code == 200
    assert local.states()["law"] == "up"
    assert local.counted("expert_up", expert="law") == 1
    assert caplog.text.count("expert law failed") == 1
    assert caplog.text.count("expert law is up again") == 1
    assert "127.0.0.1" not in caplog.text


# Streams


def test_tokens_are_passed_on_one_by_one(local: Local) -> None:
    """Each arrives before the expert has made the next."""
    steps = Semaphore(1)
    local.all_domains(step_by_step(steps))
    with local.streamed() as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert unquote(response.headers["x-ridgeway-expert"]) == local.ahead
        events = tokens_of(response.iter_lines())
        for word in ("one", "two", "three"):
            assert word_of(next(events)) == word
            assert local.counted("streams") == 1
            steps.release()
        assert word_of(next(events)) == "four"
        assert next(events) == "[DONE]"
    wait_for(lambda: local.counted("streams") == 0, "the stream is counted as ended")


def test_an_experts_own_error_event_is_a_failure(local: Local) -> None:
    """As the first event it leads to the fallback; later it becomes our error, and nothing of its
    words is told.
    """
    error = b'data: {"error": {"message": "secret stack", "code": 500}}\n\n'
    local.all_domains(lambda asked: asked.stream([error, END]))
    with local.streamed() as response:
        assert word_of(next(tokens_of(response.iter_lines()))) == "generalist"
    local.all_domains(lambda asked: asked.stream([token("one"), error, END]))
    text = local.chat(stream=True).text
    assert "expert_failed" in text and "secret" not in text and "[DONE]" not in text
    failed = {"expert": local.ahead, "outcome": "failed"}
    assert local.counted("expert_requests_total", **failed) == 2


# Clients that go


@pytest.mark.parametrize("stream", [False, True])
def test_when_the_client_goes_the_expert_is_left(fleet: Fleet, stream: bool) -> None:
    """Its request is closed at once, whether its answer had begun or not, and its place is free
    again.
    """
    local = fleet.serve(everyone(timeout=60, silence=60, max_concurrent=1))
    local.all_domains(hangs_after_two if stream else hangs)
    with leaving(local.http.base_url, chat("auto", "hello", stream=stream)) as client:
        asked = local.chosen.last()
        assert not stream or client.getresponse().read1()
    assert asked.gone.wait(PATIENCE_S)
    gone = {"expert": local.ahead, "outcome": "gone"}
    wait_for(
        lambda: local.counted("expert_requests_total", **gone) == 1,
        "it is counted",
    )
    assert local.counted("streams") == 0
    local.all_domains(well("again"))
    assert local.chat(local.ahead).status_code == 200
    assert local.states()[local.ahead] == "up"


# The file changes


def test_a_new_file_of_experts_is_taken_and_a_bad_one_refused(
    local: Local, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests under way end where they began; the log says what was refused, without a path."""
    steps = Semaphore(1)
    with Expert(well("law")) as other:
        local.experts["law"].part = step_by_step(steps)
        with local.streamed("law") as response:
            moved = {"base_url": other.url}
            fleet.write({**everyone(), "law": moved, "new": moved}, "generalist")
            wait_for(lambda: "new" in local.states(), "the file is taken")
            assert local.chat("law").status_code == 200
            assert len(other.asked) == 1
            steps.release(10)
            assert list(tokens_of(response.iter_lines()))[-1] == "[DONE]"
        local.file.write_text('fallback = "nobody"\n')
        wait_for(lambda: "refused, keeping" in caplog.text, "the file is refused")
        assert str(local.file.parent) not in caplog.text
        assert local.chat("new").status_code == 200


def test_experts_that_stay_keep_their_breaker(local: Local, fleet: Fleet) -> None:
    """A file that changes something else does not make a broken expert whole; one that leaves is
    counted no more.
    """
    local.experts["law"].part = fails
    for _ in range(MAX_FAILURES):
        local.chat("law")
    fleet.write(everyone([name for name in EVERYONE if name != "code"]), mu=0.5)
    wait_for(lambda: "code" not in local.states(), "the file is taken")
    assert local.states()["law"] == "down"
    assert "code" not in json.dumps(local.http.get("/v1/models").json())
    registry = local.service.metrics.registry
    assert registry.get_sample_value("ridgeway_expert_up", {"expert": "code"}) is None


def test_an_expert_that_refuses_is_not_called_up(
    local: Local, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong key makes every answer an error: the log says it, once, and so does the state, until
    it is mended.
    """
    local.experts["law"].part = unauthorised
    for _ in range(3):
        assert local.chat("law").status_code == 502
    assert local.states()["law"] == "refusing"
    assert local.counted("expert_up", expert="law") == 0
    assert caplog.text.count("expert law refuses requests") == 1
    local.experts["law"].part = well("law")
    assert local.chat("law").status_code == 200
    assert local.states()["law"] == "up"


def test_a_request_for_streamed_vectors_breaks_no_expert(local: Local) -> None:
    """There are none: a whole answer is asked for, and nobody is blamed."""
    for _ in range(MAX_FAILURES + 1):
        asked = {"model": "law", "input": "x", "stream": True}
        assert local.post("/v1/embeddings", asked).status_code == 200
    assert local.states()["law"] == "up"


def test_an_expert_that_is_added_lets_a_refused_release_in(tmp_path: Path) -> None:
    """Without a fallback a domain that has no expert is refused, and the old release stays in use
    until it has one.
    """
    folder = tmp_path / "release"
    experts: dict[str, Any] = {"code": {}, "law": {}}
    old = release_of(folder, list(experts))
    with Fleet(folder, tmp_path / "experts.toml") as fleet:
        local = fleet.serve(experts, "")
        current = local.service.current
        newest = release_of(folder, [*experts, "music"])
        wait_for(lambda: current.refused is not None, "the release is refused")
        assert "music" in str(current.refused)
        assert local.chat().headers["x-ridgeway-release"] == old
        fleet.write({**experts, "music": {}}, "")
        wait_for(lambda: current.served.id == newest, "the release is taken")
        assert current.refused is None


def test_an_operator_is_told_who_answers_for_whom(local: Local, fleet: Fleet) -> None:
    """A misspelt name is an expert that nobody is sent to, and a domain without one."""
    gateway = local.gateway
    assert gateway is not None
    assert gateway.notes() == []
    names = ("lwa", *(name for name in EVERYONE if name != "law"))
    fleet.write(everyone(names))
    wait_for(lambda: "lwa" in local.states(), "the file is taken")
    without, odd = gateway.notes()
    assert without.startswith("generalist answers for law")
    assert odd.startswith("lwa: no domain")
    assert answered_by(local.chat(content=prompt_for("law", DOMAINS))) == (
        "generalist",
        "missing",
    )
