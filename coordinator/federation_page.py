"""The page of a federation: what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ridgeway.common.base.errors import InputError, JournalError
from ridgeway.common.web.request_context import RequestMetrics
from ridgeway.common.web.site import PageParts
from ridgeway.coordinator.federation_view import FederationView

# What Prometheus reads of a federation: by its page, or from a running coordinator.


GAUGES = {
    "last_round_seconds": "Duration of the last uninterrupted round.",
    "last_round_timestamp_seconds": "End of the last round, or its start if it has not ended.",
    "coordinator_up": "1 while the SuperLink answers.",
    "round_running": "1 while a round runs.",
    "members": "Holders that take part in rounds.",
    "members_online": "Members that are connected.",
    "members_without_budget": "Members that last reported a spent privacy budget.",
    "release_number": "Number of the newest release; 0: none.",
    "release_timestamp_seconds": "Time of the newest release.",
    "rolled_back": "1 during a rollback.",
    "ledger_entries": "Number of ledger entries.",
    "ledger_valid": "1 if the ledger is intact, 0 if it was altered.",
}
LABELLED = (
    (CounterMetricFamily, "rounds", "Rounds by outcome.", "outcome"),
    (CounterMetricFamily, "round_refusals", "Refusals in rounds, by code.", "code"),
    (
        GaugeMetricFamily,
        "last_round_outcome",
        "1 for the outcome of the last round.",
        "outcome",
    ),
    (
        GaugeMetricFamily,
        "certificate_days_left",
        "Days until a certificate expires.",
        "certificate",
    ),
)
"""How each figure of the view is called, and what it says; those with a label have many values."""
METRICS_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class FederationCollector(Collector):
    """Counts at the moment in which Prometheus asks; what was counted is the ledger's, so no
    restart loses it.
    """

    _view: FederationView

    def describe(self) -> list[Metric]:
        """Nothing is looked at when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            figures = self._view.figures()
        except JournalError:
            words = GAUGES["ledger_valid"]
            yield GaugeMetricFamily("ridgeway_ledger_valid", words, value=0.0)
            return
        for kind, name, words, label in LABELLED:
            family = kind(f"ridgeway_{name}", words, labels=[label])
            for label_value, value in sorted(figures[name].items()):
                family.add_metric([label_value], value)
            yield family
        for name, words in GAUGES.items():
            if figures[name] is not None:
                value = float(figures[name])
                yield GaugeMetricFamily(f"ridgeway_{name}", words, value=value)


def serve_metrics(view: FederationView, port: int) -> None:
    """Answer Prometheus on a port of loopback, from a thread of its own, until the process ends."""
    registry = CollectorRegistry()
    registry.register(FederationCollector(view))
    try:
        start_http_server(port, addr=METRICS_HOST, registry=registry)
    except OSError as error:
        raise InputError(
            f"cannot serve metrics on {METRICS_HOST} port {port} ({error.strerror}); choose"
            " another port"
        ) from None


def federation_page(view: FederationView) -> PageParts:
    metrics = RequestMetrics()
    metrics.registry.register(FederationCollector(view))
    looks: dict[str, Callable[..., Any]] = {
        "/standing": view.standing,
        "/rounds": view.rounds,
        "/releases": view.releases,
        "/releases/{before}/{after}": view.changes,
        "/ledger": view.entries,
        "/ledger/verification": view.verification,
    }
    return PageParts(__package__, view.folder, looks, metrics)
