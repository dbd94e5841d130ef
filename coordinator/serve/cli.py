"""ridgeway serve: routing, the gateway and the page over HTTP.

Knows options and how results are shown; the work is done elsewhere and imported when it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.cli import Key, Model, RunsOn
from common.terminal import step


def serve(
    release: Annotated[
        Path,
        typer.Argument(metavar="RELEASE", help="The folder of a release, or a coordinator's folder: then its newest."),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on; any but loopback needs --keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8080,
    key: Key = None,
    model: Model = None,
    device: RunsOn = "auto",
) -> None:
    """Serve a release: the routing API, an OpenAI-compatible gateway to experts, and a page that shows why."""
    from coordinator.serve.application import create_app
    from coordinator.serve.live import Source, find_release
    from coordinator.serve.run import Address, run
    from coordinator.serve.service import Choices, Service

    service = Service(Choices(Source(find_release(release), key, model, device)))
    live = service.current.live
    step("release", live.id[:12], f"{len(live.router.domains)} domains", ", ".join(live.router.domains))
    step("serving", f"http://{host}:{port}/")
    run(create_app(service), Address(host, port))
