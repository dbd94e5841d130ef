"""A network that loses, delays, repeats, reorders, replays, forges and damages; a coordinator that
crashes; an oracle.

Everything that goes wrong is decided by one seeded generator, so that a failure can be run again.
The oracle knows each holder's own sums, by the epochs that they are of, and nothing of how the
coordinator keeps or adds them.
"""

from __future__ import annotations

import errno
import json
import marshal
import os
import random
import sqlite3
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import combinations, islice
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from ridgeway.client.ready import SMALLEST_CORPUS, held_out_sample
from ridgeway.client.round.answers import _note, answer
from ridgeway.client.round.holder import Holder
from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.settings import EQUAL_MASS, Confidence, Ridge
from ridgeway.common.protocol.cohort import RosterMember
from ridgeway.common.protocol.messages import Collect, Message, SealedSums
from ridgeway.common.protocol.packet import Packet, open_packet, seal_packet
from ridgeway.common.routing.release import ROUTER, load_release, release_files
from ridgeway.common.routing.token_table import compile_table
from ridgeway.common.statistics import Prepared, Statistics
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.round.federation import _LATEST, Federation
from ridgeway.coordinator.round.ledger import Contribution, Standing
from ridgeway.coordinator.solving.solve import solve
from tests.support.commands import listing
from tests.support.making import fixed_identity
from tests.support.rosters import pin
from tests.support.simulated_federation import Parties

DAY = datetime(2026, 1, 1, tzinfo=UTC)


class Crash(BaseException):
    """The coordinator's process ends here."""


class Steps:
    """Everything a coordinator does, step by step; at one of them it crashes.

    Law: the same seed crashes in the same place.
    """

    def __init__(self, crash: Callable[[], None]) -> None:
        self._crash = crash
        self.taken, self.last = 0, 0

    def allow(self, steps: int) -> None:
        """So many steps from now on, then a crash; 0 for no crash."""
        self.taken, self.last = 0, steps

    def __call__(self, *_: Any) -> None:
        self.taken += 1
        if self.taken == self.last:
            self._crash()

    def clock(self) -> datetime:
        """Told while an entry is being written: a crash here is one within a transaction."""
        self()
        return DAY

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **words: Any) -> Any:
            self()
            result = work(*args, **words)
            self()
            return result

        return wrapped


def raise_crash() -> None:
    raise Crash


class Looking(Steps):
    """Steps that look at the folders: to be killed where these are as at an earlier step leaves
    nothing new behind.

    new: the numbers of the steps at which the folders are as at no step before.
    """

    def __init__(self, parties: Parties) -> None:
        super().__init__(raise_crash)
        self.new: list[int] = []
        self._folder, self._seen = parties.folder, set[frozenset[tuple[str, str]]]()

    def __call__(self, *_: Any) -> None:
        super().__call__()
        files = listing(
            self._folder
        ).items()  # what SQLite shares between processes is made again from the rest
        state = frozenset(
            (path, content) for path, content in files if not path.endswith("-shm")
        )
        if state not in self._seen:
            self._seen.add(state)
            self.new.append(self.taken)


class FullDisk(Steps):
    """Every write on a disk that is full from one of them on, until there is room again.

    full_from: the number of the first write that fails; 0 for none.
    """

    def __init__(self) -> None:
        super().__init__(raise_crash)
        self.full_from = 0

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **words: Any) -> Any:
            self.taken += 1
            if not 0 < self.full_from <= self.taken:
                return work(*args, **words)
            if args and isinstance(args[0], Journal):
                with args[0]._connected():
                    raise sqlite3.OperationalError("database or disk is full")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return wrapped


def count_appends(patch: pytest.MonkeyPatch, steps: Steps, file: str) -> None:
    """Count every entry of the journals in files of this name as two steps: before and after."""
    plain_append = Journal.append

    def append(journal: Journal, *events: tuple[str, Mapping[str, Any]]) -> Any:
        append = (
            steps.around(plain_append) if journal.path.name == file else plain_append
        )
        return append(journal, *events)

    patch.setattr(Journal, "append", append)


STEPS = (
    "round.federation.Federation.point_to_latest",
    "round.ledger.Ledger.erase_outdated",
    "round.ledger.write_whole",
    "solving.solve.save_release",
)
"""What the coordinator writes with, beside its journal."""


def let_steps_be_seen(patch: pytest.MonkeyPatch, steps: Steps) -> None:
    """Count every write of the coordinator as two steps: before and after."""
    count_appends(patch, steps, "ledger.db")
    names = (
        "ridgeway.common.routing.release.write_whole",
        *(f"ridgeway.coordinator.{name}" for name in STEPS),
    )
    for name in names:
        patch.setattr(name, steps.around(resolve_name(name)))


def make_haste(patch: pytest.MonkeyPatch, *, once: bool = True) -> None:
    """Few temperatures, a short diary; nothing is parsed or written as JSON twice; nor is a corpus
    read, unless it may change.
    """
    patch.setattr(tomllib, "loads", _parse_toml)
    writing = SimpleNamespace(**vars(json) | {"dumps": _write_json})
    patch.setattr("ridgeway.common.base.files.json", writing)
    if once:
        patch.setattr("ridgeway.client.ready.prepare", _once(prepare))
        patch.setattr("ridgeway.client.ready.held_out_sample", _once(held_out_sample))
    for module in (
        "client.round.scoring",
        "common.routing.evaluation",
        "coordinator.solving.calibration",
    ):
        patch.setattr(f"ridgeway.{module}.CURVES", (Confidence(),))
    patch.setattr(
        "ridgeway.coordinator.solving.calibration.TEMPERATURE_STEPS", range(2)
    )
    patch.setattr("ridgeway.client.round.answers._note", _note_what_was_sealed)


_parse_toml = cache(tomllib.loads)


def _write_json(value: Any, **form: Any) -> str:
    return _written(marshal.dumps(value, 2), **form)


@lru_cache(maxsize=1 << 14)
def _written(value: bytes, **form: Any) -> str:
    return json.dumps(marshal.loads(value), **form)


def _note_what_was_sealed(
    holder: Holder, round_: dict[str, Any], message: Message, reply: Packet
) -> None:
    """The one thing that a holder remembers its session by."""
    if isinstance(message, SealedSums):
        _note(holder, round_, message, reply)


def _once(work: Callable[..., Any]) -> Callable[..., Any]:
    """The work, done once for each job."""

    def remembered(job: PrepareJob, *more: Any, **named: Any) -> Any:
        if (work, job) not in _DONE:
            _DONE[work, job] = work(job, *more, **named)
        return _DONE[work, job]

    return remembered


_DONE: dict[tuple[Callable[..., Any], PrepareJob], Any] = {}


def turn_to(parties: Parties, name: str, corpus: str) -> str:
    """Let a holder's corpus be its first or its other one, and open an epoch with it; returns the
    epoch's name.
    """
    path = parties.homes[name] / "client.toml"
    plain, other = f"{name}.jsonl", f"{name}-other.jsonl"
    text = path.read_text().replace(other, plain)
    source = parties.folder / "corpora" / plain
    if corpus == "other":
        text = text.replace(plain, other)
        if source.exists():
            lines = source.read_bytes().splitlines()
            source.with_name(other).write_bytes(
                b"\n".join(lines[: max(len(lines) // 2, SMALLEST_CORPUS)])
            )
    path.write_text(text)
    return epoch_of(parties.ready(name))


def epoch_of(holder: Holder) -> str:
    """The name of the epoch that a holder has open."""
    current = holder.epochs.current()
    assert current is not None
    return current.name


def let_join(parties: Parties, names: Sequence[str]) -> None:
    """Admit some, and let them and everybody on the roster pin each other."""
    for name in names:
        parties.admit(name)
    roster = parties.federation.ledger.standing().roster
    places = [
        RosterMember(name=member.name, domain=member.domain, key=member.key)
        for member in roster.values()
    ]
    for name in roster:
        pin(parties.homes[name], places)


# The network


Packets = list[tuple[int, Packet]]
"""Each with the peer that it is for, or comes from."""
Answers = Iterator[tuple[int, Packet | None]]


@dataclass
class Network:
    """A transport in which anything can happen to a packet, with the given chance.

    ledger: what the coordinator holds, so that nothing is asked for that is there.
    honest: whether every answer so far came from the peer that it was said to come from.
    """

    holders: Sequence[Holder]
    ledger: Callable[[], Standing]
    dice: random.Random
    steps: Steps
    chance: float
    honest: bool = True
    _late: Packets = field(default_factory=list)
    _requests: Packets = field(default_factory=list)
    _past: Packets = field(default_factory=list)

    def peers(self) -> list[int]:
        return [peer for peer in range(len(self.holders)) if not self._happens()]

    def exchange(self, packets: Mapping[int, Packet], seconds: float) -> Answers:
        self.steps()
        if self.honest and packets:
            self._must_lack(
                open_packet(next(iter(packets.values()))).message, list(packets)
            )
        waiting, self._requests = [*self._requests, *packets.items()], []
        for peer, request in self._shuffled(waiting):
            yield from self._carried(peer, request)
        arrived, self._late = self._late, []
        self._past.extend(arrived)
        if self._past and self._happens():
            arrived.append(self.dice.choice(self._past))
        yield from self._shuffled(arrived)

    def _carried(self, peer: int, request: Packet) -> Answers:
        if self._happens():  # the request does not come through as it is
            fate = self.dice.choice(("lost", "failed", "late", "damaged", "twice"))
            if fate == "late":
                self._requests.append((peer, request))
            if fate == "failed":
                yield peer, None
            if fate in ("lost", "failed", "late"):
                return
            request = self._damaged(request) if fate == "damaged" else request
            if fate == "twice":
                yield from self._returned(peer, request)
        yield from self._returned(peer, request)

    def _returned(self, peer: int, request: Packet) -> Answers:
        reply = self.answered(peer, request)
        if reply is None:
            return
        fate = self.dice.choice(FATES) if self._happens() else "well"
        if fate in ("late", "twice"):
            self._late.append((peer, reply))
        if fate in ("well", "twice"):
            self._past.append((peer, reply))
            yield peer, reply
        elif fate == "damaged":
            yield peer, self._damaged(reply)
        elif fate == "forged":
            yield peer, _forged(reply)
        elif fate == "swapped":
            self.honest = False
            yield self.dice.randrange(len(self.holders)), reply
        self.steps()

    def answered(self, peer: int, request: Packet) -> Packet | None:
        """What a holder answers, if it does."""
        return answer(self.holders[peer], request)

    def _must_lack(self, message: Message, peers: Sequence[int]) -> None:
        """Fail if sums are asked for that the ledger has already, of the same source and share."""
        if not isinstance(message, Collect):
            return
        standing, shares = self.ledger(), message.cohort.shares
        for holder in (self.holders[peer] for peer in peers):
            accepted = {
                (contribution.source, contribution.share)
                for contribution in standing.contributions.values()
            }
            asked = epoch_of(holder), shares[holder.identity.public]
            assert asked not in accepted, "sums that are there are asked for"

    def _damaged(self, packet: Packet) -> Packet:
        if packet.blobs and self.dice.random() < 0.5:
            blobs = list(packet.blobs)
            index = self.dice.randrange(len(blobs))
            blobs[index] = self._flipped(bytes(blobs[index]))
            return replace(packet, blobs=tuple(blobs))
        if self.dice.random() < 0.3:
            return replace(packet, signature=packet.signature[::-1])
        return replace(packet, header=self._flipped(packet.header))

    def _flipped(self, content: bytes) -> bytes:
        if not content or self.dice.random() < 0.2:
            return content[: len(content) // 2]
        changed = bytearray(content)
        changed[self.dice.randrange(len(content))] ^= 1 << self.dice.randrange(8)
        return bytes(changed)

    def _happens(self, part: float = 1.0) -> bool:
        return self.dice.random() < self.chance * part

    def _shuffled(self, items: Packets) -> Packets:
        shuffled = items.copy()
        if self.chance:
            self.dice.shuffle(shuffled)
        return shuffled


FATES = ("lost", "late", "twice", "damaged", "forged", "swapped")
STRANGER: Identity = fixed_identity(99)


def _forged(reply: Packet) -> Packet:
    """The same words, said by somebody who is not on the roster."""
    opened = open_packet(reply)
    return seal_packet(
        opened.message,
        STRANGER,
        round=opened.round,
        reply_to=opened.reply_to,
        blobs=opened.blobs,
    )


# The oracle


@dataclass
class Oracle:
    """Knows every holder's own sums, by its name and that of the epoch, and what must follow from
    them.
    """

    encoder: TableEncoder
    sums: dict[tuple[str, str], Prepared]
    _routers: dict[tuple[frozenset[tuple[str, str]], float], bytes] = field(
        default_factory=dict
    )

    def check(self, parties: Parties) -> int:
        """Raise unless all that the coordinator's folder says is so; returns how many releases
        there are.
        """
        federation = parties.federation
        federation.ledger.verify()
        standing = Standing()
        for entry in federation.ledger.journal.entries():
            if entry.kind == "contributed":
                given = Contribution(
                    **{name: entry.facts[name] for name in Contribution.__slots__}
                )
                assert standing.contributions.get(given.name) != given, (
                    f"{given.name} sent twice what was there"
                )
            standing.take_in(entry)
        for released, _ in releases_of(federation):
            self._check_release(federation, released)
        check_folders(federation)
        for name in parties.homes:
            check_received(parties.holder(name), federation)
        return len(standing.releases)

    def cohort(self, federation: Federation, number: int) -> set[str]:
        """Whose sums a release is made of, found out from its weights alone."""
        released = islice(releases_of(federation), number - 1, None)
        return self._made_of(federation, next(released)[0])

    def _check_release(self, federation: Federation, standing: Standing) -> None:
        published = standing.releases[-1]
        made_of = self._made_of(federation, standing)
        assert made_of == {member.name for member in published.members}
        unused = {
            name: standing.active[name].domain
            for name in standing.contributions.keys() - made_of
        }
        for name, domain in unused.items():
            # of several that fit in turns, none need be taken
            alone = list(unused.values()).count(domain) == 1
            lost = alone and self._fits(standing, {*made_of, name})
            assert not lost, f"{name} was lost from release {published.number}"

    def _made_of(self, federation: Federation, standing: Standing) -> set[str]:
        """The one set of holders whose accepted sums, added, give the router bit for bit."""
        published = standing.releases[-1]
        folder = federation.release_folder(published.number)
        manifest = load_release(folder).manifest
        content = (folder / ROUTER).read_bytes()
        assert manifest["masses"] == dict.fromkeys(published.domains, EQUAL_MASS)
        assert manifest["domains"] == list(published.domains)
        size, ridge = manifest["cohort"]["holders"], manifest["ridge"]["value"]
        possible = [
            set(names)
            for names in combinations(sorted(standing.active), size)
            if self._fits(standing, set(names))
            and {standing.active[name].domain for name in names}
            == set(published.domains)
        ]
        exact = [
            names
            for names in possible
            if self._router(standing, names, ridge) == content
        ]
        assert len(exact) == 1, (
            f"release {published.number} is not the router of any {size} holders' sums"
        )
        return exact[0]

    def _fits(self, standing: Standing, names: set[str]) -> bool:
        """Whether the ledger holds the sums of all of these under the shares of a cohort of just
        them.
        """
        stored = {name: standing.contributions.get(name) for name in names}
        shares = shares_of(standing, names)
        return all(
            contribution is not None and contribution.share == shares[name]
            for name, contribution in stored.items()
        )

    def _router(self, standing: Standing, names: set[str], ridge: float) -> bytes:
        sources = frozenset(
            (name, standing.contributions[name].source) for name in names
        )
        if (sources, ridge) not in self._routers:
            statistics = {
                name: self.sums[name, source].statistics for name, source in sources
            }
            self._routers[sources, ridge] = router_bytes(
                statistics, standing, self.encoder, ridge
            )
        return self._routers[sources, ridge]


def releases_of(
    federation: Federation,
) -> Iterator[tuple[Standing, Mapping[str, Any]]]:
    """What the ledger says after each release, and the release's manifest; fails if one does not
    follow from the one before.
    """
    standing, parent = Standing(), None
    for entry in federation.ledger.journal.entries():
        standing.take_in(entry)
        if entry.kind == "released":
            published = standing.releases[-1]
            number = entry.facts["number"]
            assert number == len(standing.releases), "the numbers have a gap"
            folder = federation.release_folder(number)
            loaded = load_release(folder, key=federation.identity.public)
            assert loaded.manifest["number"] == published.number
            assert (loaded.id, loaded.manifest["parent"]) == (published.release, parent)
            yield standing, loaded.manifest
            parent = published.release


def shares_of(standing: Standing, names: set[str]) -> dict[str, int]:
    """The mass divided among the holders of each domain, what is left over going to the first
    keys.
    """
    shares: dict[str, int] = {}
    for domain in {standing.roster[name].domain for name in names}:
        sharing = sorted(
            (standing.roster[name].key, name)
            for name in names
            if standing.roster[name].domain == domain
        )
        shares |= {
            name: (EQUAL_MASS + len(sharing) - 1 - index) // len(sharing)
            for index, (_, name) in enumerate(sharing)
        }
    return shares


def router_bytes(
    sums: Mapping[str, Statistics],
    standing: Standing,
    encoder: TableEncoder,
    ridge: float,
) -> bytes:
    """router.safetensors of these holders' raw sums, each under its share of a cohort of just
    them.
    """
    shares = shares_of(standing, set(sums))
    return router_of(
        [(standing.roster[name].domain, shares[name], sums[name]) for name in sums],
        encoder,
        ridge,
    )


def router_of(
    parts: Sequence[tuple[str, int, Statistics]], encoder: TableEncoder, ridge: float
) -> bytes:
    """router.safetensors of these raw sums, from the definition: each with its domain and its share
    of the mass.
    """
    domains = sorted({domain for domain, _, _ in parts})
    features = encoder.width + 1
    gram = np.zeros((features, features), np.int64)
    cross = np.zeros((features, len(domains)), np.int64)
    for domain, share, statistics in parts:
        weighted = statistics.weighted(share)
        gram += weighted.gram
        cross[:, domains.index(domain)] += weighted.cross[:, 0]
    total = Statistics(gram, cross)
    weights = solve(total, encoder.scale, Ridge(ridge)).weights
    arrays = {"weights": weights, **compile_table(encoder, weights).arrays()}
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def check_folders(federation: Federation) -> None:
    """What can be seen among the releases is whole, and `latest` names one that the ledger
    knows.
    """
    releases = federation.folder / "releases"
    known = {f"{release.number:04}" for release in federation.standing.releases}
    seen = {path.name for path in releases.iterdir() if not path.name.startswith(".")}
    assert known <= seen
    for name in seen - {_LATEST}:
        load_release(releases / name, key=federation.identity.public)
    if _LATEST in seen:
        assert str((releases / _LATEST).readlink()) in known


def check_received(holder: Holder, federation: Federation) -> None:
    """A holder has only what the ledger calls a release, every byte of it."""
    releases = federation.standing.releases
    known = {release.number: release.release for release in releases}
    for entry in holder.releases():
        number = entry.facts["number"]
        assert known.get(number) == entry.facts["release"]
        received, published = (
            release_files(party.release_folder(number))
            for party in (holder, federation)
        )
        assert received == published and len(received) == 3
