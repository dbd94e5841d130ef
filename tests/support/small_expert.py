"""A real server of chats as small as can be, in a process of its own, to be killed: `python small_expert.py PORT`.

It answers each chat after a moment, so that some are under way whenever it dies.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MOMENT_S = 0.02


class SmallExpertHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(MOMENT_S)
        choice = {"index": 0, "message": {"role": "assistant", "content": "well"}, "finish_reason": "stop"}
        self._say({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})

    def do_GET(self) -> None:
        self._say({"status": "ok"})

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
