"""Spans for OpenTelemetry: a request, its routing, and each attempt at an expert.

They are sent where the environment says (OTEL_EXPORTER_OTLP_ENDPOINT, or that for traces), by the
standard packages (extra `telemetry`). Elsewhere nothing is recorded, and the trace that a client
began is passed on as it came. Attributes hold names, numbers and outcomes, never a prompt.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.context import attach
from opentelemetry.trace import (
    Span,
    SpanKind,
    get_tracer,
    set_span_in_context,
    set_tracer_provider,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeway.common.base.errors import InputError
from ridgeway.common.http.guard import path_served
from ridgeway.common.http.request_context import current_request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
TRACE_HEADERS = (b"traceparent", b"tracestate")
PROPAGATOR = TraceContextTextMapPropagator()

tracer = get_tracer("ridgeway")


def trace_headers(span: Span) -> dict[str, str]:
    """What an expert is told of the trace."""
    headers: dict[str, str] = {}
    PROPAGATOR.inject(headers, set_span_in_context(span))
    return headers


def find_provider(
    environment: Mapping[str, str] = os.environ,
) -> TracerProvider | None:
    """What sends spans, if the environment asks for them; raises if the packages are not there."""
    if (
        not any(environment.get(name) for name in ENDPOINTS)
        or environment.get("OTEL_SDK_DISABLED") == "true"
    ):
        return None
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
    return provider


@contextlib.contextmanager
def sent_spans() -> Iterator[None]:
    """Within this block spans are sent, if the environment asks for them; at its end, what is
    left.
    """
    provider = find_provider()
    if provider is None:
        yield
        return
    set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


@dataclass(frozen=True, slots=True)
class TracedRequests:
    """An application each of whose requests is a span, in the client's trace if it has one."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        parent = {
            name.decode(): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in TRACE_HEADERS
        }
        context = PROPAGATOR.extract(parent)
        method = scope["method"]
        facts = {
            "http.request.method": method,
            "ridgeway.request_id": current_request().id,
        }
        span = tracer.start_span(method, context, SpanKind.SERVER, facts)
        # until the task of this request ends
        attach(set_span_in_context(span, context))

        async def seen(event: Message) -> None:
            if event["type"] == "http.response.start":
                status = event["status"]
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    span.set_attribute("error.type", str(status))
            await send(event)

        try:
            await self.app(scope, receive, seen if span.is_recording() else send)
        finally:
            route = path_served(scope)
            # the address as the application has it: nothing that was asked stands in it
            if route is not None:
                span.set_attribute("http.route", route)
            span.end()
