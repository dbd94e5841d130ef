"""What the operator learns of its holders, by name: who is asked, who is in the way, and what each has to do."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeway.common.base.errors import JournalError, RoundFailed
from ridgeway.common.protocol.invitation import Place
from ridgeway.common.protocol.messages import DISK_FULL, Here
from ridgeway.common.protocol.packet import Packet, open_packet
from ridgeway.coordinator.cli import round_commands
from ridgeway.coordinator.deploy import supervisor
from ridgeway.coordinator.round.ask import PeerAnswer, PeerFailure
from ridgeway.coordinator.round.federation import NODES, Federation
from ridgeway.coordinator.round.membership import retire, rollback
from ridgeway.coordinator.round.preflight import check_holders
from ridgeway.coordinator.round.progress import (
    AnswerRefused,
    DeliveryBlocked,
    Event,
    HoldersAwaited,
    RoundOpened,
    Watch,
    no_watch,
)
from ridgeway.coordinator.round.remedies import AWAY, BUNDLE, NO_ANSWER, OTHER_RELEASE, REMEDIES
from ridgeway.coordinator.round.round import deliver_newest, run_round
from ridgeway.coordinator.round.run_order import RoundWishes, RunOrder
from tests.support.commands import Workshop
from tests.support.faults import make_haste
from tests.support.making import fixed_identity
from tests.support.rosters import pin, unpin
from tests.support.simulated_federation import Direct, Parties, found, own_texts, populate

PEOPLE = {"code-1": "code", "code-2": "code", "law-1": "law", "law-2": "law", "medicine": "medicine"}
HASH = "ab" * 32


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    """Five holders of three domains, whose SuperNodes the SuperLink has let in."""
    make_haste(monkeypatch, once=False)
    made = found(tmp_path, mode="masked")
    populate(made, PEOPLE)
    roster = made.federation().ledger.standing().roster
    nodes = {str(place): {"public_line": roster[name].node, "name": name} for place, name in enumerate(PEOPLE)}
    made.federation().link.mkdir(exist_ok=True)
    (made.federation().link / NODES).write_text(json.dumps(nodes))
    return made


class Asked(Direct):
    """A transport that notes whom it asks for what. unapproved: holders that have approved other code.

    failure: what Flower reports of these.
    """

    failure = PeerFailure(0, f"<class 'BundleRefused'>:<'this machine has not approved the bundle {HASH}'>")

    def __init__(self, parties: Parties, *unapproved: str) -> None:
        super().__init__(parties, list(PEOPLE))
        self.asked: list[tuple[str, str]] = []
        self.unapproved = unapproved

    def exchange(self, packets: Mapping[int, Packet], seconds: float) -> Iterator[tuple[int, PeerAnswer]]:
        self.asked += [(self.names[peer], open_packet(packet).message.kind) for peer, packet in packets.items()]
        failing = {peer for peer in packets if self.names[peer] in self.unapproved}
        for peer in failing:
            yield peer, self.failure
        yield from super().exchange({peer: each for peer, each in packets.items() if peer not in failing}, seconds)


def new_epochs(parties: Parties, *names: str) -> None:
    for name in names or PEOPLE:
        parties.ready(name)


def test_retired_holders_are_neither_counted_nor_asked(parties: Parties) -> None:
    """They may be online for as long as they like: the round waits for the others, and refuses nobody."""
    told: list[Event] = []
    run_round(parties.federation(), Asked(parties), told.append)
    retire(parties.federation(), "law")
    told.clear()
    transport = Asked(parties)
    transport.down = {"medicine"}
    settings = parties.federation().folder / "coordinator.toml"
    settings.write_text(settings.read_text().replace("wait = 0.0", "wait = 0.2"))
    with pytest.raises(RoundFailed):
        run_round(parties.federation(), transport, told.append)
    assert {name for name, _ in transport.asked} == {"code-1", "code-2"}
    assert [each.holders for each in told if isinstance(each, RoundOpened)] == [3]
    assert {(each.online, each.wanted) for each in told if isinstance(each, HoldersAwaited)} == {(2, 3)}
    assert not [each for each in told if isinstance(each, AnswerRefused)]


def test_a_holder_that_has_not_approved_the_code_is_named_with_what_to_do(parties: Parties) -> None:
    """Its SuperNode refuses for it; the round says who it is and what its owner runs, and does not lose its domain."""
    run_round(parties.federation(), Asked(parties), no_watch)
    new_epochs(parties)
    with pytest.raises(RoundFailed, match=r"medicine refused \(bundle_refused: .*`ridgeway client approve DIR`"):
        run_round(parties.federation(), Asked(parties, "medicine"), no_watch)


@pytest.mark.parametrize(
    "failure",
    [PeerFailure(DISK_FULL, "this holder's disk is full"), PeerFailure(0, "[Errno 28] No space left on device")],
)
def test_a_holder_whose_disk_is_full_is_named_so(parties: Parties, failure: PeerFailure) -> None:
    """Beforehand and in the round, by its own code, and not as one that gave no answer."""
    transport = Asked(parties, "medicine")
    transport.failure = failure
    assert obstacles(parties, transport)["medicine"] == {"disk_full": []}
    run_round(parties.federation(), Asked(parties), no_watch)
    new_epochs(parties)
    with pytest.raises(RoundFailed, match=r"medicine refused \(disk_full: this holder's disk is full\); its owner"):
        run_round(parties.federation(), transport, no_watch)


def test_a_member_that_misses_others_names_them(parties: Parties) -> None:
    """By the names that the operator gave them, not by their keys."""
    roster = parties.homes["medicine"] / "roster.json"
    content = json.loads(roster.read_text())
    content["members"] = [each for each in content["members"] if not each["name"].startswith("law")]
    roster.write_text(json.dumps(content))
    told: list[Event] = []
    run_round(parties.federation(), Asked(parties), told.append)
    [refused] = [each for each in told if isinstance(each, AnswerRefused)]
    assert (refused.name, refused.code) == ("medicine", "not_pinned")
    assert refused.reason.endswith(": law-1, law-2")


# Releases are compared by their ids


@pytest.fixture
def clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    make_haste(monkeypatch, once=False)
    made = found(tmp_path)
    populate(made, PEOPLE)
    return made


def restored(parties: Parties, older: Path) -> None:
    """Put an older copy of the coordinator's folder in the place of the newest."""
    shutil.rmtree(parties.folder / "coordinator")
    shutil.copytree(older, parties.folder / "coordinator", symlinks=True)


def test_two_releases_of_one_number_are_told_apart_and_mended(clear: Parties, tmp_path: Path) -> None:
    """After an older copy was restored, holders have another release 0002 than the ledger: a later number mends it."""
    run_round(clear.federation(), Direct(clear), no_watch)
    shutil.copytree(clear.folder / "coordinator", tmp_path / "older", symlinks=True)
    for name in PEOPLE:
        clear.change_corpus(name)
    run_round(clear.federation(), Direct(clear), no_watch, RoundWishes(accept_worse=("code", "law", "medicine")))
    restored(clear, tmp_path / "older")
    change = retire(clear.federation(), "medicine")
    assert change.published is not None and change.published.number == clear.holder("law-1").newest == 2
    told: list[Event] = []
    assert deliver_newest(clear.federation(), Direct(clear), told.append) == set()
    [blocked] = [each for each in told if isinstance(each, DeliveryBlocked)]
    assert (blocked.code, set(blocked.names)) == ("other_release", set(PEOPLE) - {"medicine"})
    assert set(clear.federation().ledger.standing().ahead) == set(blocked.names)
    again = rollback(clear.federation(), 2).published
    assert again is not None and again.number == 3
    assert deliver_newest(clear.federation(), Direct(clear), no_watch) == set(blocked.names)
    held = {clear.federation().ledger.standing().delivered[name].release for name in blocked.names}
    assert held == {again.release} and not clear.federation().ledger.standing().ahead


def test_a_holder_that_claims_an_absurd_release_moves_no_number(clear: Parties) -> None:
    """One may say anything; a number that no copy can be behind by is not followed."""
    ledger = clear.federation().ledger
    ledger.note("delivered", name="law-1", number=1 << 50, release="0" * 64)
    assert clear.federation().next_number == 1
    ledger.note("delivered", name="law-1", number=7, release="0" * 64)
    assert clear.federation().next_number == 8


def test_an_older_copy_opens_no_total_with_used_epochs(parties: Parties, tmp_path: Path) -> None:
    """It does not know of the second total; the holders do, so pre-flight and round name them alike."""
    run_round(parties.federation(), Asked(parties), no_watch)
    shutil.copytree(parties.folder / "coordinator", tmp_path / "older", symlinks=True)
    new_epochs(parties)
    run_round(parties.federation(), Asked(parties), no_watch)
    restored(parties, tmp_path / "older")
    parties.ready("law-1")
    waiting = sorted(set(PEOPLE) - {"law-1"})
    found_ = obstacles(parties, Asked(parties))
    assert {name for name, each in found_.items() if "epoch_used" in each} == set(waiting)
    with pytest.raises(RoundFailed, match=r"code-1, code-2, .*medicine must open a new epoch"):
        run_round(parties.federation(), Asked(parties), no_watch)


# Asked beforehand


def obstacles(parties: Parties, transport: Direct) -> dict[str, dict[str, list[str]]]:
    checked = check_holders(parties.federation(), transport, no_watch)
    assert [each.name for each in checked] == sorted(PEOPLE)
    return {each.name: {code: list(names) for code, names in each.obstacles} for each in checked}


def test_where_nothing_is_in_the_way_preflight_says_so_and_the_round_goes_well(parties: Parties) -> None:
    """Holders read no corpus for it, and open and sign nothing."""
    transport = Asked(parties)
    assert obstacles(parties, transport) == {name: {} for name in PEOPLE}
    assert {kind for _, kind in transport.asked} == {"hello"}
    assert not parties.holder("law-1").journal.entries("session", "signed", "opened")
    assert run_round(parties.federation(), Asked(parties), no_watch).number == 1
    assert obstacles(parties, Asked(parties)) == {name: {} for name in PEOPLE}


def test_each_holder_is_named_with_what_is_in_its_way(parties: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away, other code, unknown members, no epoch, a full disk, a policy of its own: each by its code."""
    unpin(parties.homes["code-1"], [parties.holder(name).identity.public for name in ("law-1", "law-2")])
    parties.rewrite("code-1", "min_cohort = 3", "min_cohort = 9")
    without_epoch(parties, "code-2")
    plain = shutil.disk_usage
    full = SimpleNamespace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full if path == parties.homes["law-1"] else plain(path))
    transport = Asked(parties, "law-2")
    transport.down = {"medicine"}
    assert obstacles(parties, transport) == {
        "code-1": {"cohort_too_small": [], "not_pinned": ["law-1", "law-2"]},
        "code-2": {"no_epoch": []},
        "law-1": {"disk_full": []},
        "law-2": {"bundle_refused": []},
        "medicine": {"away": []},
    }


def test_a_round_that_all_refuse_names_what_each_has_to_do(tmp_path: Path) -> None:
    """Two holders who insist on three: that they are online is not in question."""
    parties = found(tmp_path)
    for name in ("code", "law"):
        parties.settle(name, name, own_texts(name, name, 12), min_cohort=3)
        parties.admit(name)
    with pytest.raises(RoundFailed, match="0 of 2 holders can take part") as failed:
        run_round(parties.federation(), Direct(parties), no_watch)
    assert REMEDIES["cohort_too_small"] in str(failed.value)
    assert "SuperNode" not in str(failed.value)


def without_epoch(parties: Parties, name: str) -> None:
    """Let a holder be one that has opened no epoch yet."""
    home = parties.homes[name]
    for path in home.glob("journal.db*"):
        path.unlink()
    shutil.rmtree(home / "epochs")


def test_who_waits_for_its_next_epoch_is_named_with_the_round_of_its_total(parties: Parties) -> None:
    """Pre-flight and round judge alike: who waits, who is in, and when nobody need wait."""
    run_round(parties.federation(), Asked(parties), no_watch)
    assert obstacles(parties, Asked(parties)) == {name: {} for name in PEOPLE}, "the kept total is used again"
    parties.ready("medicine")
    checked = check_holders(parties.federation(), Asked(parties), no_watch)
    waiting = {each.name: each.total_of for each in checked if each.obstacles}
    assert waiting == dict.fromkeys(set(PEOPLE) - {"medicine"}, 1)
    with pytest.raises(RoundFailed, match="code-1, code-2, law-1, law-2 must open a new epoch"):
        run_round(parties.federation(), Asked(parties), no_watch)
    new_epochs(parties, "code-1", "law-1", "law-2")
    assert {name for name, each in obstacles(parties, Asked(parties)).items() if each} == {"code-2"}
    published = run_round(parties.federation(), Asked(parties), no_watch)
    assert {member.name for member in published.members} == set(PEOPLE) - {"code-2"}


def test_a_roster_of_which_too_few_are_there_is_foreseen(parties: Parties) -> None:
    """A holder that has pinned many more says so beforehand, and refuses in the round."""
    strangers = [Place(name=f"other-{n}", domain="law", key=fixed_identity(50 + n).public) for n in range(4)]
    pin(parties.homes["code-1"], strangers)
    assert obstacles(parties, Asked(parties))["code-1"] == {"too_few_of_roster": []}
    published = run_round(parties.federation(), Asked(parties), no_watch)
    assert "code-1" not in {member.name for member in published.members}


def test_under_terms_that_it_has_not_agreed_to_a_holder_looks_at_nothing_else(parties: Parties) -> None:
    """It names them, and whether it has an epoch is not even said by an obstacle."""
    parties.rewrite("law-1", "window = 8", "window = 9")
    without_epoch(parties, "law-1")
    assert obstacles(parties, Asked(parties))["law-1"] == {"window_not_allowed": []}


def test_what_a_holder_answers_holds_codes_and_known_keys_alone(parties: Parties) -> None:
    """No path, no count, no text: not even where its corpus is gone."""
    Path(parties.holder("code-2").settings.corpus[0]).unlink()
    unpin(parties.homes["code-2"], [parties.holder("law-1").identity.public])
    transport = Asked(parties)
    obstacles(parties, transport)
    [reply] = [each for name, each in transport.replies if name == "code-2"]
    message = open_packet(reply).message
    assert isinstance(message, Here) and not reply.blobs
    known = {each.key for each in parties.federation().ledger.standing().roster.values()}
    assert {key for each in message.obstacles for key in each.keys} <= known
    assert {each.code for each in message.obstacles} == {"not_pinned"} <= set(REMEDIES)
    assert set(message.model_dump()) == {"release", "epoch", "obstacles"}


def test_an_altered_ledger_stops_whatever_would_build_on_it(parties: Parties) -> None:
    """Round, pre-flight, delivery, changes of membership and `up`: one sentence, and nobody is asked."""
    run_round(parties.federation(), Asked(parties), no_watch)
    new_epochs(parties)
    with sqlite3.connect(parties.federation().folder / "ledger.db") as database:
        database.execute("update entries set facts = replace(facts, 'medicine', 'medicime') where kind = 'released'")
    database.close()
    transport = Asked(parties)
    for work in (
        lambda: run_round(parties.federation(), transport, no_watch),
        lambda: check_holders(parties.federation(), transport, no_watch),
        lambda: deliver_newest(parties.federation(), transport, no_watch),
        lambda: retire(parties.federation(), "law"),
        lambda: supervisor.up(parties.federation(), lambda: True, lambda: None, lambda words: None),
    ):
        with pytest.raises(JournalError, match=r"entry \d+ \(released\).* after it was written"):
            work()
    assert not transport.asked


def test_every_obstacle_and_refusal_of_a_holder_has_a_remedy_or_a_reason_of_its_own() -> None:
    """The table speaks of codes that exist: each stands in the source of the side that refuses."""
    source = "".join(
        path.read_text() for room in ("client", "common", "coordinator") for path in Path(room).rglob("*.py")
    )
    for code in set(REMEDIES) - {AWAY, NO_ANSWER, BUNDLE, OTHER_RELEASE}:
        assert source.count(f'"{code}"') > 1, code


def test_the_command_shows_a_row_a_holder_and_what_each_has_to_do(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yes, no, or not asked because of that; the exit code says whether something is in the way."""
    transport = Asked(parties, "law-2")
    transport.down = {"medicine"}
    unpin(parties.homes["code-1"], [parties.holder("law-1").identity.public])

    def run_work(federation: Federation, order: RunOrder, watch: Watch, bundle: str | None) -> str:
        assert order.work == "preflight"
        check_holders(parties.federation(), transport, watch)
        return HASH

    monkeypatch.setattr(round_commands, "run_work", run_work)
    shop = Workshop(parties.folder)
    done = shop.call("coordinator", "preflight", "coordinator")
    assert done.code == 1, done.stderr
    rows = {words[0]: words[2:] for words in map(str.split, done.stdout.splitlines()) if words}
    assert {name: rows[name] for name in PEOPLE} == {
        "code-1": ["yes", "yes", "no", "yes", "yes", "yes"],
        "code-2": ["yes"] * 6,
        "law-1": ["yes"] * 6,
        "law-2": ["yes", "no", *["?"] * 4],
        "medicine": ["no", *["?"] * 5],
    }
    said = [line.split()[:3] for line in done.stderr.splitlines()]
    assert said.pop(0)[:2] == ["mode", "masked"]
    assert said.pop()[0] == "stops" and "2 holders can take part, but a round under masks needs 3" in done.stderr
    assert said == [
        ["next", name, code]
        for name, code in (("code-1", "not_pinned:"), ("law-2", "bundle_refused"), ("medicine", "away"))
    ]
    assert "law-1" in done.stderr and HASH in done.stderr
    parties.pin_all()
    transport = Asked(parties)
    assert shop.call("coordinator", "preflight", "coordinator").code == 0
    told = shop.call("coordinator", "preflight", "coordinator", "--json").json
    assert told["stops"] is None
    assert (told["clear"], told["mode"], "under masks" in told["sentence"]) == (True, "masked", True)
    run_round(parties.federation(), transport, no_watch)
    parties.ready("medicine")
    transport = Asked(parties)
    waits = shop.call("coordinator", "preflight", "coordinator")
    assert waits.code == 1 and "law-1 waits for its next epoch: its data is in the total of round 1" in waits.stderr
