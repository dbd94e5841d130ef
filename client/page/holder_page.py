"""The page of a holder: what it asks for."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from ridgeway.client.page.holder_view import HolderView
from ridgeway.common.http.page_app import PageParts, looked
from ridgeway.common.http.request_metrics import RequestMetrics


def holder_page(view: HolderView) -> PageParts:
    api = APIRouter(prefix="/v1")

    @api.get("/standing")
    async def standing() -> Any:
        return await looked(view.standing, view.plain)

    @api.get("/checks")
    async def checks() -> Any:
        return await looked(view.checks, view.plain)

    return PageParts(__package__, api, view.plain, RequestMetrics())
