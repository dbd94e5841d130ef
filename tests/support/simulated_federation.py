"""Small federations for tests: real folders of a coordinator and of holders, over the tiny encoder,
in this process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ridgeway.client.deploy.holder_folder import agreed_policy, create_holder
from ridgeway.client.ready import open_epoch
from ridgeway.client.round.answers import answer
from ridgeway.client.round.holder import CARD, PRIOR, Holder, HolderSettings
from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.settings import Sampling
from ridgeway.common.privacy.public_prior import make_prior, prior_bytes, write_prior
from ridgeway.common.protocol.cohort import Card, RosterMember, Terms, read_signed_json
from ridgeway.common.protocol.messages import Message
from ridgeway.common.protocol.packet import Packet, open_packet
from ridgeway.common.routing.release import ROUTER
from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.deploy.coordinator_folder import create_federation
from ridgeway.coordinator.round.ask import PeerAnswer, RoundWishes, Transport
from ridgeway.coordinator.round.federation import (
    Federation,
    FederationSettings,
    RoundSettings,
)
from ridgeway.coordinator.round.ledger import (
    Admitted,
    Ledger,
    LedgerRelease,
    Standing,
)
from ridgeway.coordinator.round.progress import Event, Watch
from ridgeway.coordinator.round.round import check_round, run_round
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl
from tests.support.rosters import pin
from tests.support.tiny import private_encoder, tiny_encoder

NO_BUNDLE = "0" * 64
DOMAINS = ("code", "law", "medicine")
ONE_EACH = {name: name for name in DOMAINS}
"""A holder of each of three domains, by its name."""
Kind = TypeVar("Kind")


def edit(path: Path, old: str, new: str) -> None:
    """Change words that stand in a file."""
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new))


def no_watch(event: Event) -> None:
    """Nobody looks on."""


@dataclass
class Parties:
    """A coordinator's folder, holders' folders by name, and the corpora of those holders."""

    folder: Path
    encoder: TableEncoder
    homes: dict[str, Path] = field(default_factory=dict)

    @property
    def federation(self) -> Federation:
        """The coordinator as a process that was just started sees its folder."""
        return Federation(self.folder / "coordinator", encoder=self.encoder)

    def federation_at(self, clock: Callable[[], Any]) -> Federation:
        """The coordinator, by another clock."""
        folder = self.folder / "coordinator"
        return Federation(folder, encoder=self.encoder, clock=clock)

    @property
    def standing(self) -> Standing:
        """What the coordinator's ledger says now."""
        return self.federation.standing

    @property
    def ledger(self) -> Ledger:
        return self.federation.ledger

    def release_folder(self, number: int) -> Path:
        return self.federation.release_folder(number)

    def router(self, number: int) -> bytes:
        """The file of a release's router."""
        return (self.release_folder(number) / ROUTER).read_bytes()

    def sums_files(self) -> set[str]:
        """The names of the files of sums that the coordinator keeps: their digests."""
        folder = self.federation.folder / "contributions"
        return {path.stem for path in folder.iterdir()}

    def change_settings(self, old: str, new: str) -> None:
        """Change the coordinator's settings, as the operator would with an editor."""
        edit(self.federation.folder / "coordinator.toml", old, new)

    @property
    def terms(self) -> Terms:
        return self.federation.terms

    def holder(self, name: str) -> Holder:
        return Holder(self.homes[name])

    @property
    def law(self) -> Holder:
        return self.holder("law")

    def with_law(self, count: int = 20, **policy: Any) -> Parties:
        """The same with a holder of law, which nobody has admitted yet."""
        self.settle("law", "law", own_texts("law", "law", count), **policy)
        return self

    def settle(
        self, name: str, domain: str, texts: Sequence[str], **policy: Any
    ) -> Holder:
        """Make a holder's corpus and folder; nobody has admitted it yet."""
        federation = self.federation
        corpus = write_jsonl(self.folder / "corpora" / f"{name}.jsonl", texts)
        self.homes[name] = self.folder / "holders" / name
        terms = federation.terms
        policy = {"min_cohort": 3 if terms.uses_masks else 2, **policy}
        if terms.privacy:
            policy = {"max_round_epsilon": terms.privacy.epsilon, **policy}
        settings = HolderSettings(
            domain=domain,
            corpus=(str(corpus),),
            holdout=0.25,
            threads=1,
            encoder=f"dir:{self.folder / 'encoder'}",
            spending=str(self.folder / "spending" / f"{name}.jsonl"),
            address="127.0.0.1:1",
            bundles=(NO_BUNDLE,),
            policy=agreed_policy(terms, federation.identity.public, **policy),
        )
        papers = {PRIOR: prior_bytes(federation.prior)} if terms.privacy else {}
        create_holder(self.homes[name], settings, papers)
        return self.ready(name)

    def ready(self, name: str) -> Holder:
        """Let a holder's owner open an epoch with the corpus as it is now, on its explicit word."""
        holder = self.holder(name)
        open_epoch(holder, self.federation.terms, new_epoch=True)
        return holder

    def new_epochs(self, *names: str) -> None:
        """Let the owners of these, or of all that are active, open new epochs."""
        for name in names or self.standing.active:
            self.ready(name)

    def entries(self, kind: str) -> list[Mapping[str, Any]]:
        """The facts of the ledger's entries of a kind."""
        return [entry.facts for entry in self.ledger.journal.entries(kind)]

    def refusals(self) -> list[tuple[str | None, str, str]]:
        """Who was refused, at which step, by which code."""
        return [
            (entry["name"], entry["step"], entry["code"])
            for entry in self.entries("refused")
        ]

    def rewrite(self, name: str, old: str, new: str) -> None:
        """Change a holder's settings, as its owner would with an editor."""
        edit(self.homes[name] / "client.toml", old, new)

    def change_corpus(self, name: str) -> None:
        """Let a holder have other texts than before, in another file, and open an epoch with
        them.
        """
        domain = self.holder(name).domain
        [corpus] = self.holder(name).settings.corpus
        changed = write_jsonl(
            Path(corpus).with_suffix(".new.jsonl"), own_texts(f"{name} now", domain, 15)
        )
        self.rewrite(name, f'"{corpus}"', f'"{changed}"')
        self.ready(name)

    def admit(self, name: str) -> Admitted:
        return self.ledger.admit(name, read_signed_json(self.homes[name] / CARD, Card))

    def pin_all(self) -> None:
        """Let every holder pin every other, as if they had handed each other their cards."""
        members = []
        for name, home in self.homes.items():
            card = read_signed_json(home / CARD, Card)
            members.append(RosterMember(name=name, domain=card.domain, key=card.key))
        for home in self.homes.values():
            pin(home, members)

    def copy(self, folder: Path, *without: str) -> Parties:
        """The same parties with the same keys and corpora in other folders; files of some names
        stay behind.
        """
        (self.folder / "spending").mkdir(exist_ok=True)
        for part in ("coordinator", "holders", "spending"):
            shutil.copytree(
                self.folder / part,
                folder / part,
                symlinks=True,
                ignore=shutil.ignore_patterns(*without),
                copy_function=shutil.copy,
            )
        homes = {name: folder / "holders" / name for name in self.homes}
        moved = Parties(folder, self.encoder, homes)
        for name in homes:
            moved.rewrite(
                name, f'"{self.folder / "spending"}/', f'"{folder / "spending"}/'
            )
        return moved


@contextmanager
def older_copy(folder: Path) -> Iterator[None]:
    """Let a folder forget afterwards what happens meanwhile."""
    kept = folder.with_name(f"{folder.name}.older")
    shutil.copytree(folder, kept, symlinks=True)
    yield
    shutil.rmtree(folder)
    kept.rename(folder)


def found(
    folder: Path,
    *,
    encoder: TableEncoder | None = None,
    window: int = 8,
    **settings: Any,
) -> Parties:
    """A federation without holders."""
    parties = Parties(folder, encoder or tiny_encoder())
    save_encoder(parties.encoder, folder / "encoder")
    given = {
        "mode": "clear",
        "sampling": Sampling(window),
        "round": RoundSettings(wait=0.0, deadline=60.0),
        **settings,
    }
    create_federation(
        folder / "coordinator",
        FederationSettings(encoder=f"dir:{folder / 'encoder'}", **given),
    )
    return parties


def found_private(folder: Path, **settings: Any) -> Parties:
    """A federation without holders, whose rounds are private; needs the fixture
    `private_sentences`.
    """
    encoder = private_encoder()
    parties = found(folder, mode="private", encoder=encoder, **settings)
    public = [text for name in ALPHABETS for text in sentences(name, 30)]
    prior = make_prior(parties.encoder, public)
    write_prior(prior, folder / "coordinator" / PRIOR)
    return parties


def populate(
    parties: Parties,
    domains: Mapping[str, str],
    texts: Mapping[str, Sequence[str]] | None = None,
    **policy: Any,
) -> Parties:
    """Settle and admit holders that pin each other, each with texts that nobody else has, unless
    `texts` has others for it.
    """
    for number, (name, domain) in enumerate(domains.items()):
        letters = domain if domain in ALPHABETS else "law"
        given = (texts or {}).get(name) or own_texts(name, letters, 12 + number)
        parties.settle(name, domain, given, **policy)
        parties.admit(name)
    parties.pin_all()
    return parties


def own_texts(name: str, domain: str, count: int) -> list[str]:
    """Texts of a domain that only this holder has."""
    return [f"{name} {text}" for text in sentences(domain, count, 48)]


class Direct:
    """A transport without faults: every peer answers at once, in its order.

    down: peers that are not there. replies: who has answered what.
    """

    def __init__(
        self,
        parties: Parties,
        names: Iterable[str] | None = None,
        down: Iterable[str] = (),
    ) -> None:
        self.names = list(parties.homes) if names is None else list(names)
        self._holders = [parties.holder(name) for name in self.names]
        self.down = set(down)
        self.replies: list[tuple[str, Packet]] = []

    @property
    def messages(self) -> list[tuple[str, Message]]:
        """The replies, opened."""
        return [(name, open_packet(reply).message) for name, reply in self.replies]

    def senders(self, kind: type[Message], lot: str | None = None) -> list[str]:
        """Who has answered with a message of this kind."""
        return [
            name
            for name, message in self.messages
            if isinstance(message, kind)
            and lot in (None, getattr(message, "lot", None))
        ]

    @property
    def reply_kinds(self) -> set[str]:
        """Which kinds of messages holders have answered with."""
        return {message.kind for _, message in self.messages}

    def peers(self) -> list[int]:
        return [index for index, name in enumerate(self.names) if name not in self.down]

    def exchange(
        self, packets: Mapping[int, Packet], seconds: float
    ) -> Iterator[tuple[int, PeerAnswer]]:
        for peer, packet in packets.items():
            if peer in self.peers():
                yield from (
                    (peer, reply)
                    for reply in self.answers(self.names[peer], peer, packet)
                )

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        """What one holder answers; tests put other words in its mouth."""
        reply = answer(self._holders[peer], packet)
        self.replies.append((name, reply))
        yield reply


def round_of(
    parties: Parties,
    transport: Transport | None = None,
    watch: Watch = no_watch,
    **wishes: Any,
) -> LedgerRelease:
    """A round in which everybody is there, unless a transport says otherwise."""
    exchange = transport or Direct(parties)
    return run_round(parties.federation, exchange, watch, RoundWishes(**wishes))


def dry_run(
    parties: Parties, transport: Transport | None = None, watch: Watch = no_watch
) -> None:
    """As far as a round goes before it asks for sums."""
    check_round(parties.federation, transport or Direct(parties), watch)


def round_fails(words: str) -> pytest.RaisesExc[RoundFailed]:
    """Expect that a round ends without a release, and says why."""
    return pytest.raises(RoundFailed, match=words)


def names_of(release: LedgerRelease) -> set[str]:
    """Whose sums are in a release."""
    return {member.name for member in release.members}


def of_kind(kind: type[Kind], events: Iterable[Any]) -> list[Kind]:
    """Of events, or messages, those of one type."""
    return [event for event in events if isinstance(event, kind)]
