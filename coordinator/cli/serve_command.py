"""ridgeway serve: routing, the gateway and the page over HTTP.

Knows options and how results are shown; the work is done elsewhere and imported when it is needed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

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

LogFormat = Literal["text", "json"]
LogLevel = Literal["error", "warning", "info"]


def serve(
    release: Annotated[
        str,
        typer.Argument(
            metavar="RELEASE",
            envvar="RIDGEWAY_SERVE_RELEASE",
            help="The folder of a release, or a coordinator's folder: then its newest; or an https:// address.",
        ),
    ],
    experts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Which expert answers for which domain: see docs/serving.md.")
    ] = None,
    mu: Annotated[
        float | None, typer.Option(min=0, help="The weight of cost when an expert is chosen. (default: as --experts)")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="RELEASE", help="A second release, to see on the page what it decides.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    unix_socket: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Unix socket to listen on, in place of a port.")
    ] = None,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that requests under way have on SIGTERM, which readiness tells first.")
    ] = 10.0,
    keep_alive: Annotated[float, typer.Option(min=0, help="Seconds that an idle connection is kept open.")] = 5.0,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes that serve; SIGHUP renews them.")] = 1,
    pull_every: Annotated[float, typer.Option(min=1, help="Seconds between looks at an https:// address.")] = 60.0,
    key: Key = None,
    model: Model = None,
    device: RunsOn = "auto",
    threshold: Annotated[float | None, typer.Option(help="Abstain below this confidence; 0: never.")] = None,
    fallback: Annotated[str | None, typer.Option(help="Where prompts go when the router abstains.")] = None,
    drift_share: Annotated[
        float | None, typer.Option(help="Alarm above this share of low-confidence prompts. (default: by the release)")
    ] = None,
    drift_leverage: Annotated[
        float | None, typer.Option(help="Alarm above this mean leverage of prompts. (default: by the release)")
    ] = None,
    keys: Keys = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    rate: RequestRate = None,
    max_body: Annotated[float, typer.Option(help="The longest body of a request, in MiB.")] = 4.0,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests that are served at once.")] = 2048,
    max_held: Annotated[
        float, typer.Option(help="The most that bodies and answers under way hold together, in MiB.")
    ] = 96.0,
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="A site whose pages may ask: https://app.example.com")
    ] = None,
    allow_host: AllowHost = None,
    log_format: Annotated[LogFormat, typer.Option(help="How the log is written: text or json.")] = "text",
    log_level: Annotated[
        LogLevel, typer.Option(help="error, warning, or info: with a line for each request, without what it asks.")
    ] = "warning",
) -> None:
    """Serve a release: the routing API, an OpenAI-compatible gateway to experts, and a page that shows why.

    RELEASE is the folder of a release, or a coordinator's folder: then its newest release, and those that follow it;
    or the https:// address of a release's folder, with --key.
    """
    from ridgeway.common.http.access_rules import is_loopback, make_rules
    from ridgeway.common.http.server import Address, bind_sockets, find_certificate, run
    from ridgeway.common.http.workers import PeerMetrics, ServingWorker, Supervisor, shared_folder

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
    changes = {name: value for name, value in (("threshold", threshold), ("fallback", fallback)) if value is not None}
    sockets = bind_sockets(address)

    def serve_here(worker: ServingWorker | None) -> None:
        """In this process; what takes threads is imported after the others were started."""
        from ridgeway.common.experts.experts_file import find_experts
        from ridgeway.coordinator.serve.gateway.gateway import Gateway
        from ridgeway.coordinator.serve.http_app import create_app
        from ridgeway.coordinator.serve.routing.current_release import ReleaseSource, find_release
        from ridgeway.coordinator.serve.routing.drift import DriftSettings
        from ridgeway.coordinator.serve.routing.release_pull import SCHEME, PulledRelease
        from ridgeway.coordinator.serve.routing.routing_service import RoutingService
        from ridgeway.coordinator.serve.tracing import find_tracing

        known = find_experts(experts, mu)
        check = known.check if known else None
        pulled = PulledRelease(release, key, pull_every) if release.startswith(SCHEME) else None
        folder = find_release(Path(release)) if pulled is None else pulled.first()
        source = ReleaseSource(folder, key, model, device, check, changes)
        tracing = find_tracing()
        drifts = DriftSettings(share=drift_share, leverage=drift_leverage)
        other = ReleaseSource(find_release(compare), key, model, device).open() if compare else None
        service = RoutingService(source, drifts, tracing=tracing, compared=other)
        if pulled is not None:
            service.watchers.append(pulled.watch)
        served = service.current.served
        step("release", served.id[:12], f"{len(served.router.domains)} domains", ", ".join(served.router.domains))
        if other is not None:
            step("compared", other.id[:12], f"{len(other.router.domains)} domains", ", ".join(other.router.domains))
        if address.certificate is not None:
            service.watchers.append(address.certificate.watch)
        elif not is_loopback(host):
            step("note", "without --tls-cert and --tls-key, keys and prompts travel unencrypted")
        gateway = Gateway(service, known) if known else None
        if gateway is not None:
            step("experts", count(len(gateway.states()), "expert"), ", ".join(gateway.states()))
            for words in gateway.notes():
                step("note", words)
        step("serving", address.url)
        own = rules
        if worker is not None:
            own = replace(rules, rates=worker.rates)
            service.share_metrics(PeerMetrics(worker.folder))
            service.watchers.append(worker.watch_parent)
        parts = create_app(service, gateway=gateway, rules=own), sockets, address.certificate
        started = [] if worker is None else [worker.started]
        run(*parts, drain, keep_alive, log_format, log_level, *started)

    if workers == 1:
        serve_here(None)
        return
    with shared_folder() as folder:
        code = Supervisor(workers, serve_here, folder).run()
    if code:
        raise typer.Exit(code)
