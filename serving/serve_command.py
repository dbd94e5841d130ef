"""ridgeway serve: routing, the gateway and the page over HTTP, as one application."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from fastapi import FastAPI
from pydantic import AfterValidator, ConfigDict, Field, model_validator
from starlette.types import ASGIApp

from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.records import Record, read_settings, toml_literal
from ridgeway.common.base.settings import SentenceUse
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
from ridgeway.common.routing.release import find_release
from ridgeway.common.routing.router import Router
from ridgeway.common.web.api_keys import (
    MAX_BODY_MIB,
    AccessRules,
    is_loopback,
    make_rules,
    plain_host,
    plain_origin,
)
from ridgeway.common.web.guard import RequestGuard
from ridgeway.common.web.http_errors import add_error_handlers
from ridgeway.common.web.request_context import (
    LogFormat,
    LogLevel,
    is_json,
    set_up_logs,
)
from ridgeway.common.web.server import (
    Address,
    bind_sockets,
    find_certificate,
    make_server,
    run,
)
from ridgeway.common.web.site import read_site, site_api
from ridgeway.common.web.workers import (
    PeerMetrics,
    ServingWorker,
    Supervisor,
    shared_folder,
)
from ridgeway.serving.gateway import Gateway, gateway_api
from ridgeway.serving.routing_api import Shortcut, decision_api, routing_api
from ridgeway.serving.routing_service import (
    ReleaseSource,
    RoutingService,
    ServedRelease,
)
from ridgeway.serving.rules import RoutingRule, RoutingRules
from ridgeway.serving.telemetry import TracedRequests, sent_spans

# The application: every endpoint, behind the guard; and the page at `/` and the description of the
# API at `/docs`.
#
# What the page shows it asks of the API.


_ABOUT = """Routes prompts to domain experts by a signed release, and passes requests on to them.

Errors have the shape of OpenAI's API, at `/v1/messages` of Anthropic's. If the
service has keys, send one as `Authorization: Bearer KEY`."""
_DOCUMENTS = {"/": "index.html", "/docs": "docs.html"}


def create_app(
    service: RoutingService,
    *,
    gateway: Gateway | None = None,
    rules: AccessRules | None = None,
) -> ASGIApp:
    """Every endpoint in its place. Requests come in through the guard, then the shortcut, then the
    framework.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with gateway or contextlib.nullcontext(), service.running():
            yield

    app = FastAPI(
        title="Ridgeway",
        description=_ABOUT,
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    add_error_handlers(app)
    rules = rules or AccessRules()
    experts = (
        (gateway.choice, gateway.states, gateway.worths)
        if gateway
        else (None, dict, lambda: None)
    )
    routing = routing_api(service, *experts)
    site = site_api(read_site(__package__), _DOCUMENTS)
    decisions = decision_api(service, gateway.decide if gateway else None)
    apis = (routing, decisions, gateway_api(service, gateway), site)
    for api in apis:
        app.include_router(api)
    if gateway is not None:
        service.watchers.append(gateway.watch)
    if rules.keys is not None:
        service.watchers.append(rules.keys.watch)
    if rules.usage is not None:
        service.watchers.append(rules.usage.renew)
    shortcut: ASGIApp = Shortcut(app, *apis)
    return RequestGuard(TracedRequests(shortcut), rules, service.metrics)


# serve.toml: the settings of `ridgeway serve`, their defaults and what each is for.


TEMPLATE_HEADER = """\
# Settings of `ridgeway serve --config FILE`. Remove the # before a setting to change it.
# Options on the command line override this file. Paths are relative to its folder.
"""


def _checked(parse: Callable[[str], bytes]) -> Callable[[str], str]:
    """Check a text by parsing it; pydantic reports a ValueError with the setting's name."""

    def check(text: str) -> str:
        try:
            parse(text)
        except InputError as error:
            raise ValueError(str(error)) from None
        return text

    return check


class ServeSettings(Record):
    model_config = ConfigDict(use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on; any but loopback needs keys."""
    port: int = Field(default=8080, ge=1, le=65535)
    """Port to listen on."""
    workers: int = Field(default=1, ge=1, le=256)
    """Worker processes; SIGHUP reloads them."""
    keys: Path | None = Field(default=None, examples=["keys.toml"])
    """File of API keys."""
    usage: Path | None = Field(default=None, examples=["/var/lib/ridgeway/usage"])
    """File for what keys spend; by default KEYS.usage beside the file of keys."""
    experts: Path | None = Field(default=None, examples=["experts.toml"])
    """File of experts: which one answers for which domain."""
    key: str | None = Field(default=None, examples=["/etc/ridgeway/coordinator.pub"])
    """The coordinator's public key: 64 digits, or an absolute path."""
    tls_cert: Path | None = Field(default=None, examples=["cert.pem"])
    """TLS certificate in PEM."""
    tls_key: Path | None = Field(default=None, examples=["key.pem"])
    """Private key of the certificate."""
    compare: Path | None = Field(default=None, examples=["other/release"])
    """A second release, whose decisions the page shows beside."""
    sentences: SentenceUse = "auto"
    """Prompts that the sentence encoder reads: auto (the unsure ones), never, always."""
    threshold: float | None = Field(default=None, examples=[0.5])
    """Abstain below this confidence; 0: never, and not by scope either. Overrides the release."""
    scope: float | None = Field(default=None, ge=0, le=1, examples=[0.5])
    """Abstain below this chance of belonging to any domain; 0: never. Overrides the release."""
    fallback: str | None = Field(default=None, examples=["general"])
    """Domain for prompts on which the router abstains."""
    rules: tuple[RoutingRule, ...] = Field(default=(), examples=[[]])
    """Tables [[rules]] before the router: domain, and pattern, header or tool."""
    drift_share: float | None = Field(default=None, gt=0, le=1, examples=[0.25])
    """Drift alarm above this share of low-confidence prompts."""
    drain: float = Field(default=10.0, ge=0)
    """Graceful-shutdown timeout in seconds; /readyz fails first."""
    keep_alive: float = Field(default=5.0, ge=0)
    """Seconds that an idle connection stays open."""
    rate: float | None = Field(default=None, gt=0, examples=[10.0])
    """Requests per second for each key; without keys, each address."""
    max_body: float = Field(default=4.0, gt=0, le=MAX_BODY_MIB)
    """Largest request body, in MiB."""
    max_requests: int = Field(default=2048, ge=1)
    """Requests that are served at the same time."""
    max_held: float = 96.0
    """Memory limit for in-flight requests and responses, in MiB."""
    allow_host: tuple[Annotated[str, AfterValidator(_checked(plain_host))], ...] = (
        Field(default=(), examples=[["router.example.com"]])
    )
    """Accepted Host headers, without port."""
    allow_origin: tuple[Annotated[str, AfterValidator(_checked(plain_origin))], ...] = (
        Field(default=(), examples=[["https://app.example.com"]])
    )
    """Allowed CORS origins."""
    log_format: LogFormat = "text"
    """Log lines as text or json."""
    log_level: LogLevel = "warning"
    """error, warning, or info: one line per request, without its text."""

    @model_validator(mode="after")
    def _room_for_two_bodies(self) -> ServeSettings:
        if self.max_held < 2 * self.max_body:
            raise ValueError(
                f"max_held must be at least twice max_body, {2 * self.max_body:g} MiB:"
                " a request, and what an expert is sent of it"
            )
        return self


def serve_settings(path: Path | None, **options: Any) -> ServeSettings:
    """The settings of a file; `options` that are not None override it."""
    settings = ServeSettings()
    if path is not None:
        if not path.is_file():
            raise InputError(
                f"there is no file {path}; `ridgeway serve --write-config {path}`"
                " writes a template"
            )
        settings = read_settings(path, ServeSettings)
        paths = {name: value for name, value in settings if isinstance(value, Path)}
        settings = settings.model_copy(
            update={name: path.parent / value for name, value in paths.items()}
        )
    given = {name: value for name, value in options.items() if value is not None}
    return settings.model_copy(update=given)


def write_template(path: Path) -> None:
    """Every setting with its description and default, commented out."""
    if path.exists():
        raise InputError(f"{path} exists already; choose another file")
    lines = [TEMPLATE_HEADER]
    for name, field in ServeSettings.model_fields.items():
        value = field.examples[0] if field.examples else field.default
        lines += [f"# {field.description}", f"#{name} = {toml_literal(value)}", ""]
    write_whole(path, "\n".join(lines).encode())


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
