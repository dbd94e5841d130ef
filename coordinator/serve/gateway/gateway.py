"""The gateway: a request is routed and goes to the expert that was chosen, or to the next in its chain of fallbacks.

At the end are the endpoints of OpenAI's API that it has, and what they say where no experts are configured. Knows the
experts and the service. How experts are reached is `expert_client`'s; what is asked is `request_bodies`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import APIRouter, Request, Response

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.experts.expert_choice import ExpertChoice, ExpertChooser, Reason
from ridgeway.common.experts.experts_file import AUTO, Experts, ExpertsFile, FallbackReason, FallbackStep
from ridgeway.common.http.held_bytes import hold
from ridgeway.common.http.http_errors import CLIENT_GONE, ClientGone, Problem
from ridgeway.common.http.request_context import current_request
from ridgeway.common.routing.quality import QualityTable
from ridgeway.common.routing.router import Decision, Router
from ridgeway.coordinator.serve.conversations import Conversations, Seat, Talk, is_clear, leaning
from ridgeway.coordinator.serve.gateway.expert_client import ExpertClient, ExpertRequest, WholeAnswer
from ridgeway.coordinator.serve.gateway.expert_link import JSON, Endpoint, ExpertLink, in_a_header
from ridgeway.coordinator.serve.gateway.failures import GARBAGE, ExpertFailure
from ridgeway.coordinator.serve.gateway.health_checks import check_health
from ridgeway.coordinator.serve.gateway.response_owners import Owner, ResponseOwners
from ridgeway.coordinator.serve.gateway.sse import StreamAnswer, StreamRelay, unless_gone
from ridgeway.coordinator.serve.gateway.token_usage import (
    BYTES_PER_TOKEN,
    StreamedUsage,
    TokenUsage,
    WithoutUsage,
    estimated_usage,
    whole_usage,
)
from ridgeway.coordinator.serve.gateway.translation import (
    AS_IT_IS,
    Translation,
    asks_for_usage,
    expert_body,
    mistake_of,
    translation_for,
)
from ridgeway.coordinator.serve.request_bodies import (
    AnyGatewayRequest,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GatewayBody,
    MessagesRequest,
    ResponsesRequest,
    described,
    read_gateway_body,
)
from ridgeway.coordinator.serve.routing.routing_api import Handler, json_answer
from ridgeway.coordinator.serve.routing.routing_service import RoutingService
from ridgeway.coordinator.serve.schemas import (
    ERRORS,
    EXPERT_ANSWER,
    EXPERT_ERRORS,
    ExpertWorths,
    ModelCard,
    ModelList,
    as_anthropics,
)

REQUEST_SHAPES: Mapping[Endpoint, type[AnyGatewayRequest]] = {
    "/chat/completions": ChatRequest,
    "/completions": CompletionRequest,
    "/embeddings": EmbeddingRequest,
    "/responses": ResponsesRequest,
    "/messages": MessagesRequest,
}

TOO_LONG_STATUSES = (400, 413, 422)
TOO_LONG = re.compile(
    rb"context_length_exceeded|exceed_context_size|string_above_max_length|context (?:length|window|size)"
    rb"|(?:prompt|input|request) is too long|inputs? tokens|max_model_len",
    re.IGNORECASE,
)
"""How OpenAI, Anthropic, vLLM, llama.cpp, SGLang and TGI say that a prompt is too long."""
MAX_COMPLAINT_BYTES = 16_384
STREAMS_OF_CHATS = (AS_IT_IS["/chat/completions"], AS_IT_IS["/completions"])
"""Streams that say what they used only if they are asked to."""

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
    """The expert to ask, those to ask in its place, and what the answer's headers say of the decision.

    only: the number of the one address that can answer.
    seat: where the conversation is from now on, and its digest.
    """

    first: ExpertLink
    reason: Reason
    headers: Mapping[str, str]
    chain: Sequence[tuple[FallbackStep, ExpertLink]] = ()
    only: int | None = None
    seat: tuple[bytes, Seat] | None = None

    def headers_for(self, link: ExpertLink, tried: Sequence[TriedExpert]) -> dict[str, str]:
        """What an answer of this expert says, after others could not give one."""
        own: dict[str, str] = {"x-ridgeway-expert": link.shown, "x-ridgeway-reason": self.reason}
        if tried:
            own["x-ridgeway-reason"] = tried[0].reason
            own["x-ridgeway-tried"] = ", ".join(f"{each.link.shown} {each.reason}" for each in tried)
        return {**self.headers, **own}


@dataclass(frozen=True, slots=True)
class TriedExpert:
    """An expert that could not answer, and why; failure: None where its answer was that the prompt is too long."""

    link: ExpertLink
    reason: FallbackReason
    failure: ExpertFailure | None


class Gateway:
    """Experts behind a router. Use it in an `async with`."""

    def __init__(
        self,
        service: RoutingService,
        experts: ExpertsFile | Path,
        clock: Callable[[], float] = time.monotonic,
        shared: Path | None = None,
    ) -> None:
        """shared: the folder of several workers, who then know of the same responses and conversations."""
        self._service = service
        self._clock = clock
        self.file = experts if isinstance(experts, ExpertsFile) else ExpertsFile(experts)
        self.file.check(service.current.served.router)
        self._connected = ConnectedExperts(self.file.experts, self.file.table, {})
        self._client = ExpertClient(service.tracing)
        self._owners = ResponseOwners(shared and shared / "responses")
        self._conversations = Conversations(shared and shared / "conversations")
        self._checks: asyncio.Task[None] | None = None
        self._take()

    async def __aenter__(self) -> Gateway:
        await self._client.__aenter__()
        self._checks = asyncio.create_task(check_health(lambda: self._connected.links.values(), self._client))
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._checks is not None:
            self._checks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._checks
        await self._client.__aexit__(*error)

    # What others ask of it

    def states(self) -> dict[str, str]:
        """Each expert, and whether it is up, down, being tried again, or up at some of its addresses alone."""
        return {name: link.state for name, link in self._connected.links.items()}

    def choice(self, router: Router, decision: Decision) -> ExpertChoice | None:
        """The expert that a decision leads to, whether it is up or not."""
        return self._connected.chooser(router).choose(decision)

    def worths(self) -> ExpertWorths:
        """What the choice of an expert weighs."""
        router = self._service.current.served.router
        chooser = self._connected.chooser(router)
        costs = [self._connected.experts.experts[name].cost for name in chooser.names]
        quality = chooser.quality.tolist()
        mu = self._connected.experts.mu
        return ExpertWorths(
            mu=mu, experts=list(chooser.names), costs=costs, domains=list(router.domains), quality=quality
        )

    def notes(self) -> list[str]:
        """What an operator may not have meant: domains and experts that do not go together, or were not measured."""
        connected, router = self._connected, self._service.current.served.router
        domains, names, fallback = router.domains, connected.links, connected.experts.fallback
        measured = connected.experts.measured(connected.table or router.quality)
        if measured is not None:
            unscored = [name for name in names if name not in measured.experts and name != fallback]
            by = f"experts are chosen by their measured quality: {', '.join(measured.experts)}"
            return [by] + ([f"{', '.join(unscored)}: no scores; asked only by name"] if unscored else [])
        served = {domain for name, expert in connected.experts.experts.items() for domain in expert.serves(name)}
        in_chains = {step.expert for each in connected.experts.experts.values() for step in each.fallbacks or ()}
        without = [domain for domain in domains if domain not in served]
        odd = [
            name
            for name, link in names.items()
            if not set(link.expert.serves(name)) & set(domains) and name != fallback and name not in in_chains
        ]
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
        metrics = self._service.metrics
        for name, expert in self.file.experts.experts.items():
            link, key = before.get(name), self.file.key(name)
            if link is None or not link.is_for(expert, key):
                link = ExpertLink(name, expert, key, self._service.metrics, self._clock)
            links[name] = link
            metrics.expert_up.labels(name).set_function(link.is_well)
            metrics.expert_addresses_up.labels(name).set_function(link.addresses_up)
            metrics.expert_in_flight.labels(name).set_function(link.in_flight)
        for name in before.keys() - links.keys():
            metrics.expert_up.remove(name)
            metrics.expert_addresses_up.remove(name)
            metrics.expert_in_flight.remove(name)
        self._connected = ConnectedExperts(self.file.experts, self.file.table, links)

    # One request

    async def answer(self, request: Request, endpoint: Endpoint, model: type[AnyGatewayRequest]) -> Response:
        try:
            body = await read_gateway_body(request, model)
            return await unless_gone(request.receive, self._answer(body, endpoint))
        except ClientGone:
            return Response(status_code=CLIENT_GONE)

    async def _answer(self, body: GatewayBody, endpoint: Endpoint) -> Response:
        plan = await self._plan(body)
        link, chain = plan.first, list(plan.chain)
        asking = _asking(link, body, endpoint, plan.only)
        tried: list[TriedExpert] = []
        while True:
            headers = plan.headers_for(link, tried)
            try:
                is_last = not any("down" in step.on for step, _ in chain)
                answer = await self._client.ask(link, asking.request, is_last)
                response = self._passed_on(answer, link, asking, body, headers)
                failure, reason = None, _complaint(answer)
            except ExpertFailure as error:
                response, failure, reason = None, error, error.kind.reason
            following = _following(chain, reason, body, endpoint)
            if following is not None and reason is not None:
                tried.append(TriedExpert(link, reason, failure))
                place, asking = following
                link, chain = chain[place][1], chain[place + 1 :]
            elif failure is not None:
                raise failure.problem(headers, [each.failure for each in tried if each.failure is not None])
            elif response is not None:
                if plan.seat is not None:
                    key, seat = plan.seat
                    self._conversations.note(key, seat._replace(answered=link.name))
                return response

    def _passed_on(
        self,
        answer: WholeAnswer | StreamAnswer,
        link: ExpertLink,
        asking: AskedExpert,
        body: GatewayBody,
        headers: Mapping[str, str],
    ) -> Response:
        """What the client gets; raises ExpertFailure if it cannot be made of the answer."""
        current_request().told |= {"expert": link.shown, "reason": headers["x-ridgeway-reason"]}
        if asking.endpoint == "/responses" and (isinstance(answer, StreamAnswer) or answer.status < 400):
            began, address = answer.beginning
            self._owners.note_answer(began, Owner(link.name, address, current_request().key), body.goes_on_from)
        if isinstance(answer, StreamAnswer):
            events = asking.translation.events
            translator = None if events is None else events(body.fields())
            if asking.hides_usage:
                translator = WithoutUsage()
            watch, note = StreamedUsage(), self._noting(link, len(asking.request.body))
            streams = self._service.metrics.streams
            return StreamRelay(
                answer, headers, streams, translator, watch.feed, lambda: note(watch.found, watch.events)
            )
        if answer.status < 400:
            guess = len(answer.body) // BYTES_PER_TOKEN
            self._noting(link, len(asking.request.body))(whole_usage(answer.body), guess)
        if asking.translation.answer is None:
            return Response(answer.body, answer.status, headers, JSON)
        if answer.status >= 400:
            return mistake_of(answer.status, answer.body).response(f"/v1{asking.endpoint}", headers)
        try:
            return Response(asking.translation.answer(answer.body), answer.status, headers, JSON)
        except ValueError:
            raise ExpertFailure(GARBAGE, link.name) from None

    def _noting(self, link: ExpertLink, asked: int) -> Callable[[TokenUsage | None, int], None]:
        """Counts what an answer of this expert used and cost, for the key that asks now.

        What is noted is what the answer says, and a guess at its tokens; a key's budget is charged for one of them.
        asked: the bytes of the request.
        """
        key, account, metrics = current_request().key, current_request().account, self._service.metrics

        def note(usage: TokenUsage | None, answered: int) -> None:
            if account is not None:
                used = usage or estimated_usage(asked, answered)
                account.spend(sum(used), used.cost(link.expert))
            metrics.cost.labels(key, link.name).inc((usage or TokenUsage()).cost(link.expert))
            for kind, tokens in usage._asdict().items() if usage is not None else ():
                metrics.tokens.labels(key, link.name, kind).inc(tokens)

        return note

    async def _plan(self, body: GatewayBody) -> ForwardingPlan:
        owner = self._owners.find(body.goes_on_from)
        if owner is not None and owner.key != current_request().key:
            words = "there is no response or conversation of this name"
            raise Problem(404, words, code="response_not_found", param="previous_response_id")
        if owner is not None and body.model in (AUTO, owner.expert) and owner.expert in self._connected.links:
            headers = {"x-ridgeway-release": self._service.current.served.id}
            return ForwardingPlan(self._connected.links[owner.expert], "sticky", headers, only=owner.address)
        if body.routed is None:
            return self._forced(body.model)
        connected = self._connected
        seat = None if body.talk is None else await self._seat(body.talk, connected)
        if body.talk is not None and body.talk.uses_tools and seat is not None and seat.answered in connected.links:
            headers = {"x-ridgeway-release": self._service.current.served.id}
            link = connected.links[seat.answered]
            return ForwardingPlan(link, "sticky", headers, seat=(body.talk.key, seat))
        turns = body.routed.turns if seat is None else body.routed.turns[:1]
        served, decision = await self._service.decide(turns)
        chooser = connected.chooser(served.router)
        choice = chooser.choose(decision)
        if choice is None:  # release and experts have both just changed
            raise Problem(503, "there is no expert for this request now; try again", code="no_expert")
        if (
            seat is not None
            and choice.expert != seat.expert
            and not is_clear(decision, seat.domain, await asyncio.to_thread(leaning, served.router))
        ):
            choice = ExpertChoice(seat.expert, "sticky")
        elif seat is None or choice.expert != seat.expert:
            seat = Seat(None if decision.abstained else decision.best, choice.expert, choice.expert)
        headers = {
            "x-ridgeway-domain": in_a_header(decision.best),
            "x-ridgeway-confidence": f"{decision.confidence:.4f}",
            "x-ridgeway-release": served.id,
        }
        if body.routed.left_out:
            headers["x-ridgeway-left-out"] = str(body.routed.left_out)
        steps = connected.experts.chain(choice.expert, chooser.peers(decision))
        chain = [(step, connected.links[step.expert]) for step in steps]
        named = None if body.talk is None else (body.talk.key, seat)
        return ForwardingPlan(connected.links[choice.expert], choice.reason, headers, chain, seat=named)

    async def _seat(self, talk: Talk, connected: ConnectedExperts) -> Seat | None:
        """Where a conversation is; if that is not known, where it must have been when its user spoke before."""
        seat = self._conversations.find(talk.key) if talk.goes_on else None
        if seat is None and talk.before is not None:
            served, decision = await self._service.batcher.route_turns(talk.before.turns)
            choice = connected.chooser(served.router).choose(decision)
            if choice is not None:
                seat = Seat(None if decision.abstained else decision.best, choice.expert, choice.expert)
        return seat if seat is not None and seat.expert in connected.links else None

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
        return ForwardingPlan(link, "forced", headers)


@dataclass(frozen=True, slots=True)
class AskedExpert:
    """A request as one expert gets it, from a client that asked at `endpoint`."""

    endpoint: Endpoint
    translation: Translation
    request: ExpertRequest
    hides_usage: bool


def _asking(link: ExpertLink, body: GatewayBody, endpoint: Endpoint, only: int | None = None) -> AskedExpert:
    """Raises Problem if this expert cannot be asked such a thing."""
    translation = translation_for(endpoint, link.expert)
    fields = body.fields()
    account = current_request().account
    is_counted = account is not None and account.counts_tokens and body.streamed
    hides_usage = is_counted and translation in STREAMS_OF_CHATS and not asks_for_usage(fields)
    if hides_usage:  # the stream must say what it used
        options = fields.get("stream_options")
        fields["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    asked = expert_body(translation, link.expert, fields)
    hold(len(asked))
    goes_on = body.goes_on_from is not None
    request = ExpertRequest(translation.endpoint, asked, body.streamed, only, goes_on)
    return AskedExpert(endpoint, translation, request, hides_usage)


def _following(
    chain: Sequence[tuple[FallbackStep, ExpertLink]], reason: str | None, body: GatewayBody, endpoint: Endpoint
) -> tuple[int, AskedExpert] | None:
    """The place in a chain of the next expert that is there for this reason and can be asked such a thing."""
    for place, (step, link) in enumerate(chain):
        if reason in step.on:
            with contextlib.suppress(Problem):
                return place, _asking(link, body, endpoint)
    return None


def _complaint(answer: WholeAnswer | StreamAnswer) -> FallbackReason | None:
    """`context` if an expert says that the prompt is too long for it."""
    if not isinstance(answer, WholeAnswer) or answer.status not in TOO_LONG_STATUSES:
        return None
    return "context" if TOO_LONG.search(answer.body[:MAX_COMPLAINT_BYTES]) else None


def gateway_api(service: RoutingService, gateway: Gateway | None) -> APIRouter:
    api = APIRouter(tags=["gateway"])
    for endpoint, model in REQUEST_SHAPES.items():
        errors = {**ERRORS, **EXPERT_ERRORS}
        api.post(
            f"/v1{endpoint}",
            responses={**(as_anthropics(errors) if endpoint == "/messages" else errors), **EXPERT_ANSWER},
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
