"""The application: every endpoint, behind the guard; and the page at `/` and the description of the
API at `/docs`.

What the page shows it asks of the API.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import AfterValidator, ConfigDict, Field, model_validator
from starlette.types import ASGIApp

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.records import Record, read_settings, toml_literal
from ridgeway.common.base.settings import SentenceUse
from ridgeway.common.web.access_rules import (
    MAX_BODY_MIB,
    AccessRules,
    plain_host,
    plain_origin,
)
from ridgeway.common.web.guard import RequestGuard
from ridgeway.common.web.http_errors import add_error_handlers
from ridgeway.common.web.request_context import LogFormat, LogLevel
from ridgeway.common.web.site import read_site, site_api
from ridgeway.serving.gateway import Gateway, gateway_api
from ridgeway.serving.routing_api import Shortcut, decision_api, routing_api
from ridgeway.serving.routing_service import RoutingService
from ridgeway.serving.rules import RoutingRule
from ridgeway.serving.telemetry import TracedRequests

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
