"""Rounds under faults: whatever the network does, whoever falls away or dies, nothing is lost or
counted twice, and a masked sum is whole or stays shut.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.records import Mode
from ridgeway.common.protocol.messages import Collect, Seal
from ridgeway.common.protocol.packet import Packet, open_packet
from ridgeway.coordinator.round.ask import RoundWishes
from ridgeway.coordinator.round.ledger import Ledger, Standing
from ridgeway.coordinator.round.round import run_round
from tests.support.faults import (
    Crash,
    Network,
    Oracle,
    Steps,
    epoch_of,
    let_join,
    let_steps_be_seen,
    make_haste,
    raise_crash,
    turn_to,
)
from tests.support.killed_rounds import BULKY, kill_at_every_step
from tests.support.masked_faults import (
    Storm,
    Witness,
    let_holders_fall,
    make_more_haste,
)
from tests.support.masked_oracle import Known, MaskedOracle
from tests.support.masked_session import small_neighbourhoods
from tests.support.seeds import seeds
from tests.support.simulated_federation import (
    Direct,
    Parties,
    found,
    names_of,
    own_texts,
    populate,
    round_fails,
    round_of,
)

FIRST = {"code": "code", "law-1": "law", "law-2": "law", "medicine-1": "medicine"}
THERE = ("code", "law-1", "medicine-1")
"""Those who are there while the coordinator is killed at every step: no fewer can make a masked
sum.
"""
NEWCOMERS = {"medicine-2": "medicine", "physics": "physics"}
CHANGING = ("code", "law-1")
DOMAINS = ("code", "law", "medicine", "physics")
CLEAR_CHANCES = (0.02, 0.08, 0.2, 0.4)
CHANCES = (0.002, 0.01, 0.03, 0.1, 0.3)
MALICE = (0.0, 0.02, 0.1)
CLEAR_SEEDS = 320
SEEDS = 200
CHUNKS = 16
USUAL_CHUNKS = 2
"""An ordinary run tries these, a long one all."""
USUAL_STRIDE = 3
"""And it is killed at every third step; the stories end at many steps too."""
MOST_STEPS = 160


@dataclass(frozen=True)
class World:
    """A federation to copy, what its holders' sums must come to, by epoch, and by holder and
    corpus.
    """

    parties: Parties
    known: Mapping[tuple[str, str], Known]
    summed: Mapping[tuple[str, str], Known]
    masked: MaskedOracle

    @property
    def oracle(self) -> Oracle:
        """Of rounds in the clear."""
        return Oracle(
            self.parties.encoder,
            {epoch: known.prepared for epoch, known in self.known.items()},
        )

    @property
    def masked_oracle(self) -> MaskedOracle:
        return MaskedOracle(self.parties.encoder, dict(self.known), self.masked.routers)

    def copy(self, folder: Path) -> Parties:
        return self.parties.copy(folder, *BULKY)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mode], World]:
    """Four holders of three domains, two newcomers, and a second corpus for two of them; made once
    for each mode.
    """
    return cache(lambda mode: _world(tmp_path_factory.mktemp(mode), mode))


def _world(folder: Path, mode: Mode) -> World:
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        parties = populate(found(folder, mode=mode), FIRST)
        for number, (name, domain) in enumerate(NEWCOMERS.items()):
            parties.settle(name, domain, own_texts(name, "medicine", 11 + number))
        terms = parties.federation.terms
        known, summed = {}, {}
        for name in parties.homes:
            for corpus in ("other", "first") if name in CHANGING else ("first",):
                opened = turn_to(parties, name, corpus)
                holder = parties.holder(name)
                epoch = holder.epoch(terms)
                documents = len(holder.epochs.held_out(epoch).lengths)
                assert documents, "there is nothing to count"
                known[name, opened] = summed[name, corpus] = Known(
                    holder.epochs.statistics(epoch), documents
                )
        return World(parties, known, summed, MaskedOracle(parties.encoder, {}))


@pytest.fixture
def world(worlds: Callable[[Mode], World]) -> World:
    """Of masked rounds."""
    return worlds("masked")


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """The coordinator's steps, counted; nothing waits for a disk."""
    make_haste(monkeypatch)
    make_more_haste(monkeypatch)
    taken = Steps(raise_crash)
    let_steps_be_seen(monkeypatch, taken)
    yield taken
    taken.allow(0)


class Story:
    """One seed's course of events."""

    network: Network
    even_unchanged = False

    def __init__(self, world: World, folder: Path, seed: int, steps: Steps) -> None:
        self.dice, self.steps, self.world = random.Random(seed), steps, world
        self.parties = world.copy(folder)
        self.corpora = dict.fromkeys(self.parties.homes, "first")
        self.happened: set[str] = set()
        self.steps.allow(0)

    def learn(self, name: str, epoch: str, known: Known) -> None:
        """Let the oracle know what a new epoch holds."""
        raise NotImplementedError

    def check(self, accept: Sequence[str] = ()) -> int:
        """What must be so of the folders; accept: domains that the last round need not have counts
        for.
        """
        raise NotImplementedError

    def standing(self) -> Standing:
        return self.parties.standing

    def gather(self) -> None:
        self.network.holders = [
            self.parties.holder(name) for name in self.parties.homes
        ]

    def open_epoch(self, name: str) -> None:
        epoch = epoch_of(self.parties.ready(name))
        self.learn(name, epoch, self.world.summed[name, self.corpora[name]])

    def events(self) -> None:
        """Somebody new, corpora that changed, or new epochs of everybody."""
        if self.dice.random() < 0.3:
            let_join(self.parties, self.dice.choice((("physics",), tuple(NEWCOMERS))))
        if self.dice.random() < 0.3:
            corpus = self.dice.choice(("first", "other"))
            for name in self.dice.choice((("code",), CHANGING)):
                self.corpora[name] = corpus
                epoch = turn_to(self.parties, name, corpus)
                self.learn(name, epoch, self.world.summed[name, corpus])
        if self.dice.random() < 0.3:
            for name in self.parties.homes:
                self.open_epoch(name)
        self.gather()

    def storm(self, chance: float) -> None:
        """A round in which anything may happen; chance: of a crash."""
        self.events()
        crashes = self.dice.random() < chance
        self.steps.allow(self.dice.randint(1, MOST_STEPS) if crashes else 0)
        accept = self.dice.choice(((), (), DOMAINS))
        try:
            self.round(accept)
        except (Crash, RoundFailed) as error:
            self.happened.add(type(error).__name__)
        self.steps.allow(0)
        self.check(accept)

    def round(self, accept: Sequence[str]) -> None:
        wishes = RoundWishes(
            accept_worse=DOMAINS,
            accept_unevaluated=tuple(accept),
            even_unchanged=self.even_unchanged,
        )
        federation = self.parties.federation_at(self.steps.clock)
        run_round(federation, self.network, self.steps, wishes)

    def everybody_has(self, number: int) -> None:
        for name in self.standing().active:
            assert self.parties.holder(name).newest == number


class ClearStory(Story):
    """In the clear: what was accepted is never asked for again."""

    even_unchanged = True

    def __init__(self, world: World, folder: Path, seed: int, steps: Steps) -> None:
        super().__init__(world, folder, seed, steps)
        self.oracle = world.oracle
        self.evaluated: list[bool] = []
        self.network = Network(
            (), self.standing, self.dice, steps, self.dice.choice(CLEAR_CHANCES)
        )

    def learn(self, name: str, epoch: str, known: Known) -> None:
        self.oracle.sums[name, epoch] = known.prepared

    def run(self) -> set[str]:
        for _ in range(self.dice.randint(1, 2)):
            self.storm(1.0)
        self.network.chance = 0.0
        before = self.check()
        accept = self.dice.choice(((), DOMAINS))
        # who has counted for another router counts again with its next epoch
        if not accept:
            for name in self.parties.homes:
                self.open_epoch(name)
            self.gather()
        self.round(accept)
        number = self.check(accept)
        assert number == before + 1
        cohort = self.oracle.cohort(self.parties.federation, number)
        assert cohort == set(self.standing().active)
        self.everybody_has(number)
        return self.happened

    def check(self, accept: Sequence[str] = ()) -> int:
        releases = self.oracle.check(self.parties)
        federation = self.parties.federation
        for number in range(len(self.evaluated) + 1, releases + 1):
            evaluation = federation.manifest(number)["evaluation"]
            self.evaluated.append(
                evaluation is not None and all(map(sum, evaluation["confusion"]))
            )
            assert accept or self.evaluated[-1], (
                f"nobody has counted for a domain of release {number}"
            )
        return releases


class MaskedStory(Story):
    """Under masks: before a witness, with holders that fall silent or are cut off, and a rogue with
    the right key.
    """

    network: Storm

    def __init__(self, world: World, folder: Path, seed: int, steps: Steps) -> None:
        super().__init__(world, folder, seed, steps)
        self.oracle = world.masked_oracle
        self.releases = 0
        self.unevaluated: set[int] = set()
        chance, rogue = self.dice.choice(CHANCES), self.parties.federation.identity
        self.network = Storm(
            (),
            self.standing,
            self.dice,
            steps,
            chance,
            rogue=rogue,
            malice=self.dice.choice(MALICE),
        )

    def learn(self, name: str, epoch: str, known: Known) -> None:
        self.oracle.known[name, epoch] = known

    def run(self) -> set[str]:
        with pytest.MonkeyPatch.context() as patch:
            let_holders_fall(patch, self.network.writes)
            self.network.witness.look_on(patch)
            for _ in range(self.dice.choice((1, 2, 2))):
                self.network.silent.clear()
                self.storm(0.5)
            self.quiet()
        return self.happened

    def quiet(self) -> None:
        """Rounds without faults. With the epochs that are open there may be none, and nothing is
        opened twice; with new ones of everybody there is a release of everybody, which holders of
        every domain have counted for.
        """
        self.network.calm_down()
        try:
            self.round(DOMAINS)
        except RoundFailed:
            self.happened.add(RoundFailed.__name__)
        before = self.check(DOMAINS)
        for name in self.standing().active:
            self.open_epoch(name)
        self.gather()
        self.round(())
        assert self.check() == before + 1
        newest = self.standing().releases[-1]
        assert names_of(newest) == set(self.standing().active)
        self.everybody_has(newest.number)

    def check(self, accept: Sequence[str] = ()) -> int:
        releases = len(self.standing().releases)
        if accept:
            self.unevaluated |= set(range(self.releases + 1, releases + 1))
        self.releases = self.oracle.check(
            self.parties, self.network.witness, self.unevaluated
        )
        return self.releases


@pytest.mark.parametrize("chunk", seeds(CHUNKS, USUAL_CHUNKS))
@pytest.mark.parametrize("mode", ["clear", "masked"])
def test_no_fault_fall_or_crash_loses_doubles_or_shows_a_contribution(
    worlds: Callable[[Mode], World],
    steps: Steps,
    tmp_path: Path,
    mode: Mode,
    chunk: int,
) -> None:
    """Each release is, bit for bit, that of its members, and a clean round succeeds in the end.
    Under masks no holder contradicts itself or shows both secrets; every other story is of a cohort
    in which members deal and lock as in a large one.
    """
    happened = set[str]()
    story = ClearStory if mode == "clear" else MaskedStory
    for seed in range(chunk, CLEAR_SEEDS if mode == "clear" else SEEDS, CHUNKS):
        folder = tmp_path / str(seed)
        large = mode == "masked" and seed // CHUNKS % 2
        try:
            with small_neighbourhoods(4, 2) if large else contextlib.nullcontext():
                happened |= story(worlds(mode), folder, seed, steps).run()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        shutil.rmtree(folder)
    assert happened == {"Crash", "RoundFailed"}


@pytest.mark.parametrize("fails", [(), ("law-2",)])
def test_who_fails_to_send_does_not_push_out_an_absent_holder_of_the_same_domain(
    worlds: Callable[[Mode], World], tmp_path: Path, fails: tuple[str, ...]
) -> None:
    """While another of its domain is there, an absent holder's share does not fit; once that one
    failed, it does.
    """
    world = worlds("clear")
    parties = world.copy(tmp_path)
    round_of(parties, Direct(parties, FIRST, down={"law-2"}))

    class Mute(Direct):
        def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
            silent = name in fails and isinstance(open_packet(packet).message, Collect)
            yield from () if silent else super().answers(name, peer, packet)

    second = Mute(parties, FIRST, down={"law-1"})
    # the others have counted for another router
    published = round_of(parties, second, accept_unevaluated=DOMAINS)
    law = "law-1" if fails else "law-2"
    cohort = world.oracle.cohort(parties.federation, published.number)
    assert cohort == {"code", "medicine-1", law}


class FallsAfterSharing(Direct):
    """A transport, before a witness, on which one holder is not heard any more once it has dealt
    its secrets out.
    """

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


def test_what_holders_have_opened_binds_them_though_the_coordinator_forgot_it(
    world: World, tmp_path: Path, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died with a sum in hand that its ledger does not have; still nobody is in another one with
    that epoch.
    """
    parties, oracle = world.copy(tmp_path / "parties"), world.masked_oracle
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "keep_total", lambda *_: raise_crash())
        with pytest.raises(Crash):
            round_of(parties, FallsAfterSharing(parties, "medicine-1", witness))
    assert not parties.standing.totalled_epochs
    with round_fails("must open a new epoch"):
        round_of(parties, Direct(parties, list(FIRST)))
    assert oracle.check(parties, witness) == 0
    again = round_of(parties, Direct(parties, ["code", "law-1", "law-2"]))
    assert len(again.members) == 3, "the very same total may be opened again"
    assert oracle.check(parties, witness) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "least"), [("clear", 15), ("masked", 40)])
def test_wherever_the_coordinator_is_killed_the_next_round_goes_on_from_there(
    worlds: Callable[[Mode], World],
    tmp_path: Path,
    long_run: bool,
    mode: Mode,
    least: int,
) -> None:
    """A process that ends at once, step after step: no clean-up, temporary files and open
    transactions left behind. The members are the same, so a masked total may be opened again.
    """
    world = worlds(mode)

    def checked(parties: Parties) -> int:
        if mode == "clear":
            return world.oracle.check(parties)
        return world.masked_oracle.check(parties, Witness())

    def goes_on(parties: Parties, calm: Network) -> None:
        before = checked(parties)
        published = round_of(parties, calm)
        assert checked(parties) == published.number == 1
        assert before in (0, 1)  # it died before the release, or with it
        assert parties.federation.manifest(1)["evaluation"] is not None
        assert names_of(published) == set(THERE)

    stride = 1 if long_run else USUAL_STRIDE
    assert kill_at_every_step(world.parties, THERE, tmp_path, goes_on, stride) > least
