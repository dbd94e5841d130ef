"""One bad holder beside good ones: it is refused by name and code, and the round goes on as if it
were not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeway.common.base.identity import Identity
from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.protocol.messages import (
    Announce,
    ClearStatistics,
    Collect,
    Counted,
    Evaluate,
    Hello,
    Here,
    Message,
    Offer,
    Refusal,
)
from ridgeway.common.protocol.packet import (
    Opened,
    Packet,
    open_packet,
    seal_packet,
    vector_blob,
    vector_of,
)
from ridgeway.common.routing.decision import SCOPE_COUNTS_SHAPE
from ridgeway.common.routing.evaluation import CONFIDENCE_EDGES
from ridgeway.common.statistics import (
    MAX_SQUARE,
    SUM_BOUND,
    Statistics,
    from_vector,
    vector_size,
)
from ridgeway.coordinator.round.ledger import LedgerRelease
from tests.support.faults import make_haste
from tests.support.making import fixed_identity, one_domain
from tests.support.simulated_federation import (
    DOMAINS,
    ONE_EACH,
    Direct,
    Parties,
    found,
    populate,
    round_fails,
    round_of,
)

BAD = "medicine"
FEATURES = 7
CELLS = 2 * len(CONFIDENCE_EDGES)
NO_SCOPE = (0,) * prod(SCOPE_COUNTS_SHAPE)
NOTHING = (0, 0) * CELLS + NO_SCOPE
NAN = int(np.array(np.nan).view(np.int64))


@dataclass(frozen=True)
class Spoken:
    """What the bad holder would honestly have answered, and the means to say something else."""

    opened: Opened[Any]
    packet: Packet
    identity: Identity

    def say(
        self, message: Message, blobs: Any = (), identity: Identity | None = None
    ) -> Packet:
        reply_to, round_ = self.opened.reply_to, self.opened.round
        return seal_packet(
            message,
            identity or self.identity,
            round=round_,
            reply_to=reply_to,
            blobs=blobs,
        )

    def send(self, statistics: Statistics) -> Packet:
        return self.say(self.opened.message, (vector_blob(statistics.as_vector()),))

    @property
    def sums(self) -> Statistics:
        """Its honest sums, which may be changed."""
        vector = vector_of(self.opened.blobs[0], vector_size(FEATURES, 1))
        honest = from_vector(vector, FEATURES, 1)
        return Statistics(honest.gram.copy(), honest.cross.copy())


Lie = Callable[[Spoken], list[Packet]]
ReleaseOf = Callable[[type[Message]], str]


def of_one(reliability: tuple[int, ...]) -> Counted:
    """The counts of one document."""
    return Counted(counts=(1, 0, 0, 0, 0), reliability=reliability)


class Lying(Direct):
    """The bad holder answers one kind of request with something of its own."""

    def __init__(self, parties: Parties, asked: type[Message], lie: Lie) -> None:
        super().__init__(parties)
        self._asked, self._lie = asked, lie
        self._identity = parties.holder(BAD).identity

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        for reply in super().answers(name, peer, packet):
            if name == BAD and isinstance(open_packet(packet).message, self._asked):
                yield from self._lie(Spoken(open_packet(reply), reply, self._identity))
            else:
                yield reply


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """Three holders; nothing has happened yet."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        return populate(found(tmp_path_factory.mktemp("whole")), ONE_EACH)


@pytest.fixture
def parties(whole: Parties, tmp_path: Path, haste: None) -> Parties:
    return whole.copy(tmp_path / "parties")


@pytest.fixture(scope="module")
def without_the_bad_one(
    whole: Parties, tmp_path_factory: pytest.TempPathFactory
) -> ReleaseOf:
    """The release of a round in which the bad holder says nothing to this kind of request; played
    once each.
    """

    @cache
    def release(asked: type[Message]) -> str:
        other = whole.copy(tmp_path_factory.mktemp("without") / "parties")
        return round_with(other, asked, lambda spoken: []).release

    return release


def round_with(parties: Parties, asked: type[Message], lie: Lie) -> LedgerRelease:
    """A round whose router the bad holder need not have counted for."""
    lying = Lying(parties, asked, lie)
    return round_of(parties, lying, accept_unevaluated=(BAD,))


def sums(change: Callable[[Statistics], Any]) -> Lie:
    """Its own sums with a change."""

    def lie(spoken: Spoken) -> list[Packet]:
        statistics = spoken.sums
        changed = change(statistics)
        return [spoken.send(changed if isinstance(changed, Statistics) else statistics)]

    return lie


def resigned(change: Callable[[dict[str, Any]], Any]) -> Lie:
    """Its own header with a change, signed anew."""

    def lie(spoken: Spoken) -> list[Packet]:
        header = json.loads(spoken.packet.header)
        change(header)
        content = json.dumps(header).encode()
        return [Packet(content, spoken.identity.sign(content), spoken.packet.blobs)]

    return lie


def set_mass(statistics: Statistics, mass: int) -> None:
    """Another sample mass in every place that says it, nothing else."""
    statistics.gram[-1, -1] = mass
    statistics.cross[-1, 0] = mass


def both(statistics: Statistics, row: int, column: int, value: int) -> None:
    statistics.gram[row, column] = statistics.gram[column, row] = value


STATISTICS: dict[str, tuple[Lie, str]] = {
    "another encoder's shape": (
        sums(lambda s: one_domain(np.ones((5, 5), np.int64))),
        "shape_mismatch",
    ),
    "columns of all domains": (
        sums(lambda s: Statistics(s.gram, np.repeat(s.cross, 3, axis=1))),
        "shape_mismatch",
    ),
    "no bulk of sums": (lambda s: [s.say(s.opened.message, (b"",))], "shape_mismatch"),
    "one blob too few": (resigned(lambda h: h["blobs"].pop()), "malformed"),
    "not a number everywhere": (sums(lambda s: s.gram.fill(NAN)), "over_bound"),
    "gram has a negative diagonal": (
        sums(lambda s: both(s, 0, 0, -1)),
        "broken_identity",
    ),
    "an over-large mass": (
        sums(lambda s: set_mass(s, SUM_BOUND // MAX_SQUARE)),
        "over_bound",
    ),
    "a mass that is not its share": (
        sums(lambda s: set_mass(s, EQUAL_MASS + 1)),
        "wrong_mass",
    ),
    "no mass": (sums(lambda s: set_mass(s, 0)), "broken_identity"),
    "another cohort": (
        lambda s: [
            s.say(ClearStatistics(cohort="0" * 64, source="0" * 64), s.opened.blobs)
        ],
        "late",
    ),
    "another round": (resigned(lambda h: h.update(round="0" * 32)), "late"),
    "another request": (resigned(lambda h: h.update(reply_to="0" * 64)), "late"),
    "a refusal": (
        lambda s: [s.say(Refusal(code="corpus_unreadable", reason="no"))],
        "corpus_unreadable",
    ),
    "a reply of another kind": (lambda s: [s.say(Here())], "malformed"),
    "a request for a reply": (lambda s: [s.say(Hello())], "malformed"),
}
"""Lies in answer to Collect that its name can be put to, and the code of each; what is wrong with
sums is in tests/laws/test_statistics_laws.py.
"""


@pytest.mark.parametrize("words", STATISTICS)
def test_bad_statistics_are_refused_by_name_and_the_round_goes_on(
    parties: Parties, without_the_bad_one: ReleaseOf, words: str
) -> None:
    """The release is, bit for bit, that of a round in which the bad holder sent nothing."""
    lie, code = STATISTICS[words]
    published = round_with(parties, Collect, lie)
    known = None if words == "one blob too few" else BAD
    assert parties.refusals() == [(known, "collect", code)]
    assert published.domains == ("code", "law")
    assert published.release == without_the_bad_one(Collect)


@pytest.mark.parametrize("asked", [Announce, Collect])
@pytest.mark.parametrize(
    ("lie", "code"),
    [
        (resigned(lambda h: h.update(extra=1)), "malformed"),
        (
            lambda s: [s.say(s.opened.message, s.opened.blobs, fixed_identity(9))],
            "unknown_holder",
        ),
        (lambda s: [Packet(b"", "", ())], "malformed"),
    ],
)
def test_an_answer_that_nobody_can_be_named_for_is_refused_without_a_name(
    parties: Parties,
    without_the_bad_one: ReleaseOf,
    asked: type[Message],
    lie: Lie,
    code: str,
) -> None:
    """Of another version, of no form, by a key that nobody admitted: noted, and the round goes
    on.
    """
    published = round_with(parties, asked, lie)
    assert parties.refusals() == [(None, asked.kind, code)]
    assert published.release == without_the_bad_one(asked)


def test_a_second_answer_is_refused_and_the_first_one_counts_once(
    whole: Parties, parties: Parties, tmp_path: Path
) -> None:
    """Its release is that of a round in which it answered once."""
    twice = Lying(parties, Collect, lambda spoken: [spoken.packet, spoken.packet])
    published = round_of(parties, twice)
    other = whole.copy(tmp_path / "other")
    assert parties.refusals() == [(BAD, "collect", "duplicate")]
    assert published.release == round_of(other).release


def test_an_answer_that_was_refused_may_be_followed_by_a_good_one(
    parties: Parties,
) -> None:
    """What was damaged on its way and is sent again counts."""

    def lie(spoken: Spoken) -> list[Packet]:
        return [*STATISTICS["gram has a negative diagonal"][0](spoken), spoken.packet]

    published = round_with(parties, Collect, lie)
    assert parties.refusals() == [(BAD, "collect", "broken_identity")]
    assert published.domains == DOMAINS


def test_an_offer_for_another_domain_is_refused(
    parties: Parties, without_the_bad_one: ReleaseOf
) -> None:
    """A holder speaks for the domain that it was admitted for."""

    def lie(spoken: Spoken) -> list[Packet]:
        assert isinstance(spoken.opened.message, Offer)
        return [spoken.say(spoken.opened.message.model_copy(update={"domain": "law"}))]

    published = round_with(parties, Announce, lie)
    assert parties.refusals() == [(BAD, "announce", "wrong_domain")]
    assert published.release == without_the_bad_one(Announce)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Counted(counts=()), "shape_mismatch"),
        (Counted(counts=(1, 2)), "shape_mismatch"),
        (Counted(counts=(1, 2, 1), reliability=NOTHING), "shape_mismatch"),
        (Counted(counts=(1 << 53, 0, 0, 0, 0), reliability=NOTHING), "over_bound"),
        (Counted(counts=(1, 1, 1, 2, 2), reliability=NOTHING), "broken_identity"),
        (Here(), "malformed"),
        (Counted(counts=(1, 0, 0, 0, 0)), "shape_mismatch"),
        (of_one((1,)), "shape_mismatch"),
        (of_one((0, 1) * CELLS + NO_SCOPE), "broken_identity"),
        (of_one((1, 0) + (0, 0) * (CELLS - 1) + NO_SCOPE), "broken_identity"),
        (of_one((1 << 50, 0) * CELLS + NO_SCOPE), "over_bound"),
        (of_one((0, 0) * CELLS + (1, 0, *NO_SCOPE[2:])), "broken_identity"),
    ],
)
def test_bad_counts_are_refused_and_change_nothing(
    parties: Parties, without_the_bad_one: ReleaseOf, reply: Message, code: str
) -> None:
    """The release is that of a round in which the holder's sums were counted and its counts were
    not sent.
    """
    published = round_with(parties, Evaluate, lambda spoken: [spoken.say(reply)])
    assert parties.refusals() == [(BAD, "evaluate", code)]
    assert published.release == without_the_bad_one(Evaluate)


def test_one_plain_mass_cannot_use_up_the_bound_of_all(
    tmp_path: Path, haste: None
) -> None:
    """Where masses are not normalised, sums that leave no room for the others' are refused, and the
    round goes on.
    """
    parties = populate(found(tmp_path / "tokens", weighting="tokens"), ONE_EACH)

    def enormous(statistics: Statistics) -> None:
        statistics.gram.fill(0)
        statistics.cross.fill(0)
        set_mass(statistics, SUM_BOUND // MAX_SQUARE - 1)

    published = round_of(parties, Lying(parties, Collect, sums(enormous)))
    assert parties.refusals() == [(BAD, "collect", "over_bound")]
    assert published.domains == ("code", "law")


def test_too_few_good_ones_make_no_release_and_what_they_sent_is_kept(
    parties: Parties,
) -> None:
    """The round fails in words; the next one asks only for what is missing."""
    lying = Lying(parties, Collect, STATISTICS["a refusal"][0])
    lying.down = {"law"}
    with round_fails("1 of 3 holders can take part"):
        round_of(parties, lying)
    again = Direct(parties)
    round_of(parties, again)
    assert again.senders(ClearStatistics) == ["law", "medicine"]
