"""Spans for OpenTelemetry: a request, its routing, and each attempt at an expert. Off, they cost
next to nothing.

They are on where the environment says where to send them (OTEL_EXPORTER_OTLP_ENDPOINT, or that for
traces), by the standard packages (extra `telemetry`). Attributes hold names,
numbers and outcomes, never a prompt.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeway.common.base.errors import InputError
from ridgeway.common.http.guard import path_served
from ridgeway.common.http.request_context import current_request

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import StatusCode, TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SpanKind = Literal["server", "internal", "client"]
Attribute = str | int | float | bool


class Span(Protocol):
    """One thing that takes time."""

    def set_attribute(self, key: str, value: Attribute) -> None: ...


class OpenSpan(Span, Protocol):
    """A span that ends when it is told to, in another place than it began."""

    def close(self, error: str | None) -> None:
        """error: the kind of failure, if it was one."""


class NoSpan:
    def set_attribute(self, key: str, value: Attribute) -> None:
        """Nothing."""

    def close(self, error: str | None) -> None:
        """Nothing."""


class Tracing:
    """No spans; the trace that a client began is passed on as it came."""

    is_on = False

    def span(
        self, name: str, kind: SpanKind = "internal", **attributes: Attribute
    ) -> contextlib.AbstractContextManager[Span]:
        return contextlib.nullcontext(NO_SPAN)

    def open(self, name: str, attributes: Mapping[str, Attribute]) -> OpenSpan:
        """A request to another service, under the span that is current."""
        return NO_SPAN

    def headers(self, span: OpenSpan) -> Mapping[str, str]:
        """What an expert is told of the trace."""
        return current_request().trace

    def close(self) -> None:
        """Send what is left."""


NO_SPAN = NoSpan()
NO_TRACING = Tracing()


@dataclass(frozen=True, slots=True)
class _ClosingSpan:
    """A span of OpenTelemetry; `failed` is its status of an error."""

    span: OtelSpan
    failed: StatusCode

    def set_attribute(self, key: str, value: Attribute) -> None:
        self.span.set_attribute(key, value)

    def close(self, error: str | None) -> None:
        if error is not None:
            self.span.set_attribute("error.type", error)
            self.span.set_status(self.failed)
        self.span.end()


class OpenTelemetryTracing(Tracing):
    """Spans of a provider, which is closed with this."""

    is_on = True

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import (
            TraceContextTextMapPropagator,
        )

        self._provider = provider
        self._tracer = provider.get_tracer("ridgeway")
        self._kinds = {
            "server": trace.SpanKind.SERVER,
            "internal": trace.SpanKind.INTERNAL,
            "client": trace.SpanKind.CLIENT,
        }
        self._propagator = TraceContextTextMapPropagator()
        self._within = trace.set_span_in_context
        self._error = trace.StatusCode.ERROR

    @contextlib.contextmanager
    def span(
        self, name: str, kind: SpanKind = "internal", **attributes: Attribute
    ) -> Iterator[Span]:
        context = (
            self._propagator.extract(dict(current_request().trace))
            if kind == "server"
            else None
        )
        spelt = {key.replace("__", "."): value for key, value in attributes.items()}
        with self._tracer.start_as_current_span(
            name,
            context,
            self._kinds[kind],
            spelt,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    def open(self, name: str, attributes: Mapping[str, Attribute]) -> OpenSpan:
        made = self._tracer.start_span(name, None, self._kinds["client"], attributes)
        return _ClosingSpan(made, self._error)

    def headers(self, span: OpenSpan) -> Mapping[str, str]:
        carrier: dict[str, str] = {}
        if isinstance(span, _ClosingSpan):
            self._propagator.inject(carrier, self._within(span.span))
        return carrier

    def close(self) -> None:
        shutdown = getattr(self._provider, "shutdown", None)
        if shutdown is not None:
            shutdown()


def find_tracing(environment: Mapping[str, str] = os.environ) -> Tracing:
    """As the environment says; raises if it asks for spans and the packages are not there."""
    if (
        not any(environment.get(name) for name in ENDPOINTS)
        or environment.get("OTEL_SDK_DISABLED") == "true"
    ):
        return NO_TRACING
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        asked = " or ".join(ENDPOINTS)
        words = (
            "and the packages for that are not there; install the extra"
            " `telemetry` (pip install '.[telemetry]' in a checkout), or unset it"
        )
        raise InputError(f"{asked} asks for traces, {words}") from None
    name = environment.get("OTEL_SERVICE_NAME") or "ridgeway"
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OpenTelemetryTracing(provider)


@dataclass(frozen=True, slots=True)
class TracedRequests:
    """An application each of whose requests is a span."""

    app: ASGIApp
    _tracing: Tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = scope["method"]
        request = current_request()
        with self._tracing.span(
            f"{method}", "server", http__request__method=method
        ) as span:
            span.set_attribute("ridgeway.request_id", request.id)

            async def seen(event: Message) -> None:
                if event["type"] == "http.response.start":
                    status = event["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= 500:
                        span.set_attribute("error.type", str(status))
                await send(event)

            try:
                await self.app(scope, receive, seen)
            finally:
                route = path_served(scope)
                # the address as the application has it: nothing that was asked stands in it
                if route is not None:
                    span.set_attribute("http.route", route)
