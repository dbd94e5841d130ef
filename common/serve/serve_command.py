"""ridgeway serve: routing, the gateway and the page over HTTP."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ridgeway.common.cli.options import (
    AllowHost,
    Host,
    Key,
    Keys,
    Model,
    Port,
    RequestRate,
    RunsOn,
    TlsCert,
    TlsKey,
)
from ridgeway.common.cli.terminal import count, step

if TYPE_CHECKING:
    from ridgeway.common.http.access_rules import AccessRules
    from ridgeway.common.http.server import Address
    from ridgeway.common.http.workers import ServingWorker
    from ridgeway.common.serve.gateway.gateway import Gateway
    from ridgeway.common.serve.routing.routing_service import RoutingService

LogFormat = Literal["text", "json"]
LogLevel = Literal["error", "warning", "info"]

RELEASE_HELP = (
    "The folder of a release, or a coordinator's folder or its releases/: then the"
    " newest."
)
LEVEL_HELP = (
    "error, warning, or info: with a line for each request, without what it asks."
)
ServedRelease = Annotated[
    Path,
    typer.Argument(
        metavar="RELEASE", envvar="RIDGEWAY_SERVE_RELEASE", help=RELEASE_HELP
    ),
]
ExpertsPath = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Which expert answers for which domain: see docs/serving.md.",
    ),
]
ComparedRelease = Annotated[
    Path | None,
    typer.Option(
        metavar="RELEASE", help="A second release, to see on the page what it decides."
    ),
]
CostWeight = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="The weight of cost when an expert is chosen. (default: as --experts)",
    ),
]
UnixSocket = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A Unix socket to listen on, in place of a port."
    ),
]
Drain = Annotated[
    float,
    typer.Option(
        min=0,
        help=(
            "Seconds that requests under way have on SIGTERM, which readiness tells"
            " first."
        ),
    ),
]
KeepAlive = Annotated[
    float, typer.Option(min=0, help="Seconds that an idle connection is kept open.")
]
Workers = Annotated[
    int, typer.Option(min=1, max=256, help="Processes that serve; SIGHUP renews them.")
]
Threshold = Annotated[
    float | None, typer.Option(help="Abstain below this confidence; 0: never.")
]
Fallback = Annotated[
    str | None, typer.Option(help="Where prompts go when the router abstains.")
]
DriftShare = Annotated[
    float | None,
    typer.Option(
        help=(
            "Alarm above this share of low-confidence prompts. (default: by the"
            " release)"
        )
    ),
]
MaxBody = Annotated[float, typer.Option(help="The longest body of a request, in MiB.")]
MaxRequests = Annotated[
    int, typer.Option(min=1, help="Requests that are served at once.")
]
MaxHeld = Annotated[
    float,
    typer.Option(
        help="The most that bodies and answers under way hold together, in MiB."
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN", help="A site whose pages may ask: https://app.example.com"
    ),
]
LogFormatWord = Annotated[
    LogFormat, typer.Option(help="How the log is written: text or json.")
]
LogLevelWord = Annotated[LogLevel, typer.Option(help=LEVEL_HELP)]


def serve(
    release: ServedRelease,
    experts: ExpertsPath = None,
    mu: CostWeight = None,
    compare: ComparedRelease = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    unix_socket: UnixSocket = None,
    drain: Drain = 10.0,
    keep_alive: KeepAlive = 5.0,
    workers: Workers = 1,
    key: Key = None,
    model: Model = None,
    device: RunsOn = "auto",
    threshold: Threshold = None,
    fallback: Fallback = None,
    drift_share: DriftShare = None,
    keys: Keys = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    rate: RequestRate = None,
    max_body: MaxBody = 4.0,
    max_requests: MaxRequests = 2048,
    max_held: MaxHeld = 96.0,
    allow_origin: AllowOrigin = None,
    allow_host: AllowHost = None,
    log_format: LogFormatWord = "text",
    log_level: LogLevelWord = "warning",
) -> None:
    """Serve a release: the routing API, an OpenAI-compatible gateway to experts, and a page that
    shows why.

    RELEASE is the folder of a release, or a coordinator's folder or its releases/: then the newest
    release, and those with higher numbers that follow it.
    """
    from ridgeway.common.http.access_rules import make_rules
    from ridgeway.common.http.server import Address, bind_sockets, find_certificate

    address = Address(host, port, find_certificate(tls_cert, tls_key), unix_socket)
    rules = make_rules(
        host,
        keys,
        rate=rate,
        max_body_mib=max_body,
        max_requests=max_requests,
        max_held_mib=max_held,
        hosts=allow_host or (),
        origins=allow_origin or (),
        tls=tls_cert is not None,
    )
    changes = {
        name: value
        for name, value in (("threshold", threshold), ("fallback", fallback))
        if value is not None
    }
    source = SourceOptions(release, key, model, device, changes, drift_share, compare)
    times = drain, keep_alive, log_format, log_level
    _run(
        ServeOptions(source, experts, mu, address, rules, bind_sockets(address), times),
        workers,
    )


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Which releases are served and how, as the options say it."""

    release: Path
    key: str | None
    model: Path | None
    device: str
    changes: dict[str, Any]
    drift_share: float | None
    compare: Path | None


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What a process that serves is given. times: seconds to drain and to keep alive, then the
    log's form and level.
    """

    source: SourceOptions
    experts: Path | None
    mu: float | None
    address: Address
    rules: AccessRules
    sockets: list[socket.socket]
    times: tuple[float, float, LogFormat, LogLevel]


def _run(options: ServeOptions, workers: int) -> None:
    """In this process, or in several."""
    from ridgeway.common.http.workers import Supervisor, shared_folder

    if workers == 1:
        _serve_here(options, None)
        return
    with shared_folder() as folder:
        code = Supervisor(
            workers, lambda worker: _serve_here(options, worker), folder
        ).run()
    if code:
        raise typer.Exit(code)


def _serve_here(options: ServeOptions, worker: ServingWorker | None) -> None:
    """In this process; what takes threads is imported after the others were started."""
    from ridgeway.common.http.access_rules import is_loopback
    from ridgeway.common.http.server import run
    from ridgeway.common.http.workers import PeerMetrics
    from ridgeway.common.serve.http_app import create_app

    address = options.address
    rules = options.rules
    service, gateway = _parts(options, None if worker is None else worker.folder)
    if address.certificate is not None:
        service.watchers.append(address.certificate.watch)
    elif not is_loopback(address.host):
        step(
            "note",
            "without --tls-cert and --tls-key, keys and prompts travel unencrypted",
        )
    step("serving", address.url)
    if worker is not None:
        rules = replace(rules, rates=worker.rates)
        service.share_metrics(PeerMetrics(worker.folder))
        service.watchers.append(worker.watch_parent)
    started = [] if worker is None else [worker.started]
    app = create_app(service, gateway=gateway, rules=rules)
    run(app, options.sockets, address.certificate, *options.times, *started)


def _parts(
    options: ServeOptions, shared: Path | None
) -> tuple[RoutingService, Gateway | None]:
    """The release that is served, and the experts behind it."""
    from ridgeway.common.experts.experts_file import find_experts
    from ridgeway.common.serve.gateway.gateway import Gateway
    from ridgeway.common.serve.routing.current_release import (
        ReleaseSource,
        find_release,
    )
    from ridgeway.common.serve.routing.drift import DriftSettings
    from ridgeway.common.serve.routing.routing_service import RoutingService
    from ridgeway.common.serve.tracing import find_tracing

    asked = options.source
    known = find_experts(options.experts, options.mu)
    folder = find_release(asked.release)
    check = known.check if known else None
    source = ReleaseSource(
        folder, asked.key, asked.model, asked.device, check, asked.changes
    )
    drift = DriftSettings(share=asked.drift_share)
    other = (
        ReleaseSource(
            find_release(asked.compare), asked.key, asked.model, asked.device
        ).open()
        if asked.compare
        else None
    )
    service = RoutingService(source, drift, tracing=find_tracing(), compared=other)
    served = service.current.served
    step(
        "release",
        served.id[:12],
        f"{len(served.router.domains)} domains",
        ", ".join(served.router.domains),
    )
    if other is not None:
        step(
            "compared",
            other.id[:12],
            f"{len(other.router.domains)} domains",
            ", ".join(other.router.domains),
        )
    gateway = Gateway(service, known, shared=shared) if known else None
    if gateway is not None:
        step(
            "experts",
            count(len(gateway.states()), "expert"),
            ", ".join(gateway.states()),
        )
        for words in gateway.notes():
            step("note", words)
    return service, gateway
