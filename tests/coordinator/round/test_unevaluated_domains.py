"""A router that no holder of some domain has counted for is not published, in any mode, unless the
operator says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.protocol.messages import Evaluate, Refusal
from ridgeway.common.protocol.packet import Packet, open_packet, seal_packet
from ridgeway.coordinator.cli import round_commands
from ridgeway.coordinator.round.ask import RunOrder
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.progress import Watch
from tests.support.commands import Workshop
from tests.support.hostile import MEMBERS
from tests.support.simulated_federation import (
    DOMAINS,
    Direct,
    Parties,
    dry_run,
    found,
    found_private,
    populate,
    round_fails,
    round_of,
)

pytestmark = pytest.mark.usefixtures("private_sentences")


@pytest.fixture(params=["clear", "masked", "private"])
def parties(request: pytest.FixtureRequest, tmp_path: Path, haste: None) -> Parties:
    """Five holders of three domains; medicine has one."""
    if request.param == "private":
        return populate(found_private(tmp_path), MEMBERS)
    return populate(found(tmp_path, mode=request.param), MEMBERS)


class WithoutCounts(Direct):
    """Some holders refuse to count, or are gone when they are asked to; how: "refuses" or
    "dies".
    """

    def __init__(self, parties: Parties, how: str, *names: str) -> None:
        super().__init__(parties)
        self._parties, self._how, self._names = parties, how, names

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        if name not in self._names or not isinstance(
            open_packet(packet).message, Evaluate
        ):
            yield from super().answers(name, peer, packet)
        elif self._how == "refuses":
            identity = self._parties.holder(name).identity
            refusal = Refusal(
                code="already_counted",
                reason="this holder has counted for another router",
            )
            yield seal_packet(
                refusal,
                identity,
                round=open_packet(packet).round,
                reply_to=packet.digest,
            )
        else:
            self.down.add(name)


def nothing_is_published(parties: Parties) -> None:
    federation = parties.federation
    assert federation.newest is None
    assert not [
        path
        for path in (federation.folder / "releases").iterdir()
        if path.name.isdigit()
    ]
    assert {parties.holder(name).newest for name in MEMBERS} == {0}
    assert federation.ledger.journal.entries("closed")[-1].facts["release"] is None


@pytest.mark.parametrize("how", ["refuses", "dies"])
def test_a_router_that_a_domain_has_not_counted_for_is_not_published(
    parties: Parties, how: str
) -> None:
    """The round names the domain, its holder, and the word that publishes it, with no more than was
    counted.
    """
    words = (
        r"no holder of medicine evaluated the router, so it is not published: medicine "
    )
    words += (
        r"has counted for another router.*" if how == "refuses" else r"did not answer.*"
    )
    with round_fails(words + "--accept-unevaluated medicine$"):
        round_of(parties, WithoutCounts(parties, how, "medicine"))
    nothing_is_published(parties)
    with round_fails("medicine"):
        round_of(
            parties,
            WithoutCounts(parties, how, "medicine"),
            accept_unevaluated=("law",),
        )
    nothing_is_published(parties)
    without = WithoutCounts(parties, how, "medicine")
    published = round_of(parties, without, accept_unevaluated=("medicine",))
    manifest = parties.federation.manifest(published.number)
    assert "medicine" in manifest["domains"]
    if manifest["evaluation"]:
        assert "medicine" not in manifest["evaluation"]["domains"]


def test_one_holder_of_each_domain_is_enough(parties: Parties) -> None:
    """Of two, one may be missing."""
    assert round_of(parties, WithoutCounts(parties, "dies", "law-1")).number == 1


def test_the_next_round_asks_only_for_counts(parties: Parties) -> None:
    """The total, or the sums, are kept, and no counts were used up: with everybody there it is
    published.
    """
    with pytest.raises(RoundFailed):
        round_of(parties, WithoutCounts(parties, "dies", "medicine"))
    transport = Direct(parties)
    assert round_of(parties, transport).number == 1
    kinds = transport.reply_kinds
    assert not kinds & {"clear_statistics", "noisy_statistics"}


def test_who_has_counted_for_another_router_is_known_before_anything_is_paid(
    parties: Parties,
) -> None:
    """One owner opens an epoch: dry run and round stop alike, name the others, and ask nobody for
    sums.
    """
    if parties.federation.terms.uses_masks:
        pytest.skip("under masks the others wait, which test_dry_run.py has")
    round_of(parties)
    dry_run(parties)
    parties.ready("medicine")
    with pytest.raises(RoundFailed) as foreseen:
        dry_run(parties)
    transport = Direct(parties)
    with pytest.raises(RoundFailed) as failed:
        round_of(parties, transport)
    assert str(failed.value) == str(foreseen.value)
    assert "--accept-unevaluated code --accept-unevaluated law" in str(foreseen.value)
    assert "code-1, code-2, law-1, law-2 has counted for another router" in str(
        foreseen.value
    )
    assert transport.reply_kinds == {"offer"}
    accept = ("code", "law")
    made = round_of(parties, accept_unevaluated=accept, accept_worse=DOMAINS)
    assert made.number == 2


def test_a_holder_that_is_away_need_not_count_where_nothing_has_changed(
    parties: Parties,
) -> None:
    """The release stands, and the round ends well."""
    first = round_of(parties)
    again = round_of(parties, Direct(parties, down={"medicine"}))
    assert (again.number, again.release) == (first.number, first.release)


def test_the_command_says_so_by_its_exit_code_and_in_json(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not 0, and an object with the error on stdout; a domain that is not there is one sentence."""

    def run_here(federation: Federation, order: RunOrder, watch: Watch) -> None:
        without = WithoutCounts(parties, "dies", "medicine")
        accept = order.accept_unevaluated
        round_of(parties, without, watch, accept_unevaluated=accept)

    monkeypatch.setattr(round_commands, "run_work", run_here)
    shop, command = (
        Workshop(parties.folder),
        ("coordinator", "round", parties.federation.folder),
    )
    failed = shop.call(*command, "--json")
    assert failed.code == 2
    assert failed.json == {
        "error": failed.stderr.splitlines()[-1].removeprefix("ridgeway: "),
        "released": False,
    }
    assert "--accept-unevaluated medicine" in failed.json["error"]
    silent = shop.call(*command)
    assert (silent.code, silent.stdout) == (2, "")
    wrong = shop.call(*command, "--accept-unevaluated", "mediicne")
    words = "there is no domain 'mediicne'; the domains are code, law, medicine"
    assert (wrong.code, wrong.stdout, words in wrong.stderr) == (2, "", True)
    absent = shop.call("coordinator round", parties.folder, "--json")
    assert absent.code == 2 and "is not a coordinator's folder" in absent.json["error"]
    done: Any = shop.call(*command, "--json", "--accept-unevaluated", "medicine")
    assert (done.code, done.json["released"], done.json["number"]) == (0, True, 1)
