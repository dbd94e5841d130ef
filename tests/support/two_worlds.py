"""Two worlds that differ in what is on one holder's disk, and all that its answers tell of it.

An honest coordinator plays rounds in the left world, and a hostile one puts requests of its own
between its steps. Whatever is sent to the watched holder is sent to its twin in the right world as
well: the same packets, keys and randomness, and another corpus, of which the owners open epochs at
the same moments. What is released by the rules is taken out of answers: exact sums and counts by
blanking them, noisy ones by noise that makes them the same in both worlds. Any other byte that
differs is a difference.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pydantic import ValidationError

from ridgeway.client.ready import open_epoch
from ridgeway.client.round.answers import answer
from ridgeway.client.round.holder import Holder
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.privacy.noise import UNIT, moved_square
from ridgeway.common.privacy.public_prior import Integers
from ridgeway.common.protocol.packet import Packet, open_packet, seal_packet
from ridgeway.coordinator.round.ask import RoundWishes
from ridgeway.coordinator.round.federation import PrivacySettings
from ridgeway.coordinator.round.round import check_round, run_round
from tests.support.crafted_requests import CHANGES, THE_SAME, Base
from tests.support.faults import make_haste
from tests.support.masked_session import small_neighbourhoods
from tests.support.simulated_federation import (
    Direct,
    Parties,
    edit,
    found,
    found_private,
    no_watch,
    own_texts,
    populate,
)

MODES: dict[str, dict[str, Any]] = {
    "clear": {"mode": "clear", "weighting": "tokens"},
    "masked": {"mode": "masked"},
    "masked among neighbours": {"mode": "masked"},
    "private columns": {"privacy": PrivacySettings(sums="columns")},
    "private full": {"privacy": PrivacySettings(sums="full")},
}
MEMBERS = {"code": "code", "law-1": "law", "law-2": "law", "medicine": "medicine"}
WATCHED, ALLY = "law-1", "law-2"
EXPERTS = ("large", "small")
LEFT, RIGHT = WORLDS = ("left", "right")
RELEASED = ("sealed_sums", "clear_statistics", "counted")
"""Answers whose bulk, or whose numbers, are what an exact round is for."""
FREE_BYTES = {LEFT: 1 << 40, RIGHT: (64 << 20) + 8192}
"""Of either disk: enough for any honest round here. The rest is full of private files."""
NO_LIMIT = 1e4
"""An ε that allows all rounds of a play."""
NEW_EPOCH = "new epoch"
"""In place of a request: the owners open an epoch."""
WISHES = RoundWishes(even_unchanged=True, accept_worse=("code", "law", "medicine"))

Corpus = tuple[str, ...]
"""The lines of a file of records."""
Pair = tuple[Corpus, Corpus]
"""What lies on the disks of the two worlds."""


class Step(NamedTuple):
    """A hostile request.

    before: the kind of the honest request that it is sent right before, in every round.
    ask:    the kind of the request that it is made of, by this change at this place; or NEW_EPOCH.
    stays:  whether the holder still knows of the last one, where many sizes are tried.
    """

    before: str
    ask: str
    change: str = "anew"
    place: int = 0
    stays: bool = False


class Play(NamedTuple):
    """What is played.

    pairs:      the corpora of each round. steps: what is sent between its requests.
    budget:     the ε that the watched holder allows in all.
    bisections: how finely to look where a holder begins to answer otherwise.
    """

    mode: str
    pairs: Sequence[Pair]
    steps: Sequence[Step] = ()
    budget: float = NO_LIMIT
    bisections: int = 20


class Noised(NamedTuple):
    """What was given to be noised, and the σ of the noise on each number."""

    exact: Integers
    scales: Integers


class Dice:
    """The same randomness in both worlds, and noise that makes what is released the same.

    noised: in each world, for the present request.
    """

    def __init__(self) -> None:
        self.world, self._seed, self._drawn = LEFT, "coordinator", 0
        self.noised: dict[str, list[Noised]] = {world: [] for world in WORLDS}

    @contextlib.contextmanager
    def rolled(self, world: str, seed: str) -> Iterator[None]:
        before = self.world, self._seed, self._drawn
        self.world, self._seed, self._drawn = world, seed, 0
        yield
        self.world, self._seed, self._drawn = before

    def token_bytes(self, count: int = 32) -> bytes:
        self._drawn += 1
        return hashlib.shake_256(f"{self._seed} {self._drawn}".encode()).digest(count)

    def with_noise(self, exact: Integers, scales: Integers) -> Integers:
        """A vector that does not depend on what it is made of; another one each time."""
        self.noised[self.world].append(Noised(exact, scales))
        seed = int.from_bytes(self.token_bytes(8), "big")
        return np.random.default_rng(seed).integers(-(1 << 20), 1 << 20, exact.size)


class TwoWorlds(Direct):
    """The network of the left world, in which the watched holder is asked in both.

    known:  the last honest request of each kind to the watched holder.
    heard:  how often it answered what.
    noised: how many vectors it put noise on. opened: how many epochs both owners opened.
    """

    def __init__(self, parties: Parties, twin: Path, dice: Dice, play: Play) -> None:
        super().__init__(parties)
        self._parties, self._dice, self._play = parties, dice, play
        self._federation = parties.federation
        self._others = [name for name in MEMBERS if name != WATCHED]
        self._ally = parties.holder(ALLY).identity
        self._homes = {LEFT: parties.homes[WATCHED], RIGHT: twin}
        self._corpora: dict[str, Corpus] = {}
        self._privacy = self._federation.terms.privacy
        self.known: dict[str, Packet] = {}
        self.heard, self.noised, self.opened, self._pairs = Counter[str](), 0, 0, 0

    def run(self) -> None:
        """Honest rounds, with what is sent between their steps; they may well fail."""
        for number, pair in enumerate(self._play.pairs):
            if not self.open(pair):
                return
            for name in (
                self._others if number else ()
            ):  # what is in a total is in no other one
                self._parties.ready(name)
            with contextlib.suppress(RidgewayError):
                check_round(self._federation, self, no_watch)
            with contextlib.suppress(RidgewayError):
                run_round(self._federation, self, no_watch, WISHES)

    def open(self, pair: Pair) -> bool:
        """Let both owners open an epoch; False if one alone can, which no coordinator is told."""
        self._pairs += 1
        could = {
            self._open(world, corpus)
            for world, corpus in zip(WORLDS, pair, strict=True)
        }
        if could == {True}:
            self._corpora = dict(zip(WORLDS, pair, strict=True))
            self.opened += 1
        return len(could) == 1

    def _open(self, world: str, corpus: Corpus) -> bool:
        home, terms = self._homes[world], self._federation.terms
        path = corpus_of(home)
        path.write_text("".join(f"{line}\n" for line in corpus))
        holder = Holder(home)
        with (
            self._dice.rolled(world, f"epoch {self._pairs}"),
            contextlib.suppress(RidgewayError),
        ):
            open_epoch(holder, terms, new_epoch=True)
            return True
        return False

    def exchange(
        self, packets: Mapping[int, Packet], seconds: float
    ) -> Iterator[tuple[int, Any]]:
        request = packets.get(self.names.index(WATCHED))
        if request is not None:
            opened = open_packet(request)
            self.known[opened.message.kind] = request
            for step in self._play.steps:
                if step.before == opened.message.kind:
                    self._interfere(step, opened.round)
        yield from super().exchange(packets, seconds)

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        home = self._parties.homes[name]
        yield (
            self._both(packet, "honest")
            if name == WATCHED
            else self._answer(LEFT, home, packet)
        )

    def _answer(self, world: str, home: Path, packet: Packet) -> Packet:
        with self._dice.rolled(world, home.name + packet.digest):
            return answer(Holder(home), packet)

    def _interfere(self, step: Step, round_: str) -> None:
        """Send what a hostile coordinator makes of an honest request.

        What has a size is tried in many, each as if it were the first, and ever more finely where
        the holder begins to answer otherwise.
        """
        if step.ask == NEW_EPOCH:
            self.open(self._play.pairs[step.place % len(self._play.pairs)])
        if step.ask not in self.known:
            return
        change, known = CHANGES[step.change], self.known[step.ask]
        if step.change == THE_SAME:
            self._both(known, step.change)
            return
        base = Base(
            open_packet(known), self._parties.encoder, self._ally, 0, step.place
        )

        def answer_to(power: float) -> Any:
            if change.powers:
                self._rewind()
            try:
                made = change.make(base._replace(power=power))
            except ValidationError:  # no message at all
                return None
            if made is None:
                return None
            packet = seal_packet(
                made[0], self._federation.identity, round=round_, blobs=made[1]
            )
            return self._sort(packet, step.change)

        self._keep()
        answers = [answer_to(power) for power in change.powers or (0.0,)]
        turns = [
            index for index, pair in enumerate(pairwise(answers)) if pair[0] != pair[1]
        ]
        for place in turns:
            near, far = change.powers[place], change.powers[place + 1]
            for _ in range(self._play.bisections):
                middle = (near + far) / 2
                near, far = (
                    (middle, far)
                    if answer_to(middle) == answers[place]
                    else (near, middle)
                )
        if change.powers and not step.stays:
            self._rewind()

    def _keep(self) -> None:
        for home in self._homes.values():
            _copy(home, home.with_suffix(".kept"))

    def _rewind(self) -> None:
        """Let holders be as they were before the present step."""
        for home in self._homes.values():
            _copy(home.with_suffix(".kept"), home)

    def _sort(self, packet: Packet, change: str) -> str:
        """What sort of answer a request gets, whatever numbers stand in it."""
        message = open_packet(self._both(packet, change)).message
        reason = "".join(
            letter for letter in getattr(message, "reason", "") if not letter.isdigit()
        )
        return " ".join([message.kind, getattr(message, "code", ""), reason])

    def _both(self, packet: Packet, change: str) -> Packet:
        """The answer of the left world; fails if that of the right one differs."""
        asked = open_packet(packet).message.kind
        self._dice.noised = {world: [] for world in WORLDS}
        given = [
            self._answer(world, home, packet) for world, home in self._homes.items()
        ]
        left, right = (_seen(reply, exact=self._privacy is None) for reply in given)
        self.heard[left["kind"]] += 1
        for path, one, other in (*_differing(left, right), *self._moved(asked, given)):
            both = f"{one!r} in one world and {other!r} in the other"
            raise AssertionError(f"{asked} ({change}): {path} is {both}")
        return given[0]

    def _moved(
        self, asked: str, given: Sequence[Packet]
    ) -> Iterator[tuple[str, Any, Any]]:
        """What one document moves further than it may, or what is noised otherwise."""
        left, right = self._dice.noised.values()
        self.noised += len(left)
        if [noised.scales.tolist() for noised in left] != [
            noised.scales.tolist() for noised in right
        ]:
            yield "noise", len(left), len(right)
            return
        if not self._are_neighbours():
            return
        counts = [_counts(reply) for reply in given] if self._privacy is None else []
        pairs = [(few.exact, more.exact) for few, more in zip(left, right, strict=True)]
        if asked == "evaluate":
            counted = [
                (UNIT * few, UNIT * more) for few, more in zip(*counts, strict=False)
            ]
            for few, more in counted + pairs:
                if few.size == more.size and np.abs(few - more).sum() > UNIT:
                    yield "counts", (few / UNIT).tolist(), (more / UNIT).tolist()
            return
        for few, more in pairs:
            assert self._privacy is not None
            if sum(int(difference) ** 2 for difference in few - more) > moved_square(
                self._privacy.mode
            ):
                yield "sums", few.tolist(), more.tolist()

    def _are_neighbours(self) -> bool:
        """Whether one world has one document that the other has not, and no other difference."""
        left, right = (
            Counter(corpus) - Counter([BROKEN]) for corpus in self._corpora.values()
        )
        return ((left - right) + (right - left)).total() == 1


def _copy(folder: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)


def _seen(packet: Packet, *, exact: bool) -> dict[str, Any]:
    """What an answer shows but for what an exact round releases."""
    header: dict[str, Any] = json.loads(packet.header)
    if exact and header["kind"] in RELEASED:
        header["blobs"] = [blob["size"] for blob in header["blobs"]]
        header["body"] = {
            name: _blanked(value) for name, value in header["body"].items()
        }
    else:
        header["signature"] = packet.signature
    return header


def _blanked(value: Any) -> Any:
    """Lists of numbers without their values."""
    if isinstance(value, list):
        return [_blanked(item) for item in value]
    return 0 if isinstance(value, int | float) else value


def _differing(left: Any, right: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two answers differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in {**left, **right}:
            yield from _differing(
                left.get(key), right.get(key), f"{path}.{key}".lstrip(".")
            )
    elif left != right:
        yield path, left, right


def _counts(packet: Packet) -> list[Integers]:
    """To which domain how many documents were routed, if it is told; changes come after it."""
    counts = getattr(open_packet(packet).message, "counts", ())
    return [np.array(counts[:-2])] if counts else []


class Stage:
    """A federation of each mode; every play gets a copy of it, and knows an honest round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Parties] = {}
        self._known: dict[str, dict[str, Packet]] = {}

    def kinds(self, mode: str) -> list[str]:
        """Of the requests of an honest round."""
        if mode not in self._made:
            self._made[mode] = _settled(self._folder / mode, mode)
            self._known[mode] = self._played(Play(mode, [(OWN, OWN)])).known
        return list(self._known[mode])

    def play(self, play: Play) -> TwoWorlds:
        self.kinds(play.mode)
        return self._played(play)

    def _played(self, play: Play) -> TwoWorlds:
        made, folder = self._made[play.mode], self._folder / "play"
        shutil.rmtree(folder, ignore_errors=True)
        parties, dice = made.copy(folder), Dice()
        twin = folder / "twin" / WATCHED
        shutil.copytree(parties.homes[WATCHED], twin)
        _move_in(parties.homes[WATCHED], made, play)
        _move_in(twin, made, play, _scores(twin))
        worlds = TwoWorlds(parties, twin, dice, play)
        worlds.known |= self._known.get(play.mode, {})
        few = "neighbours" in play.mode
        dealing = small_neighbourhoods(3, 2) if few else contextlib.nullcontext()
        with pytest.MonkeyPatch.context() as patch, dealing:
            hold_still(patch, dice)
            worlds.run()
        return worlds


def _move_in(home: Path, made: Parties, play: Play, scores: str = "") -> None:
    """Let a holder have a corpus, a record of spending, a budget and scores of its own."""
    corpus = made.folder / "corpora" / f"{WATCHED}.jsonl"
    for old, new in {
        str(corpus): str(corpus_of(home)),
        str(home.parents[1] / "spending" / f"{WATCHED}.jsonl"): str(
            home / "spending.jsonl"
        ),
        "skip_broken = 0.0": "skip_broken = 0.5",
        f"max_epsilon = {NO_LIMIT}": f"max_epsilon = {play.budget}",
        '# scores = "scores.jsonl"': scores,
    }.items():
        edit(home / "client.toml", old, new)


def _scores(home: Path) -> str:
    """A file with scores of experts, as settings name it."""
    lines = [
        {"prompt": "?", "expert": name, "score": 0.5}
        for name in EXPERTS
        for _ in range(12)
    ]
    path = home.with_suffix(".scores.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f'scores = "{path}"'


def hold_still(patch: pytest.MonkeyPatch, dice: Dice) -> None:
    """Let nothing differ between two worlds but what the dice know of."""
    make_haste(patch, once=False)
    usage = shutil.disk_usage
    quiet = logging.getLogger("ridgeway.two_worlds")
    quiet.disabled = True
    patch.setattr(Holder, "log", quiet)
    patch.setattr(secrets, "token_bytes", dice.token_bytes)
    patch.setattr("ridgeway.client.round.epochs.with_noise", dice.with_noise)
    patch.setattr(
        shutil, "disk_usage", lambda at: usage(at)._replace(free=FREE_BYTES[dice.world])
    )


def corpus_of(home: Path) -> Path:
    return home.with_suffix(".jsonl")


def _settled(folder: Path, mode: str) -> Parties:
    private = "privacy" in MODES[mode]
    policy: dict[str, Any] = {"max_epsilon": NO_LIMIT}
    if private:
        parties = found_private(folder, **MODES[mode])
        policy["max_round_epsilon"] = 4.0
    else:
        parties = found(folder, experts=EXPERTS, **MODES[mode])
        policy["modes"] = "clear", "masked"
    if mode.startswith("masked"):
        policy["weightings"] = "equal", "tokens"
    texts = {name: own_texts(name, domain, 32) for name, domain in MEMBERS.items()}
    return populate(parties, MEMBERS, texts, **policy)


# Corpora


def _some(words: str, held_out: bool) -> str:
    """A record that begins with these words, and is held out or is not."""
    texts = (f"{words} {number}" for number in range(99))
    return _record(next(text for text in texts if is_held_out(text, 0.25) == held_out))


def _record(text: str) -> str:
    return json.dumps({"text": text})


OWN: Corpus = tuple(map(_record, own_texts(WATCHED, "law", 32)))
BROKEN = '{"text": "broken'
CORPORA: dict[str, Corpus] = {
    "its own": OWN,
    "one summed more": (*OWN, _some("xyz", False)),
    "one held out more": (*OWN, _some("xyz", True)),
    "one less": OWN[1:],
    "one summed for another": (*OWN[1:], _some("xyz", False)),
    "one held out for another": (*OWN[1:], _some("abc", True)),
    "one much longer": (_record("abc " * 2000), *OWN[1:]),
    "many more": (*OWN, *(_record(f"{number} abc") for number in range(200))),
    "other letters": tuple(_record(f"{number} xyzzy") for number in range(40)),
    "one summed": (
        _some("a", False),
        *(_some(f"{number}", True) for number in range(12)),
    ),
    "none held out": tuple(_some(f"{number}", False) for number in range(12)),
    "a broken record": (*OWN, BROKEN),
    "empty documents": (*OWN, _record(""), _record("<end>")),
}
