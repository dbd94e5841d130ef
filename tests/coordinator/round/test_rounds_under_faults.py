"""Rounds under faults: whatever the network does, wherever the coordinator dies, nothing is lost or counted twice."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.protocol.messages import Collect
from ridgeway.common.protocol.packet import Packet, open_packet
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.coordinator.round.ledger import Standing
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.round.run_order import RoundWishes
from tests.support.faults import (
    Crash,
    Network,
    Oracle,
    Steps,
    epoch_of,
    let_steps_be_seen,
    make_haste,
    raise_crash,
    turn_to,
)
from tests.support.killed_rounds import BULKY, kill_at_every_step
from tests.support.seeds import seeds
from tests.support.simulated_federation import Direct, Parties, found, no_watch, own_texts, populate

FIRST = {"code": "code", "law-1": "law", "law-2": "law"}
THERE = ("code", "law-1")
"""Those who are there while the coordinator is killed at every step."""
NEWCOMER = "medicine"
DOMAINS = ("code", "law", "medicine")
SEEDS = 320
CHUNKS = 16
USUAL_CHUNKS = 2
"""An ordinary run tries these, a long one all."""
USUAL_STRIDE = 3
"""And it is killed at every third step; the stories end at many steps too."""
MOST_STEPS = 110


@dataclass(frozen=True)
class World:
    """A federation to copy, and what its holders' sums must come to.

    summed: by holder and corpus.
    """

    parties: Parties
    oracle: Oracle
    summed: Mapping[tuple[str, str], Prepared]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three holders of two domains, a newcomer with a third, and a second corpus for one of them."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        parties = found(tmp_path_factory.mktemp("world"))
        populate(parties, FIRST)
        parties.settle(NEWCOMER, "medicine", own_texts(NEWCOMER, "medicine", 11))
        terms = parties.federation().terms
        sums, summed = {}, {}
        for name in parties.homes:
            for corpus in ("other", "first") if name == "code" else ("first",):
                epoch = turn_to(parties, name, corpus)
                holder = parties.holder(name)
                sums[name, epoch] = summed[name, corpus] = holder.epochs.statistics(holder.epoch(terms))
                assert len(holder.epochs.held_out(holder.epoch(terms)).lengths), "there is nothing to count"
        return World(parties, Oracle(parties.encoder, sums), summed)


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """The coordinator's steps, counted; nothing waits for a disk."""
    make_haste(monkeypatch)
    taken = Steps(raise_crash)
    let_steps_be_seen(monkeypatch, taken)
    yield taken
    taken.allow(0)


class Story:
    """One seed's course of events."""

    def __init__(self, world: World, folder: Path, seed: int, steps: Steps) -> None:
        self.dice, self.steps, self.world = random.Random(seed), steps, world
        self.oracle = Oracle(world.parties.encoder, dict(world.oracle.sums))
        self.parties = world.parties.copy(folder, *BULKY)
        self.corpora = dict.fromkeys(self.parties.homes, "first")
        self.evaluated: list[bool] = []
        self.steps.allow(0)
        self.network = Network((), self.standing, self.dice, steps, self.dice.choice((0.02, 0.08, 0.2, 0.4)))

    def run(self) -> None:
        self.gather()
        for _ in range(self.dice.randint(1, 2)):
            self.events()
            accept = self.dice.choice(((), DOMAINS))
            self.steps.allow(self.dice.randint(1, MOST_STEPS))
            with contextlib.suppress(Crash, RoundFailed):
                self.round(accept)
            self.steps.allow(0)
            self.check(accept)
        self.network.chance = 0.0
        before = self.check()
        accept = self.dice.choice(((), DOMAINS))
        if not accept:  # who has counted for another router counts again with its next epoch
            for name in self.parties.homes:
                self.open_epoch(name)
            self.gather()
        self.round(accept)
        assert self.check(accept) == before + 1
        self.everybody_is_in(before + 1)

    def check(self, accept: Sequence[str] = ()) -> int:
        """What must be so of the folders; and whoever did not accept it gets no release that is not evaluated."""
        releases = self.oracle.check(self.parties)
        federation = self.parties.federation()
        for number in range(len(self.evaluated) + 1, releases + 1):
            evaluation = federation.manifest(number)["evaluation"]
            self.evaluated.append(evaluation is not None and all(map(sum, evaluation["confusion"])))
            assert accept or self.evaluated[-1], f"nobody has counted for a domain of release {number}"
        return releases

    def open_epoch(self, name: str) -> None:
        epoch = epoch_of(self.parties.ready(name))
        self.oracle.sums[name, epoch] = self.world.summed[name, self.corpora[name]]

    def standing(self) -> Standing:
        return self.parties.federation().ledger.standing()

    def gather(self) -> None:
        self.network.holders = [self.parties.holder(name) for name in self.parties.homes]

    def events(self) -> None:
        """Somebody new, a corpus that changed, or new epochs."""
        if self.dice.random() < 0.3:
            self.parties.admit(NEWCOMER)
        if self.dice.random() < 0.3:
            self.corpora["code"] = self.dice.choice(("first", "other"))
            epoch = turn_to(self.parties, "code", self.corpora["code"])
            self.oracle.sums["code", epoch] = self.world.summed["code", self.corpora["code"]]
        if self.dice.random() < 0.5:
            for name in self.parties.homes:
                self.open_epoch(name)
        self.gather()

    def round(self, accept: Sequence[str]) -> None:
        federation = self.parties.federation(self.steps.clock)
        wishes = RoundWishes(accept_worse=DOMAINS, accept_unevaluated=tuple(accept), even_unchanged=True)
        run_round(federation, self.network, self.steps, wishes)

    def everybody_is_in(self, number: int) -> None:
        federation = self.parties.federation()
        assert self.oracle.cohort(federation, number) == set(federation.ledger.standing().active)
        for name in federation.ledger.standing().active:
            assert self.parties.holder(name).newest == number


@pytest.mark.parametrize("chunk", seeds(CHUNKS, USUAL_CHUNKS))
def test_no_fault_of_the_network_or_crash_loses_or_doubles_a_contribution(
    world: World, steps: Steps, tmp_path: Path, chunk: int
) -> None:
    """After every crash each release in the ledger is, bit for bit, that of its cohort; then a clean round succeeds."""
    for seed in range(chunk, SEEDS, CHUNKS):
        folder = tmp_path / str(seed)
        try:
            Story(world, folder, seed, steps).run()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        shutil.rmtree(folder)


@pytest.mark.parametrize("fails", [(), ("law-2",)])
def test_who_fails_to_send_does_not_push_out_an_absent_holder_of_the_same_domain(
    world: World, tmp_path: Path, fails: tuple[str, ...]
) -> None:
    """While another of its domain is there, an absent holder's share does not fit; once that one failed, it does."""
    parties = world.parties.copy(tmp_path, *BULKY)
    parties.admit(NEWCOMER)
    first = Direct(parties)
    first.down = {"law-2"}
    run_round(parties.federation(), first, no_watch)

    class Mute(Direct):
        def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
            silent = name in fails and isinstance(open_packet(packet).message, Collect)
            yield from () if silent else super().answers(name, peer, packet)

    second = Mute(parties)
    second.down = {"law-1"}
    wishes = RoundWishes(accept_unevaluated=DOMAINS)  # the others have counted for another router
    published = run_round(parties.federation(), second, no_watch, wishes)
    law = {"law-1"} if fails else {"law-2"}
    assert world.oracle.cohort(parties.federation(), published.number) == {"code", NEWCOMER} | law


@pytest.mark.slow
def test_wherever_the_coordinator_is_killed_the_next_round_goes_on_from_there(
    world: World, tmp_path: Path, long_run: bool
) -> None:
    """A process that ends at once, step after step: no clean-up, temporary files and open transactions left behind."""

    def goes_on(parties: Parties, calm: Network) -> None:
        before = world.oracle.check(parties)
        number = run_round(parties.federation(), calm, no_watch).number
        assert world.oracle.check(parties) == number == 1
        assert number - before in (0, 1)  # it died with the release, or before it
        assert parties.federation().manifest(number)["evaluation"] is not None
        assert world.oracle.cohort(parties.federation(), number) == set(THERE)

    stride = 1 if long_run else USUAL_STRIDE
    assert kill_at_every_step(world.parties, THERE, tmp_path, goes_on, stride) > 15
