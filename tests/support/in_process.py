"""The whole service in a thread of the test, on a real socket, with its insides in reach."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import httpx

from ridgeway.common.routing.experts_file import ExpertsFile
from ridgeway.common.web.access_rules import AccessRules
from ridgeway.common.web.server import Certificate, make_server
from ridgeway.serving.app import create_app
from ridgeway.serving.current_release import ReleaseSource
from ridgeway.serving.gateway import Gateway
from ridgeway.serving.routing_service import RoutingService
from tests.support.fake_expert import Expert, Part, wait_for, well
from tests.support.waiting import PATIENCE_S

WATCH_S = 0.02
DOMAINS = ("code", "law", "médecine")
EVERYONE = (*DOMAINS, "generalist")
CHATS = "/v1/chat/completions"
FALLBACK = 'fallback = "generalist"'


def experts_toml(addresses: Mapping[str, str], top: str = "", **more: Any) -> str:
    """A file of experts; `more` stands in each of them."""
    lines = [top]
    for name, url in addresses.items():
        lines += [
            f'[experts."{name}"]',
            f'base_url = "{url}"',
            f'model = "{name}-model"',
        ]
        lines += [
            f"{field} = {value!r}".replace("'", '"') for field, value in more.items()
        ]
    return "\n".join(lines) + "\n"


@dataclass
class Clock:
    """Time that passes when the test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Chatting:
    """Asks a service for chats. opening: how all of them begin."""

    http: httpx.Client
    opening: ClassVar[str] = ""

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.http.post(path, json=body, headers=headers)

    def chat(
        self, model: str = "auto", content: str = "hello", **more: Any
    ) -> httpx.Response:
        return self.post(CHATS, chat(model, self.opening + content, **more))

    @contextlib.contextmanager
    def streamed(
        self, model: str = "auto", content: str = "hello", **more: Any
    ) -> Iterator[httpx.Response]:
        body = chat(model, self.opening + content, stream=True, **more)
        with self.http.stream("POST", CHATS, json=body) as response:
            yield response


@dataclass
class Local(Chatting):
    """A running service."""

    service: RoutingService
    http: httpx.Client
    file: Path
    clock: Clock
    gateway: Gateway | None = None

    def states(self) -> dict[str, str]:
        states: dict[str, str] = self.http.get("/readyz").json()["experts"]
        return states

    def counted(self, name: str, **labels: str) -> float:
        return (
            self.service.metrics.registry.get_sample_value(f"ridgeway_{name}", labels)
            or 0.0
        )


def memory(process: int | str = "self") -> int:
    """The bytes of memory that a process holds; this one has services, experts and whoever asks
    them.
    """
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def chat(model: str, content: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **more}


@contextlib.contextmanager
def served(
    release: Path,
    file: Path | ExpertsFile | None,
    rules: AccessRules | None = None,
    **source: Any,
) -> Iterator[Local]:
    """The service of a release, with the experts of a file if one is given, open to all unless
    there are rules.
    """
    known = ExpertsFile(file) if isinstance(file, Path) else file
    check: Callable[..., None] = known.check if known else lambda router: None
    service = RoutingService(
        ReleaseSource(release, check=check, **source), watch_s=WATCH_S
    )
    clock = Clock()
    gateway = Gateway(service, known, clock) if known else None
    app = create_app(service, gateway=gateway, rules=rules or AccessRules())
    with (
        running(app) as address,
        httpx.Client(base_url=address, verify=False, timeout=30.0) as http,
    ):
        yield Local(service, http, known.path if known else release, clock, gateway)


@contextlib.contextmanager
def running(app: Any, certificate: Certificate | None = None) -> Iterator[str]:
    """The address of an application that a thread serves."""
    server = make_server(app, certificate)
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_for(
                lambda: server.started or not thread.is_alive(),
                "the service has started",
            )
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


# The gateway, with experts on real sockets


class GatewayExperts:
    """An expert for every domain and a generalist, and the service before them."""

    def __init__(self, local: Local, experts: dict[str, Expert]) -> None:
        self.local = local
        self.experts = experts

    @property
    def ahead(self) -> str:
        """The domain that a chat of the word `hello` is routed to."""
        return self.local.service.router.route("hello").best

    @property
    def chosen(self) -> Expert:
        return self.experts[self.ahead]

    def all_domains(self, part: Part) -> None:
        for domain in DOMAINS:
            self.experts[domain].part = part


GatewayMaker = Callable[..., contextlib.AbstractContextManager[GatewayExperts]]


def answered_by(response: httpx.Response) -> tuple[str, str]:
    """The expert that answered and the reason, as the headers say it; the answer itself must
    agree.
    """
    assert response.status_code == 200, response.text
    expert = unquote(response.headers["x-ridgeway-expert"])
    assert response.json()["model"] == expert
    return expert, response.headers["x-ridgeway-reason"]


def sent(expert: Expert) -> Any:
    return expert.last().json


# Experts by their settings


def fleet_toml(experts: Mapping[str, Mapping[str, Any]], top: str = "") -> str:
    """A file of experts with any settings; a dict in a list is written as an inline table."""
    lines = [top]
    for name, settings in experts.items():
        fields = {"model": f"{name}-model", **settings}
        lines += [
            f"[experts.{json.dumps(name)}]",
            *(f"{field} = {_toml(value)}" for field, value in fields.items()),
        ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        fields = (f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items())
        return "{" + ", ".join(fields) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


class Fleet(contextlib.ExitStack):
    """The service before experts by their settings, of which one without an address answers with
    its name.
    """

    def __init__(self, release: Path, file: Path) -> None:
        super().__init__()
        self._release = release
        self._file = file
        self.experts: dict[str, Expert] = {}

    def start(self, *parts: Part) -> list[Expert]:
        return [self.enter_context(Expert(part)) for part in parts]

    def serve(
        self,
        settings: Mapping[str, Mapping[str, Any]],
        fallback: str | None = None,
        mu: float = 0.0,
        rules: AccessRules | None = None,
    ) -> Local:
        """fallback: the last of the experts, unless another is named."""
        addressed: dict[str, Mapping[str, Any]] = {}
        for name, fields in settings.items():
            if "addresses" not in fields:
                [self.experts[name]] = self.start(well(name))
                fields = {**fields, "base_url": self.experts[name].url}
            addressed[name] = fields
        last = fallback or [*settings][-1]
        self._file.write_text(
            fleet_toml(addressed, f'fallback = "{last}"\nmu = {mu}\n')
        )
        return self.enter_context(served(self._release, self._file, rules))

    @property
    def asked(self) -> set[str]:
        return {name for name, expert in self.experts.items() if expert.asked}
