"""Experts for every domain on real sockets, and the service before them: what tests of the gateway play with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httpx

from tests.support.faulty_experts import Expert, Part
from tests.support.in_process import Local

DOMAINS = ("code", "law", "médecine")
EVERYONE = (*DOMAINS, "generalist")
FALLBACK = 'fallback = "generalist"'


class GatewayExperts:
    """An expert for every domain and a generalist, and the service before them."""

    def __init__(self, local: Local, experts: dict[str, Expert]) -> None:
        self.local = local
        self.experts = experts

    @property
    def ahead(self) -> str:
        """The domain that a chat of the word `hello` is routed to."""
        return self.local.service.current.served.router.route("hello").best

    @property
    def chosen(self) -> Expert:
        return self.experts[self.ahead]

    def all_domains(self, part: Part) -> None:
        for domain in DOMAINS:
            self.experts[domain].part = part


GatewayMaker = Callable[..., contextlib.AbstractContextManager[GatewayExperts]]


def answered_by(response: httpx.Response) -> tuple[str, str]:
    """The expert that answered and the reason, as the headers say it; the answer itself must agree."""
    assert response.status_code == 200, response.text
    expert = unquote(response.headers["x-ridgeway-expert"])
    assert response.json()["model"] == expert
    return expert, response.headers["x-ridgeway-reason"]


def sent(expert: Expert) -> Any:
    return expert.last().json
