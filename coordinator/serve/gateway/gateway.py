"""The gateway: a request is routed, goes to the expert that was chosen, or to the fallback if that one cannot answer.

At the end are the endpoints of OpenAI's API that it has, and what they say where no experts are configured. Knows the
experts and the service. How experts are reached is `expert_client`'s; what is asked is `request_bodies`'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.experts.expert_choice import ExpertChoice, ExpertChooser, Reason
from ridgeway.common.experts.experts_file import AUTO, Expert, Experts, ExpertsFile
from ridgeway.common.http.http_errors import CLIENT_GONE, ClientGone, Problem
from ridgeway.common.routing.quality import QualityTable
from ridgeway.common.routing.router import Decision, Router
from ridgeway.coordinator.serve.gateway.expert_client import ExpertClient
from ridgeway.coordinator.serve.gateway.expert_link import JSON, Endpoint, ExpertLink, in_a_header
from ridgeway.coordinator.serve.gateway.failures import ExpertFailure
from ridgeway.coordinator.serve.gateway.sse import StreamAnswer, StreamRelay, unless_gone
from ridgeway.coordinator.serve.request_bodies import (
    AnyGatewayRequest,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GatewayBody,
    described,
    read_gateway_body,
)
from ridgeway.coordinator.serve.routing.routing_api import Handler, json_answer
from ridgeway.coordinator.serve.routing.routing_service import RoutingService
from ridgeway.coordinator.serve.schemas import ERRORS, EXPERT_ANSWER, EXPERT_ERRORS, ModelCard, ModelList

REQUEST_SHAPES: Mapping[Endpoint, type[AnyGatewayRequest]] = {
    "/chat/completions": ChatRequest,
    "/completions": CompletionRequest,
    "/embeddings": EmbeddingRequest,
}

log = logging.getLogger("ridgeway.serve")


@dataclass(frozen=True, slots=True)
class ConnectedExperts:
    """The experts of one reading of the file. A request keeps the one that it began with.

    choosers: the one for the release that decided last, by its id.
    """

    experts: Experts
    table: QualityTable | None
    links: Mapping[str, ExpertLink]
    choosers: dict[str | None, ExpertChooser] = field(default_factory=dict)

    def chooser(self, router: Router) -> ExpertChooser:
        found = self.choosers.get(router.release)
        if found is None:
            found = ExpertChooser(self.experts, router.domains, self.table or router.quality)
            self.choosers.clear()
            self.choosers[router.release] = found
        return found


@dataclass(frozen=True, slots=True)
class ForwardingPlan:
    """The expert to ask, the one to ask in its place, and what the answer's headers say of the decision."""

    first: ExpertLink
    second: ExpertLink | None
    reason: Reason
    headers: Mapping[str, str]

    def headers_for(self, link: ExpertLink, reason: Reason) -> dict[str, str]:
        return {**self.headers, "x-ridgeway-expert": link.shown, "x-ridgeway-reason": reason}


class Gateway:
    """Experts behind a router. Use it in an `async with`."""

    def __init__(
        self, service: RoutingService, experts: ExpertsFile | Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._service = service
        self._clock = clock
        self.file = experts if isinstance(experts, ExpertsFile) else ExpertsFile(experts)
        self.file.check(service.current.served.router)
        self._connected = ConnectedExperts(self.file.experts, self.file.table, {})
        self._client = ExpertClient()
        self._take()

    async def __aenter__(self) -> Gateway:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)

    # What others ask of it

    def states(self) -> dict[str, str]:
        """Each expert, and whether it is up, down or being tried again."""
        return {name: link.state for name, link in self._connected.links.items()}

    def choice(self, router: Router, decision: Decision) -> ExpertChoice | None:
        """The expert that a decision leads to, whether it is up or not."""
        return self._connected.chooser(router).choose(decision)

    def notes(self) -> list[str]:
        """What an operator may not have meant: domains and experts that do not go together, or were not measured."""
        connected, router = self._connected, self._service.current.served.router
        domains, names, fallback = router.domains, connected.links, connected.experts.fallback
        measured = connected.experts.measured(connected.table or router.quality)
        if measured is not None:
            unscored = [name for name in names if name not in measured.experts and name != fallback]
            by = f"experts are chosen by their measured quality: {', '.join(measured.experts)}"
            return [by] + ([f"{', '.join(unscored)}: no scores; asked only by name"] if unscored else [])
        without = [domain for domain in domains if domain not in names]
        odd = [name for name in names if name not in domains and name != fallback]
        notes = [f"{fallback} answers for {', '.join(without)}: no expert of that name"] if without else []
        return notes + ([f"{', '.join(odd)}: no domain of this release; asked only by name"] if odd else [])

    def models(self) -> list[str]:
        """The names that a request may give as its model: auto, then domains with an expert, then other experts."""
        names = self._connected.links
        domains = [domain for domain in self._service.current.served.router.domains if domain in names]
        return [AUTO, *domains, *(name for name in names if name not in domains)]

    # The file

    def watch(self) -> None:
        """Take the file's experts if it has changed and is good; requests under way keep theirs."""
        try:
            if not self.file.refresh(self._service.current.served.router):
                return
        except (RidgewayError, OSError) as error:
            words = str(error).replace(str(self.file.path), self.file.path.name)
            log.error("a new file of experts is refused and the old one goes on: %s", words)
            return
        self._take()
        self._service.current.look_again()
        log.warning("%d experts are in use now", len(self._connected.links))

    def _take(self) -> None:
        """An expert that has not changed keeps its breaker and its places."""
        before = self._connected.links
        links: dict[str, ExpertLink] = {}
        up = self._service.metrics.expert_up
        for name, expert in self.file.experts.experts.items():
            link, key = before.get(name), self.file.key(name)
            if link is None or not link.is_for(expert, key):
                link = ExpertLink(name, expert, key, self._service.metrics, self._clock)
            links[name] = link
            up.labels(name).set_function(link.is_well)
        for name in before.keys() - links.keys():
            up.remove(name)
        self._connected = ConnectedExperts(self.file.experts, self.file.table, links)

    # One request

    async def answer(self, request: Request, endpoint: Endpoint, model: type[AnyGatewayRequest]) -> Response:
        try:
            body = await read_gateway_body(request, model)
            return await unless_gone(request.receive, self._answer(body, endpoint))
        except ClientGone:
            return Response(status_code=CLIENT_GONE)

    async def _answer(self, body: GatewayBody, endpoint: Endpoint) -> Response:
        plan = await self._plan(body.checked)
        try:
            return await self._ask(plan.first, plan.headers_for(plan.first, plan.reason), body, endpoint)
        except ExpertFailure as failure:
            before, reason = failure, failure.kind.reason
        if plan.second is None or reason is None:
            raise before.problem(plan.headers_for(plan.first, plan.reason))
        headers = plan.headers_for(plan.second, reason)
        try:
            return await self._ask(plan.second, headers, body, endpoint)
        except ExpertFailure as failure:
            raise failure.problem(headers, before) from None

    async def _ask(
        self, link: ExpertLink, headers: Mapping[str, str], body: GatewayBody, endpoint: Endpoint
    ) -> Response:
        asked = _expert_body(link.expert, body, endpoint)
        answer = await self._client.ask(link, endpoint, asked, body.streamed)
        if isinstance(answer, StreamAnswer):
            return StreamRelay(answer, headers, self._service.metrics.streams)
        status, content = answer
        return Response(content, status, headers, JSON)

    async def _plan(self, checked: AnyGatewayRequest) -> ForwardingPlan:
        if checked.model != AUTO:
            return self._forced(checked.model)
        served, decision = await self._service.decide(checked.turns())
        connected = self._connected
        choice = connected.chooser(served.router).choose(decision)
        if choice is None:  # release and experts have both just changed
            raise Problem(503, "there is no expert for this request now; try again", code="no_expert")
        fallback = connected.experts.fallback
        second = connected.links[fallback] if fallback is not None and fallback != choice.expert else None
        headers = {
            "x-ridgeway-domain": in_a_header(decision.best),
            "x-ridgeway-confidence": f"{decision.confidence:.4f}",
            "x-ridgeway-release": served.id,
        }
        return ForwardingPlan(connected.links[choice.expert], second, choice.reason, headers)

    def _forced(self, model: str) -> ForwardingPlan:
        """A client that names an expert gets that one or an error, never another in its place."""
        link = self._connected.links.get(model)
        if link is None:
            words = "there is no model of this name; GET /v1/models lists those there are"
            raise Problem(404, words, code="model_not_found", param="model")
        served = self._service.current.served
        headers = {"x-ridgeway-release": served.id}
        if model in served.router.domains:
            headers["x-ridgeway-domain"] = link.shown
        return ForwardingPlan(link, None, "forced", headers)


def _expert_body(expert: Expert, body: GatewayBody, endpoint: Endpoint) -> bytes:
    """The request as it came, with the expert's own name of its model and no more tokens than it grants.

    A number that is too large for a computer is not a number of JSON, and becomes null.
    """
    fields = {**body.fields, "model": expert.model}
    if endpoint == "/embeddings":
        fields["model"] = expert.embedding_model or expert.model
        fields.pop("stream", None)  # vectors do not come so
    elif expert.max_tokens is not None:
        for name in ("max_tokens", "max_completion_tokens"):
            wished = fields.get(name)
            if wished is not None and not (type(wished) is int and 1 <= wished <= expert.max_tokens):
                fields[name] = expert.max_tokens
    return to_json(fields, inf_nan_mode="null")


def gateway_api(service: RoutingService, gateway: Gateway | None) -> APIRouter:
    api = APIRouter(tags=["gateway"])
    for endpoint, model in REQUEST_SHAPES.items():
        api.post(
            f"/v1{endpoint}",
            responses={**ERRORS, **EXPERT_ERRORS, **EXPERT_ANSWER},
            openapi_extra=described(model),
            response_class=Response,
        )(_handler(gateway, endpoint, model))

    def cards() -> list[ModelCard]:
        created = int(service.current.served.since)
        return [ModelCard(id=name, created=created) for name in (gateway.models() if gateway else [])]

    @api.get("/v1/models", responses={200: {"model": ModelList}, **ERRORS}, response_class=Response)
    async def models() -> Response:
        """The names that a request can give as its model."""
        return json_answer(ModelList(data=cards()))

    @api.get("/v1/models/{name:path}", responses={200: {"model": ModelCard}, 404: EXPERT_ERRORS[404], **ERRORS})
    async def one_model(name: str) -> ModelCard:
        """One of those names."""
        for card in cards():
            if card.id == name:
                return card
        raise Problem(404, "there is no model of this name", code="model_not_found", param="model")

    return api


def _handler(gateway: Gateway | None, endpoint: Endpoint, model: type[AnyGatewayRequest]) -> Handler:
    async def passed_on(request: Request) -> Response:
        if gateway is None:
            words = "no experts are configured here; start `ridgeway serve` with --experts to pass requests on to them"
            raise Problem(404, words, code="no_experts")
        return await gateway.answer(request, endpoint, model)

    passed_on.__name__ = endpoint.strip("/").replace("/", "_")
    passed_on.__doc__ = f"{model.__doc__} It goes to an expert, and the expert's answer comes back."
    return passed_on
