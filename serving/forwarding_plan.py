"""Who is asked: the expert that a request is routed to, or that its conversation is with, and those
in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ridgeway.common.routing.conversations import Exchange, evidence_to_leave
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.expert_choice import ExpertChoice, ExpertChooser, Reason
from ridgeway.common.routing.experts_file import (
    AUTO,
    Api,
    Experts,
    FallbackReason,
    FallbackStep,
)
from ridgeway.common.routing.quality import QualityTable
from ridgeway.common.routing.router import Router
from ridgeway.common.web.http_errors import Problem
from ridgeway.common.web.request_context import current_request
from ridgeway.serving.expert_client import (
    ExpertRequest,
    expert_request,
)
from ridgeway.serving.expert_link import (
    Endpoint,
    ExpertLink,
    FailedExpert,
    in_a_header,
)
from ridgeway.serving.recent_notes import (
    Assignment,
    RecentNotes,
    ResponseOwners,
)
from ridgeway.serving.request_bodies import GatewayBody
from ridgeway.serving.routing_service import (
    RoutingService,
    decision_headers,
)
from ridgeway.serving.rules import ruled_decision

Chain = Sequence[tuple[FallbackStep, ExpertLink]]
API_NAMES: Mapping[Api, str] = {"openai": "OpenAI's", "anthropic": "Anthropic's"}


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
        chooser = self.choosers.get(router.release)
        if chooser is None:
            chooser = ExpertChooser(
                self.experts, router.domains, self.table or router.quality
            )
            self.choosers.clear()
            self.choosers[router.release] = chooser
        return chooser

    def chain(self, steps: Iterable[FallbackStep]) -> Chain:
        return [(step, self.links[step.expert]) for step in steps]

    def of_domain(
        self, domain: str | None, chooser: ExpertChooser
    ) -> Sequence[ExpertLink]:
        """The experts that serve a domain, the worthiest first."""
        names = [] if domain is None else chooser.of_domain(domain)
        return [self.links[name] for name in names]


@dataclass(frozen=True, slots=True)
class ForwardingPlan:
    """The expert to ask, those to ask in its place, and what the answer's headers say of the
    decision.

    domain: the one that the request belongs to, and peers: its other experts, the worthiest first.
    only: the number of the one address that can answer.
    assignment: where the conversation is from now on, and its digest.
    """

    first: ExpertLink
    reason: Reason
    headers: Mapping[str, str]
    chain: Chain = ()
    domain: str | None = None
    peers: Sequence[ExpertLink] = ()
    only: int | None = None
    assignment: tuple[bytes, Assignment] | None = None

    def speaking(self, api: Api) -> tuple[ExpertLink, Chain, list[TriedExpert]]:
        """Whom a client of this API asks, those in its place, and the expert that it would have
        been, if that one does not speak the API.

        Then the domain's other experts are asked, or whom the file lets answer for that reason;
        raises Problem if there are none.
        """
        chain = [entry for entry in self.chain if api in entry[1].expert.apis]
        if api in self.first.expert.apis:
            return self.first, chain, []
        tried = [TriedExpert(self.first, "api", None)]
        for link in self.peers:
            if api in link.expert.apis:
                return link, [entry for entry in chain if entry[1] is not link], tried
        for number, (step, link) in enumerate(chain, 1):
            if "api" in step.on:
                return link, chain[number:], tried
        raise self._unspoken(api)

    def _unspoken(self, api: Api) -> Problem:
        who = (
            f"the expert {self.first.name!r} does not speak"
            if self.domain is None
            else f"no expert for the domain {self.domain!r} speaks"
        )
        other = API_NAMES["openai" if api == "anthropic" else "anthropic"]
        words = (
            f"{who} {API_NAMES[api]} API, only {other}; ask through that one, or let the"
            " operator put LiteLLM before the expert, as docs/application/gateway.md"
            " shows"
        )
        return Problem(
            400, words, code="api_not_spoken", param="model", headers=self.headers
        )

    def headers_for(
        self, link: ExpertLink, tried: Sequence[TriedExpert]
    ) -> dict[str, str]:
        """What an answer of this expert says, after others could not give one."""
        headers: dict[str, str] = {
            **self.headers,
            "x-ridgeway-expert": link.shown,
            "x-ridgeway-reason": self.reason,
        }
        if tried:
            headers["x-ridgeway-reason"] = tried[0].reason
            headers["x-ridgeway-tried"] = ", ".join(
                f"{failed.link.shown} {failed.reason}" for failed in tried
            )
        return headers


@dataclass(frozen=True, slots=True)
class TriedExpert:
    """An expert that could not answer, and why; failure: None where its answer was that the prompt
    is too long, or where it was not asked.
    """

    link: ExpertLink
    reason: FallbackReason
    failure: FailedExpert | None


def following(
    chain: Chain, reason: str | None, body: GatewayBody, endpoint: Endpoint
) -> tuple[int, ExpertRequest] | None:
    """The index in a chain of the next expert that is there for this reason and can be asked such a
    thing.
    """
    for index, (step, link) in enumerate(chain):
        if reason in step.on:
            with contextlib.suppress(Problem):
                return index, expert_request(link, body, endpoint)
    return None


def _domain(decision: Decision) -> str | None:
    return None if decision.abstained else decision.best


def _new_assignment(decision: Decision, choice: ExpertChoice) -> Assignment:
    return Assignment(_domain(decision), choice.expert, choice.expert)


@dataclass(frozen=True, slots=True)
class ForwardingPlanner:
    """Makes plans; `owners` and `conversations` say where a response lies and a conversation is."""

    _service: RoutingService
    _owners: ResponseOwners
    _conversations: RecentNotes[Assignment]

    async def plan(
        self, body: GatewayBody, connected: ConnectedExperts
    ) -> ForwardingPlan:
        release = {"x-ridgeway-release": self._service.current.served.id}
        owner = self._owners.find(body.goes_on_from)
        if owner is not None:
            may_go_on = owner.key == current_request().key
        else:
            may_go_on = body.goes_on_from is None or current_request().is_only_key
        if not may_go_on:
            words = "there is no response or conversation of this name"
            raise Problem(
                404, words, code="response_not_found", param="previous_response_id"
            )
        if (
            owner is not None
            and body.model in (AUTO, owner.expert)
            and owner.expert in connected.links
        ):
            return ForwardingPlan(
                connected.links[owner.expert], "sticky", release, only=owner.address
            )
        if body.routed is None:
            return self._forced(body.model, connected)
        assignment = (
            None
            if body.exchange is None
            else await self._assignment(body.exchange, connected)
        )
        if (
            body.exchange is not None
            and body.exchange.uses_tools
            and assignment is not None
            and assignment.answered in connected.links
        ):
            return self._of_tools(assignment, body.exchange, connected)
        turns = body.routed.turns if assignment is None else body.routed.turns[:1]
        if body.ruled is None:
            served, decision = await self._service.decide(turns)
        else:
            served = self._service.current.served
            decision = ruled_decision(served.router, body.ruled)
        chooser = connected.chooser(served.router)
        choice = chooser.choose(decision)
        if choice is None:  # release and experts have both just changed
            raise Problem(
                503,
                "there is no expert for this request now; try again",
                code="no_expert",
            )
        domain = _domain(decision)
        if body.ruled is not None:
            choice = ExpertChoice(choice.expert, "rule")
            assignment = _new_assignment(decision, choice)
        elif (
            assignment is not None
            and choice.expert != assignment.expert
            and (
                await asyncio.to_thread(
                    evidence_to_leave,
                    served.router,
                    decision,
                    assignment.domain,
                    turns[0].text,
                )
            ).stays
        ):
            choice = ExpertChoice(assignment.expert, "sticky")
            domain = assignment.domain
        elif assignment is None or choice.expert != assignment.expert:
            assignment = _new_assignment(decision, choice)
        headers = decision_headers(served, decision)
        headers["x-ridgeway-domain"] = in_a_header(headers["x-ridgeway-domain"])
        if body.routed.left_out:
            headers["x-ridgeway-left-out"] = str(body.routed.left_out)
        steps = connected.experts.chain(choice.expert, chooser.peers(decision))
        named = None if body.exchange is None else (body.exchange.noted_as, assignment)
        return ForwardingPlan(
            connected.links[choice.expert],
            choice.reason,
            headers,
            connected.chain(steps),
            domain,
            connected.of_domain(domain, chooser),
            assignment=named,
        )

    def _of_tools(
        self, assignment: Assignment, exchange: Exchange, connected: ConnectedExperts
    ) -> ForwardingPlan:
        """Results of tools go to the expert that asked for them; where that is not known any more,
        it spoke the client's API.
        """
        served = self._service.current.served
        steps = connected.experts.experts[assignment.answered].fallbacks or ()
        chooser = connected.chooser(served.router)
        return ForwardingPlan(
            connected.links[assignment.answered],
            "sticky",
            {"x-ridgeway-release": served.id},
            connected.chain(
                FallbackStep(expert=step.expert, on=("api",))
                for step in steps
                if "api" in step.on
            ),
            assignment.domain,
            connected.of_domain(assignment.domain, chooser),
            assignment=(exchange.noted_as, assignment),
        )

    async def _assignment(
        self, exchange: Exchange, connected: ConnectedExperts
    ) -> Assignment | None:
        """Where a conversation is; if that is not known, where it must have been when its user
        spoke before.
        """
        assignment = None
        if exchange.found_by is not None:
            assignment = self._conversations.find(exchange.found_by)
        if assignment is None and exchange.before is not None:
            served, decision = await self._service.threads.route_turns(
                exchange.before.turns
            )
            choice = connected.chooser(served.router).choose(decision)
            if choice is not None:
                assignment = _new_assignment(decision, choice)
        if assignment is None or assignment.expert not in connected.links:
            return None
        return assignment

    def _forced(self, model: str, connected: ConnectedExperts) -> ForwardingPlan:
        """A client that names an expert gets that one or an error, never another in its place."""
        link = connected.links.get(model)
        if link is None:
            words = (
                "there is no model of this name; GET /v1/models lists those there are"
            )
            raise Problem(404, words, code="model_not_found", param="model")
        served = self._service.current.served
        headers = {"x-ridgeway-release": served.id}
        if model in served.router.domains:
            headers["x-ridgeway-domain"] = link.shown
        return ForwardingPlan(link, "forced", headers)
