"""The log that members can compare: a coordinator that opens sums tells all of them the same, or is found out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeway.client.round.kept_log import FORKED, KEPT, fork, kept_log, unlogged_sums
from ridgeway.common.base.errors import FormatError
from ridgeway.common.protocol.messages import Deliver, Refusal
from ridgeway.common.protocol.opened_log import LogStatement, OpenedSum, read_statement, state_log
from ridgeway.common.protocol.packet import Packet, open_packet, seal_packet
from ridgeway.coordinator.round.round import deliver_newest, run_round
from tests.support.commands import Workshop
from tests.support.simulated_federation import Direct, Parties, found, no_watch, populate

MEMBERS = {"code": "code", "code-2": "code", "law": "law", "law-2": "law", "medicine": "medicine"}
CHANGES = (("code", "law"), ("code-2", "medicine"))
"""Whose corpora change before one round, and before the next."""
Change = Callable[[tuple[OpenedSum, ...]], tuple[OpenedSum, ...]]


@pytest.fixture(scope="module")
def one_round(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """Five holders after a masked round."""
    parties = found(tmp_path_factory.mktemp("parties"), mode="masked")
    populate(parties, MEMBERS)
    run_round(parties.federation(), Direct(parties), no_watch)
    return parties


@pytest.fixture
def parties(one_round: Parties, tmp_path: Path) -> Parties:
    return one_round.copy(tmp_path)


def log_of(parties: Parties, name: str) -> LogStatement:
    log = kept_log(parties.homes[name])
    assert log is not None
    return log


class Liar(Direct):
    """A coordinator that delivers another log than its own to some holders, under its own signature."""

    def __init__(self, parties: Parties, names: list[str], change: Change, after: int = 0) -> None:
        super().__init__(parties)
        self._parties, self._lied_to, self._change, self._after = parties, names, change, after

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        request: Any = open_packet(packet)
        if isinstance(request.message, Deliver) and name in self._lied_to:
            identity = self._parties.federation().identity
            log = self._change(self._parties.federation().ledger.opened_log())
            blobs = [*request.blobs[:3], state_log(log, self._after, identity).to_bytes()]
            packet = seal_packet(request.message, identity, round=request.round, blobs=blobs)
        yield from super().answers(name, peer, packet)


def changed(parties: Parties, *names: str) -> Parties:
    """Some holders have other texts now, so that there is something to open."""
    for name in names or CHANGES[0]:
        parties.change_corpus(name)
    return parties


def play(parties: Parties, transport: Direct) -> None:
    run_round(parties.federation(), transport, no_watch)


def refusals(transport: Direct) -> dict[str, str]:
    messages = [(name, open_packet(reply).message) for name, reply in transport.replies]
    return {name: message.code for name, message in messages if isinstance(message, Refusal)}


def show(parties: Parties, name: str, *words: str) -> Any:
    return Workshop(parties.folder).call("client", *words, parties.homes[name], "--json").json


def test_over_three_rounds_every_holder_has_the_same_log_and_every_sum_is_in_it(parties: Parties) -> None:
    """Each round's sums are added behind those before, and what stood there stays."""
    for names in CHANGES:
        before = log_of(parties, "law")
        play(parties, Direct(changed(parties, *names)))
        after = log_of(parties, "law")
        assert after.head.number > before.head.number
        assert after.entries[: before.head.number] == before.entries
        assert {log_of(parties, name).to_bytes() for name in MEMBERS} == {after.to_bytes()}
        assert after.entries == parties.federation().ledger.opened_log()
    assert [unlogged_sums(parties.holder(name)) for name in MEMBERS] == [[]] * len(MEMBERS)
    assert (parties.homes["law"] / KEPT).stat().st_mode & 0o077 == 0


def test_a_holder_that_was_away_for_two_rounds_gets_all_that_it_has_missed(parties: Parties) -> None:
    for names in CHANGES:
        away = Direct(changed(parties, *names))
        away.down = {"law-2"}
        play(parties, away)
    assert log_of(parties, "law").head.number - log_of(parties, "law-2").head.number == 4
    assert deliver_newest(parties.federation(), Direct(parties), no_watch) == {"law-2"}
    assert log_of(parties, "law-2") == log_of(parties, "law")


def rewritten(log: tuple[OpenedSum, ...]) -> tuple[OpenedSum, ...]:
    """As if one member had not been in the first sum."""
    return (log[0].model_copy(update={"parts": log[0].parts[1:]}), *log[1:])


@pytest.mark.parametrize(
    ("change", "after"),
    [(rewritten, 0), (rewritten, 2), (lambda log: log[:1], 0), (lambda log: log[:1], 1), (lambda log: (), 0)],
    ids=["rewritten", "rewritten, not shown again", "cut off", "cut off, not shown again", "emptied"],
)
def test_a_log_that_does_not_extend_the_one_before_is_kept_as_proof_and_ends_all_answers(
    parties: Parties, change: Change, after: int
) -> None:
    """The lie is told to one holder; from then on it refuses, until its owner moves the evidence away."""
    before = log_of(parties, "law")
    transport = Liar(changed(parties), ["law"], change, after)
    play(parties, transport)
    assert refusals(transport) == {"law": "forked_log"}
    assert log_of(parties, "law") == before
    proof = fork(parties.homes["law"])
    assert proof is not None
    told, kept = (read_statement(json.dumps(proof[name]).encode()) for name in ("told", "kept"))
    assert told.head.hash != kept.head.hash and kept == before
    assert [entry.facts["told"]["signature"] for entry in _noted(parties)] == [told.head.signature]
    for words in (["status"], ["roster", "--log"]):
        said = Workshop(parties.folder).call("client", *words, parties.homes["law"]).stderr
        assert "move the folder log away" in " ".join(said.split())
    assert show(parties, "law", "status")["fork"] == show(parties, "law", "roster", "--log")["fork"] == proof
    assert parties.holder("law").newest == 1

    honest = Direct(parties)
    assert deliver_newest(parties.federation(), honest, no_watch) == set()
    assert refusals(honest) == {"law": "forked_log"}
    shutil.move(parties.homes["law"] / FORKED.parent, parties.folder / "evidence")
    assert deliver_newest(parties.federation(), Direct(parties), no_watch) == {"law"}
    assert log_of(parties, "law") == log_of(parties, "code")


def test_a_log_that_was_damaged_here_is_named_and_proves_nothing(parties: Parties) -> None:
    """Its owner restores it; the coordinator is not blamed."""
    (parties.homes["law"] / KEPT).write_bytes(b"{}")
    with pytest.raises(FormatError, match=r"opened\.json is damaged; restore it from a copy"):
        kept_log(parties.homes["law"])
    assert fork(parties.homes["law"]) is None


def _noted(parties: Parties) -> list[Any]:
    return [entry for entry in parties.holder("law").journal.entries() if entry.kind == "forked_log"]


def test_two_holders_that_were_told_two_logs_see_it_by_comparing_them(parties: Parties) -> None:
    """Neither can know alone; their heads of one number have two hashes, both signed by the coordinator."""

    def other(log: tuple[OpenedSum, ...]) -> tuple[OpenedSum, ...]:
        return (*log[:-1], log[-1].model_copy(update={"opened": "e" * 64}))

    transport = Liar(changed(parties), ["law-2"], other)
    play(parties, transport)
    assert refusals(transport) == {}
    law, second = (show(parties, name, "roster", "--log") for name in ("law", "law-2"))
    assert law["head"]["number"] == second["head"]["number"]
    assert law["head"]["hash"] != second["head"]["hash"]
    differing = [one["number"] for one, two in zip(law["entries"], second["entries"], strict=True) if one != two]
    assert differing == [law["head"]["number"]]


def test_a_sum_that_is_left_out_is_missed_by_those_who_opened_it(parties: Parties) -> None:
    """A coordinator that tells all of them the same, but not all of it, is seen by every member of the sum."""
    before = parties.federation().ledger.opened_log()
    transport = Liar(changed(parties), list(MEMBERS), lambda log: before)
    play(parties, transport)
    assert refusals(transport) == {}
    for name in MEMBERS:
        assert {each["lot"] for each in show(parties, name, "roster", "--log")["unlogged"]} >= {"scores"}
