"""Masked rounds under faults: whatever the network does, whoever falls away or dies, a sum is whole or stays shut."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.protocol.messages import Seal
from ridgeway.common.protocol.packet import Packet, open_packet
from ridgeway.coordinator.round.ledger import Ledger, Standing
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.round.run_order import RoundWishes
from tests.support.faults import (
    Crash,
    Network,
    Steps,
    epoch_of,
    let_join,
    let_steps_be_seen,
    make_haste,
    raise_crash,
    turn_to,
)
from tests.support.killed_rounds import BULKY, kill_at_every_step
from tests.support.masked_faults import Storm, Witness, let_holders_fall, make_more_haste
from tests.support.masked_oracle import Known, MaskedOracle
from tests.support.masked_session import small_neighbourhoods
from tests.support.seeds import seeds
from tests.support.simulated_federation import Direct, Parties, found, no_watch, own_texts, populate

FIRST = {"code": "code", "law-1": "law", "law-2": "law", "medicine-1": "medicine"}
THERE = ("code", "law-1", "medicine-1")
"""Those who are there while the coordinator is killed at every step: no fewer can make a masked sum."""
NEWCOMERS = {"medicine-2": "medicine", "physics": "physics"}
CHANGING = ("code", "law-1")
DOMAINS = ("code", "law", "medicine", "physics")
CHANCES = (0.002, 0.01, 0.03, 0.1, 0.3)
MALICE = (0.0, 0.02, 0.1)
SEEDS = 200
CHUNKS = 16
USUAL_CHUNKS = 2
"""An ordinary run tries these, a long one all."""
USUAL_STRIDE = 3
"""And it is killed at every third step; the stories end at many steps too."""
MOST_STEPS = 160


@dataclass(frozen=True)
class World:
    """A federation to copy, and what its holders' sums must come to.

    summed: by holder and corpus.
    """

    parties: Parties
    oracle: MaskedOracle
    summed: Mapping[tuple[str, str], Known]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four holders of three domains, two newcomers, and a second corpus for two of them."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        parties = found(tmp_path_factory.mktemp("world"), mode="masked")
        populate(parties, FIRST)
        for place, (name, domain) in enumerate(NEWCOMERS.items()):
            parties.settle(name, domain, own_texts(name, "medicine", 11 + place))
        terms = parties.federation().terms
        known, summed = {}, {}
        for name in parties.homes:
            for corpus in ("other", "first") if name in CHANGING else ("first",):
                opened = turn_to(parties, name, corpus)
                holder = parties.holder(name)
                epoch = holder.epoch(terms)
                documents = len(holder.epochs.held_out(epoch).lengths)
                assert documents, "there is nothing to count"
                known[name, opened] = summed[name, corpus] = Known(holder.epochs.statistics(epoch), documents)
        return World(parties, MaskedOracle(parties.encoder, known), summed)


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """The coordinator's steps, counted; nothing waits for a disk."""
    make_haste(monkeypatch)
    make_more_haste(monkeypatch)
    taken = Steps(raise_crash)
    let_steps_be_seen(monkeypatch, taken)
    yield taken
    taken.allow(0)


@dataclass
class Tally:
    """How often what happened in all the stories of a chunk."""

    releases: int = 0
    failures: int = 0
    crashes: int = 0


class Story:
    """One seed's course of events."""

    def __init__(self, world: World, folder: Path, seed: int, steps: Steps) -> None:
        self.dice, self.steps, self.world = random.Random(seed), steps, world
        self.oracle = MaskedOracle(world.parties.encoder, dict(world.oracle.known), world.oracle.routers)
        self.parties = world.parties.copy(folder, *BULKY)
        self.corpora = dict.fromkeys(self.parties.homes, "first")
        self.unevaluated: set[int] = set()
        self.steps.allow(0)
        chance, rogue = self.dice.choice(CHANCES), self.parties.federation().identity
        self.network = Storm((), self.standing, self.dice, steps, chance, rogue=rogue, malice=self.dice.choice(MALICE))
        self.tally = Tally()

    def run(self) -> Tally:
        with pytest.MonkeyPatch.context() as patch:
            let_holders_fall(patch, self.network.writes)
            self.network.witness.look_on(patch)
            for _ in range(self.dice.choice((1, 2, 2))):
                self.storm()
            self.quiet()
        return self.tally

    def storm(self) -> None:
        """A round in which anything may happen."""
        self.events()
        self.network.silent.clear()
        self.steps.allow(self.dice.randint(1, MOST_STEPS) if self.dice.random() < 0.5 else 0)
        accept = self.dice.choice(((), (), DOMAINS))
        try:
            self.round(accept)
        except Crash:
            self.tally.crashes += 1
        except RoundFailed:
            self.tally.failures += 1
        self.steps.allow(0)
        self.tally.releases = self.check(accept)

    def quiet(self) -> None:
        """Rounds without faults. With the epochs that are open there may be none, and nothing is opened twice; with
        new ones of everybody there is a release of everybody, which holders of every domain have counted for."""
        self.network.calm_down()
        try:
            self.round(DOMAINS)
        except RoundFailed:
            self.tally.failures += 1
        before = self.check(DOMAINS)
        for name in self.standing().active:
            self.open_epoch(name)
        self.network.holders = [self.parties.holder(name) for name in self.parties.homes]
        self.round(())
        self.tally.releases = self.check()
        assert self.tally.releases == before + 1
        self.everybody_is_in()

    def events(self) -> None:
        """Somebody new, corpora that changed, or new epochs of everybody."""
        if self.dice.random() < 0.3:
            let_join(self.parties, self.dice.choice((("physics",), tuple(NEWCOMERS))))
        if self.dice.random() < 0.3:
            corpus = self.dice.choice(("first", "other"))
            for name in self.dice.choice((("code",), CHANGING)):
                self.corpora[name] = corpus
                epoch = turn_to(self.parties, name, corpus)
                self.oracle.known[name, epoch] = self.world.summed[name, corpus]
        if self.dice.random() < 0.3:
            for name in self.parties.homes:
                self.open_epoch(name)
        self.network.holders = [self.parties.holder(name) for name in self.parties.homes]

    def open_epoch(self, name: str) -> None:
        epoch = epoch_of(self.parties.ready(name))
        self.oracle.known[name, epoch] = self.world.summed[name, self.corpora[name]]

    def round(self, accept: Sequence[str]) -> None:
        wishes = RoundWishes(accept_worse=DOMAINS, accept_unevaluated=tuple(accept))
        run_round(self.parties.federation(self.steps.clock), self.network, self.steps, wishes)

    def standing(self) -> Standing:
        return self.parties.federation().ledger.standing()

    def check(self, accept: Sequence[str] = ()) -> int:
        """accept: the domains that the last round need not have counts for."""
        releases = len(self.standing().releases)
        self.unevaluated |= set(range(self.tally.releases + 1, releases + 1)) if accept else set()
        return self.oracle.check(self.parties, self.network.witness, self.unevaluated)

    def everybody_is_in(self) -> None:
        standing = self.standing()
        newest = standing.releases[-1]
        assert {member.name for member in newest.members} == set(standing.active)
        for name in standing.active:
            assert self.parties.holder(name).newest == newest.number


@pytest.mark.parametrize("chunk", seeds(CHUNKS, USUAL_CHUNKS))
def test_no_fault_fall_or_crash_spoils_a_masked_sum_or_shows_what_one_member_has(
    world: World, steps: Steps, tmp_path: Path, chunk: int
) -> None:
    """Each release is, bit for bit, that of members who sent; no holder contradicts itself or shows both secrets."""
    tallies = []
    for seed in range(chunk, SEEDS, CHUNKS):
        folder = tmp_path / str(seed)
        large = seed // CHUNKS % 2  # every other story is of a cohort in which members deal and lock as in a large one
        try:
            with small_neighbourhoods(4, 2) if large else nullcontext():
                tallies.append(Story(world, folder, seed, steps).run())
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        shutil.rmtree(folder)
    for kind in ("releases", "failures", "crashes"):
        assert sum(getattr(tally, kind) for tally in tallies), f"no story has {kind}"


class FallsAfterSharing(Direct):
    """A transport, before a witness, on which one holder is not heard any more once it has dealt its secrets out."""

    def __init__(self, parties: Parties, faller: str, witness: Witness) -> None:
        super().__init__(parties, list(FIRST))
        self._faller, self._witness = faller, witness

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        if name == self._faller and isinstance(open_packet(packet).message, Seal):
            self.down.add(name)
            return
        for reply in super().answers(name, peer, packet):
            self._witness.saw(packet, reply)
            yield reply


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    witness = Witness()
    witness.look_on(monkeypatch)
    return witness


@pytest.mark.parametrize(("faller", "domains"), [("medicine-1", 2), ("law-1", 3)])
def test_whoever_fell_away_after_sharing_comes_back_with_the_next_epochs(
    world: World, tmp_path: Path, witness: Witness, faller: str, domains: int
) -> None:
    """Its domain is missing from the release, or has one holder; the others' data is in a total, so it waits."""
    parties = world.parties.copy(tmp_path / "parties", *BULKY)
    oracle = MaskedOracle(parties.encoder, dict(world.oracle.known), world.oracle.routers)
    published = run_round(parties.federation(), FallsAfterSharing(parties, faller, witness), no_watch)
    assert len(published.domains) == domains
    assert oracle.check(parties, witness) == 1
    with pytest.raises(RoundFailed, match="must open a new epoch"):
        run_round(parties.federation(), Direct(parties, list(FIRST)), no_watch)
    assert oracle.check(parties, witness) == 1
    let_join(parties, tuple(NEWCOMERS))
    for name in parties.homes:
        oracle.known[name, epoch_of(parties.ready(name))] = world.summed[name, "first"]
    wishes = RoundWishes(accept_worse=DOMAINS)
    assert len(run_round(parties.federation(), Direct(parties), no_watch, wishes).members) == 6
    assert oracle.check(parties, witness) == 2


def test_what_holders_have_opened_binds_them_though_the_coordinator_forgot_it(
    world: World, tmp_path: Path, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died with a sum in hand that its ledger does not have; still nobody is in another one with that epoch."""
    parties = world.parties.copy(tmp_path / "parties", *BULKY)
    oracle = MaskedOracle(parties.encoder, dict(world.oracle.known), world.oracle.routers)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "keep_total", lambda *_: raise_crash())
        with pytest.raises(Crash):
            run_round(parties.federation(), FallsAfterSharing(parties, "medicine-1", witness), no_watch)
    assert not parties.federation().ledger.standing().totalled_epochs
    with pytest.raises(RoundFailed, match="must open a new epoch"):
        run_round(parties.federation(), Direct(parties, list(FIRST)), no_watch)
    assert oracle.check(parties, witness) == 0
    again = run_round(parties.federation(), Direct(parties, ["code", "law-1", "law-2"]), no_watch)
    assert len(again.members) == 3, "the very same total may be opened again"
    assert oracle.check(parties, witness) == 1


@pytest.mark.slow
def test_wherever_the_coordinator_is_killed_the_next_masked_round_goes_on_from_there(
    world: World, tmp_path: Path, long_run: bool
) -> None:
    """A process that ends at once, step after step: the members are the same, so a total may be opened again."""

    def goes_on(parties: Parties, calm: Network) -> None:
        oracle = MaskedOracle(parties.encoder, dict(world.oracle.known), world.oracle.routers)
        before = oracle.check(parties, Witness())
        published = run_round(parties.federation(), calm, no_watch)
        assert oracle.check(parties, Witness()) == published.number
        assert published.number - before in (0, 1)  # it died with the release, or before it
        assert {member.name for member in published.members} == set(THERE)

    stride = 1 if long_run else USUAL_STRIDE
    assert kill_at_every_step(world.parties, THERE, tmp_path, goes_on, stride) > 40
