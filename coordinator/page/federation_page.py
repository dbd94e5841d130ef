"""The page of a federation: what it asks for, and what Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ridgeway.common.http.page_app import PageParts
from ridgeway.common.http.request_metrics import RequestMetrics
from ridgeway.coordinator.page.federation_view import FederationView

GAUGES = {
    "last_round_seconds": "How long the last round took that was not cut off.",
    "coordinator_up": "1 while the SuperLink answers.",
    "round_running": "1 while a round runs.",
    "members": "Holders that rounds count on.",
    "members_online": "Of these, the ones that are connected.",
    "release_number": "The newest release; 0: none.",
    "ledger_entries": "Entries of the ledger.",
}
LABELLED = (
    (CounterMetricFamily, "rounds", "Rounds, by how they ended.", "outcome"),
    (CounterMetricFamily, "round_refusals", "Refusals in rounds, by code.", "code"),
    (
        GaugeMetricFamily,
        "certificate_days_left",
        "Days until a certificate ends.",
        "certificate",
    ),
)
"""How each figure of the view is called, and what it says; those with a label have many values."""


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
        figures = self._view.figures()
        for kind, name, words, label in LABELLED:
            family = kind(f"ridgeway_{name}", words, labels=[label])
            for each, value in sorted(figures[name].items()):
                family.add_metric([each], value)
            yield family
        for name, words in GAUGES.items():
            if figures[name] is not None:
                value = float(figures[name])
                yield GaugeMetricFamily(f"ridgeway_{name}", words, value=value)
