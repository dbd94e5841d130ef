"""Who is asked: the expert that a request is routed to, or that its conversation is with, and those
in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ridgeway.common.experts.expert_choice import ExpertChoice, ExpertChooser, Reason
from ridgeway.common.experts.experts_file import (
    AUTO,
    Experts,
    FallbackReason,
    FallbackStep,
)
from ridgeway.common.http.http_errors import Problem
from ridgeway.common.http.request_context import current_request
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.exchange import Exchange
from ridgeway.common.routing.follow_ups import evidence_to_leave
from ridgeway.common.routing.quality import QualityTable
from ridgeway.common.routing.router import Router
from ridgeway.common.serve.gateway.expert_link import (
    Endpoint,
    ExpertLink,
    in_a_header,
)
from ridgeway.common.serve.gateway.failures import FailedExpert
from ridgeway.common.serve.gateway.translation import AskedExpert, asked_expert
from ridgeway.common.serve.recent_notes import (
    Assignment,
    RecentNotes,
    ResponseOwners,
)
from ridgeway.common.serve.request_bodies import GatewayBody
from ridgeway.common.serve.routing.routing_service import NO_DOMAIN, RoutingService
from ridgeway.common.serve.rules import ruled_decision

Chain = Sequence[tuple[FallbackStep, ExpertLink]]
UNTRANSLATABLE: Literal["untranslatable"] = "untranslatable"
"""Why another expert is asked than the one whose API has no place for a request."""
MAX_NAMES_SHOWN = 16
MAX_NAME_SHOWN = 64


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
            found = ExpertChooser(
                self.experts, router.domains, self.table or router.quality
            )
            self.choosers.clear()
            self.choosers[router.release] = found
        return found


@dataclass(frozen=True, slots=True)
class ForwardingPlan:
    """The expert to ask, those to ask in its place, and what the answer's headers say of the
    decision.

    only: the number of the one address that can answer.
    assignment: where the conversation is from now on, and its digest.
    """

    first: ExpertLink
    reason: Reason
    headers: Mapping[str, str]
    chain: Chain = ()
    only: int | None = None
    assignment: tuple[bytes, Assignment] | None = None

    def headers_for(
        self,
        link: ExpertLink,
        tried: Sequence[TriedExpert],
        dropped: Sequence[str] = (),
    ) -> dict[str, str]:
        """What an answer of this expert says, after others could not give one, and without some
        fields of the request.
        """
        own: dict[str, str] = {
            "x-ridgeway-expert": link.shown,
            "x-ridgeway-reason": self.reason,
        }
        if tried:
            own["x-ridgeway-reason"] = tried[0].reason
            own["x-ridgeway-tried"] = ", ".join(
                f"{each.link.shown} {each.reason}" for each in tried
            )
        if dropped:
            names = [in_a_header(name[:MAX_NAME_SHOWN]) for name in dropped]
            own["x-ridgeway-dropped"] = ", ".join(names[:MAX_NAMES_SHOWN])
        return {**self.headers, **own}


@dataclass(frozen=True, slots=True)
class TriedExpert:
    """An expert that could not answer, and why; failure: None where its answer was that the prompt
    is too long, or where it was not asked.
    """

    link: ExpertLink
    reason: FallbackReason | Literal["untranslatable"]
    failure: FailedExpert | None


def following(
    chain: Chain, reason: str | None, body: GatewayBody, endpoint: Endpoint
) -> tuple[int, AskedExpert] | None:
    """The place in a chain of the next expert that is there for this reason and can be asked such a
    thing.
    """
    for place, (step, link) in enumerate(chain):
        if reason == UNTRANSLATABLE or reason in step.on:
            with contextlib.suppress(Problem):
                return place, asked_expert(link, body, endpoint)
    return None


def _new_assignment(decision: Decision, choice: ExpertChoice) -> Assignment:
    domain = None if decision.abstained else decision.best
    return Assignment(domain, choice.expert, choice.expert)


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
            is_own = owner.key == current_request().key
        else:
            is_own = body.goes_on_from is None or current_request().is_only_key
        if not is_own:
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
            link = connected.links[assignment.answered]
            return ForwardingPlan(
                link, "sticky", release, assignment=(body.exchange.noted_as, assignment)
            )
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
        elif assignment is None or choice.expert != assignment.expert:
            assignment = _new_assignment(decision, choice)
        headers = {
            "x-ridgeway-domain": in_a_header(decision.domain or NO_DOMAIN),
            "x-ridgeway-confidence": f"{decision.confidence:.4f}",
            "x-ridgeway-router": decision.router,
            "x-ridgeway-release": served.id,
        }
        if body.routed.left_out:
            headers["x-ridgeway-left-out"] = str(body.routed.left_out)
        steps = connected.experts.chain(choice.expert, chooser.peers(decision))
        chain = [(step, connected.links[step.expert]) for step in steps]
        named = None if body.exchange is None else (body.exchange.noted_as, assignment)
        return ForwardingPlan(
            connected.links[choice.expert],
            choice.reason,
            headers,
            chain,
            assignment=named,
        )

    async def _assignment(
        self, exchange: Exchange, connected: ConnectedExperts
    ) -> Assignment | None:
        """Where a conversation is; if that is not known, where it must have been when its user
        spoke before.
        """
        assignment = (
            None
            if exchange.found_by is None
            else self._conversations.find(exchange.found_by)
        )
        if assignment is None and exchange.before is not None:
            served, decision = await self._service.threads.route_turns(
                exchange.before.turns
            )
            choice = connected.chooser(served.router).choose(decision)
            if choice is not None:
                assignment = _new_assignment(decision, choice)
        return (
            assignment
            if assignment is not None and assignment.expert in connected.links
            else None
        )

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
