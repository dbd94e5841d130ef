"""The service as a process: uvicorn, one worker, bound to an address.

Knows sockets, certificates and logs. No access log is kept: addresses and paths of requests are nobody's business.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

MAX_HEADERS = 32 * 1024
DRAIN_S = 10


@dataclass(frozen=True, slots=True)
class Address:
    """Where the service listens, and the certificate that it shows."""

    host: str = "127.0.0.1"
    port: int = 8080
    certificate: Path | None = None
    private_key: Path | None = None


def run(app: Any, address: Address) -> None:
    """Serve until told to stop; what is being answered is finished first."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    config = uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        ssl_certfile=str(address.certificate) if address.certificate else None,
        ssl_keyfile=str(address.private_key) if address.private_key else None,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=DRAIN_S,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
    )
    gc.collect()
    gc.freeze()  # what is loaded now stays; looking through it again and again would hold requests up by 40 ms
    uvicorn.Server(config).run()
