"""What is counted of requests, for Prometheus: answers, their times, and refusals."""

from __future__ import annotations

import platform
from functools import partial
from importlib import metadata

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
)

REQUEST_BUCKETS_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of what Prometheus reads."""
PYTHON = platform.python_version()


def version() -> str:
    try:
        return metadata.version("ridgeway")
    except metadata.PackageNotFoundError:
        return "unknown"


class RequestMetrics:
    """What Prometheus reads. Each server has a registry of its own, so that two in one process do
    not mix.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.counter = partial(Counter, namespace="ridgeway", registry=registry)
        self.gauge = partial(Gauge, namespace="ridgeway", registry=registry)
        self.histogram = partial(Histogram, namespace="ridgeway", registry=registry)
        self.requests = self.counter(
            "requests", "Responses, by path and status.", ("path", "status")
        )
        self.refusals = self.counter(
            "refusals", "Requests refused, by reason.", ("reason",)
        )
        self.in_flight = self.gauge("requests_in_flight", "Requests in flight.")
        Info("ridgeway_build", "Version information.", registry=self.registry).info(
            {"version": version(), "python": PYTHON}
        )
        self.request_seconds = self.histogram(
            "request_seconds",
            "Time from a request's headers to the end of its response.",
            ("path",),
            buckets=REQUEST_BUCKETS_S,
        )

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
