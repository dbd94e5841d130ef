"""What the operator learns of its holders, by name: who is asked, who is in the way, and what each
has to do.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ridgeway.client.round.answers import answer
from ridgeway.common.base.errors import JournalError, RoundFailed
from ridgeway.common.protocol.messages import DISK_FULL, Announce, Message, Refusal
from ridgeway.common.protocol.packet import Packet, open_packet, seal_packet
from ridgeway.coordinator.cli import round_commands
from ridgeway.coordinator.deploy import supervisor
from ridgeway.coordinator.round.ask import PeerAnswer, PeerFailure, RunOrder
from ridgeway.coordinator.round.federation import (
    NODES,
    Federation,
    PrivacySettings,
)
from ridgeway.coordinator.round.membership import retire, rollback
from ridgeway.coordinator.round.progress import (
    AWAY,
    BUNDLE,
    NO_ANSWER,
    OTHER_RELEASE,
    REMEDIES,
    AnswerRefused,
    DeliveryBlocked,
    Event,
    HoldersAwaited,
    HoldersWaiting,
    RoundOpened,
    Watch,
    no_watch,
)
from ridgeway.coordinator.round.round import check_round, deliver_newest, run_round
from tests.support.commands import Workshop
from tests.support.hostile import MEMBERS
from tests.support.making import contents
from tests.support.simulated_federation import (
    DOMAINS,
    Direct,
    Parties,
    dry_run,
    found,
    found_private,
    names_of,
    of_kind,
    older_copy,
    own_texts,
    populate,
    round_fails,
    round_of,
)

pytestmark = pytest.mark.usefixtures("private_sentences")

HASH = "ab" * 32


@pytest.fixture
def parties(tmp_path: Path, haste_with_changes: None) -> Parties:
    """Five holders of three domains, whose SuperNodes the SuperLink has let in."""
    made = populate(found(tmp_path, mode="masked"), MEMBERS)
    roster = made.standing.roster
    nodes = {
        str(peer): {"public_line": roster[name].node, "name": name}
        for peer, name in enumerate(MEMBERS)
    }
    link = made.federation.link
    link.mkdir(exist_ok=True)
    (link / NODES).write_text(json.dumps(nodes))
    return made


class Asked(Direct):
    """A transport that notes whom it asks for what. unapproved: holders that have approved other
    code.

    failure: what Flower reports of these.
    """

    failure = PeerFailure(
        0,
        f"<class 'BundleRefused'>:<'this machine has not approved the bundle {HASH}'>",
    )

    def __init__(self, parties: Parties, *unapproved: str) -> None:
        super().__init__(parties, list(MEMBERS))
        self.asked: list[tuple[str, Message]] = []
        self.unapproved = unapproved

    def exchange(
        self, packets: Mapping[int, Packet], seconds: float
    ) -> Iterator[tuple[int, PeerAnswer]]:
        reached = {}
        for peer, packet in packets.items():
            self.asked.append((self.names[peer], open_packet(packet).message))
            if self.names[peer] in self.unapproved:
                yield peer, self.failure
            else:
                reached[peer] = packet
        yield from super().exchange(reached, seconds)


def test_retired_holders_are_neither_counted_nor_asked(parties: Parties) -> None:
    """They may be online for as long as they like: the round waits for the others, and refuses
    nobody.
    """
    events: list[Event] = []
    round_of(parties, Asked(parties), events.append)
    retire(parties.federation, "law")
    events.clear()
    transport = Asked(parties)
    transport.down = {"medicine"}
    parties.change_settings("wait = 0.0", "wait = 0.2")
    with pytest.raises(RoundFailed):
        round_of(parties, transport, events.append)
    assert {name for name, _ in transport.asked} == {"code-1", "code-2"}
    assert [event.holders for event in of_kind(RoundOpened, events)] == [3]
    assert {
        (event.online, event.wanted) for event in of_kind(HoldersAwaited, events)
    } == {(2, 3)}
    assert not of_kind(AnswerRefused, events)


def test_a_holder_that_has_not_approved_the_code_is_named_with_what_to_do(
    parties: Parties,
) -> None:
    """Its SuperNode refuses for it; the round says who it is and what its owner runs, and does not
    lose its domain.
    """
    round_of(parties, Asked(parties))
    parties.new_epochs()
    with round_fails(
        r"medicine refused \(bundle_refused: .*`ridgeway client approve DIR`"
    ):
        round_of(parties, Asked(parties, "medicine"))


@pytest.mark.parametrize(
    "failure",
    [
        PeerFailure(DISK_FULL, "this holder's disk is full"),
        PeerFailure(0, "[Errno 28] No space left on device"),
    ],
)
def test_a_holder_whose_disk_is_full_is_named_so(
    parties: Parties, failure: PeerFailure
) -> None:
    """Beforehand and in the round, by its own code, and not as one that gave no answer."""
    transport = Asked(parties, "medicine")
    transport.failure = failure
    events: list[Event] = []
    dry_run(parties, transport, events.append)
    assert [(event.name, event.code) for event in of_kind(AnswerRefused, events)] == [
        ("medicine", "disk_full")
    ]
    round_of(parties, Asked(parties))
    parties.new_epochs()
    with round_fails(
        r"medicine refused \(disk_full: this holder's disk is full\); its owner"
    ):
        round_of(parties, transport)


def test_a_member_that_misses_others_names_them(parties: Parties) -> None:
    """By the names that the operator gave them, not by their keys."""
    roster = parties.homes["medicine"] / "roster.json"
    content = json.loads(roster.read_text())
    content["members"] = [
        member for member in content["members"] if not member["name"].startswith("law")
    ]
    roster.write_text(json.dumps(content))
    events: list[Event] = []
    round_of(parties, Asked(parties), events.append)
    [refused] = of_kind(AnswerRefused, events)
    assert (refused.name, refused.code) == ("medicine", "not_pinned")
    assert refused.reason.endswith(": law-1, law-2")


# Releases are compared by their ids


@pytest.fixture
def clear(tmp_path: Path, haste_with_changes: None) -> Parties:
    return populate(found(tmp_path), MEMBERS)


def test_two_releases_of_one_number_are_told_apart_and_mended(clear: Parties) -> None:
    """After an older copy was restored, holders have another release 0002 than the ledger: a later
    number mends it.
    """
    round_of(clear)
    with older_copy(clear.folder / "coordinator"):
        for name in MEMBERS:
            clear.change_corpus(name)
        round_of(clear, accept_worse=DOMAINS)
    retire(clear.federation, "medicine")
    assert clear.standing.releases[-1].number == clear.holder("law-1").newest == 2
    events: list[Event] = []
    assert deliver_newest(clear.federation, Direct(clear), events.append) == set()
    [blocked] = of_kind(DeliveryBlocked, events)
    assert (blocked.code, set(blocked.names)) == (
        "other_release",
        set(MEMBERS) - {"medicine"},
    )
    assert set(clear.standing.ahead) == set(blocked.names)
    rollback(clear.federation, 2)
    names = deliver_newest(clear.federation, Direct(clear), no_watch)
    assert names == set(blocked.names)
    again = clear.standing.releases[-1]
    held = {clear.standing.delivered[name].release for name in names}
    assert (again.number, held, clear.standing.ahead) == (3, {again.release}, {})


def test_a_holder_that_claims_an_absurd_release_moves_no_number(clear: Parties) -> None:
    """One may say anything; a number that no copy can be behind by is not followed."""
    ledger = clear.ledger
    ledger.note("delivered", name="law-1", number=1 << 50, release="0" * 64)
    assert clear.federation.next_number == 1
    ledger.note("delivered", name="law-1", number=7, release="0" * 64)
    assert clear.federation.next_number == 8


def test_an_older_copy_opens_no_total_with_used_epochs(parties: Parties) -> None:
    """It does not know of the second total; the holders do, so dry run and round name them
    alike.
    """
    round_of(parties, Asked(parties))
    with older_copy(parties.folder / "coordinator"):
        parties.new_epochs()
        round_of(parties, Asked(parties))
    parties.ready("law-1")
    must_end_alike(
        parties, Asked(parties), r"code-1, code-2, .*medicine must open a new epoch"
    )


# A dry run: asked beforehand


def snapshot(parties: Parties, name: str) -> tuple[Any, ...]:
    """What a holder has paid, signed, opened and holds."""
    holder = parties.holder(name)
    noted = [
        (entry.kind, entry.facts)
        for entry in holder.journal.entries("signed", "opened", "spent", "cohort")
    ]
    return (
        noted,
        holder.account.expenses(),
        holder.account.epsilon(),
        holder.received,
        holder.epochs.current(),
    )


@pytest.fixture(params=["masked", "clear", "columns", "full"])
def any_mode(
    request: pytest.FixtureRequest, tmp_path: Path, haste_with_changes: None
) -> Parties:
    mode = request.param
    if mode in ("masked", "clear"):
        made = found(tmp_path, mode=mode)
    else:
        made = found_private(tmp_path, privacy=PrivacySettings(sums=mode, epsilon=0.5))
    return populate(made, MEMBERS)


def test_a_dry_run_leaves_nothing_and_charges_nobody(any_mode: Parties) -> None:
    """Before a first round, after it, and with new epochs: no round in the ledger, no sums, and
    nothing is paid; the round that follows pays what it would have paid without.
    """
    parties = any_mode
    for number in (1, 1, 2):
        federation = parties.federation
        rounds, written = federation.standing.rounds, federation.ledger.journal.verify()
        files = contents(federation.folder / "contributions")
        holders = {name: snapshot(parties, name) for name in MEMBERS}
        transport = Asked(parties)
        events: list[Event] = []
        check_round(federation, transport, events.append)
        assert {message.kind for _, message in transport.asked} == {"announce"}
        assert transport.reply_kinds == {"offer"}
        assert federation.ledger.journal.verify() == written
        assert federation.standing.rounds == rounds
        assert contents(federation.folder / "contributions") == files
        assert {name: snapshot(parties, name) for name in MEMBERS} == holders
        assert [event.number for event in of_kind(RoundOpened, events)] == [0]
        assert round_of(parties, Asked(parties)).number == number
        if parties.standing.rounds == 2:
            parties.new_epochs()
    costs = {name: len(parties.holder(name).account.expenses()) for name in MEMBERS}
    assert costs == dict.fromkeys(MEMBERS, 4), "sums and counts of two epochs"


def test_dry_runs_without_end_are_no_other_for_a_holder_than_one(
    any_mode: Parties,
) -> None:
    """Whoever asks again and again learns what it learnt first, and the round after it goes
    well.
    """
    offers = []
    for _ in range(4):
        transport = Asked(any_mode)
        dry_run(any_mode, transport)
        answers = dict(transport.messages)
        offers.append(
            {
                name: offer.model_copy(update={"advert": None})
                for name, offer in answers.items()
            }
        )
    assert all(offer == offers[0] for offer in offers)
    assert round_of(any_mode, Asked(any_mode)).number == 1


def test_a_dry_run_and_a_round_ask_the_same_of_a_holder(any_mode: Parties) -> None:
    """But for the round's name and number: no holder can promise the one and refuse the other."""
    asked = []
    for work in (check_round, run_round):
        transport = Asked(any_mode)
        work(any_mode.federation, transport, no_watch)
        asked.append(
            [
                (name, message)
                for name, message in transport.asked
                if isinstance(message, Announce)
            ]
        )
    assert len(asked[0]) == len(MEMBERS)
    assert asked[0] == asked[1]


def test_a_dry_run_ends_as_the_round_would(parties: Parties) -> None:
    """By the same sentence: who waits for its next epoch, who is away, and what would be lost."""
    transport = Asked(parties)
    transport.down = set(MEMBERS) - {"law-1", "law-2"}
    must_end_alike(
        parties, transport, "2 holders can take part, but a round under masks needs 3"
    )
    round_of(parties, Asked(parties))
    dry_run(parties, Asked(parties))
    parties.ready("medicine")
    must_end_alike(
        parties, Asked(parties), "code-1, code-2, law-1, law-2 must open a new epoch"
    )
    parties.new_epochs("code-1", "law-1", "law-2")
    events: list[Event] = []
    dry_run(parties, Asked(parties), events.append)
    assert [event.names for event in of_kind(HoldersWaiting, events)] == [["code-2"]]
    published = round_of(parties, Asked(parties))
    assert names_of(published) == set(MEMBERS) - {"code-2"}
    transport = Asked(parties)
    transport.down = {"medicine"}
    parties.new_epochs()
    must_end_alike(parties, transport, "would lose medicine")


def must_end_alike(parties: Parties, transport: Direct, words: str) -> None:
    said = []
    for work in (check_round, run_round):
        with round_fails(words) as failed:
            work(parties.federation, transport, no_watch)
        said.append(str(failed.value))
    assert said[0] == said[1]


def test_a_session_that_a_dry_run_announced_opens_nothing(parties: Parties) -> None:
    """A holder's keys for it are gone with the next announcement, and its name serves no round."""
    dry_run(parties, Asked(parties))
    holder = parties.holder("law-1")
    [named] = [entry.facts["round"] for entry in holder.journal.entries("session")]
    assert round_of(parties, Asked(parties)).number == 1
    state = parties.holder("law-1").sessions.load()
    assert state is None or state.round != named
    federation = parties.federation
    again = seal_packet(
        Announce(terms=federation.terms), federation.identity, round=named
    )
    message = open_packet(answer(parties.holder("law-1"), again)).message
    assert isinstance(message, Refusal) and message.code == "session_reused"


def test_a_round_that_all_refuse_names_what_each_has_to_do(tmp_path: Path) -> None:
    """Two holders who insist on three: that they are online is not in question."""
    parties = found(tmp_path)
    for name in ("code", "law"):
        parties.settle(name, name, own_texts(name, name, 12), min_cohort=3)
        parties.admit(name)
    with round_fails("0 of 2 holders can take part") as failed:
        round_of(parties)
    assert REMEDIES["cohort_too_small"] in str(failed.value)
    assert "SuperNode" not in str(failed.value)


def test_an_altered_ledger_stops_whatever_would_build_on_it(parties: Parties) -> None:
    """Round, dry run, delivery, changes of membership and `up`: one sentence, and nobody is
    asked.
    """
    round_of(parties, Asked(parties))
    parties.new_epochs()
    with sqlite3.connect(parties.federation.folder / "ledger.db") as database:
        database.execute(
            "update entries set facts = replace(facts, 'medicine', 'medicime') "
            "where kind = 'released'"
        )
    database.close()
    transport = Asked(parties)
    for work in (
        lambda: round_of(parties, transport),
        lambda: dry_run(parties, transport),
        lambda: deliver_newest(parties.federation, transport, no_watch),
        lambda: retire(parties.federation, "law"),
        lambda: supervisor.up(
            parties.federation, lambda: True, lambda: None, lambda words: None
        ),
    ):
        with pytest.raises(
            JournalError, match=r"entry \d+ \(released\).* after it was written"
        ):
            work()
    assert not transport.asked


def test_every_refusal_of_a_holder_has_a_remedy_or_a_reason_of_its_own() -> None:
    """The table speaks of codes that exist: each stands in the source of the side that refuses."""
    source = "".join(
        path.read_text()
        for room in ("client", "common", "coordinator")
        for path in Path(room).rglob("*.py")
    )
    for code in set(REMEDIES) - {AWAY, NO_ANSWER, BUNDLE, OTHER_RELEASE}:
        assert source.count(f'"{code}"') > 1, code


def test_the_command_says_what_each_has_to_do(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line, like a round; the exit code says whether there could be a release, and none is
    made.
    """
    transport = Asked(parties, "law-2")
    transport.down = {"medicine"}
    orders: list[RunOrder] = []

    def run_work(federation: Federation, order: RunOrder, watch: Watch) -> None:
        orders.append(order)
        check_round(parties.federation, transport, watch, order)

    monkeypatch.setattr(round_commands, "run_work", run_work)
    shop = Workshop(parties.folder)
    command = "coordinator round coordinator --dry-run"
    done = shop.call(command)
    assert (done.code, done.stdout) == (0, "")
    said = [line.split()[:3] for line in done.stderr.splitlines()]
    assert (said[0][:2], said[1][:2]) == (["dry", "run"], ["mode", "masked"])
    assert said[-1][0] == "clear"
    for line in (
        "refused law-2 bundle_refused",
        "next law-2 its",
        "absent medicine no",
    ):
        assert line.split() in said
    facts = shop.call(command, "--json").json
    assert (facts["released"], facts["absent"]) == (False, ["medicine"])
    assert [(refusal["name"], refusal["code"]) for refusal in facts["refused"]] == [
        ("law-2", "bundle_refused")
    ]
    transport = Asked(parties, "law-1", "law-2", "code-1")
    failed = shop.call(command, "--json")
    assert (failed.code, failed.json["released"]) == (2, False)
    assert (
        "2 holders can take part, but a round under masks needs 3"
        in failed.json["error"]
    )
    assert {order.work for order in orders} == {"dry_run"}
    assert parties.federation.newest is None
