"""Whole rounds between a coordinator and holders, fixed: the digest of every packet, in the order
in which they cross.

Keys and all that is random come from a hash of who draws it. Linear algebra differs in last bits
between processors: of packets from the first one with weights on, the vector holds what does not
depend on them.

`python -m tests.vectors.test_round` writes the file anew, after a change of the protocol that is
meant.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ridgeway.client.round.epochs import with_noise
from ridgeway.common.privacy.noise import PrivacyMode
from ridgeway.common.protocol.packet import Packet
from ridgeway.coordinator.round.federation import PrivacySettings
from ridgeway.coordinator.round.round import run_round
from tests.support.masked_session import small_neighbourhoods
from tests.support.simulated_federation import (
    Direct,
    Parties,
    found,
    found_private,
    no_watch,
    populate,
)

FILE = Path(__file__).with_name("round.json")
ROUNDS = ("clear", "masked", "neighbours")
"""In the last one members deal and lock as in a large cohort."""
PRIVATE_ROUNDS = ("columns", "full")
"""Private rounds by their sums. They are in no vector: the public prior that they need comes from
linear algebra.
"""
HOLDERS = {"ada": "law", "ben": "code", "cleo": "medicine"}
MORE_HOLDERS = {**HOLDERS, "dan": "law", "eve": "code"}
COORDINATOR = "coordinator"
FIRST_WITH_WEIGHTS = "evaluate"
BY_WEIGHTS = ("evaluate", "confirmed", "locked", "open_sum", "deliver", "receipt")
"""Kinds of packets whose content depends on weights, or holds a signature over something that does.
"""


def digest(*parts: bytes | memoryview) -> str:
    """The SHA-256 of all parts, one after the other."""
    return hashlib.sha256(b"".join(parts)).hexdigest()


class FixedDraws:
    """Bytes that depend on who draws them, on their number, and on how often the same party drew as
    many before.
    """

    def __init__(self) -> None:
        self.party = COORDINATOR
        self._drawn: Counter[tuple[str, int]] = Counter()

    def __call__(self, size: int) -> bytes:
        return self.draw(self.party, size)

    def key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.draw("keys", 32))

    def draw(self, party: str, size: int) -> bytes:
        self._drawn[party, size] += 1
        seed = f"{party} {size} {self._drawn[party, size]}"
        return hashlib.shake_256(seed.encode()).digest(size)


@dataclass(frozen=True, slots=True, eq=False)
class Crossed:
    """A packet, its sender, and whether weights have crossed before it or in it."""

    sender: str
    packet: Packet
    after_weights: bool

    @property
    def kind(self) -> str:
        return str(json.loads(self.packet.header)["kind"])

    @property
    def digest(self) -> str:
        """Over every byte that crosses."""
        return digest(
            self.packet.header, self.packet.signature.encode(), *self.packet.blobs
        )

    @property
    def portable_digest(self) -> str:
        """The same on every processor: without what depends on weights, the digest of the request
        among it.
        """
        if not self.after_weights:
            return self.digest
        header: dict[str, Any] = json.loads(self.packet.header)
        del header["reply_to"]
        if self.kind in BY_WEIGHTS:
            header["body"] = sorted(header["body"])
            header["blobs"] = len(header["blobs"])
            return digest(_canonical(header))
        return digest(_canonical(header), *self.packet.blobs)


class RecordingTransport(Direct):
    """Keeps all packets; each holder draws from a sequence of its own."""

    def __init__(self, parties: Parties, draws: FixedDraws) -> None:
        super().__init__(parties)
        self.crossed: list[Crossed] = []
        self._draws = draws
        self._after_weights = False

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        self._keep(COORDINATOR, packet)
        self._draws.party = name
        replies = list(super().answers(name, peer, packet))
        self._draws.party = COORDINATOR
        for reply in replies:
            self._keep(name, reply)
            yield reply

    def _keep(self, sender: str, packet: Packet) -> None:
        if json.loads(packet.header)["kind"] == FIRST_WITH_WEIGHTS:
            self._after_weights = True
        self.crossed.append(Crossed(sender, packet, self._after_weights))


def fixed_randomness(draws: FixedDraws, patch: pytest.MonkeyPatch) -> None:
    """Let all keys, secrets and noise of this process come from these draws."""
    patch.setattr(secrets, "token_bytes", draws)
    patch.setattr(with_noise, "__defaults__", (draws,))
    patch.setattr(Ed25519PrivateKey, "generate", draws.key)


def recorded(name: str, folder: Path) -> list[Crossed]:
    """All packets of a round, from the announcement to the last receipt."""
    large = name == "neighbours"
    dealing: AbstractContextManager[None] = (
        small_neighbourhoods(4, 2) if large else nullcontext()
    )
    with pytest.MonkeyPatch.context() as patch, dealing:
        draws = FixedDraws()
        fixed_randomness(draws, patch)
        parties = _founded(name, folder)
        populate(parties, MORE_HOLDERS if large else HOLDERS)
        transport = RecordingTransport(parties, draws)
        run_round(parties.federation, transport, no_watch)
    return transport.crossed


def _founded(name: str, folder: Path) -> Parties:
    if name in PRIVATE_ROUNDS:
        sums: PrivacyMode = "full" if name == "full" else "columns"
        return found_private(folder, privacy=PrivacySettings(sums=sums, epsilon=1.0))
    return found(folder, mode="clear" if name == "clear" else "masked")


def portable(crossed: list[Crossed]) -> list[list[str]]:
    return [[one.sender, one.kind, one.portable_digest] for one in crossed]


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


@pytest.mark.parametrize("name", ROUNDS)
def test_every_packet_of_a_round_is_fixed(name: str, tmp_path: Path) -> None:
    """The same keys, texts and secrets are the same packets, in the same order. The round succeeds:
    nobody refuses, and everybody has the release.
    """
    packets = json.loads(FILE.read_text(encoding="utf-8"))[name]
    assert portable(recorded(name, tmp_path)) == packets
    kinds = Counter(kind for _, kind, _ in packets)
    assert "refusal" not in kinds
    assert kinds["receipt"] == len({sender for sender, _, _ in packets} - {COORDINATOR})


def write() -> None:
    facts = {}
    for name in ROUNDS:
        with tempfile.TemporaryDirectory() as folder:
            facts[name] = portable(recorded(name, Path(folder)))
    FILE.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
