"""Experts on loopback that do what a test tells them to, on real sockets: answer, stream, hang,
die, talk nonsense.

An expert is a thread of the test. It reads a request and plays its part on the bare socket, so that
what no proper server would send can be sent too. Every request is kept, and whether whoever asked
has gone. One that is to be killed is a process of its own: `python -m tests.support.fake_expert
PORT`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Semaphore, Thread
from typing import Any

from tests.support import waiting

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
"""No test waits longer for an event, on a machine that is not overloaded."""
MOST_HANGING_S = 60.0
READING_S = 0.1
"""For whoever asked to read what came before a connection ends, on a machine that is not
overloaded.
"""
EVENTS = b"text/event-stream"
JSON = b"application/json"
CHUNKED = b"transfer-encoding: chunked\r\n"
WORDS = ("one", "two", "three", "four")
MOMENT_S = 0.02
PIECES = 60
LETTERS_PER_PIECE = 7


@dataclass(slots=True)
class Asked:
    """A request that an expert has received; `gone` is set when whoever asked has closed the
    connection.

    sent: how many events of an endless answer were taken so far. was_read: set by a test that has
          read what was sent.
    keeps: whether the connection is kept for a further request.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: socket.socket
    gone: Event = field(default_factory=Event)
    was_read: Event = field(default_factory=Event)
    sent: int = 0
    keeps: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def send(self, content: bytes) -> None:
        self.connection.sendall(content)

    def head(self, status: int = 200, kind: bytes = JSON, more: bytes = b"") -> None:
        more += b"" if self.keeps else b"connection: close\r\n"
        self.send(b"HTTP/1.1 %d X\r\ncontent-type: %s\r\n%s\r\n" % (status, kind, more))

    def chunk(self, content: bytes) -> None:
        self.send(b"%x\r\n%s\r\n" % (len(content), content))

    def reply(
        self, status: int, body: bytes, kind: bytes = JSON, more: bytes = b""
    ) -> None:
        self.head(status, kind, more + b"content-length: %d\r\n" % len(body))
        self.send(body)

    def stream(self, events: Iterable[bytes]) -> None:
        """These events as chunks, whenever they come, and the end of the answer."""
        self.head(200, EVENTS, CHUNKED)
        for event in events:
            self.chunk(event)
        self.chunk(b"")

    def linger(self) -> None:
        """Do nothing until whoever asked has gone."""
        self.connection.settimeout(MOST_HANGING_S)
        with contextlib.suppress(OSError):
            while self.connection.recv(65536):
                pass
        self.gone.set()

    def let_read(self) -> None:
        """What lies unread at a client when its connection ends is lost: leave it time, unless it
        has gone itself.
        """
        self.connection.settimeout(READING_S * waiting.processes_per_core())
        with contextlib.suppress(OSError):
            self.connection.recv(1, socket.MSG_PEEK)

    def reset(self) -> None:
        """End the connection as a machine does that has lost its power: without a farewell."""
        self.connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.connection.close()


Part = Callable[[Asked], None]


class Expert:
    """Listens on a port of its own and plays `part` for every request. Use it in a `with`."""

    def __init__(self, part: Part, port: int = 0) -> None:
        self.part = part
        self.asked: list[Asked] = []
        self._listener = socket.create_server(("127.0.0.1", port), backlog=256)
        self._thread = Thread(target=self.serve, daemon=True)

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()
        return f"http://{host}:{port}/v1"

    def __enter__(self) -> Expert:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
        for asked in self.asked:
            with contextlib.suppress(OSError):
                asked.connection.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        asked = None
        with contextlib.suppress(OSError), connection:
            while asked := _request(connection):
                self.asked.append(asked)
                self.part(asked)
                if not asked.keeps:
                    asked.let_read()
                    return
        if asked is not None:  # the part was broken off
            asked.gone.set()

    def last(self, after: int = 0) -> Asked:
        """The newest request, once there are more than `after`."""
        wait_for(lambda: len(self.asked) > after, "the expert was asked")
        return self.asked[-1]


def _request(connection: socket.socket) -> Asked | None:
    """One request, whole; None if the connection was closed before its end."""
    connection.settimeout(PATIENCE_S)
    with connection.makefile("rb") as file:
        first = file.readline().decode("latin-1").split()
        if len(first) < 2:
            return None
        headers = dict(_headers(file))
        length = int(headers.get("content-length", "0"))
        body = file.read(length)
        if len(body) < length:  # a worker was killed while it sent this
            return None
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(_chunks(file))
    return Asked(first[0], first[1], headers, body, connection)


def _headers(file: Any) -> Iterator[tuple[str, str]]:
    while line := file.readline().decode("latin-1").strip():
        name, _, value = line.partition(":")
        yield name.lower(), value.strip()


def _chunks(file: Any) -> Iterator[bytes]:
    while size := int(file.readline(), 16):
        yield file.read(size)
        file.readline()


def wait_for(
    reached: Callable[[], bool], what: str, seconds: float = PATIENCE_S
) -> None:
    """Wait until something has happened in another thread or process."""
    waiting.wait_for(what, reached, patience_s=seconds, poll_s=0.01)


def all_events(events: Iterator[Any], expert: Expert) -> list[Any]:
    """Every event of a stream, whose expert may break off once two of them were read."""
    first = [next(events), next(events)]
    expert.last().was_read.set()
    return [*first, *events]


# What experts say when all is well


def completion(text: str, model: str = "m") -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    frame = {"id": "c", "object": "chat.completion", "created": 1, "model": model}
    return json.dumps({**frame, "choices": [choice], "usage": usage}).encode()


def vectors(model: str) -> bytes:
    row = {"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return json.dumps(
        {"object": "list", "model": model, "data": [row], "usage": usage}
    ).encode()


def token(text: str, model: str = "m") -> bytes:
    """One event of a streamed chat."""
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": text},
        "finish_reason": None,
    }
    frame = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
        "choices": [choice],
    }
    return b"data: " + json.dumps(frame).encode() + b"\n\n"


END = b"data: [DONE]\n\n"


def well(name: str) -> Part:
    """Answers with its own name, streamed or not, as it was asked."""

    def part(asked: Asked) -> None:
        if asked.path.endswith("/embeddings"):
            asked.reply(200, vectors(name))
        elif not asked.json.get("stream"):
            asked.reply(200, completion(name, name))
        else:
            asked.stream([*(token(word, name) for word in (name, *WORDS)), END])

    return part


def whole_text(asked: str) -> str:
    """What `slowly_well` streams: no two pieces are alike."""
    return "".join(f"{asked}-{index} " for index in range(1000))[
        : PIECES * LETTERS_PER_PIECE
    ]


def slowly_well(asked: Asked) -> None:
    """Answers after a moment, a few letters at a time if it streams, and keeps its connections."""
    asked.keeps = True
    if asked.method == "GET":
        asked.reply(200, b'{"status": "ok"}')
        return
    time.sleep(MOMENT_S)
    if not asked.json.get("stream"):
        asked.reply(200, completion("well"))
        return
    text = whole_text(asked.json["messages"][-1]["content"])

    def events() -> Iterator[bytes]:
        for index in range(0, len(text), LETTERS_PER_PIECE):
            time.sleep(MOMENT_S)
            yield token(text[index : index + LETTERS_PER_PIECE])
        yield END

    asked.stream(events())


def start_expert(port: int) -> subprocess.Popen[bytes]:
    """A process that answers `slowly_well` soon; to be ended by whoever started it."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.fake_expert", str(port)], cwd=ROOT
    )


def step_by_step(steps: Semaphore) -> Part:
    """Streams a word each time the test lets it, and no sooner."""

    def events() -> Iterator[bytes]:
        for word in WORDS:
            assert steps.acquire(timeout=PATIENCE_S)
            yield token(word)
        yield END

    return lambda asked: asked.stream(events())


# What goes wrong


def replies(status: int, body: bytes, kind: bytes = JSON, more: bytes = b"") -> Part:
    """Answers every request with the same."""
    return lambda asked: asked.reply(status, body, kind, more)


def complains(status: int, message: str, more: bytes = b"", **fields: Any) -> Part:
    """Answers every request with the same error, in the shape of OpenAI's."""
    error = {
        "message": message,
        "type": "invalid_request_error",
        "param": None,
        "code": None,
        **fields,
    }
    return replies(status, json.dumps({"error": error}).encode(), JSON, more)


html = replies(200, b"<html><body>Welcome to nginx</body></html>", b"text/html")
broken_json = replies(200, b'{"id": "c", "choices": [{"ind')
not_an_object = replies(200, b"[1, 2, 3]")
fails = replies(500, b"Traceback (most recent call last): in /secret/place")
ignores_the_stream = replies(200, completion("whole"))
redirects = replies(307, b"", JSON, b"location: http://127.0.0.1:9/elsewhere\r\n")
"""Sends whoever asks elsewhere: with the key and the prompt, if they went."""
too_many = complains(
    429, "slow down", b"retry-after: 7\r\n", type="requests", code="rate_limit_exceeded"
)
unauthorised = complains(
    401, "Incorrect API key provided: sk-exp***", code="invalid_api_key"
)
refuses_the_request = complains(400, "max_tokens is too large", param="max_tokens")
"""The request itself is wrong, says the expert: not a failure of its own."""


def hangs(asked: Asked) -> None:
    """Takes the request and never says a word."""
    asked.linger()


def hangs_after_two(asked: Asked) -> None:
    """Two tokens, and nothing more."""
    _two_tokens(asked)
    asked.linger()


def dies_at_once(asked: Asked) -> None:
    asked.reset()


def dies_after_two(asked: Asked) -> None:
    """Two tokens, and once they were read, the connection is reset."""
    leaves_after_two(asked)
    asked.reset()


def leaves_after_two(asked: Asked) -> None:
    """Two tokens, and once they were read, the connection is closed, but neither the stream nor the
    answer was ended.

    What a client of aiohttp has not read when its connection breaks is lost.
    """
    _two_tokens(asked)
    assert asked.was_read.wait(PATIENCE_S)


def _two_tokens(asked: Asked) -> None:
    asked.head(200, EVENTS, CHUNKED)
    asked.chunk(token("one"))
    asked.chunk(token("two"))


def half_a_body(asked: Asked) -> None:
    """Promises more bytes than it sends."""
    asked.head(200, JSON, b"content-length: 1000\r\n")
    asked.send(completion("half")[:20])


def not_http(asked: Asked) -> None:
    asked.send(b"SSH-2.0-OpenSSH_9.2\r\n")


def broken_events(asked: Asked) -> None:
    """A stream of things that are no events."""
    asked.stream([b"<html>this is no stream</html>"])


def endless(kind: bytes, begun: bytes, piece: bytes, pause_s: float = 0.0) -> Part:
    """An answer that begins so and goes on with the same piece for ever."""

    def part(asked: Asked) -> None:
        asked.head(200, kind, CHUNKED)
        if begun:
            asked.chunk(begun)
        while True:
            asked.chunk(piece)
            time.sleep(pause_s)

    return part


endless_body = endless(JSON, b'{"id": "', b"y" * 65536)
endless_line = endless(EVENTS, b"data: ", b"y" * 65536)
"""A stream whose first event has no end."""
trickles = endless(EVENTS, b"", b": wait\n\n", 0.1)
"""Comments without end, a few bytes at a time, and never a token."""
trickles_a_body = endless(JSON, b"", b"  ", 0.1)
"""An answer that is not streamed, a few blanks at a time, and never its end."""


def endless_head(asked: Asked) -> None:
    asked.send(b"HTTP/1.1 200 OK\r\n")
    for number in range(1_000_000):
        asked.send(b"x-%d: %s\r\n" % (number, b"y" * 1000))


def pours(asked: Asked) -> None:
    """Good tokens without end, as fast as they are taken."""
    asked.head(200, EVENTS, CHUNKED)
    event = token("y" * 10_000)
    while True:
        asked.chunk(event)
        asked.sent += 1


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """The address of a port that is taken and refuses every connection."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


if __name__ == "__main__":
    Expert(slowly_well, int(sys.argv[1])).serve()
