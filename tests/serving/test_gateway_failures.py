"""The gateway when something fails: experts that cannot answer, streams that break, clients that
go, new files.
"""

from __future__ import annotations

import json
from pathlib import Path
from threading import Semaphore
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
    too_many,
    unauthorised,
    wait_for,
    well,
)
from tests.support.in_process import (
    DOMAINS,
    FALLBACK,
    GatewayMaker,
    answered_by,
    experts_toml,
    served,
)
from tests.support.serving import (
    chat,
    complaint,
    leaving,
    prompt_for,
    release_of,
    tokens_of,
    word_of,
)
from tests.support.waiting import PATIENCE_S

# When an expert cannot answer


def test_if_the_fallback_fails_too_both_are_named(cast: GatewayMaker) -> None:
    """In one sentence, with the status of the last."""
    with cast() as play:
        play.all_domains(too_many)
        play.experts["generalist"].part = fails
        response = play.local.chat()
        assert response.status_code == 502
        assert response.headers["retry-after"] == "7"
        message = complaint(response)["message"]
        assert repr(play.ahead) in message and "'generalist'" in message


def test_a_mistake_that_the_expert_finds_is_the_clients(cast: GatewayMaker) -> None:
    """Its answer is passed on as it is."""
    body = (
        b'{"error": {"message": "n is too large", "type": "invalid_request_error",'
        b' "param": "n", "code": null}}'
    )
    with cast() as play:
        for status in (400, 413, 422):
            play.all_domains(lambda asked, status=status: asked.reply(status, body))  # type: ignore[misc]
            response = play.local.chat(n=10**6)
            assert (response.status_code, response.content) == (status, body)
            assert unquote(response.headers["x-ridgeway-expert"]) == play.ahead


def test_a_full_expert_is_busy(cast: GatewayMaker) -> None:
    """Whoever comes when all its places are taken goes to the fallback; named, it is asked to
    wait.
    """
    steps = Semaphore(1)
    with cast(max_concurrent=1) as play:
        play.all_domains(step_by_step(steps))
        with play.local.streamed() as first:
            assert answered_by(play.local.chat()) == ("generalist", "busy")
            refused = play.local.chat(play.ahead)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            steps.release(10)
            first.read()
        play.all_domains(well("free"))
        assert play.local.chat(play.ahead).status_code == 200


def test_a_kept_connection_that_was_closed_is_replaced(cast: GatewayMaker) -> None:
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
        if len(play.experts["law"].asked) == 1:
            asked.connection.recv(
                65536
            )  # the second request comes here, and is not answered

    with cast() as play:
        play.experts["law"].part = keeps_then_closes
        assert play.local.chat("law").status_code == 200
        assert play.local.chat("law").status_code == 200
        assert len(play.experts["law"].asked) == 2
        assert (
            play.local.counted("expert_requests_total", expert="law", outcome="ok") == 2
        )


def test_an_expert_that_fails_again_and_again_is_left_alone(
    cast: GatewayMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """After five failures it is not asked; after ten seconds one request tries, and its success
    ends that.

    The log says both once, by the expert's name and nothing else.
    """
    with cast() as play:
        law = play.experts["law"]
        law.part = fails
        for _ in range(MAX_FAILURES):
            assert play.local.chat("law").status_code == 502
        refused = play.local.chat("law")
        assert (refused.status_code, refused.headers["retry-after"]) == (
            503,
            f"{PAUSE_S:g}",
        )
        assert len(law.asked) == MAX_FAILURES
        assert play.local.states()["law"] == "down"
        assert play.local.counted("expert_up", expert="law") == 0
        law.part = well("law")
        play.local.clock.now += PAUSE_S
        assert play.local.chat("law").status_code == 200
        assert play.local.states()["law"] == "up"
        assert play.local.counted("expert_up", expert="law") == 1
        assert caplog.text.count("expert law failed") == 1
        assert caplog.text.count("expert law is up again") == 1
        assert "127.0.0.1" not in caplog.text


# Streams


def test_tokens_are_passed_on_one_by_one(cast: GatewayMaker) -> None:
    """Each arrives before the expert has made the next."""
    steps = Semaphore(1)
    with cast() as play:
        play.all_domains(step_by_step(steps))
        with play.local.streamed() as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert unquote(response.headers["x-ridgeway-expert"]) == play.ahead
            events = tokens_of(response.iter_lines())
            for word in ("one", "two", "three"):
                assert word_of(next(events)) == word
                assert play.local.counted("streams") == 1
                steps.release()
            assert word_of(next(events)) == "four"
            assert next(events) == "[DONE]"
        wait_for(
            lambda: play.local.counted("streams") == 0, "the stream is counted as ended"
        )


def test_an_experts_own_error_event_is_a_failure(cast: GatewayMaker) -> None:
    """As the first event it leads to the fallback; later it becomes our error, and nothing of its
    words is told.
    """
    error = b'data: {"error": {"message": "secret stack", "code": 500}}\n\n'
    with cast() as play:
        play.all_domains(lambda asked: asked.stream([error, END]))
        with play.local.streamed() as response:
            assert word_of(next(tokens_of(response.iter_lines()))) == "generalist"
        play.all_domains(lambda asked: asked.stream([token("one"), error, END]))
        text = play.local.chat(stream=True).text
        assert "expert_failed" in text and "secret" not in text and "[DONE]" not in text
        failed = {"expert": play.ahead, "outcome": "failed"}
        assert play.local.counted("expert_requests_total", **failed) == 2


# Clients that go


@pytest.mark.parametrize("stream", [False, True])
def test_when_the_client_goes_the_expert_is_left(
    cast: GatewayMaker, stream: bool
) -> None:
    """Its request is closed at once, whether its answer had begun or not, and its place is free
    again.
    """
    with cast(timeout=60, silence=60, max_concurrent=1) as play:
        play.all_domains(hangs_after_two if stream else hangs)
        with leaving(
            play.local.http.base_url, chat("auto", "hello", stream=stream)
        ) as client:
            asked = play.chosen.last()
            assert not stream or client.getresponse().read1()
        assert asked.gone.wait(PATIENCE_S)
        gone = {"expert": play.ahead, "outcome": "gone"}
        wait_for(
            lambda: play.local.counted("expert_requests_total", **gone) == 1,
            "it is counted",
        )
        assert play.local.counted("streams") == 0
        play.all_domains(well("again"))
        assert play.local.chat(play.ahead).status_code == 200
        assert play.local.states()[play.ahead] == "up"


# The file changes


def test_a_new_file_of_experts_is_taken_and_a_bad_one_refused(
    cast: GatewayMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests under way end where they began; the log says what was refused, without a path."""
    steps = Semaphore(1)
    with cast() as play, Expert(well("law")) as other:
        play.experts["law"].part = step_by_step(steps)
        with play.local.streamed("law") as response:
            addresses = {name: expert.url for name, expert in play.experts.items()}
            play.local.file.write_text(
                experts_toml(
                    {**addresses, "law": other.url, "new": other.url}, FALLBACK
                )
            )
            wait_for(lambda: "new" in play.local.states(), "the file is taken")
            assert play.local.chat("law").status_code == 200
            assert len(other.asked) == 1
            steps.release(10)
            assert list(tokens_of(response.iter_lines()))[-1] == "[DONE]"
        play.local.file.write_text('fallback = "nobody"\n')
        wait_for(lambda: "refused, keeping" in caplog.text, "the file is refused")
        assert str(play.local.file.parent) not in caplog.text
        assert play.local.chat("new").status_code == 200


def test_experts_that_stay_keep_their_breaker(cast: GatewayMaker) -> None:
    """A file that changes something else does not make a broken expert whole; one that leaves is
    counted no more.
    """
    with cast() as play:
        play.experts["law"].part = fails
        for _ in range(MAX_FAILURES):
            play.local.chat("law")
        addresses = {
            name: expert.url for name, expert in play.experts.items() if name != "code"
        }
        play.local.file.write_text(experts_toml(addresses, "mu = 0.5\n" + FALLBACK))
        wait_for(lambda: "code" not in play.local.states(), "the file is taken")
        assert play.local.states()["law"] == "down"
        assert "code" not in json.dumps(play.local.http.get("/v1/models").json())
        registry = play.local.service.metrics.registry
        assert (
            registry.get_sample_value("ridgeway_expert_up", {"expert": "code"}) is None
        )


def test_an_expert_that_refuses_is_not_called_up(
    cast: GatewayMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong key makes every answer an error: the log says it, once, and so does the state, until
    it is mended.
    """
    with cast() as play:
        play.experts["law"].part = unauthorised
        for _ in range(3):
            assert play.local.chat("law").status_code == 502
        assert play.local.states()["law"] == "refusing"
        assert play.local.counted("expert_up", expert="law") == 0
        assert caplog.text.count("expert law refuses requests") == 1
        play.experts["law"].part = well("law")
        assert play.local.chat("law").status_code == 200
        assert play.local.states()["law"] == "up"


def test_a_request_for_streamed_vectors_breaks_no_expert(cast: GatewayMaker) -> None:
    """There are none: a whole answer is asked for, and nobody is blamed."""
    with cast() as play:
        for _ in range(MAX_FAILURES + 1):
            asked = {"model": "law", "input": "x", "stream": True}
            assert play.local.post("/v1/embeddings", asked).status_code == 200
        assert play.local.states()["law"] == "up"


def test_an_expert_that_is_added_lets_a_refused_release_in(tmp_path: Path) -> None:
    """Without a fallback a domain that has no expert is refused, and the old release stays in use
    until it has one.
    """
    folder, file = tmp_path / "release", tmp_path / "experts.toml"
    old = release_of(folder, ("code", "law"))
    with Expert(well("x")) as expert:
        file.write_text(experts_toml({"code": expert.url, "law": expert.url}))
        with served(folder, file) as local:
            newest = release_of(folder, ("code", "law", "music"))
            wait_for(
                lambda: local.service.current.refused is not None,
                "the release is refused",
            )
            assert "music" in str(local.service.current.refused)
            assert local.chat().headers["x-ridgeway-release"] == old
            file.write_text(
                experts_toml(dict.fromkeys(("code", "law", "music"), expert.url))
            )
            wait_for(
                lambda: local.service.current.served.id == newest,
                "the release is taken",
            )
            assert local.service.current.refused is None


def test_an_operator_is_told_who_answers_for_whom(cast: GatewayMaker) -> None:
    """A misspelt name is an expert that nobody is sent to, and a domain without one."""
    with cast() as play:
        gateway = play.local.gateway
        assert gateway is not None
        assert gateway.notes() == []
        addresses = {
            name: expert.url for name, expert in play.experts.items() if name != "law"
        }
        play.local.file.write_text(
            experts_toml({**addresses, "lwa": play.experts["law"].url}, FALLBACK)
        )
        wait_for(lambda: "lwa" in play.local.states(), "the file is taken")
        without, odd = gateway.notes()
        assert without.startswith("generalist answers for law")
        assert odd.startswith("lwa: no domain")
        assert answered_by(play.local.chat(content=prompt_for("law", DOMAINS))) == (
            "generalist",
            "missing",
        )
