"""The page of a federation: what it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ridgeway.common.http.page_app import PageParts
from ridgeway.common.http.request_metrics import RequestMetrics
from ridgeway.coordinator.page.federation_metrics import FederationCollector
from ridgeway.coordinator.page.federation_view import FederationView


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
