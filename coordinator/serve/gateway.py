"""The gateway: a request is routed, goes to the expert that was chosen, or to the fallback if that one cannot answer.

Knows the experts and the service. How experts are reached is `upstream`'s; what is asked is `asked`'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from common.errors import RidgewayError
from common.router import Decision
from coordinator.serve.asked import AnyRequest, Asked, read_asked
from coordinator.serve.choice import Choice, Reason, choose
from coordinator.serve.departure import unless_gone
from coordinator.serve.experts import AUTO, Experts, ExpertsFile
from coordinator.serve.failures import Failure, Gone
from coordinator.serve.link import Link, Path, in_a_header
from coordinator.serve.live import Live
from coordinator.serve.problems import CLIENT_GONE, Problem
from coordinator.serve.relay import Relay
from coordinator.serve.service import Service
from coordinator.serve.upstream import Question, Upstream, Whole

log = logging.getLogger("ridgeway.serve")

_shown = lru_cache(1024)(in_a_header)


@dataclass(frozen=True, slots=True)
class Roster:
    """The experts of one reading of the file. A request keeps the one that it began with."""

    experts: Experts
    links: Mapping[str, Link]


@dataclass(frozen=True, slots=True)
class Plan:
    """Whom to ask, whom in its place, and what the answer's headers say of the decision."""

    first: Link
    second: Link | None
    reason: Reason
    headers: Mapping[str, str]

    def headers_for(self, link: Link, reason: Reason) -> dict[str, str]:
        return {**self.headers, "x-ridgeway-expert": link.shown, "x-ridgeway-reason": reason}


class Gateway:
    """Experts behind a router. Use it in an `async with`."""

    def __init__(
        self, service: Service, experts: ExpertsFile | FilePath, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._service = service
        self._clock = clock
        self._file = experts if isinstance(experts, ExpertsFile) else ExpertsFile(experts)
        self._file.check(service.current.live.router)
        self._roster = Roster(self._file.experts, {})
        self._upstream = Upstream()
        self._take()

    async def __aenter__(self) -> Gateway:
        await self._upstream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._upstream.__aexit__(*error)

    # What others ask of it

    def chosen(self, live: Live, decision: Decision) -> dict[str, Any]:
        """What is added to a decision: the expert it leads to."""
        choice = choose(decision, self._roster.experts)
        return {"expert": choice.expert} if choice else {}

    def states(self) -> dict[str, str]:
        """Each expert, and whether it is up, down or being tried again."""
        return {name: link.state for name, link in self._roster.links.items()}

    def notes(self) -> list[str]:
        """What an operator may not have meant: domains that have no expert of their own, and experts of no domain."""
        domains, names = self._service.current.live.router.domains, self._roster.links
        fallback = self._roster.experts.fallback
        without = [domain for domain in domains if domain not in names]
        odd = [name for name in names if name not in domains and name != fallback]
        notes = [f"{fallback} answers for {', '.join(without)}: no expert of that name"] if without else []
        return notes + ([f"{', '.join(odd)}: no domain of this release; asked only by name"] if odd else [])

    def models(self) -> list[str]:
        """The names that a request may give as its model: auto, then domains with an expert, then other experts."""
        names = self._roster.links
        domains = [domain for domain in self._service.current.live.router.domains if domain in names]
        return [AUTO, *domains, *(name for name in names if name not in domains)]

    # The file

    def watch(self) -> None:
        """Take the file's experts if it has changed and is good; requests under way keep theirs."""
        try:
            if not self._file.refresh(self._service.current.live.router):
                return
        except (RidgewayError, OSError) as error:
            words = str(error).replace(str(self._file.path), self._file.path.name)
            log.error("a new file of experts is refused and the old one goes on: %s", words)
            return
        self._take()
        self._service.current.look_again()
        log.warning("%d experts are in use now", len(self._roster.links))

    def _take(self) -> None:
        """An expert that has not changed keeps its breaker and its places."""
        before = self._roster.links
        links = {name: self._link(name, before.get(name)) for name in self._file.experts.experts}
        up = self._service.metrics.expert_up
        for name, link in links.items():
            up.labels(name).set_function(link.is_well)
        for name in before.keys() - links.keys():
            up.remove(name)
        self._roster = Roster(self._file.experts, links)

    def _link(self, name: str, before: Link | None) -> Link:
        expert, key = self._file.experts.experts[name], self._file.key(name)
        if before is not None and before.is_for(expert, key):
            return before
        return Link(name, expert, key, self._service.metrics, self._clock)

    # One request

    async def answer(self, request: Request, path: Path, model: type[AnyRequest]) -> Response:
        try:
            asked = await read_asked(request, model)
            return await unless_gone(request.receive, self._answer(asked, path))
        except Gone:
            return Response(status_code=CLIENT_GONE)

    async def _answer(self, asked: Asked, path: Path) -> Response:
        plan = await self._plan(asked.checked)
        try:
            return await self._ask(plan.first, plan.reason, plan, asked, path)
        except Failure as failure:
            if plan.second is None or failure.kind.reason is None:
                raise failure.problem(plan.headers_for(plan.first, plan.reason)) from None
            return await self._ask_second(plan.second, failure, plan, asked, path)

    async def _ask_second(self, link: Link, before: Failure, plan: Plan, asked: Asked, path: Path) -> Response:
        reason: Reason = before.kind.reason or plan.reason
        try:
            return await self._ask(link, reason, plan, asked, path)
        except Failure as failure:
            raise failure.problem(plan.headers_for(link, reason), before) from None

    async def _ask(self, link: Link, reason: Reason, plan: Plan, asked: Asked, path: Path) -> Response:
        answer = await self._upstream.ask(link, Question(path, _body(link, asked, path), asked.streamed))
        headers = plan.headers_for(link, reason)
        if isinstance(answer, Whole):
            return Response(answer.body, answer.status, headers, answer.kind)
        return Relay(answer, headers, self._service.metrics.streams)

    async def _plan(self, checked: AnyRequest) -> Plan:
        if checked.model != AUTO:
            return self._forced(checked.model)
        live, decision = await self._service.decide(checked.turns())
        roster = self._roster
        choice = choose(decision, roster.experts)
        if choice is None:  # release and experts have both just changed
            raise Problem(503, "there is no expert for this request now; try again", code="no_expert")
        return Plan(roster.links[choice.expert], _second(roster, choice), choice.reason, _about(live, decision))

    def _forced(self, model: str) -> Plan:
        """Whoever names an expert gets that one or an error, never another in its place."""
        link = self._roster.links.get(model)
        if link is None:
            words = "there is no model of this name; GET /v1/models lists those there are"
            raise Problem(404, words, code="model_not_found", param="model")
        live = self._service.current.live
        headers = {"x-ridgeway-release": live.id}
        if model in live.router.domains:
            headers["x-ridgeway-domain"] = link.shown
        return Plan(link, None, "forced", headers)


def _second(roster: Roster, choice: Choice) -> Link | None:
    fallback = roster.experts.fallback
    return roster.links[fallback] if fallback is not None and fallback != choice.expert else None


def _about(live: Live, decision: Decision) -> dict[str, str]:
    """What the router said: the domain ahead, and how probable it is."""
    return {
        "x-ridgeway-domain": _shown(decision.best),
        "x-ridgeway-confidence": f"{decision.confidence:.4f}",
        "x-ridgeway-release": live.id,
    }


def _body(link: Link, asked: Asked, path: Path) -> bytes:
    """The request as it came, with the expert's own name of its model and no more tokens than it grants."""
    expert = link.expert
    if path == "/embeddings":
        whole = {name: value for name, value in asked.fields.items() if name != "stream"}  # vectors do not come so
        return _written({**whole, "model": expert.embedding_model or expert.model})
    changed: dict[str, Any] = {"model": expert.model}
    if expert.max_tokens is not None:
        for name in ("max_tokens", "max_completion_tokens"):
            wished = asked.fields.get(name)
            if wished is not None and not (type(wished) is int and wished <= expert.max_tokens):
                changed[name] = expert.max_tokens
    return _written({**asked.fields, **changed})


def _written(fields: dict[str, Any]) -> bytes:
    """A number that is too large for a computer is not a number of JSON, and becomes null."""
    return to_json(fields, inf_nan_mode="null")
