"""`ridgeway serve` as a process on loopback, and what tests ask of it.

with Serving(folder, release, "--experts", path) as served:
    served.chat("auto", "hello")
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai

from ridgeway.common.base.identity import Identity
from ridgeway.common.base.settings import DEFAULT, Confidence, WordFeatures
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.routing.release import save_release
from ridgeway.common.routing.sentence_table import (
    Cascade,
    SentenceTable,
    compile_router,
)
from ridgeway.common.routing.token_table import TokenTable
from ridgeway.common.text.sentence_encoder import SentenceEncoder, SentenceFeatures
from ridgeway.common.text.table_encoder import TableEncoder, with_words
from tests.support import in_process
from tests.support.commands import RIDGEWAY
from tests.support.in_process import CHATS, Chatting, memory
from tests.support.making import fixed_identity
from tests.support.tiny import LETTERS, tiny_definition
from tests.support.waiting import wait_for, wait_for_end

ROOT = Path(__file__).resolve().parents[2]
SECRET = "zyzzyva"
"""Stands in every prompt, and must stand in no log."""
OWN = [letter for letter in LETTERS if letter not in f"{SECRET} "]
"""The letters that domains may have."""
STOP_S = 30.0
Json = Mapping[str, Any]


def release_of(
    folder: Path,
    domains: Sequence[str],
    identity: Identity | None = None,
    strength: int = 100,
    number: int | None = None,
) -> str:
    """A release in which each domain has a letter of its own, that of `prompt_for`; returns its
    id.
    """
    facts = facts_of(domains, **({} if number is None else {"number": number}))
    weights = np.zeros((2, len(domains)))
    table = letter_table(domains, strength)
    return save_release(
        folder, facts, weights, table, tiny_definition(), identity or fixed_identity()
    )


def cascade_release(
    folder: Path, domains: Sequence[str], reader: SentenceEncoder
) -> str:
    """The same with a sentence encoder, which decides `unsure_prompts`; what it says of them is
    random.
    """
    table = letter_table(domains)
    features = SentenceFeatures(reader)
    of_sentences = np.random.default_rng(0).integers(
        -1000, 1000, (features.width, len(domains)), dtype=np.int32
    )
    whole = SentenceTable(table, of_sentences, 22, features)
    facts = facts_of(domains)
    facts["encoder"] |= {"sentences": features.to_json()}
    weights = np.zeros((2, 2 * len(domains)))
    return save_release(
        folder,
        facts,
        weights,
        Cascade(table, whole, 0.5),
        tiny_definition(),
        fixed_identity(),
    )


CASCADE_DOMAINS = ("code", "law", "médecine")


def unsure_prompts(count: int) -> list[str]:
    """Texts that the table of the first two of some domains is unsure of."""
    return [f"{OWN[0]}{OWN[1]} " * (number + 1) for number in range(count)]


def letter_table(domains: Sequence[str], strength: int = 100) -> TokenTable:
    """Each domain has a letter of its own, as far as there are any."""
    rows = len(LETTERS) + 2
    logits = np.zeros((rows, len(domains)), dtype=np.int16)
    for index, _ in enumerate(domains):
        letter = LETTERS.index(OWN[index % len(OWN)])
        logits[letter + 2, index] = strength - index // len(OWN)
    return TokenTable(logits, 1.0, np.zeros(len(domains), dtype=np.uint8))


def facts_of(domains: Sequence[str], **more: Any) -> dict[str, Any]:
    """What the manifest of a made-up release says."""
    return {
        "domains": list(domains),
        "masses": dict.fromkeys(domains, 1),
        "encoder": {"name": "tiny", "fingerprint": "0" * 64},
        "selector": {"name": "average", "k": 1},
        "confidence": Confidence().to_json(),
        "parent": None,
        **more,
    }


def usual_release(folder: Path, domains: Sequence[str], use: TableEncoder) -> None:
    """A release of the default encoder, as large as a real one; its weights are random."""
    encoder = with_words(use, words := WordFeatures())
    weights = np.random.default_rng(0).standard_normal(
        (encoder.width + 1, len(domains))
    )
    names = {"name": encoder.name, "fingerprint": encoder.fingerprint}
    facts = facts_of(
        domains,
        encoder={**names, "words": asdict(words)},
        selector=asdict(DEFAULT.selector),
    )
    compiled = compile_router(encoder, weights)
    save_release(folder, facts, weights, compiled, encoder.definition, fixed_identity())


def prompt_for(domain: str, domains: Sequence[str]) -> str:
    """A text that the release of these domains sends to this one."""
    return OWN[domains.index(domain)] * 40


class Process:
    """A server in a process of its own. Use it in a `with`: it is ready inside and gone after."""

    def __init__(
        self,
        command: Sequence[str | Path],
        ready: str,
        log: Path,
        environment: Json | None = None,
    ) -> None:
        self._command = command
        self._ready = ready
        self._log = log
        self._environment = {**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def said(self) -> str:
        """What it wrote to stdout and stderr so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def begin(self) -> None:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=ROOT,
            )

    def until_ready(self) -> None:
        wait_for(
            "the server is ready",
            self._answers,
            progress=lambda: self.said,
            details=lambda: self.said,
        )

    def _answers(self) -> bool:
        assert self.is_running(), f"it has ended: {self.said}"
        with contextlib.suppress(httpx.HTTPError):
            return (
                httpx.get(
                    self._ready, trust_env=False, timeout=5.0, verify=False
                ).status_code
                == 200
            )
        return False

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ask_to_end(self) -> None:
        """As an operator would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        """Once it has ended."""
        assert self.process is not None
        return wait_for_end(self.process, patience_s=STOP_S, details=lambda: self.said)

    def stop(self) -> int:
        self.ask_to_end()
        return self.exit_code()

    def end(self) -> None:
        """Surely end it."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def children(self) -> set[int]:
        """The processes that it has started."""
        return {
            int(number)
            for number in Path(f"/proc/{self.pid}/task/{self.pid}/children")
            .read_text()
            .split()
        }

    def memory(self) -> int:
        """The bytes of memory that it holds now."""
        return memory(self.pid)


class Serving(Process, Chatting):
    """`ridgeway serve RELEASE OPTIONS...` on a port of its own; settings: what stands in its
    serve.toml.
    """

    opening = f"{SECRET} "

    def __init__(
        self,
        folder: Path,
        release: Path,
        *options: str | Path,
        key: str = "",
        settings: Json | None = None,
        **environment: str,
    ) -> None:
        port = free_port()
        config = folder / f"serve-{port}.toml"
        config.write_text(
            "\n".join(
                f"{name} = {json.dumps(value)}"
                for name, value in (settings or {}).items()
            )
        )
        self.url = f"http://127.0.0.1:{port}"
        self.key = key
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        folders = {
            "RIDGEWAY_CACHE": str(folder / "cache"),
            "RIDGEWAY_CONFIG": str(folder / "config"),
            **environment,
        }
        command = [
            RIDGEWAY,
            "serve",
            release,
            "--config",
            config,
            "--port",
            str(port),
            *options,
        ]
        super().__init__(
            command, f"{self.url}/readyz", folder / f"serve-{port}.log", folders
        )
        self.http = httpx.Client(
            base_url=self.url,
            trust_env=False,
            timeout=120.0,
            headers=self._headers,
            verify=False,
        )

    def __enter__(self) -> Serving:
        self.begin()
        try:
            self.until_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        self.http.close()
        super().end()

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client; it asks once, so that a test sees what the first answer is."""
        http = openai.DefaultHttpxClient(trust_env=False, verify=False)
        settings: dict[str, Any] = {
            "api_key": self.key or "none",
            "max_retries": 0,
            "timeout": 30.0,
            **options,
        }
        return openai.OpenAI(base_url=f"{self.url}/v1", http_client=http, **settings)

    def metric(self, name: str, **labels: str) -> float:
        """A value of /metrics; 0 if it is not there."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        for line in self.http.get("/metrics").text.splitlines():
            if line.split("{")[0].split(" ")[0] == name and all(
                label in line for label in wanted
            ):
                return float(line.rpartition(" ")[2])
        return 0.0


@contextlib.contextmanager
def leaving(url: httpx.URL, body: Json, key: str = "") -> Iterator[HTTPConnection]:
    """A chat that is asked for; at the end of the `with` its client goes, answered or not."""
    connection = HTTPConnection(url.host, url.port or 80)
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    connection.request("POST", CHATS, json.dumps(body), headers)
    try:
        yield connection
    finally:
        connection.close()


def write_experts(
    path: Path, experts: Mapping[str, str], fallback: str = "", **settings: Json
) -> Path:
    """experts.toml for experts at these addresses, each called in its server as it is called here.

    settings: more lines for the expert of that name, `every` for all of them.
    """
    every = settings.get("every", {})
    facts = {
        name: {"base_url": url, "model": name, **every, **settings.get(name, {})}
        for name, url in experts.items()
    }
    path.write_text(in_process.experts_toml(facts, fallback=fallback), encoding="utf-8")
    return path


def chat(model: str, prompt: str, **more: Any) -> dict[str, Any]:
    return in_process.chat(model, f"{SECRET} {prompt}", **more)


def tokens_of(lines: Iterator[str]) -> Iterator[Any]:
    """The events of a stream, as they come; the last is the word [DONE]."""
    for line in lines:
        if line.startswith("data: "):
            content = line[6:].strip()
            yield content if content == "[DONE]" else json.loads(content)


def word_of(event: Any) -> str:
    """The text of one event of a streamed chat; the last event is its own."""
    if event == "[DONE]":
        return "[DONE]"
    return str(event["choices"][0]["delta"].get("content") or "")


def complaint(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which must have the shape of OpenAI's."""
    assert response.headers["content-type"].startswith("application/json"), (
        response.headers
    )
    return complaint_of(response.json())


def complaint_of(body: Any) -> dict[str, Any]:
    assert set(body) == {"error"}, body
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str) and error["message"], error
    assert isinstance(error["type"], str) and error["type"], error
    assert SECRET not in json.dumps(error), error
    return error
