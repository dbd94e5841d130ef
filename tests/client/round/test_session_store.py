"""A session's state at rest: it survives processes and crashes, shows nothing, and forgets what was
used.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.pretty import pretty_repr

import ridgeway.client.round.answers
from ridgeway.client.round.answers import answer
from ridgeway.client.round.epochs import SIGNED
from ridgeway.client.round.session_store import ERASED, SessionFile, SessionState
from ridgeway.common.base.journal import Journal
from ridgeway.common.masking.shares import SHARE_BYTES
from ridgeway.common.protocol.messages import (
    SUM_NAMES,
    Announce,
    Message,
    OpenSum,
    Refusal,
    Revealed,
    Seal,
    SumName,
)
from ridgeway.common.protocol.packet import Blob, Opened, Packet, open_packet
from tests.support.faults import Crash, make_haste
from tests.support.hostile import (
    ALL,
    ANNOUNCE,
    CONFIRM,
    FEWER,
    LOCK,
    OPEN,
    OTHERS,
    OVER,
    SEAL,
    SHARE,
    VICTIM,
    Hostile,
    Stages,
)
from tests.support.making import fixed_identity
from tests.support.simulated_federation import round_of

STEPS = (ANNOUNCE, SHARE, SEAL, CONFIRM, LOCK, OPEN)
PLACES: list[tuple[int, SumName]] = [
    *((step, "statistics") for step in STEPS),
    *((step, lot) for lot in SUM_NAMES[1:] for step in (SEAL, CONFIRM, LOCK, OPEN)),
]
"""Every step of a session: those with the statistics, and those that come again with each of the
counts.
"""

At = Callable[..., Hostile]


@pytest.fixture
def at(stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> At:
    """A session right before a step. Holders note what they send."""
    note = ridgeway.client.round.answers._note
    make_haste(monkeypatch)
    monkeypatch.setattr(ridgeway.client.round.answers, "_note", note)
    return lambda step, lot="statistics": stages.at(step, tmp_path / "parties", lot)


def session_of(coordinator: Hostile, name: str = VICTIM) -> Path:
    return coordinator.parties.homes[name] / "session"


def state_of(coordinator: Hostile, name: str = VICTIM) -> SessionState:
    state = coordinator.parties.holder(name).sessions.load()
    assert state is not None
    return state


def secrets_in(state: SessionState) -> dict[str, bytes]:
    """Every secret that a state has, by a name for it."""
    secrets = {"cipher": state.cipher, "kept": state.kept}
    secrets |= {
        f"mask {lot}": key for lot, key in zip(SUM_NAMES, state.masks, strict=True)
    }
    secrets |= {
        f"seed {lot}": seed for lot, seed in zip(SUM_NAMES, state.seeds, strict=True)
    }
    size = 2 * SHARE_BYTES
    for number, held in enumerate(state.held):
        secrets |= {
            f"share {at} of {number}": held[at : at + size]
            for at in range(0, len(held), size)
        }
    return {
        name: bytes.fromhex(secret)
        for name, secret in secrets.items()
        if secret.strip("0")
    }


# At rest


@pytest.mark.parametrize("step", [SHARE, SEAL, CONFIRM, OPEN, OVER])
def test_no_file_of_a_holder_holds_a_secret_of_its_session_in_plain_form(
    at: At, step: int
) -> None:
    """Neither as bytes nor as digits, in the state, the journal or the log; and the state is its
    owner's alone.
    """
    coordinator = at(step)
    secrets = secrets_in(state_of(coordinator))
    assert len(secrets) >= 2 * len(SUM_NAMES) - 2
    for path in (
        path for path in coordinator.parties.homes[VICTIM].rglob("*") if path.is_file()
    ):
        content = path.read_bytes()
        for name, secret in secrets.items():
            assert secret not in content, (name, path.name)
            assert secret.hex().encode() not in content.lower(), (name, path.name)
    for name in ("session", "session.lock"):
        assert (
            stat.S_IMODE((coordinator.parties.homes[VICTIM] / name).stat().st_mode)
            == 0o600
        )


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a byte changed": lambda content: (
        content[:100] + bytes([content[100] ^ 1]) + content[101:]
    ),
    "the tag changed": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "one byte short": lambda content: content[:-1],
    "less than a nonce": lambda content: content[:5],
    "empty": lambda content: b"",
    "plain words": lambda content: b'{"round": "' + b"cd" * 16 + b'"}',
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_as_good_as_none(at: At, damage: str) -> None:
    """Every step is refused in words, none ends in a traceback, and the next round goes well."""
    coordinator = at(OPEN)
    path = session_of(coordinator)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    for step in (SHARE, SEAL, CONFIRM, LOCK, OPEN):
        assert coordinator.refused_step(step) == "no_session"
    assert coordinator.refused_announcement() == "session_reused"
    assert (
        "Traceback"
        not in (coordinator.parties.homes[VICTIM] / "logs" / "holder.log").read_text()
    )
    Hostile(coordinator.parties, ALL, "ef" * 16).play("statistics")


def test_a_state_moved_to_another_holder_is_as_good_as_none(at: At) -> None:
    """Only the identity that wrote it gives the key; another one's state does not take its
    place.
    """
    coordinator = at(OPEN)
    folder = coordinator.parties.homes[VICTIM]
    assert (
        SessionFile(folder, coordinator.parties.holder(VICTIM).identity).load()
        is not None
    )
    assert SessionFile(folder, fixed_identity()).load() is None
    session_of(coordinator).write_bytes(session_of(coordinator, "law-2").read_bytes())
    assert coordinator.refused_step(OPEN) == "no_session"


def test_states_and_secrets_do_not_print_themselves(at: At) -> None:
    """Neither alone nor within something else, nor where rich would lay them out."""
    state = state_of(at(OPEN))
    held = secrets_in(state)
    for shown in (state, state.secrets, [state], {"state": state.secrets}):
        for words in (repr(shown), str(shown), f"{shown}", pretty_repr(shown)):
            assert not [
                name
                for name, secret in held.items()
                if secret.hex() in words or repr(secret)[2:-1] in words
            ]


# What was used is forgotten


def test_the_cipher_key_is_gone_once_the_shares_are_held(at: At) -> None:
    """Envelopes that somebody recorded cannot be opened any more, even by who has the folder."""
    coordinator = at(SEAL)
    cipher = state_of(coordinator).cipher
    assert cipher != ERASED
    coordinator.send(VICTIM, coordinator.request(SEAL, "statistics", VICTIM))
    after = state_of(coordinator)
    assert (after.cipher, after.kept) == (ERASED, ERASED)
    assert cipher not in after.model_dump_json()


@pytest.mark.parametrize("lot", SUM_NAMES)
def test_the_secrets_of_a_sum_are_gone_once_it_was_opened(at: At, lot: SumName) -> None:
    """Its mask key, its seed, and every share held for others but those that have left; other sums
    keep theirs.
    """
    coordinator = at(OPEN, lot)
    before, index = state_of(coordinator), SUM_NAMES.index(lot)
    coordinator.send(VICTIM, coordinator.request(OPEN, lot, VICTIM))
    after = state_of(coordinator)
    words = after.model_dump_json()
    assert (after.masks[index], after.seeds[index]) == (ERASED, ERASED)
    assert before.masks[index] not in words
    assert before.seeds[index] not in words
    size = 2 * SHARE_BYTES
    for held in before.held:
        seed, mask = (
            held[size * at : size * (at + 1)] for at in (2 * index, 2 * index + 1)
        )
        assert mask not in words
        assert words.count(seed) == 1  # in the answer that may be repeated
    kept = [at for at in range(len(SUM_NAMES)) if at != index]
    assert [after.masks[at] for at in kept] == [before.masks[at] for at in kept]
    assert all(
        new[2 * size * at : 2 * size * (at + 1)]
        == old[2 * size * at : 2 * size * (at + 1)]
        for new, old in zip(after.held, before.held, strict=True)
        for at in kept
    )


def test_nothing_of_a_session_is_left_once_the_release_has_come(at: At) -> None:
    """At every holder that received it."""
    parties = at(ANNOUNCE).parties
    published = round_of(parties)
    for name in parties.homes:
        assert parties.holder(name).newest == published.number
        assert not (parties.homes[name] / "session").exists()


# Crashes


def crashing(
    work: Callable[..., Any],
    error: Callable[[], BaseException],
    *,
    afterwards: bool,
    turn: int = 1,
) -> Callable[..., Any]:
    """The work, after or before which something goes wrong, at one of its turns."""
    turns: list[int] = []

    def crash(*given: Any, **named: Any) -> Any:
        turns.append(1)
        if len(turns) != turn:
            return work(*given, **named)
        if afterwards:
            work(*given, **named)
        raise error()

    return crash


@pytest.fixture(params=["save", "append"])
def written(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """Where a holder writes: its session, its journal."""
    return (SessionFile, "save") if request.param == "save" else (Journal, "append")


def answers_of(coordinator: Hostile, packets: list[Packet]) -> Iterator[Opened[Any]]:
    """What leaves the holder's machine in answer to these, whatever happens to its process
    meanwhile.
    """
    for packet in packets:
        try:
            yield open_packet(answer(coordinator.parties.holder(VICTIM), packet))
        except (Crash, OSError):
            continue


def die_before_saving(coordinator: Hostile, packet: Packet) -> None:
    """The victim's process ends before it saves its session, and has answered nothing."""
    with pytest.MonkeyPatch.context() as patch:
        crash = crashing(SessionFile.save, Crash, afterwards=False)
        patch.setattr(SessionFile, "save", crash)
        assert list(answers_of(coordinator, [packet])) == []


def other_request(coordinator: Hostile, step: int, lot: SumName) -> Packet:
    """Another request for the same step, as a coordinator that hopes for a second answer would make
    it.

    Beside a lock of one sum, a signature for another would be such an answer.
    """
    terms = coordinator.allow_tokens()
    message: Message = Announce(terms=terms)
    blobs: tuple[Blob, ...] = ()
    if step == SHARE:
        message = coordinator.share_request(coordinator.cohort(FEWER))
    if step == SEAL and lot == "statistics":
        message = coordinator.hold_request(Seal, FEWER)
        blobs = (coordinator.post(VICTIM, FEWER),)
    elif step == SEAL:
        message, blobs = coordinator.question(other=True)
    if step == CONFIRM:
        message = coordinator.confirm_request(lot, OTHERS)
    if step == LOCK:
        message = coordinator.confirm_request(lot, FEWER)
    if step == OPEN:
        signatures = {**coordinator.signatures, 6: "0" * 128}
        message = coordinator.open_request(lot, ALL, signatures)
    return coordinator.packet(message, blobs)


def full_disk() -> OSError:
    return OSError("no space left")


@pytest.mark.parametrize(
    ("error", "turn", "afterwards"),
    [(Crash, 1, False), (Crash, 1, True), (Crash, 2, True), (full_disk, 1, False)],
    ids=["killed before", "killed after", "killed after the second", "full disk"],
)
@pytest.mark.parametrize(("step", "lot"), PLACES)
def test_a_crash_at_any_step_never_lets_two_different_answers_out(
    at: At,
    monkeypatch: pytest.MonkeyPatch,
    written: tuple[Any, str],
    step: int,
    lot: SumName,
    error: Callable[[], BaseException],
    turn: int,
    afterwards: bool,
) -> None:
    """Whatever was written when it came: a step is repeated to the byte, or taken by one request
    alone, or refused.
    """
    coordinator = at(step, lot)
    asked = coordinator.request(step, lot, VICTIM)
    other = other_request(coordinator, step, lot)
    if step == CONFIRM:
        asked = coordinator.packet(coordinator.confirm_request(lot, FEWER))
    store, method = written
    monkeypatch.setattr(
        store,
        method,
        crashing(getattr(store, method), error, afterwards=afterwards, turn=turn),
    )
    answers = list(answers_of(coordinator, [asked, other, asked, asked, other]))
    given = {
        (opened.message.model_dump_json(), *map(bytes, opened.blobs))
        for opened in answers
        if not isinstance(opened.message, Refusal)
    }
    assert len(given) <= 1
    codes = {
        opened.message.code for opened in answers if isinstance(opened.message, Refusal)
    }
    assert codes <= {
        "failed",
        "session_reused",
        "already_answered",
        "two_survivor_sets",
    }


@pytest.mark.parametrize("lot", SUM_NAMES)
def test_what_is_signed_is_in_the_journal_before_the_signature_leaves(
    at: At, lot: SumName
) -> None:
    """Killed in between, the holder takes the sum for one that may be opened; it never forgets one
    that was.
    """
    coordinator = at(CONFIRM, lot)
    request = coordinator.request(CONFIRM, lot, VICTIM)
    assert signed_by_victim(coordinator, lot) == []
    die_before_saving(coordinator, request)
    assert signed_by_victim(coordinator, lot) == [
        {coordinator.key_of[name] for name in ALL}
    ]
    assert coordinator.parties.holder(VICTIM).account.is_paid(
        coordinator.adverts[VICTIM].source, lot, "masked"
    )
    later = Hostile(coordinator.parties, ALL, "ef" * 16)
    later.begin()
    if lot == "statistics":
        later.seal()
        assert later.refused_sum(VICTIM, lot, FEWER) == "epoch_used"
    else:
        later.weights = coordinator.weights
        later.hold()
        later.ask(VICTIM, *later.question(other=True))
        assert later.refused_sum(VICTIM, lot, ALL) == "already_counted"


def signed_by_victim(coordinator: Hostile, lot: SumName) -> list[set[str]]:
    """The members of every total of a lot that the victim's journal says to be signed."""
    entries = coordinator.parties.holder(VICTIM).journal.entries(SIGNED)
    return [
        set(entry.facts["members"]) for entry in entries if entry.facts["lot"] == lot
    ]


@pytest.mark.parametrize("step", [LOCK, OPEN])
def test_a_sum_that_others_may_open_is_not_forgotten_by_a_holder_that_was_killed(
    at: At, step: int
) -> None:
    """It had written down that it opens the sum, and nothing of that had left; then it is shown a
    smaller one.
    """
    coordinator = at(step)
    die_before_saving(coordinator, coordinator.request(step, "statistics", VICTIM))
    coordinator.ask(VICTIM, coordinator.confirm_request("statistics", FEWER))
    assert {coordinator.key_of[name] for name in ALL} in signed_by_victim(
        coordinator, "statistics"
    )


def test_no_share_leaves_when_the_journal_cannot_be_written(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the secrets of the sum are still there, for the very same request."""
    coordinator = at(OPEN)
    request = coordinator.request(OPEN, "statistics", VICTIM)
    assert isinstance(open_packet(request).message, OpenSum)
    with monkeypatch.context() as patch:
        patch.setattr(
            Journal, "append", crashing(Journal.append, full_disk, afterwards=False)
        )
        assert coordinator.refused(VICTIM, request) == "failed"
    assert coordinator.gave(Revealed) == []
    assert isinstance(coordinator.send(VICTIM, request).message, Revealed)
