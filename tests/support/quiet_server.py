"""Small HTTP servers in a thread of the test, with TLS or without, that say nothing of what they
are asked.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Quiet(BaseHTTPRequestHandler):
    """Answers as a subclass says."""

    protocol_version = "HTTP/1.1"

    def reply(self, content: bytes = b"", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing."""


class QuietServer(ThreadingHTTPServer):
    """Its threads end with it, and a client that goes away is no news."""

    daemon_threads = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


def tls_of(authority: Path) -> ssl.SSLContext:
    """TLS with the server certificate of an authority's folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.crt", authority / "server.key")
    return context


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler],
    context: ssl.SSLContext | None = None,
    port: int = 0,
) -> Iterator[int]:
    """The port of a server that answers by this handler."""
    server = QuietServer(("127.0.0.1", port), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}
    )
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
