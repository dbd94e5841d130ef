"""Rounds under faults: whatever the network does, wherever the coordinator dies, nothing is lost or counted twice."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.protocol.messages import Collect
from ridgeway.common.protocol.packet import Packet, open_packet
from ridgeway.coordinator.round.ledger import Standing
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.solving.candidates import Grid
from tests.support.faults import (
    Crash,
    Looking,
    Network,
    Oracle,
    Steps,
    let_steps_be_seen,
    make_haste,
    raise_crash,
    turn_to,
)
from tests.support.seeds import seeds
from tests.support.simulated_federation import Direct, Parties, found, no_watch, own_texts, populate

FIRST = {"code": "code", "law-1": "law", "law-2": "law"}
THERE = ("code", "law-1")
"""Those who are there while the coordinator is killed at every step."""
NEWCOMER = "medicine"
SEEDS = 320
CHUNKS = 16
USUAL_CHUNKS = 6
"""An ordinary run tries these, a long one all."""
MOST_STEPS = 110
DIED = 77
BULKY = ("cache", "held-out", "logs")


@dataclass(frozen=True)
class World:
    """A federation to copy, and what its holders' sums must come to."""

    parties: Parties
    oracle: Oracle


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three holders of two domains, a newcomer with a third, and a second corpus for one of them."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        grid = Grid(ridges=(1e-3, 1e-1), normalise_columns=(False,), selectors=("average",), k=(10,))
        parties = found(tmp_path_factory.mktemp("world"), candidates=grid)
        populate(parties, FIRST, weights={"law-2": 2})
        parties.settle(NEWCOMER, "medicine", own_texts(NEWCOMER, "medicine", 9))
        terms = parties.federation().terms
        sums = {}
        for name in parties.homes:
            for corpus in ("other", "first") if name == "code" else ("first",):
                turn_to(parties, name, corpus)
                holder = parties.holder(name)
                ready = holder.ready(terms)
                holder.held_out(terms)
                sums[name, holder.source(ready)] = ready
        return World(parties, Oracle(parties.encoder, sums))


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
        self.dice, self.steps, self.oracle = random.Random(seed), steps, world.oracle
        self.parties = world.parties.copy(folder, *BULKY)
        self.steps.allow(0)
        self.network = Network((), self.standing, self.dice, steps, self.dice.choice((0.02, 0.08, 0.2, 0.4)))

    def run(self) -> None:
        self.gather()
        for _ in range(self.dice.randint(1, 2)):
            self.events()
            self.steps.allow(self.dice.randint(1, MOST_STEPS))
            with contextlib.suppress(Crash, RoundFailed):
                self.round()
            self.steps.allow(0)
            self.oracle.check(self.parties)
        self.network.chance = 0.0
        before = self.oracle.check(self.parties)
        self.round()
        assert self.oracle.check(self.parties) == before + 1
        self.everybody_is_in(before + 1)

    def standing(self) -> Standing:
        return self.parties.federation().ledger.standing()

    def gather(self) -> None:
        self.network.holders = [self.parties.holder(name) for name in self.parties.homes]

    def events(self) -> None:
        """Somebody new, or a corpus that changed."""
        if self.dice.random() < 0.3:
            self.parties.admit(NEWCOMER)
        if self.dice.random() < 0.3:
            turn_to(self.parties, "code", self.dice.choice(("first", "other")))
            self.gather()

    def round(self) -> None:
        run_round(self.parties.federation(self.steps.clock), self.network, self.steps, even_unchanged=True)

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
    published = run_round(parties.federation(), second, no_watch)
    law = {"law-1"} if fails else {"law-2"}
    assert world.oracle.cohort(parties.federation(), published.number) == {"code", NEWCOMER} | law


@pytest.mark.slow
def test_wherever_the_coordinator_is_killed_the_next_round_goes_on_from_there(world: World, tmp_path: Path) -> None:
    """A process that ends at once, step after step: no clean-up, temporary files and open transactions left behind."""
    steps = _steps_of_a_round(world, tmp_path / "whole")
    assert len(steps) > 15
    for step in steps:
        try:
            _kill_at(world, tmp_path / str(step), step)
        except BaseException as error:
            raise AssertionError(f"killed at step {step}: {error!r}") from error
        shutil.rmtree(tmp_path / str(step))


def _steps_of_a_round(world: World, folder: Path) -> list[int]:
    """All that leave something else behind than the one before."""
    parties = world.parties.copy(folder, *BULKY)
    steps = Looking(parties)
    with pytest.MonkeyPatch.context() as patch:
        let_steps_be_seen(patch, steps)
        run_round(parties.federation(steps.clock), calm(parties, steps), steps)
    return steps.new


def _kill_at(world: World, folder: Path, last: int) -> None:
    """Run a round in a process that is killed at a step, then another here."""
    parties = world.parties.copy(folder, *BULKY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of threads in a process that forks
        child = os.fork()
    if child == 0:
        _live_until(parties, last)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == DIED
    before = world.oracle.check(parties)
    again = calm(parties, Steps(raise_crash))
    number = run_round(parties.federation(), again, no_watch, even_unchanged=True).number
    assert world.oracle.check(parties) == number == before + 1
    assert world.oracle.cohort(parties.federation(), number) == set(THERE)


def calm(parties: Parties, steps: Steps) -> Network:
    """A network without faults, in which nothing is asked for that the ledger has."""
    holders = [parties.holder(name) for name in THERE]
    return Network(holders, lambda: parties.federation().ledger.standing(), random.Random(0), steps, 0.0)


def _live_until(parties: Parties, last: int) -> NoReturn:
    """The coordinator's process, and its end."""
    try:
        steps = Steps(lambda: os._exit(DIED))
        steps.allow(last)
        let_steps_be_seen(pytest.MonkeyPatch(), steps)
        run_round(parties.federation(steps.clock), calm(parties, steps), steps)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
