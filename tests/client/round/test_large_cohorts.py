"""A hostile coordinator in a large cohort: shares lie with a few members of each one's choice, and
sums are locked.

What makes a cohort large is patched here, so that five holders are one: each deals to three others,
two of whom open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeway.client.round.epochs import SIGNED
from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.masking.shares import pack_by_member, unpack_by_member
from ridgeway.common.protocol.messages import (
    ENVELOPE_BYTES,
    ConfirmSum,
    Locked,
    Message,
    OpenSum,
    Seal,
    SealedSums,
)
from ridgeway.common.protocol.packet import Packet, open_packet
from tests.support.faults import make_haste
from tests.support.hostile import (
    ALL,
    CONFIRM,
    FEWER,
    LOCK,
    SEAL,
    SHARE,
    VICTIM,
    Hostile,
    Stages,
    code_of,
    nothing_revealed,
)
from tests.support.masked_faults import Witness
from tests.support.masked_session import small_neighbourhoods
from tests.support.simulated_federation import Direct, Parties, round_of


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    make_haste(monkeypatch)
    with small_neighbourhoods(3, 2):
        yield


@pytest.fixture
def coordinator(
    all_stages: Stages, large: None, tmp_path: Path, request: pytest.FixtureRequest
) -> Hostile:
    """Right before the step that the test names."""
    return all_stages.at(request.param, tmp_path / "parties")


def before(step: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("coordinator", [step], indirect=True)


@before(SHARE)
def test_members_deal_to_a_few_of_their_own_choice_and_the_sum_opens(
    coordinator: Hostile,
) -> None:
    """Each to three others, not all to the same, and the total is the plain sum."""
    coordinator.share()
    dealt = {name: set(coordinator.dealt(name)) for name in ALL}
    assert all(
        len(to) == 3 and coordinator.place(name) not in to for name, to in dealt.items()
    )
    coordinator.seal()
    assert (coordinator.finish("statistics") == coordinator.plain_sum(ALL)).all()


@before(LOCK)
def test_nothing_is_revealed_before_the_sum_is_locked(coordinator: Hostile) -> None:
    """Neither by a member that has not locked it, nor with one lock too few, nor with locks of
    something else.
    """
    signatures = coordinator.signatures
    code = coordinator.refused_opening(VICTIM, "statistics", ALL, signatures)
    assert code == "not_locked"
    others = [name for name in ALL if name != VICTIM]
    locks = coordinator.lock("statistics", others, ALL)
    code = coordinator.refused_opening(VICTIM, "statistics", ALL, signatures, locks)
    assert code == "not_locked", "enough have locked it, this member has not"
    locks = coordinator.lock("statistics", ALL)
    for bad in (
        dict(list(locks.items())[:3]),
        {index: signatures[index] for index in locks},
        dict.fromkeys(locks, locks[1]),
        {index + 10: lock for index, lock in locks.items()},
    ):
        code = coordinator.refused_opening(VICTIM, "statistics", ALL, signatures, bad)
        assert code == "not_locked"
    nothing_revealed(coordinator)
    four = dict(list(locks.items())[:4])
    assert (
        coordinator.ask(
            VICTIM, coordinator.open_request("statistics", ALL, signatures, four)
        ).message.kind
        == "revealed"
    )


@before(CONFIRM)
def test_who_has_locked_a_sum_signs_and_locks_no_other(coordinator: Hostile) -> None:
    """Two sums of one lot would tell their difference; the very same lock is given again."""
    coordinator.confirm("statistics", ALL)
    lock = coordinator.lock_request("statistics", ALL)
    first = coordinator.ask(VICTIM, lock)
    assert isinstance(first.message, Locked)
    assert coordinator.ask(VICTIM, lock).message == first.message
    assert coordinator.refused_sum(VICTIM, "statistics", FEWER) == "already_answered"
    assert (
        coordinator.refusal(VICTIM, coordinator.lock_request("statistics", FEWER))
        == "two_survivor_sets"
    )


@before(CONFIRM)
def test_a_sum_is_locked_only_if_it_is_the_one_signed_last(
    coordinator: Hostile,
) -> None:
    """Who has signed a smaller one has given the larger up."""
    assert (
        coordinator.refusal(VICTIM, coordinator.lock_request("statistics", ALL))
        == "two_survivor_sets"
    )
    coordinator.confirm("statistics", [VICTIM], ALL)
    coordinator.confirm("statistics", [VICTIM], FEWER)
    assert (
        coordinator.refusal(VICTIM, coordinator.lock_request("statistics", ALL))
        == "two_survivor_sets"
    )
    coordinator.lock("statistics", [VICTIM], FEWER)


@before(LOCK)
def test_shares_of_a_member_that_has_not_signed_stay_where_they_are(
    coordinator: Hostile,
) -> None:
    """Each holder looks for the signatures of those whose shares it holds; a lock is one, too."""
    locks, own_index = coordinator.lock("statistics", ALL), coordinator.place(VICTIM)
    dealers = [
        coordinator.place(name) for name in ALL if own_index in coordinator.dealt(name)
    ]
    for missing in dealers:
        signatures, others = (
            {
                index: signature
                for index, signature in signed.items()
                if index != missing
            }
            for signed in (coordinator.signatures, locks)
        )
        code = coordinator.refused_opening(
            VICTIM, "statistics", ALL, signatures, others
        )
        assert code == "not_confirmed"
    nothing_revealed(coordinator)


@before(SEAL)
def test_envelopes_of_others_than_those_who_shared_are_refused(
    coordinator: Hostile,
) -> None:
    """Moved to another sender's place, changed, or from nobody at all."""
    receiver = next(
        name
        for name in ALL
        for sender in ALL
        if coordinator.place(name) in coordinator.dealt(sender)
    )
    sent = unpack_by_member(coordinator.post(receiver), ENVELOPE_BYTES)
    own_index = coordinator.place(receiver)
    index, envelope = next(iter(sent.items()))
    others = [other for other in range(1, 6) if other not in (*sent, own_index)]
    for bad in (
        {**sent, own_index: envelope},
        {**sent, 6: envelope},
        {**sent, index: envelope[::-1]},
        *({**sent, other: envelope} for other in others),
    ):
        answer = coordinator.ask(
            receiver, coordinator.hold_request(Seal), (pack_by_member(bad),)
        )
        assert code_of(answer) == "bad_envelope"
    assert coordinator.gave(SealedSums) == []


@before(SEAL)
def test_a_withheld_envelope_leaves_masks_on_the_sum(coordinator: Hostile) -> None:
    """Its sender has masked for the one who never got it, so what comes of it is noise."""
    places = {name: set(coordinator.dealt(name)) for name in ALL}
    dealer, victim = next(  # fifteen choices are an odd number, so one is not returned
        (one, other)
        for one in ALL
        for other in ALL
        if coordinator.place(other) in places[one]
        and coordinator.place(one) not in places[other]
    )
    coordinator.seal([name for name in ALL if name != victim])
    post = coordinator.post(victim, [name for name in ALL if name != dealer])
    sealed = coordinator.ask(victim, coordinator.hold_request(Seal), (post,))
    coordinator.sealed["statistics"][victim] = sealed.blobs[0]
    givers = [name for name in ALL if name != victim]
    signatures = coordinator.confirm("statistics", ALL)
    opened = coordinator.total(
        "statistics", ALL, coordinator.open("statistics", givers, ALL, signatures)
    )
    assert (opened != coordinator.plain_sum(ALL)).any()


@before(LOCK)
def test_a_locked_sum_is_remembered_as_one_that_may_be_open(
    coordinator: Hostile,
) -> None:
    """A member that is never asked for its shares keeps it in mind, and signs no other with the
    same data.
    """
    coordinator.lock("statistics", ALL)
    [signed] = coordinator.parties.holder(VICTIM).journal.entries(SIGNED)
    assert set(signed.facts["members"]) == {coordinator.key_of[name] for name in ALL}
    later = Hostile(coordinator.parties, FEWER, "ef" * 16)
    later.until(CONFIRM)
    assert later.refused_sum(VICTIM, "statistics", FEWER) == "epoch_used"


# The honest coordinator


class Watched(Direct):
    """Every answer passes the witness; what a holder sends may be changed on its way."""

    def __init__(self, parties: Parties, witness: Witness) -> None:
        super().__init__(parties, ALL)
        self._witness, self.kinds = witness, Counter[str]()

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        for reply in super().answers(name, peer, packet):
            self._witness.saw(packet, reply)
            self.kinds[open_packet(reply).message.kind] += 1
            yield reply


@pytest.mark.parametrize(
    ("kind", "words", "revealed"),
    [
        (ConfirmSum, "too many members dropped out: too few shares are left of", 0),
        (
            OpenSum,
            (
                "could not be opened: 3 shares are too few; 4 are needed. Members dropped "
                "out after they had locked it"
            ),
            4,
        ),
    ],
)
def test_too_many_that_fall_away_end_the_round_in_words_and_it_can_be_run_again(
    all_stages: Stages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Message],
    words: str,
    revealed: int,
) -> None:
    """The coordinator knows who holds whose shares, and sees before it opens anything that they do
    not suffice.
    """
    parties = all_stages.parties.copy(tmp_path / "parties")

    class Falling(Watched):
        def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
            if name == "medicine" and isinstance(open_packet(packet).message, kind):
                return iter(())
            return super().answers(name, peer, packet)

    witness = Witness()
    witness.look_on(monkeypatch)
    transport = Falling(parties, witness)
    with small_neighbourhoods(4, 4):
        with pytest.raises(RoundFailed, match=words):
            round_of(parties, transport)
        assert transport.kinds["revealed"] == revealed
        assert transport.kinds["locked"] == (len(ALL) if revealed else 0)
        for name in (
            () if revealed else ALL
        ):  # some have signed for a total that others have not, and wait
            parties.ready(name)
        assert len(round_of(parties, Direct(parties, ALL)).members) == len(ALL)
