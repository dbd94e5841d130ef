"""Which domain each conversation of an application is with: what the gateway does, in a process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple, Protocol

from ridgeway.common.routing.conversation import Chat, chat_messages
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.exchange import Exchange, exchange_of
from ridgeway.common.routing.follow_ups import evidence_to_leave
from ridgeway.common.routing.router import Router

MAX_CONVERSATIONS = 100_000


class HasRouter(Protocol):
    """What has another router from time to time, as `Router.follow` does."""

    @property
    def router(self) -> Router: ...


class ConversationTurn(NamedTuple):
    """Where a chat goes now.

    domain:   of the chat; where the router abstained, the fallback's name, or None.
    stayed:   whether it stays where it was, whatever its last message says by itself.
    decision: on the chat, or on its last message alone if it goes on.
    """

    domain: str | None
    stayed: bool
    decision: Decision


class Conversations:
    """Routes chats, each of which stays with its domain until it is about something else.

    A chat is found again by a digest of what was said in it. Kept are digests and domains of the
    last 100,000 turns, and no text. Threads may share it.
    """

    def __init__(self, router: Router | HasRouter) -> None:
        self._router = router
        self._domains: OrderedDict[bytes, str | None] = OrderedDict()
        self._lock = Lock()

    def route(
        self, messages: Chat, *, names: Sequence[str] = (), session: str = ""
    ) -> ConversationTurn:
        """Where a chat should go, of which `messages` are all so far.

        names:   whose chat it is, such as a user's id: chats of others are never mixed up with it.
        session: the name of the chat, if it has one: then its messages need not be all.
        """
        return self.route_exchange(exchange_of(chat_messages(messages), names, session))

    def route_exchange(self, exchange: Exchange) -> ConversationTurn:
        """The same of a request that is read already."""
        router = (
            self._router if isinstance(self._router, Router) else self._router.router
        )
        with self._lock:
            is_known = exchange.found_by in self._domains
            held = self._domains.get(exchange.found_by or b"")
        if not is_known and exchange.before is not None:
            before = router.route_turns(exchange.before.turns)
            is_known = True
            held = None if before.abstained else before.best
        turns = exchange.turns.turns[:1] if is_known else exchange.turns.turns
        decision = router.route_turns(turns)
        domain = None if decision.abstained else decision.best
        stayed = is_known and (
            exchange.uses_tools
            or evidence_to_leave(router, decision, held, turns[0].text).stays
        )
        if stayed:
            domain = held
        with self._lock:
            self._domains[exchange.noted_as] = domain
            self._domains.move_to_end(exchange.noted_as)
            if len(self._domains) > MAX_CONVERSATIONS:
                self._domains.popitem(last=False)
        return ConversationTurn(
            router.confidence.fallback if domain is None else domain, stayed, decision
        )
