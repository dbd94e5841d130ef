"""Telemetry of the service: metrics and spans."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opentelemetry.context import attach
from opentelemetry.trace import (
    Span,
    SpanKind,
    get_tracer,
    set_span_in_context,
    set_tracer_provider,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import Counter, Histogram, Info
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeway.common.base.errors import InputError
from ridgeway.common.web.guard import path_served
from ridgeway.common.web.request_context import (
    REQUEST_BUCKETS_S,
    RequestMetrics,
    current_request,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


# What is counted: metrics for Prometheus, and the last minutes of decisions for the page.
#
# Holds no prompt.


ROUTING_BUCKETS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
)
SOUND_OUTCOMES = ("ok", "mistake", "gone")
"""Of requests to experts: answered, refused for the client's mistake, given up by the client."""
STEP_S = 5
MAX_STEPS = 60
MAX_TIMES_PER_STEP = 256
"""Of more times in a step, the latest are kept."""


class Metrics(RequestMetrics):
    """What Prometheus reads of a service that routes."""

    def __init__(self) -> None:
        super().__init__()
        counter = self.counter
        gauge = self.gauge
        histogram = self.histogram
        expert = ("expert",)
        self.routing_seconds = histogram(
            "routing_seconds",
            "From the prompts of a request to their decisions.",
            buckets=ROUTING_BUCKETS_S,
        )
        self.decisions = counter(
            "decisions",
            "Decisions, by domain; an abstention by the fallback, or none.",
            ("domain",),
        )
        self.decisions_by_router = counter(
            "decisions_by_router",
            "Decisions by the table, and by the sentence encoder.",
            ("router",),
        )
        self.abstentions = counter(
            "abstentions", "Decisions that the confidence was too low for."
        )
        self.release = Info(
            "ridgeway_release", "The release in use.", registry=self.registry
        )
        self.release_since = gauge(
            "release_timestamp_seconds", "When the release in use was taken."
        )
        self.refused_releases = counter("refused_releases", "New releases refused.")
        self.low_confidence = gauge(
            "drift_low_confidence_ratio", "Share of recent prompts of low confidence."
        )
        self.out_of_scope = gauge(
            "drift_out_of_scope_ratio",
            "Share of recent prompts that belong to no domain.",
        )
        self.alarm = gauge(
            "drift_alarm",
            "1 while recent prompts are too far from the text of the release.",
        )
        self.expert_requests = counter(
            "expert_requests", "Requests to experts, by outcome.", ("expert", "outcome")
        )
        self.expert_seconds = histogram(
            "expert_seconds",
            "From a request to an expert to the head of its answer.",
            expert,
            buckets=REQUEST_BUCKETS_S,
        )
        self.expert_up = gauge(
            "expert_up", "0 while an expert is not asked because it failed.", expert
        )
        self.expert_addresses_up = gauge(
            "expert_addresses_up",
            "Addresses of an expert that are asked now.",
            expert,
        )
        self.first_token_seconds = histogram(
            "expert_first_token_seconds",
            "From a request to an expert to the first event of its stream.",
            expert,
            buckets=REQUEST_BUCKETS_S,
        )
        self.expert_in_flight = gauge(
            "expert_requests_in_flight", "In-flight requests to an expert.", expert
        )
        self.tokens = counter(
            "tokens",
            "Tokens of prompts and answers as experts report them, by key.",
            ("key", "expert", "kind"),
        )
        self.cost = counter(
            "cost",
            "Cost of answers by experts.toml, in its unit, by key.",
            ("key", "expert"),
        )
        self.streams = gauge("streams", "Answers that are being streamed now.")

    def of_expert(self, name: str) -> dict[str, Any]:
        """What an expert was asked and has cost so far, and how long it took to begin an answer on
        the mean, in seconds.
        """

        def total(metric: Counter | Histogram, suffix: str, **labels: str) -> float:
            wanted = (labels | {"expert": name}).items()
            return sum(
                sample.value
                for family in metric.collect()
                for sample in family.samples
                if sample.name.endswith(suffix) and wanted <= sample.labels.items()
            )

        requests = total(self.expert_requests, "_total")
        sound = (
            total(self.expert_requests, "_total", outcome=outcome)
            for outcome in SOUND_OUTCOMES
        )
        timed = total(self.expert_seconds, "_count")
        return {
            "requests": requests,
            "failed": requests - sum(sound),
            "seconds": total(self.expert_seconds, "_sum") / timed if timed else None,
            "tokens": total(self.tokens, "_total"),
            "cost": total(self.cost, "_total"),
        }


@dataclass(slots=True)
class ActivityStep:
    """What happened in five seconds."""

    number: int
    decisions: dict[str, int] = field(default_factory=dict)
    abstained: int = 0
    times: deque[float] = field(
        default_factory=lambda: deque(maxlen=MAX_TIMES_PER_STEP)
    )

    def to_json(self) -> dict[str, Any]:
        times = sorted(self.times)
        return {
            "start": self.number * STEP_S,
            "decisions": self.decisions,
            "abstained": self.abstained,
            "p50_ms": 1000 * times[len(times) // 2] if times else None,
            "p99_ms": 1000 * times[len(times) * 99 // 100] if times else None,
        }


class Activity:
    """The last minutes, in steps: decisions by domain, abstentions, and how long deciding took."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._steps: deque[ActivityStep] = deque(maxlen=MAX_STEPS)

    def add(self, decisions: Mapping[str, int], abstained: int, seconds: float) -> None:
        """Count the decisions of one request, by domain, and how long they took together."""
        number = int(self._clock()) // STEP_S
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(ActivityStep(number))
        step = self._steps[-1]
        for domain, count in decisions.items():
            step.decisions[domain] = step.decisions.get(domain, 0) + count
        step.abstained += abstained
        step.times.append(seconds)

    def to_json(self) -> dict[str, Any]:
        oldest = int(self._clock()) // STEP_S - MAX_STEPS
        steps = [step.to_json() for step in self._steps if step.number > oldest]
        return {
            "now": self._clock(),
            "step_s": STEP_S,
            "steps": steps,
            "kept": MAX_STEPS,
        }


# Spans for OpenTelemetry: a request, its routing, and each attempt at an expert.
#
# They are sent where the environment says (OTEL_EXPORTER_OTLP_ENDPOINT, or that for traces), by the
# standard packages (extra `telemetry`). Elsewhere nothing is recorded, and the trace that a client
# began is passed on as it came. Attributes hold names, numbers and outcomes, never a prompt.


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
