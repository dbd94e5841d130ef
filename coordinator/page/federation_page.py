"""The page of a federation: what it asks for, and what Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ridgeway.common.http.page_app import PageParts, looked
from ridgeway.common.http.request_metrics import RequestMetrics
from ridgeway.coordinator.page.federation_view import FederationView


def federation_page(view: FederationView) -> PageParts:
    metrics = RequestMetrics()
    metrics.registry.register(FederationCollector(view))
    return PageParts(__package__, _api(view), view.plain, metrics)


def _api(view: FederationView) -> APIRouter:
    api = APIRouter(prefix="/v1")

    plain = {
        "/standing": view.standing,
        "/rounds": view.rounds,
        "/releases": view.releases,
    }
    for path, look in {**plain, "/ledger/verification": view.verification}.items():
        api.add_api_route(path, partial(looked, look, view.plain))

    @api.get("/releases/{before}/{after}")
    async def changes(before: int, after: int) -> Any:
        return await looked(partial(view.changes, before, after), view.plain)

    @api.get("/ledger")
    async def ledger(before: int | None = None) -> Any:
        return await looked(partial(view.entries, before), view.plain)

    return api


class FederationCollector(Collector):
    """Counts at the moment in which Prometheus asks; what was counted is the ledger's, so no
    restart loses it.
    """

    def __init__(self, view: FederationView) -> None:
        self._view = view

    def describe(self) -> list[Metric]:
        """Nothing is looked at when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        figures = self._view.figures()
        yield _labelled(
            CounterMetricFamily,
            "rounds",
            "Rounds, by how they ended.",
            "outcome",
            figures["rounds"],
        )
        words = "Refusals in rounds, by code."
        yield _labelled(
            CounterMetricFamily, "round_refusals", words, "code", figures["refusals"]
        )
        words = "Days until a certificate ends."
        yield _labelled(
            GaugeMetricFamily,
            "certificate_days_left",
            words,
            "certificate",
            figures["days"],
        )
        if figures["last_seconds"] is not None:
            words = "How long the last round took that was not cut off."
            yield _gauge("last_round_seconds", words, figures["last_seconds"])
        yield _gauge("coordinator_up", "1 while the SuperLink answers.", figures["up"])
        yield _gauge("round_running", "1 while a round runs.", figures["running"])
        yield _gauge("members", "Holders that rounds count on.", figures["members"])
        yield _gauge(
            "members_online",
            "Of these, the ones that are connected.",
            figures["online"],
        )
        yield _gauge(
            "release_number", "The newest release; 0: none.", figures["release"]
        )
        yield _gauge("ledger_entries", "Entries of the ledger.", figures["entries"])


def _gauge(name: str, words: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"ridgeway_{name}", words, value=float(value))


def _labelled(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    words: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    family = kind(f"ridgeway_{name}", words, labels=[label])
    for each, value in sorted(values.items()):
        family.add_metric([each], value)
    return family
