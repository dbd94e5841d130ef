"""A domain holder's folder: settings, keys, the data that stands ready, releases that came, and a
journal.

Nothing here reads the corpus: client/ready.py does, when the owner opens an epoch.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ridgeway.client.round.epochs import (
    OPENED_EPOCH,
    Epoch,
    EpochStore,
    NoisyOutputs,
    SignedTotal,
    SignedTotals,
    sums_id,
)
from ridgeway.client.round.policy import (
    Policy,
    known_handovers,
    load_roster,
    take_handovers,
)
from ridgeway.client.round.scoring import told_scores
from ridgeway.client.round.session_store import SessionFile
from ridgeway.client.round.spending import Account, Expense, Output, shared_file
from ridgeway.common.base.errors import EncoderError, FormatError, JournalError, Refused
from ridgeway.common.base.files import whole_folder, write_whole
from ridgeway.common.base.identity import HandOver, HandOvers, Identity, owned_identity
from ridgeway.common.base.journal import Journal, JournalEntry
from ridgeway.common.base.records import Digest, DomainName, Record, read_settings
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.public_prior import PublicPrior, private_width, read_prior
from ridgeway.common.protocol.cohort import Cohort, Terms
from ridgeway.common.protocol.messages import HeardOutputs
from ridgeway.common.routing.release import (
    PRIVACY,
    Release,
    load_release,
    named_files,
)
from ridgeway.common.statistics import Integers, Statistics
from ridgeway.common.text.encoder_files import find_by_fingerprint
from ridgeway.common.text.table_encoder import TableEncoder

CLIENT_TOML = "client.toml"
CARD = "holder.pub"
IDENTITY = "identity.key"
REFUSED_BUNDLE = "refused_bundle"
"""The kind of a journal's entry about code that was sent, and not run."""
PRIOR = "prior.safetensors"
"""The public prior of private rounds, from the operator's invitation."""
SOLVED = "solved.safetensors"
"""What this holder has solved the last noisy total to."""
SAME_WEIGHTS = 1e-6
"""By how much two machines' solutions of one total may differ."""


class HolderSettings(Record):
    """client.toml.

    corpus:     files and folders with the domain's text.
    scores:     a file with scores of experts' answers to prompts of this domain, whose sums may be
                shared.
    skip_broken: the largest share of records that may be passed over because they cannot be read.
    device:     where to sum: auto, cpu, cuda, or one GPU such as cuda:0.
    encoder:    where this machine finds the encoder, if not under its own name.
    spending:   the file, shared by all folders of this user, that keeps what corpora have cost.
    keep:       how many releases are kept, the newest ones.
    bundles:    SHA-256 of the app bundles that may run here.
    proxy:      through which the coordinator is reached, if not directly.
    """

    domain: DomainName
    corpus: Annotated[tuple[str, ...], Field(min_length=1)]
    scores: str | None = None
    text_field: str = "text"
    holdout: float = Field(default=DEFAULT.holdout, ge=0, lt=1)
    skip_broken: float = Field(default=0.0, ge=0, lt=1)
    threads: int = Field(default=0, ge=0)
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda|cuda:[0-9]+)$")
    encoder: str | None = None
    spending: str | None = None
    keep: int = Field(default=10, ge=1)
    address: str
    bundles: Annotated[tuple[Digest, ...], Field(min_length=1)]
    proxy: str | None = Field(
        default=None, pattern=r"^https?://([^\s/@]+@)?[^\s/@]+:[0-9]{1,5}/?$"
    )
    policy: Policy


class HolderFiles:
    """A holder's settings and journal, which can be read without its keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = read_settings(folder / CLIENT_TOML, HolderSettings)
        self.journal = Journal(folder / "journal.db")

    @property
    def domain(self) -> str:
        return self.settings.domain

    @property
    def policy(self) -> Policy:
        return self.settings.policy

    @property
    def handovers(self) -> HandOvers:
        """The keys that took over from others, as far as this holder has met their hand-overs."""
        return known_handovers(self.journal)

    @property
    def coordinator(self) -> str:
        """The key that the coordinator has now; the pinned one has led to it."""
        return self.handovers.newest(self.policy.coordinator)

    @property
    def totals(self) -> SignedTotals:
        return SignedTotals(self.journal)

    def releases(self) -> list[JournalEntry]:
        """The releases that were received, the newest last."""
        return self.journal.entries("received")

    def release_folder(self, number: int) -> Path:
        return self.folder / "releases" / f"{number:04}"


class Holder(HolderFiles):
    """What the holder's side of a round needs. Nothing here sends anything."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.identity: Identity = owned_identity(folder / IDENTITY, self.handovers)

    @property
    def key(self) -> str:
        return self.identity.public

    @cached_property
    def log(self) -> logging.Logger:
        """The holder's own log, which stays here: it may name paths and carry tracebacks."""
        path = self.folder / "logs" / "holder.log"
        path.parent.mkdir(exist_ok=True, mode=0o700)
        logger = logging.getLogger(f"ridgeway.holder.{path.resolve()}")
        if not logger.handlers:
            handler = RotatingFileHandler(
                path, maxBytes=4 << 20, backupCount=3, encoding="utf-8", delay=True
            )
            handler.setFormatter(
                logging.Formatter("%(asctime)s %(levelname)s %(message)s")
            )
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False
        return logger

    # Keys

    def take_handovers(
        self, links: Iterable[HandOver], of: Iterable[str] = ()
    ) -> HandOvers:
        """Write down what is new about holders that are pinned, and about the owners of some
        keys.
        """
        known = self.handovers
        new = set(links) - {*known.links, *known.forks}
        if not new:
            return known
        concerned = {self.policy.coordinator, self.key, *self.pinned_keys, *of}
        return take_handovers(
            self.journal, sorted(new, key=lambda link: link.issued), concerned
        )

    # Sessions under masks

    @cached_property
    def sessions(self) -> SessionFile:
        return SessionFile(self.folder, self.identity)

    @property
    def pinned_keys(self) -> frozenset[str]:
        """The holders that this one takes part with, itself among them, by the keys that they have
        now.
        """
        known = self.handovers
        return frozenset(known.newest(key) for key in self._pinned) | {self.key}

    @cached_property
    def _pinned(self) -> tuple[str, ...]:
        return tuple(member.key for member in load_roster(self.folder))

    def note_cohort(
        self, round_: str, cohort: Cohort, session: str | None = None
    ) -> None:
        """Write down with whom this holder is about to take part."""
        facts = {
            "round": round_,
            "cohort": cohort.id,
            "session": session,
            "members": [member.key for member in cohort.members],
        }
        self.journal.append(("cohort", facts))

    # The data that stands ready

    @cached_property
    def epochs(self) -> EpochStore:
        return EpochStore(self.folder, self.journal)

    def epoch(self, terms: Terms) -> Epoch:
        """The epoch that stands ready for rounds under these terms; raises Refused if there is
        none.
        """
        current = self.epochs.current()
        if current is None:
            raise Refused(
                "no_epoch",
                "this holder has no open epoch; its owner must open one with `client"
                " ready`",
            )
        if current.sums != sums_id(terms):
            raise Refused(
                "epoch_does_not_fit",
                "this holder's epoch is for another encoder, sampling or prior; its"
                " owner must open a new one with `client ready`",
            )
        return current

    def exact_sums(self, epoch: Epoch, cohort: Cohort) -> Statistics:
        """One domain's exact sums, weighted to this holder's share."""
        statistics = self.epochs.statistics(epoch).statistics
        share = cohort.shares[self.key]
        return statistics.weighted(share) if share else statistics

    def noisy(self, epoch: Epoch, privacy: Privacy) -> NoisyOutputs:
        return NoisyOutputs(self.epochs, epoch, self.account, privacy)

    @property
    def account(self) -> Account:
        """What this corpus has cost its documents, and may cost, as of the epoch opened last."""
        owner = self.handovers.owner(self.key)
        return replace(account_of(self.settings, self.journal), holder=owner)

    def check_record(self, counted: Iterable[HeardOutputs] = ()) -> None:
        """Raise Refused if this folder is an older copy, as far as the shared file knows, or as the
        coordinator says.
        """
        keys = self.handovers.keys(self.key)
        of_this = [outputs for outputs in counted if outputs.key in keys]
        numbers: dict[Output, int] = {
            "statistics": max((outputs.sums for outputs in of_this), default=0),
            "counts": max((outputs.counts for outputs in of_this), default=0),
        }
        self.account.check_record(numbers)

    def check_affordable(self, terms: Terms) -> None:
        """Raise Refused if a private round costs more than this holder allows: its sums, or its
        counts.
        """
        if not terms.privacy:
            return
        epoch = self.epoch(terms)
        account = self.account
        account.check_affordable(
            account.private_round(terms.privacy, epoch.holdout, epoch.name)
        )

    def sign(
        self, total: SignedTotal, session: str, terms: Terms, epoch: Epoch
    ) -> None:
        """Write down a total that is about to be signed or sent, and what that costs: exact numbers
        cost ε = ∞.
        """
        account = self.account
        expense = self.expense(terms, epoch, total.sum_name)
        if terms.privacy:
            account.check_affordable([expense])
        paid = account.is_paid(epoch.name, total.sum_name, terms.mode)
        self.totals.sign(total, session, paid=paid)
        account.pay(expense)

    def expense(self, terms: Terms, epoch: Epoch, output: Output) -> Expense:
        """What an output costs. Once an exact one leaves, no ε bounds what is known of its
        documents.
        """
        return self.account.expense(
            epoch.name, output, terms.mode, terms.privacy, epoch.holdout
        )

    def expert_scores(self, epoch: Epoch, experts: Sequence[str]) -> Integers:
        """Sums of scores of these experts, then their numbers; zeros where this holder has or
        shares none.
        """
        shared = self.policy.share_scores
        return told_scores(self.epochs.scores(epoch) if shared else None, experts)

    @property
    def cache(self) -> Path:
        """Where parts of sums are kept."""
        return self.folder / "cache"

    @property
    def broken_list(self) -> Path:
        """Where the places of records lie that were passed over."""
        return self.folder / "broken.txt"

    def prior(self, privacy: Privacy) -> PublicPrior | None:
        """The public prior that terms name, if it is here."""
        path = self.folder / PRIOR
        try:
            prior = read_prior(path) if path.exists() else None
        except FormatError:
            return None
        return prior if prior and prior.fingerprint == privacy.prior else None

    def encoder(self, terms: Terms) -> TableEncoder:
        """The encoder that terms name, which must have the features that they name."""
        try:
            encoder = _encoder(terms.encoder, terms.encoder_name, self.settings.encoder)
        except EncoderError as error:
            self.log.exception("encoder")
            raise Refused(
                "encoder_missing",
                f"encoder {terms.encoder[:12]} is not on this holder's machine",
            ) from error
        if encoder.fingerprint != terms.encoder:
            raise Refused(
                "encoder_mismatch",
                f"the round uses encoder {terms.encoder[:12]}, but this holder has"
                f" {encoder.fingerprint[:12]}",
            )
        width = private_width(encoder) if terms.privacy else encoder.width
        if width + 1 != terms.features:
            raise Refused(
                "encoder_mismatch",
                f"the terms require {terms.features} features, but encoder"
                f" {terms.encoder[:12]} has {width + 1}",
            )
        return encoder

    # Releases

    @property
    def received(self) -> dict[int, str]:
        """The releases that were received, by number."""
        entries = self.releases()
        return {int(entry.facts["number"]): entry.facts["release"] for entry in entries}

    @property
    def newest(self) -> int:
        """The number of the newest release that is stored here; 0 for none."""
        return max(self.received, default=0)

    def release(self, release: str) -> Release | None:
        """A release that was received, verified again; none if it was not, or is not whole any
        more.
        """
        numbers = [number for number, its in self.received.items() if its == release]
        if not numbers:
            return None
        folder = self.release_folder(numbers[0])
        try:
            loaded = load_release(folder, key=self.policy.coordinator)
        except FormatError:
            self.log.exception("release %s", numbers[0])
            return None
        return loaded if loaded.id == release else None

    def note_solved(self, round_: str, weights: NDArray[np.float64]) -> None:
        """Keep what the noisy total of a round was solved to here: its release must follow from
        it.
        """
        name = np.frombuffer(bytes.fromhex(round_), np.uint8)
        content = save({"weights": weights, "round": name})
        write_whole(self.folder / SOLVED, content, private=True)

    def _check_follows(self, round_: str, loaded: Release) -> None:
        """Raise Refused if this holder has solved the total of a private round to another
        router.
        """
        if PRIVACY not in loaded.manifest:
            return
        try:
            solved = load_file(self.folder / SOLVED)
        except (FileNotFoundError, SafetensorError):
            return
        if bytes(solved["round"]).hex() != round_:
            return
        solution = solved["weights"]
        near = SAME_WEIGHTS * np.abs(solution).max()
        if solution.shape != loaded.weights.shape or not np.allclose(
            solution, loaded.weights, rtol=SAME_WEIGHTS, atol=near
        ):
            raise Refused(
                "bad_release",
                "the router does not follow from its noisy total",
            )

    def store_release(
        self,
        round_: str,
        number: int,
        release: str,
        files: Sequence[bytes | memoryview],
    ) -> None:
        """Verify a release against the pinned key, then put it in place whole; a stored one is
        never replaced.
        """
        if self.received.get(number) == release:
            return
        if number <= self.newest:
            raise Refused(
                "old_release",
                f"this holder has release {self.newest}, so it refuses another"
                f" release {number}",
            )
        given = tuple(map(bytes, files))
        try:
            loaded = _verified_release(given, self.coordinator)
        except FormatError as error:
            self.log.warning("release %s was refused: %s", number, error)
            raise Refused(
                "bad_release",
                "the release is incomplete, or not signed by the pinned key",
            ) from None
        if (loaded.id, loaded.manifest.get("number")) != (release, number):
            raise Refused("bad_release", "the release differs from the announced one")
        self._check_follows(round_, loaded)
        with whole_folder(self.release_folder(number)) as draft:
            for name, content in named_files(given).items():
                write_whole(draft / name, content)
        domains = list(loaded.domains)
        facts = {"number": number, "release": release, "domains": domains}
        self.journal.append(("received", facts))
        self._prune()

    def _prune(self) -> None:
        """Let old releases go; the journal says first which."""
        numbers = sorted(self.received)[: -self.settings.keep]
        old = [number for number in numbers if self.release_folder(number).exists()]
        if old:
            self.journal.append(("pruned", {"releases": old}))
        for number in old:
            shutil.rmtree(self.release_folder(number))


def account_of(settings: HolderSettings, journal: Journal) -> Account:
    """The account of the corpus that these settings name, and of where the epoch that was opened
    last had it from.
    """
    opened = journal.entries(OPENED_EPOCH)[-1:]
    if any("places" not in entry.facts for entry in opened):
        raise JournalError(
            f"{journal.path} was written by Ridgeway 0.2; make a new folder with"
            " `ridgeway client init`"
        )
    places = [place for entry in opened for place in entry.facts["places"]]
    return Account(
        journal,
        Path(settings.spending) if settings.spending else shared_file(),
        tuple(dict.fromkeys((*settings.corpus, *places))),
        settings.policy.coordinator,
        settings.policy.max_epsilon,
        settings.policy.max_delta,
    )


_encoder = lru_cache(maxsize=2)(find_by_fingerprint)


def _verified_release(files: tuple[bytes, ...], key: str) -> Release:
    """A release that a key has signed and that can be used; else raises."""
    return load_release(Path("received"), key=key, files=named_files(files))
