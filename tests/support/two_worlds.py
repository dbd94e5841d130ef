"""Two worlds that differ in what is on one holder's disk alone, and all that its answers tell of it.

An honest coordinator plays rounds in the left world, and a hostile one puts requests of its own
between its steps. Whatever is sent to the watched holder is sent to its twin in the right world as
well: the same packets, keys and randomness, and another corpus. What is released by the rules is
taken out of answers: exact sums and counts by blanking them, noisy ones by noise that makes them the
same in both worlds. Any other byte that differs is a difference.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pydantic import ValidationError

from ridgeway.client.round import private_sums
from ridgeway.client.round.answers import answer
from ridgeway.client.round.holder import Holder
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.privacy.document_bound import UNIT, Integers
from ridgeway.common.privacy.public_prior import make_prior, write_prior
from ridgeway.common.protocol.packet import Packet, open_packet, seal_packet
from ridgeway.coordinator.round.federation import PRIOR, PrivacySettings, RoundSettings
from ridgeway.coordinator.round.preflight import check_holders
from ridgeway.coordinator.round.round import run_round
from tests.support.crafted_requests import CHANGES, Base
from tests.support.faults import make_haste
from tests.support.simulated_federation import Direct, Parties, found, no_watch, own_texts

COLUMNS, FULL = PrivacySettings(mode="columns", epsilon=1.0), PrivacySettings(mode="full", epsilon=1.0)
MODES: dict[str, dict[str, Any]] = {
    "clear": {"mode": "clear"},
    "masked": {"mode": "masked"},
    "clear columns": {"mode": "clear", "privacy": COLUMNS},
    "masked columns": {"mode": "masked", "privacy": COLUMNS},
    "masked full": {"mode": "masked", "privacy": FULL},
}
MEMBERS = {"code": "code", "law-1": "law", "law-2": "law", "medicine": "medicine"}
WATCHED = "law-1"
LEFT, RIGHT = WORLDS = ("left", "right")
RELEASED = ("sealed_sums", "clear_statistics", "scores", "reliability")
"""Answers whose bulk, or whose numbers, are what an exact round is for."""
FREE_BYTES = {LEFT: 1 << 40, RIGHT: 1 << 28}
"""Of either disk: enough for any honest round here. The rest is full of private files."""
POWERS = range(-8, 17)
"""Of two: the sizes of what a hostile coordinator makes up."""
BISECTIONS, MAX_TURNS = 40, 3

Corpus = tuple[str, ...]
"""The lines of a file of records."""


class Step(NamedTuple):
    """A hostile request.

    before: the kind of the honest request that it is sent right before, in every round.
    ask:    the kind of the request that it is made of, by this change at this place.
    """

    before: str
    ask: str
    change: str = "none"
    place: int = 0


class Difference(NamedTuple):
    """Something in two answers to one request that is not the same. path: where in the answer."""

    asked: str
    change: str
    path: str
    left: Any
    right: Any

    def __str__(self) -> str:
        both = f"{self.left!r} in one world and {self.right!r} in the other"
        return f"{self.asked} ({self.change}): {self.path} is {both}"


class Dice:
    """The same randomness in both worlds, and noise that makes what is released the same.

    exact: what was given to be noised in each world, for the present request.
    """

    def __init__(self) -> None:
        self.world, self._seed, self._drawn = LEFT, "coordinator", 0
        self.exact: dict[str, list[Integers]] = {world: [] for world in WORLDS}

    def answer(self, world: str, home: Path, packet: Packet) -> Packet:
        """What a holder of this world answers."""
        before = self.world, self._seed, self._drawn
        self.world, self._seed, self._drawn = world, home.name + packet.digest, 0
        given = answer(Holder(home), packet)
        self.world, self._seed, self._drawn = before
        return given

    def token_bytes(self, count: int = 32) -> bytes:
        self._drawn += 1
        return hashlib.shake_256(f"{self._seed} {self._drawn}".encode()).digest(count)

    def with_noise(self, exact: Integers, *_: Any) -> Integers:
        """A vector that does not depend on what it is made of; another one for each that is drawn."""
        self.exact[self.world].append(exact)
        seed = int.from_bytes(self.token_bytes(8), "big")
        return np.random.default_rng(seed).integers(-(1 << 20), 1 << 20, exact.size)


class TwoWorlds(Direct):
    """The network of the left world, in which the watched holder is asked in both.

    known: the last honest request of each kind to the watched holder. heard: how often it answered what.
    """

    def __init__(self, parties: Parties, twin: Path, dice: Dice, steps: Sequence[Step], strict: bool) -> None:
        super().__init__(parties)
        self._parties, self._dice, self._steps, self._strict = parties, dice, steps, strict
        self._identity = parties.federation().identity
        self._homes = {LEFT: parties.homes[WATCHED], RIGHT: twin}
        self._corpora: dict[str, Corpus] = {}
        self._exact = parties.federation().privacy is None
        self._round, self.known = 0, dict[str, Packet]()
        self.heard, self.differences = Counter[str](), list[Difference]()

    def play(self, left: Corpus, right: Corpus) -> None:
        """One honest round on these corpora, with what is sent between its steps; it may well fail."""
        self._round += 1
        for world, corpus in zip(WORLDS, (left, right), strict=True):
            self._corpora[world] = corpus
            path = corpus_of(self._homes[world])
            path.write_text("".join(f"{line}\n" for line in corpus))
            os.utime(path, (self._round, self._round))
        with contextlib.suppress(RidgewayError):
            check_holders(self._parties.federation(), self, no_watch)
            run_round(self._parties.federation(), self, no_watch, even_unchanged=True)

    def exchange(self, packets: Mapping[int, Packet], seconds: float) -> Iterator[tuple[int, Any]]:
        request = packets.get(self.names.index(WATCHED))
        if request is not None:
            opened = open_packet(request)
            self.known[opened.message.kind] = request
            for step in self._steps:
                if step.before == opened.message.kind and step.ask in self.known:
                    self._interfere(step, opened.round)
        yield from super().exchange(packets, seconds)

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        home = self._parties.homes[name]
        yield self._both(packet, "honest") if name == WATCHED else self._dice.answer(LEFT, home, packet)

    def _interfere(self, step: Step, round_: str) -> None:
        """Send what a hostile coordinator makes of an honest request.

        What has a size is tried in many, and ever more finely where the holder begins to answer otherwise.
        """
        base = open_packet(self.known[step.ask])

        def told(power: float) -> Any:
            try:
                made = CHANGES[step.change].make(Base(base, self._parties.encoder, power, step.place))
            except ValidationError:  # no message at all
                return None
            return made and self._sort(seal_packet(made[0], self._identity, round=round_, blobs=made[1]), step.change)

        answers = [told(power) for power in (POWERS if CHANGES[step.change].sized else POWERS[:1])]
        turns = [place for place, pair in enumerate(pairwise(answers)) if pair[0] != pair[1]]
        for place in turns[:MAX_TURNS]:
            near, far = float(POWERS[place]), float(POWERS[place + 1])
            for _ in range(BISECTIONS):
                middle = (near + far) / 2
                near, far = (middle, far) if told(middle) == answers[place] else (near, middle)

    def _sort(self, packet: Packet, change: str) -> str:
        """What sort of answer a request gets, whatever numbers stand in it."""
        message = open_packet(self._both(packet, change)).message
        words = [getattr(each, "code", "") for each in (message, *getattr(message, "obstacles", ()))]
        reason = "".join(each for each in getattr(message, "reason", "") if not each.isdigit())
        return " ".join([message.kind, *words, reason])

    def _both(self, packet: Packet, change: str) -> Packet:
        """The answer of the left world; how that of the right one differs is kept."""
        asked = open_packet(packet).message.kind
        self._dice.exact = {world: [] for world in WORLDS}
        given = [self._dice.answer(world, home, packet) for world, home in self._homes.items()]
        left, right = (_seen(each, self._exact) for each in given)
        self.heard[left["kind"]] += 1
        paths = [path for path in {**left, **right} if left.get(path) != right.get(path)]
        self.differences += [Difference(asked, change, path, left.get(path), right.get(path)) for path in paths]
        counts = [_counts(each) for each in given] if self._exact else [each[:1] for each in self._dice.exact.values()]
        if asked == "evaluate" and all(map(len, counts)) and self._are_neighbours():
            few, more = (np.array(each[0]) // (1 if self._exact else UNIT) for each in counts)
            if few.size == more.size and np.abs(more - few).sum() > 1:
                self.differences.append(Difference(asked, change, "counts", few.tolist(), more.tolist()))
        assert not (self._strict and self.differences), str(self.differences[0])
        return given[0]

    def _are_neighbours(self) -> bool:
        """Whether one world has one document that the other has not, and no other difference."""
        left, right = map(Counter, self._corpora.values())
        apart = (left - right) + (right - left)
        return apart.total() == 1 and BROKEN not in apart


def _seen(packet: Packet, exact: bool) -> dict[str, Any]:
    """What an answer shows but for what an exact round releases, by where it stands."""
    header = json.loads(packet.header)
    if exact and header["kind"] in RELEASED:
        header["blobs"] = [each["size"] for each in header["blobs"]]
        header["body"] = {name: _blanked(value) for name, value in header["body"].items()}
    else:
        header["signature"] = packet.signature
    return dict(_leaves(header))


def _blanked(value: Any) -> Any:
    """Lists of numbers without their values."""
    if isinstance(value, list):
        return [_blanked(each) for each in value]
    return 0 if isinstance(value, int | float) else value


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(each, f"{path}.{key}".lstrip("."))
    else:
        yield path, value


def _counts(packet: Packet) -> list[Sequence[int]]:
    """To which domain how many documents were routed, if it is told in the clear; lost and won come after it."""
    return [row[:-2] for row in getattr(open_packet(packet).message, "counts", ())[:1]]


class Stage:
    """A federation of each mode; every play gets a copy of it, and knows one honest round that was recorded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Parties] = {}
        self._known: dict[str, dict[str, Packet]] = {}

    def play(
        self,
        mode: str,
        *rounds: tuple[Corpus, Corpus],
        steps: Sequence[Step] = (),
        strict: bool = False,
        alter: Callable[[pytest.MonkeyPatch], None] | None = None,
    ) -> TwoWorlds:
        """Rounds with the corpora of both worlds.

        strict: fail at the first difference. alter: changes the holders' code, to look behind what is known.
        """
        if mode not in self._made:
            self._made[mode] = _settled(self._folder / mode, mode)
            self._known[mode] = self.play(mode, (OWN, OWN)).known
        shutil.rmtree(self._folder / "play", ignore_errors=True)
        parties = self._made[mode].copy(self._folder / "play")
        twin = self._folder / "play" / RIGHT / WATCHED
        shutil.copytree(parties.homes[WATCHED], twin)
        plain = str(self._made[mode].folder / "corpora" / f"{WATCHED}.jsonl")
        for home in (parties.homes[WATCHED], twin):
            settings = (home / "client.toml").read_text()
            (home / "client.toml").write_text(settings.replace(plain, str(corpus_of(home))))
        dice = Dice()
        worlds = TwoWorlds(parties, twin, dice, steps, strict)
        worlds.known |= self._known.get(mode, {})
        with pytest.MonkeyPatch.context() as patch:
            hold_still(patch, dice)
            if alter:
                alter(patch)
            for pair in rounds:
                worlds.play(*pair)
        return worlds


def hold_still(patch: pytest.MonkeyPatch, dice: Dice) -> None:
    """Let nothing differ between two worlds but what the dice know of."""
    make_haste(patch, once=False)
    usage = shutil.disk_usage
    quiet = logging.getLogger("ridgeway.two_worlds")
    quiet.disabled = True
    patch.setattr(Holder, "log", quiet)
    patch.setattr(secrets, "token_bytes", dice.token_bytes)
    patch.setattr(private_sums, "with_noise", dice.with_noise)
    patch.setattr(shutil, "disk_usage", lambda at: usage(at)._replace(free=FREE_BYTES[dice.world]))


def corpus_of(home: Path) -> Path:
    return home.with_suffix(".jsonl")


def _settled(folder: Path, mode: str) -> Parties:
    patient = RoundSettings(wait=0.0, deadline=60.0, min_difference=1)
    parties = found(folder, round=patient, **MODES[mode])
    policy: dict[str, Any] = {"min_difference": 1}
    if privacy := MODES[mode].get("privacy"):
        policy |= {"privacy": privacy.mode, "max_epsilon": 1e4}
        public = [own_texts("public", domain, 30) for domain in ("code", "law", "medicine")]
        write_prior(make_prior(parties.encoder, public), parties.federation().folder / PRIOR)
    for name, domain in MEMBERS.items():
        parties.settle(name, domain, own_texts(name, domain, 32), **policy)
        parties.admit(name)
    parties.pin_all()
    return parties


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
    "one summed more": (*OWN, _some("xyz", held_out=False)),
    "one held out more": (*OWN, _some("xyz", held_out=True)),
    "one less": OWN[1:],
    "one summed for another": (*OWN[1:], _some("xyz", held_out=False)),
    "one held out for another": (*OWN[1:], _some("abc", held_out=True)),
    "one much longer": (_record("abc " * 2000), *OWN[1:]),
    "many more": (*OWN, *(_record(f"{number} abc") for number in range(200))),
    "other letters": tuple(_record(f"{number} xyzzy") for number in range(40)),
    "one of each": (_some("a", held_out=False), _some("a", held_out=True)),
    "all held out": (_some("a", held_out=True),),
    "none held out": (_some("a", held_out=False),),
    "a broken record": (*OWN, BROKEN),
    "empty": (),
}
