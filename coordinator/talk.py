"""Asking holders: one signed request to many, their answers checked one by one as they come.

Whoever answers wrongly is refused by name in the ledger and whoever does not answer is noted as absent; neither stops
the others. Knows messages and the ledger. Knows nothing of what is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from common.errors import BoundExceeded, BrokenIdentity, Refused, ShapeMismatch, StatisticsError
from common.messages import Blob, Message, Opened, Packet, Refusal, open_packet, seal_packet
from coordinator.federation import Federation

CODES: dict[type[StatisticsError], str] = {
    ShapeMismatch: "shape_mismatch",
    BoundExceeded: "over_bound",
    BrokenIdentity: "broken_identity",
}

Watch = Callable[[str, Mapping[str, Any]], None]
Reply = TypeVar("Reply", bound=Message)
Take = Callable[[str, Reply, Sequence[Blob]], None]
"""Uses one holder's answer and its bulk; raises if it is not acceptable."""


class Transport(Protocol):
    """The network as a round sees it: somebody's peers, and packets to and from them."""

    def peers(self) -> Sequence[int]:
        """Who can be reached now."""

    def exchange(self, packets: Mapping[int, Packet], seconds: float) -> Iterator[tuple[int, Packet | None]]:
        """Send some peers a packet each, and yield what they answer as it comes, until all have or the time is up.

        None stands for a peer that is known to have failed. Answers may be late, repeated or anything at all.
        """


class Talk:
    """One round's conversation. Knows which peer is which holder once the holder has signed something.

    last_request: the digest of what was asked last, where all were asked the same.
    """

    def __init__(self, federation: Federation, transport: Transport, nonce: str, watch: Watch) -> None:
        self._federation, self._transport, self._watch = federation, transport, watch
        self.nonce = nonce
        self.peer_of: dict[str, int] = {}
        self.silent: set[str] = set()
        self.last_refusal = ""
        self.last_request = ""
        self._names = {holder.key: name for name, holder in federation.ledger.standing().roster.items()}

    def ask(
        self,
        message: Message,
        expected: type[Reply],
        take: Take[Reply],
        *,
        names: Collection[str] | None = None,
        blobs: Sequence[Blob] = (),
        own_blobs: Mapping[str, Sequence[Blob]] | None = None,
        seconds: float | None = None,
    ) -> set[str]:
        """Ask these holders, or all peers, and take in each answer; returns who gave one that was taken.

        own_blobs: where the bulk is not the same for all, each one's by its name.
        """
        names = names if own_blobs is None else list(own_blobs)
        packets = self._packets(message, names, blobs, own_blobs)
        asked = {packet.digest for packet in set(packets.values())}
        self.last_request = next(iter(asked), "")
        deadline = self._federation.settings.round.deadline
        heard: set[str] = set()
        refused: set[str] = set()
        for peer, answer in self._transport.exchange(packets, min(seconds or deadline, deadline)):
            if answer is None:
                continue
            name: str | None = None
            try:
                opened = open_packet(answer)
                name = self._names.get(opened.sender)
                if name is None:
                    raise Refused("unknown_holder", f"the key {opened.sender[:12]}… is not on the roster")
                self._check(opened, asked, name, heard, names)
                self.peer_of[name] = peer
                take(name, _expected(opened, expected), opened.blobs)
                heard.add(name)
            except (Refused, StatisticsError) as error:
                refused |= {name} if name is not None and name not in heard else set()
                self._refuse(message.kind, name, error)
        self._miss(message.kind, names, heard | refused)
        return heard

    def _packets(
        self,
        message: Message,
        names: Collection[str] | None,
        blobs: Sequence[Blob],
        own_blobs: Mapping[str, Sequence[Blob]] | None,
    ) -> dict[int, Packet]:
        def sealed(bulk: Sequence[Blob]) -> Packet:
            return seal_packet(message, self._federation.identity, round=self.nonce, blobs=bulk)

        if own_blobs is not None:
            return {self.peer_of[name]: sealed(own_blobs[name]) for name in sorted(own_blobs)}
        peers = self._transport.peers() if names is None else [self.peer_of[name] for name in sorted(names)]
        return dict.fromkeys(peers, sealed(blobs))

    def _check(
        self,
        opened: Opened,
        asked: Collection[str],
        name: str,
        heard: Collection[str],
        names: Collection[str] | None,
    ) -> None:
        if opened.round != self.nonce and isinstance(opened.message, Refusal) and opened.reply_to in asked:
            return  # a holder that could not read the request does not know the round
        if opened.round != self.nonce or opened.reply_to not in asked:
            raise Refused("late", "an answer to an earlier request came late, or was repeated")
        if name in heard:
            raise Refused("duplicate", "a second answer to the same request")
        if names is not None and name not in names:
            raise Refused("not_asked", "an answer from a holder that was not asked")

    def _refuse(self, step: str, name: str | None, error: Refused | StatisticsError) -> None:
        code = error.code if isinstance(error, Refused) else CODES.get(type(error), "broken_identity")
        facts = {"step": step, "name": name, "code": code, "reason": str(error)}
        self.last_refusal = f"{name or 'someone unknown'}: {error}"
        self._federation.ledger.note("refused", round=self.nonce, **facts)
        self._watch("refused", facts)

    def _miss(self, step: str, names: Collection[str] | None, answered: Collection[str]) -> None:
        wanted = set(self._federation.ledger.standing().active) if names is None else set(names)
        missing = sorted(wanted - set(answered))
        self.silent |= set(missing)
        if missing:
            self._federation.ledger.note("absent", round=self.nonce, step=step, names=missing)
            self._watch("absent", {"step": step, "names": missing})


def _expected(opened: Opened, expected: type[Reply]) -> Reply:
    """The reply that was asked for; a refusal, and anything else, is raised."""
    if isinstance(opened.message, Refusal):
        raise Refused(opened.message.code, opened.message.reason)
    if not isinstance(opened.message, expected):
        raise Refused("malformed", f"{expected.kind} was asked for, not {opened.message.kind}")
    return opened.message
