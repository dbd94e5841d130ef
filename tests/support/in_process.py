"""The whole service in a thread of the test, on a real socket, with its insides in reach."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import httpx
from starlette.testclient import TestClient

from ridgeway.common.routing.experts_file import ExpertsFile
from ridgeway.common.web.api_keys import AccessRules, add_key, make_rules
from ridgeway.common.web.server import Certificate, make_server
from ridgeway.serving.gateway import Gateway
from ridgeway.serving.routing_service import ReleaseSource, RoutingService
from ridgeway.serving.serve_command import create_app
from tests.support.fake_expert import Expert, Part, wait_for, well
from tests.support.waiting import PATIENCE_S

WATCH_S = 0.02
DOMAINS = ("code", "law", "médecine")
EVERYONE = (*DOMAINS, "generalist")
CHATS = "/v1/chat/completions"


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

    def send(
        self, path: str, content: bytes | str, kind: str = "application/json"
    ) -> httpx.Response:
        """A body as it is."""
        return self.http.post(path, content=content, headers={"content-type": kind})

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
    """A running service, and its experts on real sockets."""

    service: RoutingService
    http: httpx.Client
    file: Path
    clock: Clock
    gateway: Gateway | None = None
    experts: dict[str, Expert] = field(default_factory=dict)

    def states(self) -> dict[str, str]:
        states: dict[str, str] = self.http.get("/readyz").json()["experts"]
        return states

    def counted(self, name: str, **labels: str) -> float:
        return (
            self.service.metrics.registry.get_sample_value(f"ridgeway_{name}", labels)
            or 0.0
        )

    @property
    def ahead(self) -> str:
        """The domain that a chat of the word `hello` is routed to."""
        return self.service.router.route("hello").best

    @property
    def chosen(self) -> Expert:
        return self.experts[self.ahead]

    @property
    def asked(self) -> int:
        """The number of requests that reached experts."""
        return sum(len(expert.asked) for expert in self.experts.values())

    def all_domains(self, part: Part) -> None:
        for domain in DOMAINS:
            self.experts[domain].part = part

    def abstains(self, threshold: float) -> None:
        """From now on, below a confidence, and then the generalist is asked."""
        router = self.service.router
        router.confidence = replace(
            router.confidence, threshold=threshold, fallback="generalist"
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
    file: Path | ExpertsFile | None = None,
    rules: AccessRules | None = None,
) -> Iterator[Local]:
    """The service of a release, with the experts of a file if one is given, open to all unless
    there are rules.
    """
    known = ExpertsFile(file) if isinstance(file, Path) else file
    check: Callable[..., None] = known.check if known else lambda router: None
    service = RoutingService(ReleaseSource(release, check=check), watch_s=WATCH_S)
    clock = Clock()
    gateway = Gateway(service, known, clock) if known else None
    app = create_app(service, gateway=gateway, rules=rules or AccessRules())
    with (
        running(app) as address,
        httpx.Client(base_url=address, verify=False, timeout=30.0) as http,
    ):
        yield Local(service, http, known.path if known else release, clock, gateway)


def client_of(service: RoutingService) -> TestClient:
    """Asks a service over ASGI, without a socket."""
    app = create_app(service)
    return TestClient(app, "http://127.0.0.1", raise_server_exceptions=False)


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


def experts_toml(experts: Mapping[str, Mapping[str, Any]], **top: Any) -> str:
    """A file of experts with any settings; a dict is written as an inline table."""
    lines = [f"{name} = {_toml(value)}" for name, value in top.items() if value]
    for name, settings in experts.items():
        fields = {"model": f"{name}-model", **settings}
        lines += [
            f"[experts.{json.dumps(name)}]",
            *(f"{key} = {_toml(value)}" for key, value in fields.items()),
        ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        fields = (f"{json.dumps(name)} = {_toml(part)}" for name, part in value.items())
        return "{" + ", ".join(fields) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def everyone(
    names: Sequence[str] = EVERYONE, **fields: Any
) -> dict[str, dict[str, Any]]:
    """The settings of an expert for each domain and a generalist, all with these fields."""
    return dict.fromkeys(names, fields)


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

    def write(
        self,
        settings: Mapping[str, Mapping[str, Any]],
        fallback: str | None = None,
        **top: Any,
    ) -> None:
        """Write the file. fallback: the last of the experts, unless another or none is named."""
        addressed = {}
        for name, fields in settings.items():
            if not {"addresses", "base_url"} & set(fields):
                if name not in self.experts:
                    [self.experts[name]] = self.start(well(name))
                fields = {**fields, "base_url": self.experts[name].url}
            addressed[name] = fields
        last = [*settings][-1] if fallback is None else fallback
        self._file.write_text(experts_toml(addressed, fallback=last, **top))

    def serve(
        self,
        settings: Mapping[str, Mapping[str, Any]],
        fallback: str | None = None,
        rules: AccessRules | None = None,
        **top: Any,
    ) -> Local:
        """The service of such a file."""
        self.write(settings, fallback, **top)
        local = self.enter_context(served(self._release, self._file, rules))
        local.experts = self.experts
        return local

    def serve_keyed(
        self, settings: Mapping[str, Mapping[str, Any]], **limits: Any
    ) -> tuple[Local, str]:
        """The same for the clients of one key, `shop`, with which `local` asks; and the key."""
        keys = self._file.with_name("keys.toml")
        key, _ = add_key(keys, "shop", **limits)
        local = self.serve(settings, rules=make_rules("127.0.0.1", keys))
        local.http.headers["authorization"] = f"Bearer {key}"
        return local, key

    @property
    def asked(self) -> set[str]:
        return {name for name, expert in self.experts.items() if expert.asked}
