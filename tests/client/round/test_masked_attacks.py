"""A hostile coordinator before any sum: whom it names, under which terms, what it passes on."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeway.client.round.policy import ROSTER
from ridgeway.common.masking.agreement import Advert, public_half
from ridgeway.common.masking.member import advertise, new_secrets
from ridgeway.common.protocol.cohort import Cohort, Terms, form_cohort
from ridgeway.common.protocol.messages import (
    SUM_NAMES,
    Announce,
    ClearStatistics,
    Collect,
    Counted,
    Envelopes,
    Evaluate,
    Hold,
    Message,
    Offer,
    Seal,
    SealedSums,
    Share,
)
from ridgeway.common.text.encoder_files import save_encoder
from tests.support.faults import make_haste
from tests.support.hostile import (
    ANNOUNCE,
    CONFIRM,
    FEWER,
    MEMBERS,
    SEAL,
    SHARE,
    VICTIM,
    WEIGHTS,
    WITHOUT,
    Hostile,
    Stages,
    nothing_revealed,
)
from tests.support.rosters import unpin
from tests.support.simulated_federation import own_texts

DOMAINS = ("code", "law", "medicine")
At = Callable[[int], Hostile]


def still_opens(coordinator: Hostile) -> None:
    """Without the lie the session comes to the sum that it should: so the refusal was due to the
    lie alone.
    """
    nothing_revealed(coordinator)
    if not coordinator.shared:
        coordinator.share()
    coordinator.seal()
    total = coordinator.finish("statistics")
    assert (total == coordinator.plain_sum(coordinator.names)).all()


def with_another_domain(coordinator: Hostile, name: str) -> Cohort:
    """The cohort in which one member is counted to code."""
    domains = {member.key: member.domain for member in coordinator.cohort().members}
    return form_cohort(coordinator.terms, domains | {coordinator.key_of[name]: "code"})


def shared_nothing(coordinator: Hostile) -> None:
    """No member has dealt its secrets out."""
    assert coordinator.gave(Envelopes) == []
    nothing_revealed(coordinator)


def with_advert(coordinator: Hostile, name: str, advert: Advert) -> Share:
    """A session in which other keys are shown for one member."""
    adverts = [
        advert if shown.key == coordinator.key_of[name] else shown
        for shown in coordinator.agreement().adverts
    ]
    return coordinator.share_request(adverts=tuple(adverts))


# Lies about a session


def clear(terms: Terms) -> Terms:
    return terms.model_copy(update={"mode": "clear"})


def evaluate(terms: Terms) -> Evaluate:
    return Evaluate(
        terms=terms, domains=DOMAINS, selector="average", k=10, temperatures=(1.0,)
    )


def unknown_encoder(coordinator: Hostile) -> Terms:
    return coordinator.terms.model_copy(update={"encoder": "0" * 64})


def known_masks(coordinator: Hostile) -> Share:
    """A session in which a member has mask keys that the coordinator knows, and would see
    through.
    """
    known = tuple(public_half(secrets.token_bytes(32)).hex() for _ in SUM_NAMES)
    return with_advert(
        coordinator,
        "law-2",
        coordinator.adverts["law-2"].model_copy(update={"masks": known}),
    )


def other_cohort(
    names: Sequence[str], *, named: bool = False
) -> Callable[[Hostile], Share]:
    """A cohort of these beside the agreement of all, which may name the cohort."""

    def share(coordinator: Hostile) -> Share:
        cohort, agreement = (
            coordinator.cohort(names),
            coordinator.agreement(coordinator.cohort()),
        )
        return Share(
            cohort=cohort,
            agreement=agreement.model_copy(
                update={"cohort": cohort.id} if named else {}
            ),
        )

    return share


def changed(**changes: Any) -> Callable[[Hostile], Share]:
    return lambda c: c.share_request(**changes)


LIES: list[tuple[str, Callable[[Hostile], Message]]] = [
    ("bad_advert", known_masks),
    # One of them would be summed without being named, or with another share than the others are
    # told.
    (
        "other_session",
        lambda c: Share(
            cohort=with_another_domain(c, "law-2"), agreement=c.agreement(c.cohort())
        ),
    ),
    ("other_session", other_cohort(FEWER)),
    ("other_session", other_cohort(FEWER, named=True)),
    ("other_session", other_cohort(WITHOUT["law-2"])),
    # Keys serve one round, for the two sums that every round has.
    ("other_session", changed(round="ef" * 16)),
    ("other_session", changed(lots=SUM_NAMES[::-1])),
    ("other_session", changed(lots=SUM_NAMES[:1])),
    ("other_session", changed(terms="0" * 64)),
    # With a lower threshold two halves of the members could open two sums.
    *(("wrong_threshold", changed(threshold=threshold)) for threshold in (1, 2, 3, 5)),
    # Its sums belong to nobody else's column.
    ("not_in_cohort", lambda c: c.share_request(c.cohort(WITHOUT[VICTIM]))),
    ("wrong_domain", lambda c: c.share_request(with_another_domain(c, VICTIM))),
    # A holder that asks for masks sends nothing without, whatever a request says.
    ("mode_not_allowed", lambda c: Announce(terms=clear(c.terms))),
    ("mode_not_allowed", lambda c: Collect(cohort=c.cohort(terms=clear(c.terms)))),
    ("mode_not_allowed", lambda c: c.share_request(c.cohort(terms=clear(c.terms)))),
    # An encoder made for the purpose could single texts out.
    ("encoder_not_allowed", lambda c: Announce(terms=unknown_encoder(c))),
    (
        "encoder_not_allowed",
        lambda c: c.share_request(c.cohort(terms=unknown_encoder(c))),
    ),
]


def test_a_lie_before_secrets_are_shared_is_refused(at: At) -> None:
    """Each by its code, nothing leaves, and the session goes on without the lie."""
    coordinator = at(SHARE)
    for number, (code, lie) in enumerate(LIES):
        assert coordinator.refusal(VICTIM, lie(coordinator)) == code, number
    coordinator.parties.rewrite(
        VICTIM, 'modes = ["masked"]', 'modes = ["masked", "clear"]'
    )
    downgrade = coordinator.cohort(terms=clear(coordinator.terms))
    asked = coordinator.share_request(downgrade)
    # Its keys were signed for masked rounds.
    assert coordinator.refusal(VICTIM, asked) == "not_masked"
    assert coordinator.gave(Offer) == coordinator.gave(ClearStatistics) == []
    shared_nothing(coordinator)
    still_opens(coordinator)


# Keys and roster


@pytest.mark.parametrize(
    ("name", "code"), [(VICTIM, "swapped_key"), ("law-2", "bad_advert")]
)
def test_keys_of_an_earlier_round_cannot_be_shown_again(
    at: At, name: str, code: str
) -> None:
    """Though their owner has signed them, be it the member itself: their secrets may be known by
    now.
    """
    earlier = at(SHARE)
    coordinator = at_another_round(earlier)
    request = with_advert(coordinator, name, earlier.adverts[name])
    assert coordinator.refusal(VICTIM, request) == code
    shared_nothing(coordinator)
    still_opens(coordinator)


def at_another_round(coordinator: Hostile) -> Hostile:
    other = Hostile(coordinator.parties, coordinator.names, "ef" * 16)
    other.announce()
    return other


def test_a_member_that_nobody_pinned_is_refused(at: At) -> None:
    """However well it signs: a coordinator could invent members until one real one is left."""
    parties = at(ANNOUNCE).parties
    save_encoder(parties.encoder, parties.folder / "encoder")
    spy = parties.settle("spy", "code", own_texts("spy", "code", 12))
    parties.admit("spy")
    coordinator = Hostile(parties, [*MEMBERS, "spy"])
    coordinator.announce(MEMBERS)
    made = new_secrets(len(SUM_NAMES), secrets.token_bytes)
    shown = advertise(
        made, spy.identity, coordinator.terms.id, coordinator.round, "5" * 64, "6" * 64
    )
    coordinator.adverts["spy"] = shown
    assert coordinator.refusal(VICTIM, coordinator.share_request()) == "not_pinned"
    shared_nothing(coordinator)


def test_a_member_that_was_unpinned_since_the_announcement_is_refused(at: At) -> None:
    """The roster counts as it stands when secrets would leave."""
    coordinator = at(SHARE)
    unpin(coordinator.parties.homes[VICTIM], [coordinator.key_of["law-2"]])
    assert coordinator.refusal(VICTIM, coordinator.share_request()) == "not_pinned"
    shared_nothing(coordinator)


def test_without_a_pinned_roster_no_keys_are_shown(at: At) -> None:
    """Whoever has pinned nobody cannot tell members from inventions."""
    coordinator = at(ANNOUNCE)
    (coordinator.parties.homes[VICTIM] / ROSTER).unlink()
    assert coordinator.refused_announcement() == "roster_not_pinned"
    assert coordinator.gave(Offer) == []


# How many


@pytest.mark.parametrize(
    ("own_minimum", "names"),
    [(1, ["code-1"]), (3, ["code-1"]), (5, ["law-2", "code-1", "code-2"])],
)
def test_a_cohort_that_is_too_small_is_refused(
    at: At, own_minimum: int, names: list[str]
) -> None:
    """Of two each would see the other's sums, whatever the holder allows; a holder may ask for more
    than three.
    """
    coordinator = at(SHARE)
    coordinator.parties.rewrite(VICTIM, "min_cohort = 3", f"min_cohort = {own_minimum}")
    lie = coordinator.share_request(coordinator.cohort([VICTIM, *names]))
    assert coordinator.refusal(VICTIM, lie) == "cohort_too_small"
    shared_nothing(coordinator)
    still_opens(coordinator)


# Downgrades


def test_a_downgrade_to_the_clear_is_refused_at_every_step(at: At) -> None:
    """A holder that asks for masks counts nothing without; earlier steps are among the lies
    above.
    """
    coordinator = at(SEAL)
    assert (
        coordinator.refusal(VICTIM, evaluate(clear(coordinator.terms)), (WEIGHTS,))
        == "mode_not_allowed"
    )
    assert coordinator.gave(Counted) == []
    still_opens(coordinator)


def test_sums_and_counts_under_masked_terms_are_not_sent_without_a_session(
    at: At,
) -> None:
    """That the terms say masked does not make it so; the request for sums in the clear gets
    none.
    """
    coordinator = at(CONFIRM)
    assert (
        coordinator.refusal(VICTIM, evaluate(coordinator.terms), (WEIGHTS,))
        == "not_masked"
    )
    assert (
        coordinator.refusal(VICTIM, Collect(cohort=coordinator.cohort()))
        == "not_masked"
    )
    assert (
        coordinator.gave(SealedSums)
        == coordinator.gave(Counted)
        == coordinator.gave(ClearStatistics)
        == []
    )
    nothing_revealed(coordinator)


# Two views of one session


# What is passed on


@pytest.mark.parametrize("kind", [Hold, Seal])
@pytest.mark.parametrize("change", ["flip", "move", "cut", "grow", "swap", "own"])
def test_changed_envelopes_are_refused_and_nothing_is_sealed(
    at: At, kind: type[Hold], change: str
) -> None:
    """Whatever was done to them on their way; the right ones are still taken afterwards."""
    coordinator = at(SEAL)
    post, size = coordinator.post(VICTIM), len(coordinator.post(VICTIM)) // 4
    changed = {
        "flip": post[:-1] + bytes([post[-1] ^ 1]),
        "move": bytes([post[0] ^ 1]) + post[1:],
        "cut": post[:-1],
        "grow": post + b"x",
        "swap": post[size : 2 * size] + post[:size] + post[2 * size :],
        "own": coordinator.envelopes[VICTIM],
    }[change]
    assert (
        coordinator.refusal(VICTIM, coordinator.hold_request(kind), (changed,))
        == "bad_envelope"
    )
    assert coordinator.gave(SealedSums) == []
    still_opens(coordinator)


@pytest.mark.parametrize("dealing", ["everybody"], indirect=True)
@pytest.mark.parametrize("kind", [Hold, Seal])
def test_withheld_envelopes_are_missed(at: At, kind: type[Hold]) -> None:
    """One or all of them; in a large cohort, where some others deal to a member, masks stay on the
    sum instead.
    """
    coordinator = at(SEAL)
    post = coordinator.post(VICTIM)
    for fewer in (b"", post[len(post) // 4 :]):
        assert (
            coordinator.refusal(VICTIM, coordinator.hold_request(kind), (fewer,))
            == "bad_envelope"
        )
    still_opens(coordinator)


def test_envelopes_changed_after_they_were_signed_are_refused(at: At) -> None:
    """By whoever carries the coordinator's messages."""
    coordinator = at(SEAL)
    packet = coordinator.packet(
        coordinator.hold_request(Seal), (coordinator.post(VICTIM),)
    )
    for blob in (b"x" + coordinator.post(VICTIM)[1:], coordinator.post(VICTIM)[:-1]):
        assert (
            coordinator.refused(VICTIM, replace(packet, blobs=(blob,))) == "malformed"
        )
    changed = json.loads(packet.header) | {"round": "ef" * 16}
    assert (
        coordinator.refused(
            VICTIM, replace(packet, header=json.dumps(changed).encode())
        )
        == "bad_signature"
    )
    still_opens(coordinator)


@pytest.mark.parametrize("kind", [Hold, Seal])
def test_a_set_of_sharers_that_cannot_be_is_refused(at: At, kind: type[Hold]) -> None:
    """Too few, one that is no member, or without the holder itself."""
    coordinator = at(SEAL)
    own_index = coordinator.place(VICTIM)
    others = tuple(index for index in range(1, 6) if index != own_index)
    for shared, code in (
        ((own_index, *others[:2]), "too_few_survivors"),
        ((own_index, *others, 6), "impossible_survivors"),
        (others, "not_in_cohort"),
        ((own_index, own_index, own_index, own_index), "too_few_survivors"),
    ):
        request = kind(session=coordinator.session, shared=shared)
        assert coordinator.refusal(VICTIM, request, (coordinator.post(VICTIM),)) == code
    still_opens(coordinator)


# Who asks


# What was advertised is what is sealed


def test_sums_that_changed_since_they_were_advertised_are_not_sealed(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others know the sum by what was advertised: by it they tell whether they have signed it
    before.
    """
    make_haste(monkeypatch)
    coordinator = stages.at(SEAL, tmp_path / "parties")
    coordinator.parties.change_corpus(VICTIM)
    seal = coordinator.packet(
        coordinator.hold_request(Seal), (coordinator.post(VICTIM),)
    )
    assert coordinator.refused(VICTIM, seal) == "source_changed"
    assert coordinator.refused_announcement() == "session_reused"
    assert coordinator.refused(VICTIM, seal) == "source_changed"
    assert coordinator.gave(SealedSums) == []
    coordinator.seal(others := [name for name in coordinator.names if name != VICTIM])
    total = coordinator.finish("statistics", others)
    assert (total == coordinator.plain_sum(others)).all()


def test_conditions_that_the_owner_tightened_hold_before_anything_is_sealed(
    at: At,
) -> None:
    """Though secrets were dealt out under the earlier ones."""
    coordinator = at(SEAL)
    coordinator.parties.rewrite(VICTIM, "min_cohort = 3", "min_cohort = 6")
    assert coordinator.refused_step(SEAL) == "cohort_too_small"
