"""A coordinator that sends anything in any order, to holders that are killed at any moment: thousands of steps.

Most steps are those of an honest coordinator, so that many sums are opened; every sixth is not: another set, another
question, an earlier request, at any time. Whatever comes, under one mask leaves one vector, a member signs smaller and
smaller sums and reveals its shares for one of them, no two sums of a lot are opened in a session, and no two different
ones ever with the data of one epoch. In half of the runs members deal and lock as in a large cohort: then nobody locks
two sums, and shares leave for one sum of a lot alone.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgeway.client.round import answers
from ridgeway.client.round.session_store import SessionFile
from ridgeway.common.base.journal import Journal
from ridgeway.common.masking.agreement import threshold_for
from ridgeway.common.masking.neighbourhood import neighbourhood_for
from ridgeway.common.masking.shares import SHARE_BYTES, unpack_by_place
from ridgeway.common.protocol.messages import (
    SUM_NAMES,
    Announce,
    Confirmed,
    ConfirmSum,
    Envelopes,
    Hold,
    Locked,
    LockSum,
    Message,
    Offer,
    OpenSum,
    Refusal,
    Revealed,
    Seal,
    SealedSums,
    SumName,
)
from ridgeway.common.protocol.packet import Blob, Opened, Packet, open_packet, seal_packet
from tests.support.faults import make_haste
from tests.support.hostile import Hostile
from tests.support.seeds import seed_marks
from tests.support.simulated_federation import Parties, found, own_texts

NAMES = ["code-1", "law-1", "law-2", "medicine"]
NEEDED = threshold_for(len(NAMES))
SEEDS, USUAL_SEEDS = 16, 2
STEPS = 640
ROUND_STEPS = 60


class Killed(BaseException):
    """The holder's process ended before its reply left."""


class Fuzzer:
    """One hostile coordinator, and what has left the holders so far."""

    def __init__(self, parties: Parties, seed: int) -> None:
        self.parties, self.random = parties, random.Random(seed)
        self.kinds: Counter[str] = Counter()
        self.left: dict[tuple[str, str, str, str], set[bytes]] = defaultdict(set)
        self.signed: dict[tuple[str, str, SumName], list[frozenset[int]]] = defaultdict(list)
        self.revealed: dict[tuple[str, SumName], dict[frozenset[int], set[str]]] = defaultdict(lambda: defaultdict(set))
        self.signatures: dict[tuple[SumName, frozenset[int]], dict[int, str]] = {}
        self.locks: dict[tuple[SumName, frozenset[int]], dict[int, str]] = {}
        self.locked: dict[tuple[str, str, SumName], frozenset[int]] = {}
        self.earlier: list[tuple[Hostile, str, Packet]] = []
        self.rounds: dict[str, Hostile] = {}
        self.number = seed << 20
        self.kill = False
        self.begin()

    def begin(self) -> None:
        """Another round, now and then without one of the holders; before every third one owners open new epochs."""
        self.number += 1
        self.kill = False
        if self.number % 3 == 0:
            for name in NAMES:
                if self.random.random() < 0.9:
                    self.parties.ready(name)
        names = NAMES if self.random.random() < 0.7 else self.random.sample(NAMES, NEEDED)
        self.round = Hostile(self.parties, names, f"{self.number:032x}")
        self.signatures, self.locks = {}, {}
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > ROUND_STEPS:
            self.begin()
        self.kill = self.random.random() < 0.08
        if self.random.random() < 0.04 and self.earlier:
            self.send(*self.random.choice(self.earlier[-200:]))
            return
        asked = self.honest() if self.random.random() > 0.12 else None
        name, request = asked or (name := self.random.choice(self.round.names), self.strange(name))
        self.send(self.round, name, self.round.packet(*request))

    def honest(self) -> tuple[str, tuple[Message, tuple[Blob, ...]]] | None:
        """What an honest coordinator would ask for next, and whom."""
        c = self.round
        for name in c.names:
            if name not in c.adverts:
                return name, (Announce(terms=c.terms), ())
        for name in c.names:
            if name not in c.envelopes:
                return name, (c.share_request(), ())
        sent = frozenset(c.places(c.names))
        for lot in SUM_NAMES:
            for name in c.names:
                if name not in c.sealed.get(lot, {}):
                    question = c.hold_request(Seal), (c.post(name),)
                    return name, (question if lot == "statistics" else c.question())
            for name in c.names:
                if c.place(name) not in self.signatures.get((lot, sent), {}):
                    return name, (c.confirm_request(lot, c.names), ())
            locks = self.locks.get((lot, sent), {})
            for name in c.names if c.agreement().neighbourhood else ():
                if c.place(name) not in locks:
                    return name, (c.lock_request(lot, c.names), ())
            for name in c.names:
                if name not in self.givers(lot, sent):
                    return name, (c.open_request(lot, c.names, self.signatures[lot, sent], locks), ())
        return None

    def strange(self, name: str) -> tuple[Message, tuple[Blob, ...]]:
        """Something that an honest coordinator would not ask for, or not now."""
        c, pick = self.round, self.random
        lot, some = pick.choice(SUM_NAMES), pick.sample(c.names, pick.choice((NEEDED, NEEDED, len(c.names))))
        asked: list[Callable[[], tuple[Message, tuple[Blob, ...]]]] = [lambda: (Announce(terms=c.terms), ())]
        if len(c.adverts) == len(c.names):
            asked += [lambda: (c.share_request(c.cohort(some)), ()), lambda: (c.confirm_request(lot, some), ())]
            signed, locked = (each.get((lot, frozenset(c.places(some))), {}) for each in (self.signatures, self.locks))
            asked += [lambda: (c.open_request(lot, some, signed, locked), ())] * 2
            asked += [lambda: (c.lock_request(lot, some), ())]
        if len(c.envelopes) == len(c.names):
            kind = pick.choice((Hold, Seal))
            asked += [lambda: (c.hold_request(kind, some), (c.post(name, some),))]
        if len(c.envelopes) == len(c.names) and lot == "counts":
            asked += [lambda: c.question(other=pick.random() < 0.5)]
        return pick.choice(asked)()

    def send(self, c: Hostile, name: str, packet: Packet) -> None:
        self.earlier.append((c, name, packet))
        try:
            opened = c.send(name, packet)
        except Killed:
            self.kinds["killed"] += 1
            return
        self.take(c, name, opened, packet)

    def take(self, c: Hostile, name: str, opened: Opened[Any], packet: Packet) -> None:
        """Keep what came, and hold it against what came before."""
        message = opened.message
        self.kinds[message.code if isinstance(message, Refusal) else message.kind] += 1
        match message:
            case Refusal(code="already_counted" | "epoch_used") if c is self.round:
                self.begin()  # the data is in another total
            case Offer(advert=advert) if advert is not None:
                c.adverts[name] = advert
            case Envelopes():
                self.once(c, name, "envelopes", opened)
                if message.session == c.session:
                    c.envelopes[name] = bytes(opened.blobs[0])
                    c.shared = tuple(c.in_order(c.envelopes))
            case SealedSums(lot=lot):
                self.once(c, name, f"sealed {lot}", opened)
                c.sealed.setdefault(lot, {})[name] = opened.blobs[0]
            case Confirmed(lot=lot):
                sent = frozenset(_sent(packet))
                chain = self.signed[name, message.session, lot]
                assert not chain or sent == chain[-1] or sent < chain[-1], "a set was signed that is no smaller one"
                given = self.revealed[message.session, lot]
                assert all(name not in givers or of == sent for of, givers in given.items()), "signed after revealing"
                assert self.locked.get((name, message.session, lot), sent) == sent, "signed after locking"
                chain.append(sent)
                self.signatures.setdefault((lot, sent), {})[c.place(name)] = message.signature
            case Locked(lot=lot):
                sent = frozenset(_sent(packet))
                assert self.signed[name, message.session, lot][-1] == sent, "a set was locked that was not signed last"
                assert self.locked.setdefault((name, message.session, lot), sent) == sent, "two sets were locked"
                self.locks.setdefault((lot, sent), {})[c.place(name)] = message.signature
            case Revealed(lot=lot):
                self.once(c, name, f"revealed {lot}", opened)
                sent = frozenset(_sent(packet))
                assert self.signed[name, message.session, lot][-1] == sent, "shares for a set that was not signed last"
                self.revealed[message.session, lot][sent].add(name)
                self.rounds[message.session] = c
                if lot == "statistics" and c is self.round and len(self.givers(lot, sent)) >= NEEDED:
                    self.learn(c, sent)

    def once(self, c: Hostile, name: str, what: str, opened: Opened[Any]) -> None:
        """One holder, one round, one thing: one content ever leaves."""
        kept = self.left[name, c.round, what, opened.message.session]
        kept.add(bytes(opened.blobs[0]))
        assert len(kept) == 1, f"two different {what} of {name} have left under one mask"

    def givers(self, lot: SumName, sent: frozenset[int]) -> set[str]:
        return self.revealed[self.round.session, lot][sent]

    def learn(self, c: Hostile, sent: frozenset[int]) -> None:
        """Open the sum, to ask about it."""
        names = [name for name in c.names if c.place(name) in sent]
        reveals = {}
        for name in self.givers("statistics", sent):
            [content] = self.left[name, c.round, "revealed statistics", c.session]
            reveals[c.place(name)] = unpack_by_place(content, SHARE_BYTES)
        c.learn(c.total("statistics", names, reveals))

    def opened(self) -> list[tuple[str, SumName]]:
        """The sums that were opened; raises if there were two of one lot in a session."""
        found = []
        for (session, lot), given in self.revealed.items():
            enough = [sent for sent, givers in given.items() if len(givers) >= NEEDED]
            one = sum(map(bool, given.values())) <= 1
            assert one or not neighbourhood_for(len(NAMES)), f"shares left for two sums of {lot}"
            assert len(enough) <= 1, f"two sums of {lot} were opened in one session"
            found += [(session, lot) for _ in enough]
        self._check_epochs()
        return found

    def _check_epochs(self) -> None:
        """Raise if shares of enough members have left for two different sums with one member's data of one epoch."""
        totals: dict[tuple[str, str, SumName], set[Any]] = defaultdict(set)
        for (session, lot), given in self.revealed.items():
            for sent in (sent for sent, givers in given.items() if len(givers) >= NEEDED):
                c = self.rounds[session]
                shares = c.cohort().shares if lot == "statistics" else {}
                names = [name for name in c.names if c.place(name) in sent]
                total = frozenset((name, c.adverts[name].source, shares.get(c.key_of[name])) for name in names)
                for name in names:
                    totals[name, c.adverts[name].source, lot].add(total)
        assert all(len(each) == 1 for each in totals.values()), "two totals with the data of one epoch were opened"


def _sent(packet: Packet) -> tuple[int, ...]:
    message = open_packet(packet).message
    assert isinstance(message, ConfirmSum | LockSum | OpenSum)
    return message.sent


def killed_now_and_then(fuzzer: Fuzzer, work: Callable[..., Any]) -> Callable[..., Any]:
    """The work, before or after which the holder's process may end."""

    def done(*given: Any, **named: Any) -> Any:
        if fuzzer.kill and fuzzer.random.random() < 0.5:
            fuzzer.kill = False
            raise Killed
        made = work(*given, **named)
        if fuzzer.kill and fuzzer.random.random() < 0.5:
            fuzzer.kill = False
            raise Killed
        return made

    return done


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """Four holders, whose owners open a new epoch now and then, so that sums are opened again and again."""
    parties = found(tmp_path_factory.mktemp("fuzzing"), mode="masked")
    for place, name in enumerate(NAMES):
        domain = name.split("-")[0]
        parties.settle(name, domain, own_texts(name, domain, 12 + place))
        parties.admit(name)
    parties.pin_all()
    return parties


@pytest.mark.parametrize(
    ("seed", "dealing"),
    [
        pytest.param(
            seed, ("everybody", "neighbours")[seed % 2], marks=seed_marks(seed, USUAL_SEEDS) if seed > 1 else []
        )
        for seed in range(SEEDS)
    ],
    indirect=["dealing"],
)
def test_no_order_of_requests_and_no_crash_lets_two_answers_out(
    settled: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, dealing: str
) -> None:
    """Of each seed's steps, some open sums; a long run takes more than ten thousand, and opens a hundred sums."""
    make_haste(monkeypatch)
    fuzzer = Fuzzer(settled.copy(tmp_path / "parties"), seed)
    monkeypatch.setattr(answers, "seal_packet", killed_now_and_then(fuzzer, seal_packet))
    monkeypatch.setattr(SessionFile, "save", killed_now_and_then(fuzzer, SessionFile.save))
    monkeypatch.setattr(Journal, "append", killed_now_and_then(fuzzer, Journal.append))
    for _ in range(STEPS):
        fuzzer.step()
    opened = Counter(lot for _, lot in fuzzer.opened())
    assert opened["statistics"] >= STEPS // 200
    assert opened["counts"] or fuzzer.kinds["already_counted"]  # signed for once: who is killed then opens none
    assert fuzzer.kinds["killed"] >= STEPS // 100
    assert fuzzer.kinds["locked"] or dealing == "everybody"
