"""Asking holders: one signed request to many of them, and their answers, checked one by one as they
come.

A wrong answer is refused, and noted in the ledger by the holder's name; a holder that does not
answer is noted as absent; neither stops the others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

from ridgeway.common.base.errors import (
    BoundExceeded,
    BrokenIdentity,
    Refused,
    RoundFailed,
    ShapeMismatch,
    StatisticsError,
)
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.records import Mode, Record
from ridgeway.common.protocol.messages import DISK_FULL, Message, Refusal
from ridgeway.common.protocol.packet import (
    Blob,
    Opened,
    Packet,
    open_packet,
    seal_packet,
)
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.progress import (
    AWAY,
    BUNDLE,
    LEFT,
    NO_ANSWER,
    AnswerRefused,
    ExchangeDone,
    HoldersAbsent,
    PeerFailed,
    Watch,
    why,
)

CODES: dict[type[StatisticsError], str] = {
    ShapeMismatch: "shape_mismatch",
    BoundExceeded: "over_bound",
    BrokenIdentity: "broken_identity",
}

Reply = TypeVar("Reply", bound=Message)
NOT_APPROVED = "has not approved the bundle"
"""What the guard of a holder's SuperNode says of code that its owner has not approved."""
NO_SPACE = os.strerror(errno.ENOSPC)
"""What Flower says where it finds no room itself."""


@dataclass(frozen=True, slots=True)
class PeerFailure:
    """What Flower reports of a peer instead of an answer."""

    code: int
    reason: str


PeerAnswer = Packet | PeerFailure | None
"""What comes back from a peer; None where it has failed and nobody knows why."""


class Transport(Protocol):
    """The network as a round sees it: peers, and packets to and from them."""

    def peers(self) -> Sequence[int]:
        """The peers that can be reached now."""

    def exchange(
        self, packets: Mapping[int, Packet], seconds: float
    ) -> Iterator[tuple[int, PeerAnswer]]:
        """Send some peers a packet each, and yield what they answer as it comes, until all have or
        the time is up.

        Answers may be late, repeated or anything at all.
        """


@dataclass(slots=True, eq=False, repr=False)
class HolderAnswer(Generic[Reply]):
    """A holder's answer to a request: signed by it, and of the type that was asked for."""

    name: str
    message: Reply
    blobs: Sequence[Blob]
    error: Refused | StatisticsError | None = None

    @contextlib.contextmanager
    def accept(self) -> Iterator[None]:
        """Use the answer within this block. What the block raises refuses the answer, and the next
        one is looked at.
        """
        try:
            yield
        except (Refused, StatisticsError) as error:
            self.error = error


class Channel:
    """One round's exchange with the holders. Whose answer it is, only a signature proves.

    Before that, the SuperLink's list of nodes says which peer is whose: enough to leave retired
    holders alone, and to name one whose SuperNode fails.

    number:       the round's number in the ledger, which every request names; 0 outside of rounds.
    silent:       the holders that did not answer some request.
    refusals:     the code and the words of each holder's last refusal, or of why its answer was
                  refused or missing.
    last_request: the digest of what was asked last, where all were asked the same.
    """

    def __init__(
        self, federation: Federation, transport: Transport, nonce: str, watch: Watch
    ) -> None:
        self.federation = federation
        self.watch = watch
        self._transport = transport
        self.nonce = nonce
        self.number = 0
        self.peer_of: dict[str, int] = {}
        self.silent: set[str] = set()
        self.last_refusal = ""
        self.refusals: dict[str, tuple[str, str]] = {}
        self.last_request = ""
        standing = federation.standing
        self._names = {holder.key: name for name, holder in standing.roster.items()}
        self._all_names = standing.names
        self.nodes = federation.nodes()
        self._left_out = {
            peer for peer, name in self.nodes.items() if name not in standing.active
        }

    def peers(self) -> list[int]:
        """The peers that can be reached now, without those of retired holders."""
        return [peer for peer in self._transport.peers() if peer not in self._left_out]

    def ask(
        self,
        message: Message,
        expected: type[Reply],
        *,
        names: Collection[str] | None = None,
        blobs: Sequence[Blob] = (),
        blobs_of: Mapping[str, Sequence[Blob]] | None = None,
        seconds: float | None = None,
    ) -> Iterator[HolderAnswer[Reply]]:
        """Ask these holders, or all peers, and yield each one's first answer that stands up; use it
        within `accept`.

        blobs_of: where the bulk is not the same for all, each one's by its name.
        """
        began = time.monotonic()
        names = names if blobs_of is None else list(blobs_of)
        packets = self._packets(message, names, blobs, blobs_of)
        asked = {packet.digest for packet in set(packets.values())}
        self.last_request = next(iter(asked), "")
        deadline = self.federation.settings.round.deadline
        accepted: set[str] = set()
        refused: set[str] = set()
        for peer, packet in self._transport.exchange(
            packets, min(seconds or deadline, deadline)
        ):
            if isinstance(packet, PeerFailure):
                refused |= self._fail(message.kind, self.nodes.get(peer), packet)
            if not isinstance(packet, Packet):
                continue
            name: str | None = None
            try:
                opened = open_packet(packet)
                name = self._names.get(opened.sender)
                if name is None:
                    raise Refused(
                        "unknown_holder",
                        f"the key {opened.sender[:12]}… is not on the roster",
                    )
                self._check(opened, asked, name, accepted, names)
                self.peer_of[name] = peer
                answer = HolderAnswer(name, _expected(opened, expected), opened.blobs)
                yield answer
                if answer.error is not None:
                    raise answer.error
                accepted.add(name)
            except (Refused, StatisticsError) as error:
                if name is not None and name not in accepted:
                    refused.add(name)
                self._refuse(message.kind, name, error)
        wanted = self.federation.standing.active if names is None else names
        missing = set(wanted) - accepted - refused
        self.silent |= missing
        reached = {self.nodes.get(peer) for peer in packets}
        self.refusals |= {
            name: (NO_ANSWER if name in reached else AWAY, "") for name in missing
        }
        self.note_absent(message.kind, missing)
        seconds = round(time.monotonic() - began, 3)
        self.watch(ExchangeDone(message.kind, len(accepted), seconds))

    def _packets(
        self,
        message: Message,
        names: Collection[str] | None,
        blobs: Sequence[Blob],
        blobs_of: Mapping[str, Sequence[Blob]] | None,
    ) -> dict[int, Packet]:
        identity = self.federation.identity
        sealed = partial(
            seal_packet, message, identity, round=self.nonce, number=self.number
        )
        if names is None:
            return dict.fromkeys(self.peers(), sealed(blobs=blobs))
        if blobs_of is None:
            peers = (self.peer_of[name] for name in sorted(names))
            return dict.fromkeys(peers, sealed(blobs=blobs))
        return {
            self.peer_of[name]: sealed(blobs=blobs)
            for name, blobs in sorted(blobs_of.items())
        }

    def _check(
        self,
        opened: Opened[Message],
        asked: Collection[str],
        name: str,
        accepted: Collection[str],
        names: Collection[str] | None,
    ) -> None:
        # a holder that could not read the request does not know the round
        is_refusal = isinstance(opened.message, Refusal)
        if opened.round != self.nonce and is_refusal and opened.reply_to in asked:
            return
        if opened.round != self.nonce or opened.reply_to not in asked:
            raise Refused("late", "a late or repeated answer to an earlier request")
        if name in accepted:
            raise Refused("duplicate", "a second answer to the same request")
        if names is not None and name not in names:
            raise Refused("not_asked", "an answer from a holder that was not asked")

    def _refuse(
        self, step: str, name: str | None, error: Refused | StatisticsError
    ) -> None:
        reason = str(error)
        if isinstance(error, Refused):
            code = error.code
            # the holders that it is about, by the names that the operator knows
            if error.keys:
                names = (self._all_names.get(key, f"{key[:12]}…") for key in error.keys)
                reason += f": {', '.join(sorted(names))}"
        else:
            code = CODES.get(type(error), "broken_identity")
        self._note_refused(step, name, code, reason)

    def _fail(self, step: str, name: str | None, failure: PeerFailure) -> set[str]:
        """Note a SuperNode that failed; one that has refused the bundle, or cannot write down what
        it would send, has refused the round.
        """
        if name and NOT_APPROVED in failure.reason:
            words = "its owner has not approved the bundle"
            self._note_refused(step, name, BUNDLE, words)
        elif name and (failure.code == DISK_FULL or NO_SPACE in failure.reason):
            self._note_refused(step, name, "disk_full", "this holder's disk is full")
        else:
            self.watch(PeerFailed(name, failure.code, failure.reason))
            return set()
        return {name}

    def _note_refused(
        self, step: str, name: str | None, code: str, reason: str
    ) -> None:
        self.last_refusal = f"{name or 'unknown sender'}: {reason}"
        if name:
            self.refusals[name] = (code, reason)
        self.federation.ledger.note(
            "refused", round=self.nonce, step=step, name=name, code=code, reason=reason
        )
        self.watch(AnswerRefused(step, name, code, reason))

    def note_absent(self, step: str, names: Collection[str]) -> None:
        """Note in the ledger, and tell the watch, which holders are missing at a step, if any
        are.
        """
        if names:
            missing = sorted(names)
            self.federation.ledger.note(
                "absent", round=self.nonce, step=step, names=missing
            )
            self.watch(HoldersAbsent(step, missing))

    def why_missing(self, names: Collection[str]) -> str:
        """Why these holders are not in a round, and what each has to do."""
        alike: dict[str, list[str]] = {}
        for name in sorted(names):
            absence = LEFT if name in self.federation.standing.left else AWAY
            code, reason = self.refusals.get(name, (absence, ""))
            alike.setdefault(why(code, reason), []).append(name)
        return "; ".join(f"{', '.join(those)} {done}" for done, those in alike.items())


def _expected(opened: Opened[Message], expected: type[Reply]) -> Reply:
    """The reply that was asked for; a refusal, and anything else, is raised."""
    if isinstance(opened.message, Refusal):
        raise Refused(opened.message.code, opened.message.reason, opened.message.keys)
    if not isinstance(opened.message, expected):
        raise Refused(
            "malformed", f"expected {expected.kind}, received {opened.message.kind}"
        )
    return opened.message


# Which runs count: those that a command of this coordinator asked for, each of them once.
#
# Flower's control API has no password: whoever is on the coordinator's machine can submit a run,
# also of the approved bundle. So a run carries no instructions. Its order is a private file in the
# coordinator's own folder, named by the number that the SuperLink gave the run, and the run takes
# it away as it begins.


_Work = Literal["round", "dry_run", "deliver"]
ORDER_TIMEOUT_S = 10.0
"""A run may begin before the command that submitted it has learnt its number."""

_POLL_S = 0.1


class RoundWishes(Record):
    """What the operator says to a round beside its settings.

    mode:               as the settings say if left out.
    accept_worse:       domains that may be routed worse than before.
    accept_unevaluated: domains whose holders need not have counted for the router.
    allow_missing:      domains that may be lost because their holders are not there.
    even_unchanged:     publish though nothing has changed.
    end_rollback:       publish though the operator has rolled back to an earlier release.
    """

    mode: Mode | None = None
    accept_worse: tuple[str, ...] = ()
    accept_unevaluated: tuple[str, ...] = ()
    allow_missing: tuple[str, ...] = ()
    even_unchanged: bool = False
    end_rollback: bool = False


class RunOrder(RoundWishes):
    """What a run is to do; under its name it writes what happens."""

    work: _Work
    name: str = ""


def give_order(link: Path, run: int, order: RunOrder) -> None:
    # a bundle of an earlier version may know less
    content = order.model_dump_json(exclude_defaults=True)
    write_whole(_path(link, run), content.encode(), private=True)


def take_order(link: Path, run: int, timeout_s: float = ORDER_TIMEOUT_S) -> RunOrder:
    """The order of a run, which is then gone. Raises where no command has given one."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            content = _path(link, run).read_bytes()
            _path(link, run).unlink()
            return RunOrder.model_validate_json(content)
        except FileNotFoundError:
            if time.monotonic() >= until:
                raise RoundFailed(
                    f"run {run} was not ordered by this coordinator, so it does"
                    " nothing; another user of this machine may have submitted it"
                ) from None
        time.sleep(_POLL_S)


def _path(link: Path, run: int) -> Path:
    return link / "orders" / f"{run}.json"
