"""How far a request wanders through the source: a reader who follows one opens few files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ridgeway.common.experts.experts_file import ExpertsFile
from ridgeway.common.serve.gateway.gateway import Gateway
from ridgeway.common.serve.http_app import create_app
from ridgeway.common.serve.routing.current_release import ReleaseSource
from ridgeway.common.serve.routing.routing_service import RoutingService
from tests.support.fake_expert import Expert, well
from tests.support.in_process import DOMAINS, chat, experts_toml
from tests.support.serving import ROOT

ROOMS = ("common", "client", "coordinator", "simulations")
MAX_FILES_OF_A_ROUTE = 19
BESIDE_REQUESTS = "health_checks.py"
"""Runs by the clock, now and then while a request is served."""
MAX_FILES_OF_A_CHAT = 26


class Trace:
    """The project's files in which a function is entered while `recording`, in any thread that starts after it."""

    def __init__(self) -> None:
        self.recording = False
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.recording and event == "call":
            path = Path(frame.f_code.co_filename).resolve()
            is_source = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS
            if is_source and path.name != BESIDE_REQUESTS:
                self.files.add(path.relative_to(ROOT).as_posix())


@pytest.fixture
def trace() -> Iterator[Trace]:
    made, before = Trace(), sys.getprofile()
    threading.setprofile(made)
    sys.setprofile(made)
    try:
        yield made
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@pytest.fixture
def gateway(release: Path, tmp_path: Path) -> Iterator[tuple[RoutingService, Gateway]]:
    """A service before experts that are well, one for each domain."""
    with contextlib.ExitStack() as stack:
        urls = {domain: stack.enter_context(Expert(well(domain))).url for domain in DOMAINS}
        (tmp_path / "experts.toml").write_text(experts_toml(urls))
        file = ExpertsFile(tmp_path / "experts.toml")
        service = RoutingService(ReleaseSource(release, check=file.check), watch_s=0)
        yield service, Gateway(service, file)


async def asked(app: Any, path: str, body: Any) -> list[Any]:
    """What an application sends in answer to one request."""
    content, sent, is_gone = json.dumps(body).encode(), list[Any](), asyncio.Event()
    events = [{"type": "http.request", "body": content, "more_body": False}]
    headers = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(content))}

    async def receive() -> Any:
        if not events:
            await is_gone.wait()
        return events.pop()

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "client": ("127.0.0.1", 1)}
    await app({**scope, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}, receive, send)
    return sent


def files_of(trace: Trace, gateway: tuple[RoutingService, Gateway], path: str, body: Any) -> set[str]:
    """The files that a request enters when others like it went before."""

    async def measured() -> None:
        service, before_experts = gateway
        app = create_app(service, gateway=before_experts)
        async with before_experts, service.running():
            for warm in (False, False, True):
                trace.recording = warm
                events = await asked(app, path, body)
                trace.recording = False
                assert events[0]["status"] == 200, events

    asyncio.run(measured())
    return trace.files


TALK = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "yes?"},
    {"role": "user", "content": "on"},
]


@pytest.mark.parametrize("body", [{"prompt": "hello"}, {"prompts": ["hello", "you"]}, {"messages": TALK}])
def test_a_routed_prompt_passes_few_files(body: Any, trace: Trace, gateway: tuple[RoutingService, Gateway]) -> None:
    """From the guard to the table of logits and back."""
    files = files_of(trace, gateway, "/v1/route", body)
    assert "common/routing/router.py" in files
    assert len(files) <= MAX_FILES_OF_A_ROUTE, sorted(files)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_chat_passes_few_files(streamed: bool, trace: Trace, gateway: tuple[RoutingService, Gateway]) -> None:
    """From the guard to the router, to an expert, and back."""
    files = files_of(trace, gateway, "/v1/chat/completions", chat("auto", "hello", stream=streamed))
    assert {"common/routing/router.py", "common/serve/gateway/expert_client.py"} <= files
    assert len(files) <= MAX_FILES_OF_A_CHAT, sorted(files)
