"""A service whose release has a sentence encoder: its decisions are the library's, and reading
holds nobody up.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, get_args

import httpx
import pytest

from ridgeway.common.base.errors import ReleaseError
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import SentenceUse
from ridgeway.common.routing.release import CurrentRelease
from ridgeway.common.routing.router import Router, origin
from ridgeway.common.text.sentence_encoder import UseEncoder
from ridgeway.serving import serve_command
from ridgeway.serving.routing_service import ReleaseSource, RoutingService
from tests.support.commands import Workshop
from tests.support.in_process import CHATS, DOMAINS, Local, chat, client_of
from tests.support.serving import (
    cascade_release,
    prompt_for,
    release_of,
    unsure_prompts,
)
from tests.support.waiting import PATIENCE_S, wait_for

MISSING = "the sentence encoder is not on this machine; run `pip install"
SURE = prompt_for("law", DOMAINS)


@pytest.fixture
def release(cascade: Path) -> Path:
    """What the gateway's experts stand behind."""
    return cascade


def asked(kind: str, prompt: str) -> tuple[str, Any]:
    """The path and the body of a request of some kind."""
    bodies: dict[str, tuple[str, Any]] = {
        "prompt": ("/v1/route", {"prompt": prompt}),
        "batch": ("/v1/route", {"prompts": [prompt, SURE]}),
        "explanation": ("/v1/route", {"prompt": prompt, "explain": True}),
        "chat": (CHATS, chat("auto", prompt)),
    }
    return bodies[kind]


@pytest.mark.parametrize("use", get_args(SentenceUse))
def test_decisions_are_the_librarys(cascade: Path, use: SentenceUse) -> None:
    """Of a prompt, a batch, a chat and an explanation, whichever prompts are read."""
    router = Router.load(cascade, sentences=use)
    prompts = [SURE, *unsure_prompts(20), "", prompt_for("code", DOMAINS)]
    service = RoutingService(ReleaseSource(cascade, sentences=use), watch_s=0)
    with client_of(service) as client:

        def answer(**body: Any) -> Any:
            return client.post("/v1/route", json=body).json()

        decisions = [router.route(prompt).to_json() for prompt in prompts]
        for prompt, decision in zip(prompts[:3], decisions, strict=False):
            assert answer(prompt=prompt) == decision | origin(router)
        assert answer(prompts=prompts)["decisions"] == decisions
        turns = [{"role": "user", "content": text} for text in prompts[:2]]
        assert answer(messages=turns) == router.route(turns).to_json() | origin(router)
        explained = answer(messages=turns, explain=True)
        expected = router.explain(turns).to_json()
        for name in ("router", "scores", "margin"):
            assert explained[name] == expected[name]
    read = {"auto": 20, "never": 0, "always": 23}[use]
    assert [decision["router"] for decision in decisions].count("sentences") == read


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Event]]:
    """From the call on, the sentence encoder waits for the event."""
    free = Event()
    real = UseEncoder.vectors

    def waiting(encoder: UseEncoder, *given: Any) -> Any:
        assert free.wait(PATIENCE_S)
        return real(encoder, *given)

    def block() -> Event:
        monkeypatch.setattr(UseEncoder, "vectors", waiting)
        return free

    yield block
    free.set()


@pytest.mark.parametrize("quick", [True, False])
def test_what_the_table_decides_waits_for_no_sentence(
    local: Local, blocked: Callable[[], Event], quick: bool
) -> None:
    """While more sentences wait than there are threads to read them: prompts, batches, explanations
    and chats.
    """
    unsure = unsure_prompts(cores() + 2)
    kinds = ["prompt", "batch", "explanation", "chat"]
    with ThreadPoolExecutor(len(kinds) * len(unsure)) as clients:
        local = local
        object.__setattr__(local.service.current.served, "is_quick", quick)
        free = blocked()

        def post(kind: str, prompt: str) -> httpx.Response:
            path, body = asked(kind, prompt)
            return httpx.post(
                f"{local.http.base_url}{path}", json=body, timeout=PATIENCE_S
            )

        waiting: list[Future[httpx.Response]] = [
            clients.submit(post, kind, prompt) for kind in kinds for prompt in unsure
        ]
        wait_for(
            "all have come", lambda: local.counted("requests_in_flight") == len(waiting)
        )
        for kind in kinds:
            answer = post(kind, SURE)
            assert answer.status_code == 200
            assert kind != "chat" or answer.headers["x-ridgeway-router"] == "table"
        assert not any(answer.done() for answer in waiting)
        assert local.counted("decisions_by_router_total", router="sentences") == 0
        free.set()
        assert {answer.result().status_code for answer in waiting} == {200}
        assert {
            answer.result().headers["x-ridgeway-router"]
            for answer in waiting[-len(unsure) :]
        } == {"sentences"}
        assert local.counted("decisions_by_router_total", router="sentences") == len(
            waiting
        )
        assert local.counted("decisions_by_router_total", router="table") == len(
            kinds
        ) + 1 + len(unsure)


def test_releases_with_and_without_sentences_follow_each_other(
    cascade: Path, sentences: UseEncoder
) -> None:
    """In both directions, while the service runs."""
    shutil.rmtree(cascade)
    release_of(cascade, DOMAINS)
    current = CurrentRelease(ReleaseSource(cascade))
    cascade_release(cascade, DOMAINS, sentences)
    assert current.refresh()
    (unsure,) = unsure_prompts(1)
    assert current.served.router.route(unsure).router == "sentences"
    release_of(cascade, DOMAINS, strength=50)
    assert current.refresh()
    assert current.served.router.route(unsure).router == "table"


@pytest.mark.usefixtures("no_sentences")
def test_without_the_wheel_a_release_with_sentences_is_refused(
    tmp_path: Path, sentences: UseEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, and while another is in use, which stays; unless no prompt is to be read."""
    folder = tmp_path / "release"
    release_of(folder, DOMAINS)
    current = CurrentRelease(ReleaseSource(folder))
    before = current.served
    cascade_release(folder, DOMAINS, sentences)
    assert current.refresh()
    assert current.served is before
    assert str(current.refused).startswith(
        f"the new release is signed but unusable: {MISSING}"
    )
    with pytest.raises(
        ReleaseError,
        match="signed but unusable: the sentence encoder is not on this machine",
    ):
        CurrentRelease(ReleaseSource(folder))
    monkeypatch.setattr(serve_command, "bind_sockets", lambda address: [])
    done = Workshop(tmp_path).call("serve", folder)
    assert done.code == 2
    assert MISSING in done.stderr.splitlines()[-1]
    never = ReleaseSource(folder, sentences="never").open()
    assert never.router.route("hello").router == "table"
