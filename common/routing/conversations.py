"""Which domain each conversation of an application is with: what the gateway does, in a process."""

from __future__ import annotations

import hashlib
import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from statistics import fmean
from threading import Lock
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from ridgeway.common.routing.conversation import (
    TOOL_ROLES,
    Chat,
    Message,
    Turn,
    chat_messages,
    weighted_turns,
    without_harness,
)
from ridgeway.common.routing.decision import Decision, Floats, ranked
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.sentence_table import Cascade, SentenceTable
from ridgeway.common.text.sentence_encoder import SentenceFeatures

# Whether a message goes on with what its conversation is about, or is about something else.
#
# A release with a sentence encoder tells by whether the message is more like phrases that go on
# with any subject, or like openings of many subjects, in 16 languages. A release without one tells
# by how clearly the message speaks for another domain: the shorter it is, the more that takes.
# docs/research/decisions.md has the measurements.


FOLLOW_UPS = """\
and why?
why is that?
explain the second step
can you explain that in more detail?
go on
give me an example
thanks, please continue
what do you mean by that?
is that always true?
can you say that more simply?
summarise this in two sentences
and what happens next?
are you sure?
show me another way
what is the most important point here?
rewrite your answer as a list, please
I don't understand the last part, could you go through it again?
how does this relate to what you said before?
thank you, that was helpful
ok, I see
yes, please do that
no, that is not what I meant
now say it in English
make it shorter
that is better, but still too long
write it again, but without the list
I prefer the first version
I still don't understand the second paragraph
where did you get this from?
check your last answer, something is missing
now do the same with the rest
I have another question about what you just said
what about the other one?
put it into a table""".splitlines()
"""What is said in conversations of any domain."""
OPENINGS = """\
why does bread rise in the oven?
what does the word serendipity mean?
explain how a bicycle stays upright
can you explain the rules of chess in more detail?
give me an example of a mammal that lays eggs
what does Darwin mean by natural selection?
is it always cold at the south pole?
summarise the plot of Romeo and Juliet in two sentences
what happens when milk is heated?
are you sure that penguins cannot fly?
show me another way to tie a shoelace
what is the most important export of Brazil?
write a list of five vegetables that grow in winter
how does sleep relate to memory?
thank you for helping me repair the dishwasher
now say good morning in Japanese
make the lamp in the kitchen brighter
write a poem about autumn leaves
I prefer tea to coffee in the morning
I don't understand the offside rule in football
where do diamonds come from?
check my blood pressure
what about the weather in Madrid tomorrow?
put the children to bed
how do I remove a red wine stain from a carpet?
who painted the ceiling of the Sistine Chapel?
calculate the area of a triangle with a base of six
my dog has been limping since yesterday
how much does a return ticket to Lisbon cost?
translate the menu of this restaurant into French
which vitamin do oranges contain?
the engine makes a strange noise when I brake
fix the bug in my spreadsheet formula
am I allowed to park in front of a hydrant?""".splitlines()
"""What is about something, of any domain."""
CLOSER = 0.01
"""The mean cosine to follow-ups is as much above that to openings in a follow-up."""
CLEAR_LOG_ODDS = 0.25
SHORT_LOG_ODDS = 7.0
LEANING_CHARACTERS = 60
"""What it takes by the table alone."""
SHORT_CHARACTERS = 120
"""A longer message is about something."""
LEAST_SCORE = 1e-9


class Evidence(NamedTuple):
    """What a user turn alone says for leaving the domain that a conversation is with, and how much
    of that it takes.

    evidence: log p(best)/p(domain), or to the runner-up where the router had abstained; None if it
              says nothing, because the router abstains now, or all, because the domain is none of
              the router's.
    follow_up: whether it is more like follow-ups than like openings; None where no sentence encoder
               tells.
    """

    stays: bool
    evidence: float | None
    evidence_needed: float
    follow_up: bool | None = None


def evidence_to_leave(
    router: Router, decision: Decision, domain: str | None, text: str
) -> Evidence:
    """Whether a conversation leaves its domain for what the router decided on its last message.

    It stays where the router abstains, where its domain is ahead, and where a sentence encoder
    finds a message of up to 120 characters more like follow-ups than like openings. Else it leaves
    if the evidence is above 0.25. By the table alone, c characters need 7·√(1 − c/120) more,
    and the router's leaning from the domain to the best, all of it up to 60 characters, and 60/c
    with more. The first time with a router, the phrases are routed, and its sentence encoder reads
    them.

    domain: None if the router had abstained before.
    """
    if decision.abstained:
        return Evidence(True, None, CLEAR_LOG_ODDS)
    if decision.best == domain:
        return Evidence(True, 0.0, CLEAR_LOG_ODDS)
    if domain is None:
        domain = ranked(decision.scores)[1][0]
    phrases = _phrases_of(router)
    follow_up = phrases.are_like(router, text)
    needed = CLEAR_LOG_ODDS
    if follow_up is None:
        needed += phrases.needed(decision.best, domain, len(text.strip()))
    other = decision.scores.get(domain, 0.0)
    if other <= 0:
        return Evidence(bool(follow_up), None, needed, follow_up)
    evidence = math.log(decision.confidence / other)
    stays = bool(follow_up) or evidence <= needed
    return Evidence(stays, evidence, needed, follow_up)


class _Phrases(NamedTuple):
    """What a router makes of FOLLOW_UPS.

    leaning:    the mean log probability of each domain: a domain of instructions draws "and why?"
                strongly, and what draws such phrases is no evidence.
    features:   of the router's sentence encoder, if it has one.
    direction:  from openings to follow-ups: the difference of their mean vectors.
    """

    leaning: Mapping[str, float]
    features: SentenceFeatures | None
    direction: Floats | None

    def are_like(self, router: Router, text: str) -> bool | None:
        """Whether a text is a follow-up; None where no sentence encoder tells."""
        if self.features is None or self.direction is None:
            return None
        if len(text) > SHORT_CHARACTERS:
            return False
        [vector] = _vectors(router, self.features, [text])
        return bool(vector @ self.direction >= CLOSER)

    def needed(self, best: str, domain: str, characters: int) -> float:
        few = math.sqrt(max(0.0, 1 - characters / SHORT_CHARACTERS))
        drawn = self.leaning[best] - self.leaning.get(domain, 0.0)
        part = min(1.0, LEANING_CHARACTERS / max(characters, 1))
        return SHORT_LOG_ODDS * few + drawn * part


_known: WeakKeyDictionary[Router, _Phrases] = WeakKeyDictionary()
"""Of the routers that are in use; one that is replaced is not kept by this."""


def _phrases_of(router: Router) -> _Phrases:
    if router not in _known:
        decisions = router.route_many(FOLLOW_UPS)
        leaning = {
            name: fmean(
                math.log(max(decision.scores[name], LEAST_SCORE))
                for decision in decisions
            )
            for name in router.domains
        }
        features = _features(router)
        direction = None
        if features is not None:
            goes_on = _vectors(router, features, FOLLOW_UPS).mean(axis=0)
            opens = _vectors(router, features, OPENINGS).mean(axis=0)
            direction = goes_on - opens
        _known[router] = _Phrases(leaning, features, direction)
    return _known[router]


def _features(router: Router) -> SentenceFeatures | None:
    table = router.compiled
    if isinstance(table, Cascade):
        table = table.sentences
    return table.features if isinstance(table, SentenceTable) else None


def _vectors(
    router: Router, features: SentenceFeatures, texts: Sequence[str]
) -> Floats:
    """The sentence vectors of texts, of norm 1."""
    read = features.text_features(router.reader.read(texts))
    vectors = read[:, : features.encoder.width]
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    directions: Floats = vectors / np.maximum(norms, 1.0)
    return directions


# What a request says of its conversation: what is routed of it, cut to its size, and the digest by
# which the conversation is found again.


MAX_ROUTED_CHARACTERS = 32_768
"""Of a prompt, and of a chat's weightiest turn."""
MAX_EARLIER_CHARACTERS = 8192
"""Of every other turn of a chat: each weighs an eighth of the one after it, or less."""
_NUMBERS = re.compile(r"\d+")


class CutTurns(NamedTuple):
    """Turns as they are routed, and how many of their characters are left out."""

    turns: list[Turn]
    left_out: int


def cut(text: str, most: int = MAX_ROUTED_CHARACTERS) -> str:
    """The text, or its first and last characters, a line's end between them: `most` in all.

    Law: a cut text is cut no further, begins and ends as the text does, and is as long as a text
    may be.
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[: half - 1]}\n{text[-(most - half) :]}"


def cut_turns(turns: Sequence[Turn]) -> CutTurns:
    """The turns of a chat, the weightiest first; of equal weight, they share what a prompt may
    have.
    """
    if len(turns) == 1 and len(turns[0].text) <= MAX_ROUTED_CHARACTERS:
        return CutTurns(list(turns), 0)
    first = max(1, sum(turn.weight == turns[0].weight for turn in turns))
    most = max(MAX_ROUTED_CHARACTERS // first, 2)
    rest = most if first > 1 else MAX_EARLIER_CHARACTERS
    kept = [
        Turn(cut(turn.text, rest if number else most), turn.weight)
        for number, turn in enumerate(turns)
    ]
    return CutTurns(
        kept,
        sum(len(turn.text) for turn in turns) - sum(len(turn.text) for turn in kept),
    )


class Exchange(NamedTuple):
    """What a request says of its conversation.

    found_by:   the digest of the messages up to the user message before the last one, or up to the
                last one while tools are being used; None where the conversation begins.
    noted_as:   the digest of the messages up to the last user message: what the next request will
                be found by.
    turns:      what is routed now: everything, or up to the last user message while tools are being
                used.
    before:     what was routed for the user message before; None if this is the first one.
    uses_tools: whether this goes on with what an expert asked tools for: then it goes to that
                expert.
    """

    found_by: bytes | None
    noted_as: bytes
    turns: CutTurns
    before: CutTurns | None
    uses_tools: bool


def exchange_of(
    messages: Sequence[Message], names: Sequence[str] = (), session: str = ""
) -> Exchange:
    """A chat as a conversation of a client; `messages` with tool results have a role of their own.

    names:   whose conversation it is: the client's key, its user, and the like.
    session: the name of the conversation; without one, its messages name it.
    """
    said = [_message_of(*message) for message in messages]
    users = [number for number, (role, _) in enumerate(said) if role == "user"]
    last = users[-1] if users else len(said) - 1
    uses_tools = any(role in TOOL_ROLES for role, _ in said[last + 1 :])
    now = said[: last + 1] if uses_tools else said
    before = said[: users[-2] + 1] if len(users) > 1 else None
    earlier = said[: last + 1] if uses_tools else before
    found_by = None if earlier is None else _name(earlier, names)
    noted_as = _name(said[: last + 1], names)
    if session:
        noted_as = digest("session", *names, session)
        found_by = noted_as
    return Exchange(
        found_by,
        noted_as,
        cut_turns(weighted_turns(now)),
        None if before is None else cut_turns(weighted_turns(before)),
        uses_tools,
    )


def _message_of(role: str, text: str) -> Message:
    """A message without what a harness added; one that says nothing else is a tool's."""
    said = without_harness(text)
    return ("tool" if text.strip() and not said.strip() else role), said


def _name(messages: Sequence[Message], names: Sequence[str]) -> bytes:
    """The digest of what was said. Tools' results are left out, since clients shorten old ones, and
    the numbers of system prompts, which tell the time.
    """
    parts: list[str] = []
    for role, text in messages:
        if role in TOOL_ROLES:
            continue
        plain = text if role in ("user", "assistant") else _NUMBERS.sub("", text)
        parts += (role, plain.strip())
    return digest("messages", *names, *parts)


def digest(*parts: str) -> bytes:
    """A name of 16 bytes; parts that are divided otherwise have another one."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part.encode(errors="replace")
        hashed.update(len(content).to_bytes(8, "big"))
        hashed.update(content)
    return hashed.digest()


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
