"""Every message of a masked session sent again: the very same one gets the very same bytes, any
other is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeway.client.round.masked_answers import forget_session
from ridgeway.common.protocol.messages import (
    SUM_NAMES,
    Announce,
    Confirmed,
    Envelopes,
    Held,
    Hold,
    Locked,
    Message,
    Offer,
    Revealed,
    Seal,
    SealedSums,
    SumName,
)
from ridgeway.common.protocol.packet import Blob, Opened, Packet
from tests.support.faults import make_haste
from tests.support.hostile import (
    ALL,
    ANNOUNCE,
    CONFIRM,
    FEWER,
    LOCK,
    OPEN,
    OTHERS,
    SEAL,
    SHARE,
    VICTIM,
    Hostile,
    Stages,
)

Asked = tuple[Message, tuple[Blob, ...]]


class Step:
    """One message of a session: the stage it comes at, what is asked, what else could be asked in
    its place.
    """

    def __init__(
        self,
        stage: int,
        lot: SumName,
        kind: type[Message],
        asked: Callable[[Hostile], Asked],
        *changed: Callable[[Hostile], Asked],
    ) -> None:
        self.stage, self.lot, self.kind, self.asked, self.changed = (
            stage,
            lot,
            kind,
            asked,
            changed,
        )


def seal(kind: type[Hold], names: list[str]) -> Callable[[Hostile], Asked]:
    return lambda c: (c.hold_request(kind, names), (c.post(VICTIM, names),))


def confirm(lot: SumName, names: list[str]) -> Callable[[Hostile], Asked]:
    return lambda c: (c.confirm_request(lot, names), ())


def lock(lot: SumName, names: list[str]) -> Callable[[Hostile], Asked]:
    return lambda c: (c.lock_request(lot, names), ())


def open_(
    lot: SumName, signers: range, names: list[str] = ALL
) -> Callable[[Hostile], Asked]:
    return lambda c: (
        c.open_request(lot, names, {index: c.signatures[index] for index in signers}),
        (),
    )


def count(other: bool = False) -> Callable[[Hostile], Asked]:
    return lambda c: c.question(other)


def fewer_members(c: Hostile) -> Asked:
    return c.share_request(c.cohort(FEWER)), ()


STEPS: dict[str, Step] = {
    "share": Step(
        SHARE, "statistics", Envelopes, lambda c: (c.share_request(), ()), fewer_members
    ),
    "hold": Step(
        SEAL, "statistics", Held, seal(Hold, ALL), seal(Hold, FEWER), seal(Seal, ALL)
    ),
    "seal": Step(
        SEAL,
        "statistics",
        SealedSums,
        seal(Seal, ALL),
        seal(Seal, FEWER),
        seal(Hold, ALL),
    ),
    "counts": Step(SEAL, "counts", SealedSums, count(), count(other=True)),
    **{
        f"confirm {lot}": Step(
            CONFIRM,
            lot,
            Confirmed,
            confirm(lot, FEWER),
            confirm(lot, ALL),
            confirm(lot, OTHERS),
        )
        for lot in SUM_NAMES
    },
    **{
        f"lock {lot}": Step(LOCK, lot, Locked, lock(lot, ALL), lock(lot, FEWER))
        for lot in SUM_NAMES
    },
    **{
        f"open {lot}": Step(
            OPEN,
            lot,
            Revealed,
            open_(lot, range(1, 6)),
            open_(lot, range(1, 5)),
            open_(lot, range(1, 6), FEWER),
        )
        for lot in SUM_NAMES
    },
}


@pytest.fixture(params=list(STEPS))
def step(request: pytest.FixtureRequest) -> Step:
    return STEPS[request.param]


@pytest.fixture
def coordinator(
    step: Step, stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Hostile:
    """Right before the step."""
    make_haste(monkeypatch)
    return stages.at(step.stage, tmp_path / "parties", step.lot)


@pytest.fixture
def packet(step: Step, coordinator: Hostile) -> Packet:
    return coordinator.packet(*step.asked(coordinator))


def parts(opened: Opened[Message]) -> tuple[Message, list[bytes]]:
    return opened.message, [bytes(blob) for blob in opened.blobs]


def test_the_very_same_request_gets_the_very_same_answer(
    step: Step, coordinator: Hostile, packet: Packet
) -> None:
    """In every byte, however often and by however many processes: a repeat tells nothing new."""
    first = coordinator.send(VICTIM, packet)
    assert isinstance(first.message, step.kind)
    for _ in range(2):
        assert parts(coordinator.send(VICTIM, packet)) == parts(first)


def test_a_changed_request_for_a_step_that_was_taken_is_refused(
    step: Step, coordinator: Hostile, packet: Packet
) -> None:
    """And the first one still gets its answer again."""
    first = coordinator.send(VICTIM, packet)
    for changed in step.changed:
        code = coordinator.refusal(VICTIM, *changed(coordinator))
        assert code == (
            "two_survivor_sets"
            if step.kind in (Confirmed, Locked)
            else "already_answered"
        )
    assert parts(coordinator.send(VICTIM, packet)) == parts(first)


def test_a_replay_after_the_session_is_over_is_refused(
    coordinator: Hostile, packet: Packet
) -> None:
    """Nothing of it is there any more."""
    coordinator.send(VICTIM, packet)
    forget_session(coordinator.parties.holder(VICTIM), coordinator.round)
    assert coordinator.refused(VICTIM, packet) == "no_session"
    assert coordinator.refused_announcement() == "session_reused"


def test_a_replay_after_a_new_announcement_is_refused(
    step: Step, coordinator: Hostile, packet: Packet
) -> None:
    """One session takes the place of the other, for good, also for a message that the coordinator
    signs anew for the later round.
    """
    coordinator.send(VICTIM, packet)
    later = Hostile(coordinator.parties, ALL, "ef" * 16)
    later.begin()
    assert coordinator.refused(VICTIM, packet) == "no_session"
    assert coordinator.refused_announcement() == "session_reused"
    code = later.refusal(VICTIM, *step.asked(coordinator))
    assert code == ("already_answered" if step.kind is Envelopes else "other_session")
    assert later.gave(Revealed) == []


# The announcement


@pytest.fixture
def announced(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Hostile:
    make_haste(monkeypatch)
    return stages.at(ANNOUNCE, tmp_path / "parties")


def test_the_same_announcement_shows_the_same_keys(announced: Hostile) -> None:
    """As long as its session lasts, also once secrets were shared."""
    packet = announced.packet(Announce(terms=announced.terms))
    first = announced.send(VICTIM, packet)
    assert isinstance(first.message, Offer)
    assert announced.send(VICTIM, packet).message == first.message
    announced.begin()
    assert announced.send(VICTIM, packet).message == first.message
    announced.seal()
    announced.finish("statistics")


def test_a_rounds_name_serves_once(announced: Hostile) -> None:
    """Announced under other terms it is refused, and so it is when its session has ended or was
    replaced.
    """
    other = announced.allow_tokens()
    packet = announced.packet(Announce(terms=announced.terms))
    announced.send(VICTIM, packet)
    assert announced.refusal(VICTIM, Announce(terms=other)) == "session_reused"
    Hostile(announced.parties, ALL, "ef" * 16).announce()
    assert announced.refused(VICTIM, packet) == "session_reused"
    assert announced.refusal(VICTIM, Announce(terms=other)) == "session_reused"
    assert announced.gave(Offer) == [VICTIM]
