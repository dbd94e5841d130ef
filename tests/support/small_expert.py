"""A real server of chats as small as can be, in a process of its own, to be killed: `python small_expert.py PORT`.

It answers each chat after a moment, so that some are under way whenever it dies. A stream is the text that `whole_text`
makes of the last message, a few letters at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MOMENT_S = 0.02
PIECES = 60
LETTERS_PER_PIECE = 7


def whole_text(asked: str) -> str:
    """No two pieces are alike."""
    return "".join(f"{asked}-{place} " for place in range(1000))[: PIECES * LETTERS_PER_PIECE]


class SmallExpertHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(MOMENT_S)
        if asked.get("stream"):
            self._stream(asked)
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": "well"}, "finish_reason": "stop"}
        self._say({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})

    def do_GET(self) -> None:
        self._say({"status": "ok"})

    def _stream(self, asked: Any) -> None:
        text = whole_text(asked["messages"][-1]["content"])
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        pieces = [text[place : place + LETTERS_PER_PIECE] for place in range(0, len(text), LETTERS_PER_PIECE)]
        self._event({"role": "assistant", "content": ""})
        for piece in pieces:
            time.sleep(MOMENT_S)
            self._event({"content": piece})
        self._event({}, "stop")
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, delta: Any, reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        self._chunk(b"data: " + json.dumps({**frame, "choices": [choice]}).encode() + b"\n\n")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

    def _say(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class SmallExpertServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def start_small_expert(port: int) -> subprocess.Popen[bytes]:
    """Answers soon; to be ended by whoever started it."""
    return subprocess.Popen([sys.executable, "-I", Path(__file__), str(port)])


if __name__ == "__main__":
    SmallExpertServer(("127.0.0.1", int(sys.argv[1])), SmallExpertHandler).serve_forever()
