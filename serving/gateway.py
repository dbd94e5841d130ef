"""The gateway: a request is routed and goes to the expert that was chosen, or to the next in its
chain of fallbacks.

At the end are the endpoints of OpenAI's API that it has, and what they say where no experts are
configured.  Who is asked is `forwarding_plan`'s to say, how experts are reached `expert_client`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from fastapi import APIRouter, Request, Response

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.expert_choice import ExpertChoice
from ridgeway.common.routing.experts_file import AUTO, ExpertsFile
from ridgeway.common.routing.router import Router
from ridgeway.common.web.http_errors import (
    CLIENT_GONE,
    ClientGone,
    Problem,
    RefusedRequest,
)
from ridgeway.common.web.request_context import current_request, let_go
from ridgeway.serving.expert_client import (
    ExpertClient,
    ExpertRequest,
    WholeAnswer,
    check_health,
    expert_request,
)
from ridgeway.serving.expert_link import (
    JSON,
    Endpoint,
    ExpertFailure,
    ExpertLink,
    api_of,
)
from ridgeway.serving.forwarding_plan import (
    ConnectedExperts,
    ForwardingPlanner,
    TriedExpert,
    following,
)
from ridgeway.serving.recent_notes import (
    Assignment,
    Owner,
    RecentNotes,
    ResponseOwners,
)
from ridgeway.serving.request_bodies import (
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
from ridgeway.serving.routing_api import (
    ERRORS,
    EXPERT_ANSWER,
    EXPERT_ERRORS,
    ExpertWorths,
    Handler,
    ModelCard,
    ModelList,
    as_anthropics,
    json_answer,
)
from ridgeway.serving.routing_service import RoutingService
from ridgeway.serving.sse import (
    BYTES_PER_TOKEN,
    StreamAnswer,
    StreamedUsage,
    StreamRelay,
    TokenUsage,
    estimated_usage,
    span_facts,
    unless_gone,
    whole_usage,
    without_usage,
)

REQUEST_SHAPES: Mapping[Endpoint, type[AnyGatewayRequest]] = {
    "/chat/completions": ChatRequest,
    "/completions": CompletionRequest,
    "/embeddings": EmbeddingRequest,
    "/responses": ResponsesRequest,
    "/messages": MessagesRequest,
}

UNSUPPORTED = """
assistants audio batches chatkit containers conversations evals files fine_tuning images
moderations realtime threads uploads vector_stores videos
""".split()
"""What OpenAI's and Anthropic's APIs have and the gateway has not: a clear answer, 501."""

log = logging.getLogger("ridgeway.serve")


class Gateway:
    """Experts behind a router. Use it in an `async with`."""

    def __init__(
        self,
        service: RoutingService,
        experts: ExpertsFile,
        clock: Callable[[], float] = time.monotonic,
        shared: Path | None = None,
        responses: Path | None = None,
    ) -> None:
        """shared: the folder of several workers, who then know of the same responses and
        conversations.
        responses: a file in place of that folder's, in which it is still known after a restart
                   whose they are.
        """
        self._service = service
        self._clock = clock
        self.file = experts
        self.file.check(service.router)
        self._connected = ConnectedExperts(self.file.experts, self.file.table, {})
        self._client = ExpertClient()
        self._owners = ResponseOwners(responses or (shared and shared / "responses"))
        self._conversations = RecentNotes(
            Assignment, shared and shared / "conversations"
        )
        self._planner = ForwardingPlanner(service, self._owners, self._conversations)
        # finding a metric by its labels takes as long as counting
        self._cost = lru_cache(service.metrics.cost.labels)
        self._tokens = lru_cache(service.metrics.tokens.labels)
        self._checks: asyncio.Task[None] | None = None
        self._take()

    async def __aenter__(self) -> Gateway:
        await self._client.__aenter__()
        self._checks = asyncio.create_task(
            check_health(lambda: self._connected.links.values(), self._client)
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._checks is not None:
            self._checks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._checks
        await self._client.__aexit__(*error)

    # What others ask of it

    def states(self) -> dict[str, str]:
        """Each expert, and whether it is up, down, being tried again, or up at some of its
        addresses alone.
        """
        return {name: link.state for name, link in self._connected.links.items()}

    def choice(self, router: Router, decision: Decision) -> ExpertChoice | None:
        """The expert that a decision leads to, whether it is up or not."""
        return self._connected.chooser(router).choose(decision)

    def worths(self) -> ExpertWorths:
        """What the choice of an expert weighs."""
        router = self._service.router
        chooser = self._connected.chooser(router)
        experts = self._connected.experts
        return ExpertWorths(
            mu=experts.mu,
            experts=list(chooser.names),
            costs=[experts.experts[name].cost for name in chooser.names],
            domains=list(router.domains),
            quality=chooser.quality.tolist(),
        )

    def notes(self) -> list[str]:
        """What an operator may not have meant: domains and experts that do not go together, or were
        not measured.
        """
        experts = self._connected.experts
        router = self._service.router
        fallback = experts.fallback
        measured = experts.measured(self._connected.table or router.quality)
        notes: list[str] = []
        if measured is not None:
            names = ", ".join(measured.experts)
            notes.append(f"experts are chosen by their measured quality: {names}")
            idle = set(experts.experts) - {*measured.experts, fallback}
            reason = "no scores"
        else:
            serves = {
                name: expert.serves(name) for name, expert in experts.experts.items()
            }
            in_chains = {
                step.expert
                for expert in experts.experts.values()
                for step in expert.fallbacks or ()
            }
            unserved = [
                domain
                for domain in router.domains
                if not any(domain in served for served in serves.values())
            ]
            if unserved:
                names = ", ".join(unserved)
                notes.append(f"{fallback} answers for {names}: no expert of that name")
            idle = {
                name
                for name, served in serves.items()
                if not set(served) & set(router.domains)
            } - {*in_chains, fallback}
            reason = "no domain of this release"
        names = ", ".join(name for name in experts.experts if name in idle)
        return [*notes, f"{names}: {reason}; asked only by name"] if names else notes

    def models(self) -> list[str]:
        """The names that a request may give as its model: auto, then domains with an expert, then
        other experts, then aliases.
        """
        names = self._connected.links
        domains = [domain for domain in self._service.router.domains if domain in names]
        others = [name for name in names if name not in domains]
        return [AUTO, *domains, *others, *self._connected.experts.aliases]

    # The file

    def watch(self) -> None:
        """Take the file's experts if it has changed and is good; requests under way keep theirs."""
        try:
            if not self.file.refresh(self._service.router):
                return
        except (RidgewayError, OSError) as error:
            words = str(error).replace(str(self.file.path), self.file.path.name)
            log.error("new experts file refused, keeping the previous one: %s", words)
            return
        self._take()
        self._service.current.look_again()
        log.warning("%d experts are in use now", len(self._connected.links))

    def _take(self) -> None:
        """An expert that has not changed keeps its breaker and its places."""
        before = self._connected.links
        links: dict[str, ExpertLink] = {}
        metrics = self._service.metrics
        gauges = {
            metrics.expert_up: ExpertLink.is_well,
            metrics.expert_addresses_up: ExpertLink.addresses_up,
            metrics.expert_in_flight: ExpertLink.in_flight,
        }
        for name, expert in self.file.experts.experts.items():
            link = before.get(name)
            key = self.file.key(name)
            if link is None or not link.is_for(expert, key):
                link = ExpertLink(name, expert, key, metrics, self._clock)
            links[name] = link
            for gauge, measure in gauges.items():
                gauge.labels(name).set_function(partial(measure, link))
        for name in before.keys() - links.keys():
            for gauge in gauges:
                gauge.remove(name)
        self._connected = ConnectedExperts(self.file.experts, self.file.table, links)

    # One request

    async def decide(self, body: GatewayBody) -> dict[str, str]:
        """The expert that a request would go to, and why, as headers; somebody else asks it."""
        plan = await self._planner.plan(body, self._connected)
        if plan.assignment is not None:
            self._conversations.note(*plan.assignment)
        return dict(plan.headers_for(plan.first, []))

    async def answer(
        self, request: Request, endpoint: Endpoint, model: type[AnyGatewayRequest]
    ) -> Response:
        try:
            aliases = self._connected.experts.aliases
            body = await read_gateway_body(request, model, aliases)
            body = await body.under(self._service.rules, request.headers)
            return await unless_gone(request.receive, self._answer(body, endpoint))
        except ClientGone:
            return Response(status_code=CLIENT_GONE)

    async def _answer(self, body: GatewayBody, endpoint: Endpoint) -> Response:
        if endpoint == "/embeddings" and body.model == AUTO:
            body = replace(body, model=self._expert_of_embeddings())
        plan = await self._planner.plan(body, self._connected)
        link, chain, tried = plan.speaking(api_of(endpoint))
        asking = expert_request(link, body, endpoint, plan.only)
        if (account := current_request().account) is not None:
            links = [link, *(later for _, later in chain)]
            cost = max(asking.most.cost(candidate.expert) for candidate in links)
            try:
                account.reserve(sum(asking.most), cost)
            except RefusedRequest as refused:
                self._service.metrics.refusals.labels(refused.reason).inc()
                raise
        while True:
            headers = plan.headers_for(link, tried)
            current_request().log_fields |= {
                "expert": link.shown,
                "reason": headers["x-ridgeway-reason"],
            }
            answer: WholeAnswer | StreamAnswer | None
            try:
                is_last = not any("down" in step.on for step, _ in chain)
                try:
                    answer = await self._client.ask(link, asking, is_last)
                except asyncio.CancelledError:  # the expert has had the prompt
                    self._noting(len(asking.body))(link, None, 0)
                    raise
                response = self._passed_on(answer, link, asking, body, headers)
                failure = None
                reason = answer.complaint if isinstance(answer, WholeAnswer) else None
            except ExpertFailure as error:
                answer = None
                response = None
                failure = error.failed
                reason = failure.kind.reason
                let_go(len(asking.body))
            next_one = following(chain, reason, body, endpoint)
            if next_one is not None and reason is not None:
                if isinstance(answer, WholeAnswer):
                    let_go(len(asking.body) + len(answer.body))
                tried.append(TriedExpert(link, reason, failure))
                index, asking = next_one
                link, chain = chain[index][1], chain[index + 1 :]
            elif failure is not None:
                raise failure.problem(
                    headers,
                    [failed.failure for failed in tried if failed.failure is not None],
                )
            elif response is not None:
                if plan.assignment is not None:
                    key, assignment = plan.assignment
                    self._conversations.note(
                        key, assignment._replace(answered=link.name)
                    )
                return response

    def _expert_of_embeddings(self) -> str:
        name = self._connected.experts.embeddings
        if name is None:
            words = (
                "vectors of different experts cannot be compared; give the name of one"
                " as model, or let the operator name one as `embeddings` in"
                " experts.toml"
            )
            raise Problem(400, words, code="no_embeddings", param="model")
        return name

    def _passed_on(
        self,
        answer: WholeAnswer | StreamAnswer,
        link: ExpertLink,
        asking: ExpertRequest,
        body: GatewayBody,
        headers: Mapping[str, str],
    ) -> Response:
        """What the client gets."""
        if asking.endpoint == "/responses" and (
            isinstance(answer, StreamAnswer) or answer.status < 400
        ):
            beginning, address = answer.beginning
            self._owners.note_answer(
                beginning,
                Owner(link.name, address, current_request().key),
                body.goes_on_from,
            )
        if isinstance(answer, StreamAnswer):
            watch = StreamedUsage()
            began = answer.first
            answer.attempt.facts = lambda: span_facts(began, watch.usage)
            note = self._noting(len(asking.body))
            return StreamRelay(
                answer,
                headers,
                self._service.metrics.streams,
                without_usage if asking.hides_usage else bytes,
                watch.feed,
                lambda: note(link, watch.usage, watch.events),
            )
        if answer.status < 400:
            guess = len(answer.body) // BYTES_PER_TOKEN
            self._noting(len(asking.body))(link, whole_usage(answer.body), guess)
        return Response(memoryview(answer.body), answer.status, headers, JSON)

    def _noting(
        self, asked: int
    ) -> Callable[[ExpertLink, TokenUsage | None, int], None]:
        """Counts what an answer of an expert used and cost, for the key that asks now.

        What is noted is what the answer says, and a guess at its tokens; a key's budget is charged
        for one of them.
        asked: the bytes of the request.
        """
        key = current_request().key
        account = current_request().account

        def note(link: ExpertLink, usage: TokenUsage | None, answered: int) -> None:
            if account is not None:
                used = usage or estimated_usage(asked, answered)
                account.spend(sum(used), used.cost(link.expert))
            self._cost(key, link.name).inc((usage or TokenUsage()).cost(link.expert))
            for kind, tokens in usage._asdict().items() if usage is not None else ():
                self._tokens(key, link.name, kind).inc(tokens)

        return note


def gateway_api(service: RoutingService, gateway: Gateway | None) -> APIRouter:
    api = APIRouter(tags=["gateway"])
    for endpoint, model in REQUEST_SHAPES.items():
        errors = {**ERRORS, **EXPERT_ERRORS}
        api.post(
            f"/v1{endpoint}",
            responses={
                **(as_anthropics(errors) if endpoint == "/messages" else errors),
                **EXPERT_ANSWER,
            },
            openapi_extra=described(model),
            response_class=Response,
        )(_handler(gateway, endpoint, model))

    def cards() -> list[ModelCard]:
        created = int(service.current.served.since)
        return [
            ModelCard(id=name, created=created)
            for name in (gateway.models() if gateway else [])
        ]

    @api.get(
        "/v1/models",
        responses={200: {"model": ModelList}, **ERRORS},
        response_class=Response,
    )
    async def models() -> Response:
        """The names that a request can give as its model."""
        return json_answer(ModelList(data=cards()))

    @api.get(
        "/v1/models/{name:path}",
        responses={200: {"model": ModelCard}, 404: EXPERT_ERRORS[404], **ERRORS},
    )
    async def one_model(name: str) -> ModelCard:
        """One of those names."""
        for card in cards():
            if card.id == name:
                return card
        raise Problem(
            404, "there is no model of this name", code="model_not_found", param="model"
        )

    _add_unsupported(api)
    return api


def _handler(
    gateway: Gateway | None, endpoint: Endpoint, model: type[AnyGatewayRequest]
) -> Handler:
    async def passed_on(request: Request) -> Response:
        if gateway is None:
            raise Problem(
                404,
                "no experts are configured; start `ridgeway serve` with --experts",
                code="no_experts",
            )
        return await gateway.answer(request, endpoint, model)

    passed_on.__name__ = endpoint.strip("/").replace("/", "_")
    passed_on.__doc__ = (
        f"{model.__doc__} It goes to an expert, and the expert's answer comes back."
    )
    return passed_on


def _add_unsupported(api: APIRouter) -> None:
    async def unsupported(request: Request) -> Response:
        served = ", ".join(f"/v1{endpoint}" for endpoint in REQUEST_SHAPES)
        raise Problem(
            501,
            f"the gateway serves {served} only; ask an expert's own server for"
            f" {request.url.path}",
            code="not_supported",
        )

    below = [f"{name}/{{rest:path}}" for name in UNSUPPORTED]
    below += [f"{endpoint[1:]}/{{rest:path}}" for endpoint in REQUEST_SHAPES]
    for path in (*UNSUPPORTED, *below):
        api.add_api_route(
            f"/v1/{path}",
            unsupported,
            methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            include_in_schema=False,
        )
