"""What the operator learns of its holders, by name: who is asked, who is in the way, and what each has to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.protocol.packet import Packet, open_packet
from ridgeway.coordinator.round.ask import PeerFailure
from ridgeway.coordinator.round.federation import NODES
from ridgeway.coordinator.round.membership import retire
from ridgeway.coordinator.round.progress import AnswerRefused, Event, HoldersAwaited, RoundOpened
from ridgeway.coordinator.round.round import run_round
from tests.support.faults import make_haste
from tests.support.simulated_federation import Direct, Parties, found, populate

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
    """A transport that notes whom it asks for what. unapproved: holders that have approved other code."""

    def __init__(self, parties: Parties, *unapproved: str) -> None:
        super().__init__(parties, list(PEOPLE))
        self.asked: list[tuple[str, str]] = []
        self.unapproved = unapproved

    def exchange(
        self, packets: Mapping[int, Packet], seconds: float
    ) -> Iterator[tuple[int, Packet | PeerFailure | None]]:
        self.asked += [(self.names[peer], open_packet(packet).message.kind) for peer, packet in packets.items()]
        failing = {peer for peer in packets if self.names[peer] in self.unapproved}
        for peer in failing:
            yield peer, PeerFailure(0, f"<class 'BundleRefused'>:<'this machine has not approved the bundle {HASH}'>")
        yield from super().exchange({peer: each for peer, each in packets.items() if peer not in failing}, seconds)


def test_retired_holders_are_neither_counted_nor_asked(parties: Parties) -> None:
    """They may be online for as long as they like: the round waits for the others, and refuses nobody."""
    told: list[Event] = []
    run_round(parties.federation(), Asked(parties), told.append)
    retire(parties.federation(), "law")
    told.clear()
    transport = Asked(parties)
    transport.down = {"medicine"}
    parties.change_corpus("code-1")
    parties.change_corpus("code-2")
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
    run_round(parties.federation(), Asked(parties), [].append)
    parties.change_corpus("law-1")
    parties.change_corpus("law-2")
    with pytest.raises(RoundFailed, match=r"medicine refused \(bundle_refused: .*`ridgeway client approve DIR`"):
        run_round(parties.federation(), Asked(parties, "medicine"), [].append)


def test_a_member_that_misses_others_names_them(parties: Parties) -> None:
    """By the names that the operator gave them, not by their keys."""
    roster = parties.homes["medicine"] / "roster.json"
    content = json.loads(roster.read_text())
    content["members"] = [each for each in content["members"] if not each["name"].startswith("law")]
    roster.write_text(json.dumps(content))
    told: list[Event] = []
    run_round(parties.federation(), Asked(parties), told.append)
    [refused] = [each for each in told if isinstance(each, AnswerRefused)]
    assert (refused.name, refused.code) == ("medicine", "forged_roster")
    assert refused.reason.endswith(": law-1, law-2")
