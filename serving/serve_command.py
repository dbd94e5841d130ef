"""ridgeway serve: routing, the gateway and the page over HTTP."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.cli.terminal import (
    BAD_INPUT,
    Key,
    Keys,
    TlsCert,
    TlsKey,
    argument,
    count,
    option,
    step,
)
from ridgeway.common.routing.experts_file import ExpertsFile
from ridgeway.common.routing.release_watch import find_release
from ridgeway.common.routing.router import Router
from ridgeway.common.web.access_rules import AccessRules, is_loopback, make_rules
from ridgeway.common.web.request_context import is_json, set_up_logs
from ridgeway.common.web.server import (
    Address,
    bind_sockets,
    find_certificate,
    make_server,
    run,
)
from ridgeway.common.web.workers import (
    PeerMetrics,
    ServingWorker,
    Supervisor,
    shared_folder,
)
from ridgeway.serving.app import (
    ServeSettings,
    create_app,
    serve_settings,
    write_template,
)
from ridgeway.serving.current_release import ReleaseSource, ServedRelease
from ridgeway.serving.gateway import Gateway
from ridgeway.serving.routing_service import RoutingService
from ridgeway.serving.rules import RoutingRules
from ridgeway.serving.telemetry import sent_spans

MIB = 1024**2

log = logging.getLogger("ridgeway.serve")

ReleasePath = Annotated[
    Path,
    argument(
        "A release's folder; or a coordinator's, or its releases/: the newest.",
        "RELEASE",
        envvar="RIDGEWAY_SERVE_RELEASE",
    ),
]
Config = Annotated[
    Path | None,
    option("Settings: serve.toml; options override it.", metavar="FILE"),
]


def _write_config(path: Path | None) -> None:
    if path is not None:
        write_template(path)
        step("wrote", str(path))
        raise typer.Exit


WriteConfig = Annotated[
    Path | None,
    option(
        "Write a serve.toml with every setting, its default or an example, and exit.",
        metavar="FILE",
        callback=_write_config,
        is_eager=True,
    ),
]
HostOption = Annotated[
    str | None,
    option("Address to listen on (127.0.0.1); any but loopback needs --keys."),
]
PortOption = Annotated[
    int | None, option("Port to listen on (8080).", min=1, max=65535)
]
Workers = Annotated[
    int | None,
    option("Worker processes (1); SIGHUP reloads them.", min=1, max=256),
]
ExpertsPath = Annotated[
    Path | None,
    option("experts.toml: who answers for which domain.", metavar="FILE"),
]


def serve(
    release: ReleasePath,
    config: Config = None,
    write_config: WriteConfig = None,
    host: HostOption = None,
    port: PortOption = None,
    workers: Workers = None,
    experts: ExpertsPath = None,
    keys: Keys = None,
    key: Key = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Serve a release: the routing API, an OpenAI-compatible gateway to experts, and a page that
    shows why.

    RELEASE is the folder of a release, or a coordinator's folder or its releases/: then the newest
    release, and those with higher numbers that follow it. Further settings are in serve.toml.
    """
    settings = serve_settings(
        config,
        host=host,
        port=port,
        workers=workers,
        experts=experts,
        keys=keys,
        key=key,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    set_up_logs(settings.log_format, settings.log_level)
    with _errors_as_lines():
        _serve(release, settings)


def _serve(release: Path, settings: ServeSettings) -> None:
    _rules(settings)  # raises before anything listens
    job = ServeJob(release, settings, bind_sockets(_address(settings)))
    if settings.workers == 1:
        _serve_here(job, None)
        return
    with shared_folder() as folder:
        code = Supervisor(settings.workers, partial(_serve_here, job), folder).run()
    if code:
        raise typer.Exit(code)


def _address(settings: ServeSettings) -> Address:
    certificate = find_certificate(settings.tls_cert, settings.tls_key)
    return Address(settings.host, settings.port, certificate)


def _rules(settings: ServeSettings) -> AccessRules:
    rules = make_rules(
        settings.host,
        settings.keys,
        usage=settings.usage,
        rate=settings.rate,
        hosts=settings.allow_host,
        origins=settings.allow_origin,
        tls=settings.tls_cert is not None,
    )
    return replace(
        rules,
        max_body_bytes=int(settings.max_body * MIB),
        max_requests=settings.max_requests,
        max_held_bytes=int(settings.max_held * MIB),
    )


@contextlib.contextmanager
def _errors_as_lines() -> Iterator[None]:
    """An error ends the command with a line of the log where these are JSON."""
    try:
        yield
    except (RidgewayError, OSError) as error:
        if not is_json():
            raise
        log.error("%s", error)
        raise typer.Exit(BAD_INPUT) from None


def _say(verb: str, subject: str, *figures: str) -> None:
    """A step; where lines of the log are JSON, one of them, whatever the level is."""
    if is_json():
        words = " ".join((verb, subject, *figures))
        log.handle(log.makeRecord(log.name, logging.INFO, "", 0, words, (), None))
    else:
        step(verb, subject, *figures)


@dataclass(frozen=True, slots=True)
class ServeJob:
    """What every serving process is given, and can be pickled."""

    release: Path
    settings: ServeSettings
    sockets: list[socket.socket]


def _serve_here(job: ServeJob, worker: ServingWorker | None) -> None:
    """In this process."""
    settings = job.settings
    set_up_logs(settings.log_format, settings.log_level)
    address = _address(settings)
    certificate = address.certificate
    rules = _rules(settings)
    service, gateway = _service_and_gateway(
        job, _responses_file(rules), None if worker is None else worker.folder
    )
    if certificate is not None:
        service.watchers.append(certificate.watch)
    elif not is_loopback(settings.host):
        _say(
            "note",
            "without --tls-cert and --tls-key, keys and prompts travel unencrypted",
        )
    if worker is not None:
        rules = replace(rules, rates=worker.rates)
        service.share_metrics(PeerMetrics(worker.folder))
        service.watchers.append(worker.watch_parent)
    with sent_spans():
        _say("serving", address.url)
        server = make_server(
            create_app(service, gateway=gateway, rules=rules),
            certificate,
            settings.drain,
            settings.keep_alive,
            None if worker is None else worker.started,
        )
        run(server, job.sockets)


def _service_and_gateway(
    job: ServeJob, responses: Path | None, shared: Path | None
) -> tuple[RoutingService, Gateway | None]:
    """The release that is served, and the experts behind it."""
    settings = job.settings
    experts = ExpertsFile(settings.experts) if settings.experts else None
    rules = RoutingRules(settings.rules)

    def check(router: Router) -> None:
        rules.check(router)
        if experts is not None:
            experts.check(router)

    confidence = {
        name: value
        for name in ("threshold", "fallback", "scope")
        if (value := getattr(settings, name)) is not None
    }
    source = ReleaseSource(
        find_release(job.release),
        settings.key,
        check,
        confidence,
        settings.sentences,
    )
    compared = None
    if settings.compare is not None:
        folder = find_release(settings.compare)
        compared = replace(source, folder=folder, check=None, changes={}).open()
    service = RoutingService(
        source,
        settings.drift_share,
        compared=compared,
        rules=rules,
    )
    _show_release("release", service.current.served)
    if compared is not None:
        _show_release("compared", compared)
    if experts is None:
        return service, None
    gateway = Gateway(service, experts, shared=shared, responses=responses)
    names = gateway.states()
    _say("experts", count(len(names), "expert"), ", ".join(names))
    for note in gateway.notes():
        _say("note", note)
    return service, gateway


def _responses_file(rules: AccessRules) -> Path | None:
    """Where it is written which key a response was made with: beside what the keys spend."""
    if rules.usage is None:
        return None
    path = rules.usage.path.with_suffix(".responses")
    if os.access(path.parent, os.W_OK):
        return path
    _say(
        "note",
        f"{path} cannot be written, so responses are not known after a restart; name"
        " another folder with `usage` in serve.toml",
    )
    return None


def _show_release(verb: str, served: ServedRelease) -> None:
    domains = served.router.domains
    _say(verb, served.id[:12], f"{len(domains)} domains", ", ".join(domains))
