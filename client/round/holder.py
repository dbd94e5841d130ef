"""A domain holder's folder: settings, keys, statistics that are ready to go, releases that came, and a journal.

Knows the corpus and the encoder through `prepare`. Knows nothing of messages or Flower.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ridgeway.client.round.expert_scores import own_scores, scores_content, told_scores
from ridgeway.client.round.held_out import held_out_sample
from ridgeway.client.round.known_keys import known_handovers, take_handovers
from ridgeway.client.round.policy import Policy
from ridgeway.client.round.private_sums import SUMS, NoisyVectors
from ridgeway.client.round.roster import load_roster
from ridgeway.client.round.scoring import HeldOut
from ridgeway.client.round.session_store import SessionFile
from ridgeway.client.round.sum_memory import SumMemory
from ridgeway.client.sums.document_sums import DocumentJob, kept_sums, sum_documents
from ridgeway.client.sums.prepare import PrepareJob, Watch, prepare
from ridgeway.common.base.devices import chosen
from ridgeway.common.base.errors import EncoderError, FormatError, InputError, Refused
from ridgeway.common.base.files import sha256, whole_folder, write_whole
from ridgeway.common.base.identity import HandOver, HandOvers, Identity, load_identity, owned_identity
from ridgeway.common.base.journal import Journal, JournalEntry
from ridgeway.common.base.jsonl import field_names
from ridgeway.common.base.schema import Digest, DomainName, Record
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.base.settings_file import read_settings
from ridgeway.common.base.threads import cores
from ridgeway.common.encoding.encoder_sources import find_by_fingerprint
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.transformer_encoder import AnyEncoder
from ridgeway.common.masking.history import PastSum
from ridgeway.common.privacy.document_bound import DocumentSums
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.protocol.cohort import Cohort, Member, Terms
from ridgeway.common.routing.quality import QualityTable
from ridgeway.common.routing.release import MANIFEST, ROUTER, TOKENIZER, Release, load_release
from ridgeway.common.statistics.statistics_file import Prepared, load_prepared, save_prepared
from ridgeway.common.statistics.sums import Integers, Statistics

SETTINGS, CARD, IDENTITY = "client.toml", "holder.pub", "identity.key"
REFUSED_BUNDLE = "refused_bundle"
"""The kind of a journal's entry about code that was sent, and not run."""
WHOLE_HOLDOUT = math.nextafter(1.0, 0.0)
"""The share of documents that holds out every one of them."""
RELEASE_FILES = (MANIFEST, ROUTER, TOKENIZER)


class HolderSettings(Record):
    """client.toml.

    corpus:     files and folders with the domain's text, or
    statistics: a file made ahead with `client prepare`, and `held_out` the documents it left out.
    scores:     a file with scores of experts' answers to prompts of this domain, whose sums may be shared.
    skip_broken: the largest share of records that may be passed over because they cannot be read.
    device:     where to sum: auto, cpu, cuda, or one card such as cuda:0.
    encoder:    where this machine finds the encoder, if not under its own name.
    bundles:    SHA-256 of the app bundles that may run here.
    proxy:      through which the coordinator is reached, if not directly.
    """

    domain: DomainName
    corpus: tuple[str, ...] = ()
    statistics: str | None = None
    held_out: str | None = None
    scores: str | None = None
    text_field: str = "text"
    holdout: float = Field(default=DEFAULT.holdout, ge=0, lt=1)
    skip_broken: float = Field(default=0.0, ge=0, lt=1)
    threads: int = Field(default=0, ge=0)
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda|cuda:[0-9]+)$")
    encoder: str | None = None
    address: str
    bundles: Annotated[tuple[Digest, ...], Field(min_length=1)]
    proxy: str | None = Field(default=None, pattern=r"^https?://([^\s/@]+@)?[^\s/@]+:[0-9]{1,5}/?$")
    policy: Policy


class Holder:
    """What the holder's side of a round needs. Nothing here sends anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = read_settings(folder / SETTINGS, HolderSettings)
        if bool(self.settings.corpus) == bool(self.settings.statistics):
            raise InputError(f"{folder / SETTINGS}: name either a corpus or a statistics file")
        self.journal = Journal(folder / "journal.db")
        self.identity: Identity = owned_identity(folder / IDENTITY, self.handovers)

    @property
    def domain(self) -> str:
        return self.settings.domain

    @cached_property
    def log(self) -> logging.Logger:
        """The holder's own log, which stays here: it may name paths and carry tracebacks."""
        path = self.folder / "logs" / "holder.log"
        path.parent.mkdir(exist_ok=True, mode=0o700)
        logger = logging.getLogger(f"ridgeway.holder.{path.resolve()}")
        if not logger.handlers:
            handler = RotatingFileHandler(path, maxBytes=4 << 20, backupCount=3, encoding="utf-8", delay=True)
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False
        return logger

    # Keys

    @property
    def handovers(self) -> HandOvers:
        """The keys that took over from others, as far as this holder has met their hand-overs."""
        return known_handovers(self.journal)

    def take_handovers(self, told: Iterable[HandOver]) -> HandOvers:
        """Write down what is new about holders that are pinned, or stand in a sum that is known here."""
        known = self.handovers
        new = set(told) - {*known.links, *known.forks}
        if not new:
            return known
        concerned = {self.settings.policy.coordinator, self.identity.public, *self.pinned_keys}
        return take_handovers(self.journal, sorted(new, key=lambda link: link.issued), concerned | self.memory.keys())

    @property
    def coordinator(self) -> str:
        """The key that the coordinator has now; the pinned one has led to it."""
        return self.handovers.newest(self.settings.policy.coordinator)

    @cached_property
    def _identities(self) -> list[Identity]:
        """Every identity that this holder has had, the present one last."""
        earlier = self.handovers.keys(self.identity.public)[:-1]
        return [*(load_identity(earlier_key(self.folder, key)) for key in earlier), self.identity]

    # Masked sessions

    @cached_property
    def sessions(self) -> SessionFile:
        return SessionFile(self.folder, self.identity)

    @property
    def pinned_keys(self) -> frozenset[str]:
        """The holders that this one takes part with, itself among them, by the keys that they have now."""
        known = self.handovers
        return frozenset(known.newest(key) for key in self._pinned) | {self.identity.public}

    @cached_property
    def _pinned(self) -> tuple[str, ...]:
        return tuple(place.key for place in load_roster(self.folder))

    def has_been_in(self, round_: str) -> bool:
        """Whether there was a masked session of this name before."""
        return any(entry.facts["round"] == round_ for entry in self.journal.entries("session"))

    @property
    def memory(self) -> SumMemory:
        return SumMemory(self.journal, self.identity.public, lambda: self.pinned_keys, self.handovers)

    def note_cohort(self, round_: str, cohort: Cohort, session: str | None = None) -> None:
        """Write down with whom this holder is about to take part."""
        members = [member.key for member in cohort.members]
        self.journal.append(("cohort", {"round": round_, "cohort": cohort.id, "session": session, "members": members}))

    def opened_totals(self) -> list[PastSum]:
        """The sums of statistics that this holder has itself helped to open; what others tell does not count."""
        sums = [PastSum.from_facts(entry.facts) for entry in self.journal.entries("opened")]
        return [each for each in sums if each.lot == "statistics"]

    # Statistics

    def sums(self, terms: Terms, watch: Watch | None = None) -> Prepared | DocumentSums:
        """The sums under these terms, made now if the corpus has changed."""
        return self._documents(terms, terms.privacy, watch) if terms.privacy else self.ready(terms, watch)

    def offered_sums(self, terms: Terms) -> Prepared | DocumentSums:
        """Those that were offered last, if they fit these terms."""
        return self._documents(terms, terms.privacy) if terms.privacy else self.current(terms)

    def ready(self, terms: Terms, watch: Watch | None = None) -> Prepared:
        """The raw sums under these terms: read from the prepared file, or summed now, unchanged files not again."""
        if self.settings.statistics:
            given = load_prepared(Path(self.settings.statistics))
            if not _fits(given, self.domain, terms):
                raise Refused(
                    "statistics_do_not_fit",
                    "the statistics that this holder prepared ahead are of another domain, encoder or window",
                )
            return given
        outcome = prepare(
            self._job(self.settings.corpus, terms, self.settings.holdout),
            self.encoder(terms),
            self.folder / "cache",
            watch,
            broken_list=self.broken_list,
        )
        save_prepared(outcome.prepared, self._current)
        return outcome.prepared

    def current(self, terms: Terms) -> Prepared:
        """The sums that were offered last, if they fit these terms; else they are made."""
        if self.settings.corpus and self._current.exists():
            kept = load_prepared(self._current, own=True)
            if _fits(kept, self.domain, terms):
                return kept
        return self.ready(terms)

    def weighted(
        self, prepared: Prepared | DocumentSums, cohort: Cohort, member: Member, session: str = ""
    ) -> Statistics:
        """The sums weighted to this holder's share, in its domain's column among those of the cohort.

        Where documents are bounded nothing is weighted, and noise is added: in a masked session of `full` privacy this
        member's share of it, else all of it.
        Raises BrokenIdentity unless some text could have given them: a file made ahead may hold anything.
        """
        place, domains = cohort.domains.index(self.domain), len(cohort.domains)
        if isinstance(prepared, DocumentSums):
            assert cohort.terms.privacy is not None
            shares = (len(cohort.members), session) if _in_shares(cohort.terms) else (1, "")
            given = prepared, self.source(prepared), cohort.terms.privacy, self.settings.holdout
            return self.noisy.sums(*given, *shares).placed(place, domains)
        weighted = prepared.statistics.weighted(member.share) if member.share else prepared.statistics
        weighted.check(rounded=1 if member.share else 0, own=bool(self.settings.corpus))
        return weighted.placed(place, domains)

    def source(self, prepared: Prepared | DocumentSums) -> str:
        """A name for raw sums: the same for the same sums, and only this holder can compute it, to test no guess by."""
        return self._named(f"ridgeway source {prepared.content}")

    def held_out_source(self, sample: HeldOut) -> str:
        """A name for all that is counted, documents and scores of experts, made like that of the sums."""
        return self._named(f"ridgeway held out {sample.content}{scores_content(self._scores)}")

    def _named(self, content: str) -> str:
        """Its name under the present key; data that was in a sum under an earlier one keeps the name it had there.

        Otherwise it would pass for changed, and hide in a difference of two sums that somebody else has changed.
        """
        names = [sha256(each.sign(content.encode()).encode()) for each in self._identities]
        given = self.memory.own_sources() if len(names) > 1 else set()
        return next((name for name in names if name in given), names[-1])

    def expert_scores(self, experts: Sequence[str]) -> Integers:
        """Sums of scores of these experts, then their numbers; zeros where this holder has or shares none."""
        return told_scores(self._scores, experts)

    @property
    def _scores(self) -> QualityTable | None:
        if self.settings.scores is None or not self.settings.policy.share_scores:
            return None
        return own_scores(Path(self.settings.scores), self.domain)

    @property
    def offered(self) -> Path:
        """The file with the raw sums that were offered last, or were made ahead."""
        return Path(self.settings.statistics) if self.settings.statistics else self._current

    @property
    def broken_list(self) -> Path:
        """Where the places of records lie that were passed over."""
        return self.folder / "statistics" / "broken.txt"

    @property
    def _current(self) -> Path:
        return self.folder / "statistics" / "current.stats"

    # Documents under noise

    @cached_property
    def noisy(self) -> NoisyVectors:
        policy = self.settings.policy
        caps = policy.max_epsilon, policy.max_delta
        return NoisyVectors(self.folder, self.journal, self.identity.public, self.handovers, *caps)

    def check_affordable(self, terms: Terms) -> None:
        """Raise Refused, before anything is read, if what these terms ask for costs more than this holder allows.

        Unchanged sums to which shares of noise belong are let pass: a kept total may hold them. They are sealed in a
        new one only if that can be paid.
        """
        if terms.privacy and not self.is_paid(terms) and not (_in_shares(terms) and self._kept_documents(terms)):
            self.noisy.check_affordable("statistics", terms.privacy, self.settings.holdout)

    def is_paid(self, terms: Terms) -> bool:
        """Whether the sums of the present corpus have left under noise before, and may leave again as they were."""
        kept = None if _in_shares(terms) else self._kept_documents(terms)
        assert terms.privacy is not None
        return kept is not None and self.noisy.is_paid(self.noisy.name(self.source(kept), terms.privacy))

    def _kept_documents(self, terms: Terms) -> DocumentSums | None:
        assert terms.privacy is not None
        return kept_sums(self._document_job(terms, terms.privacy), self.noisy.folder / SUMS)

    def _documents(self, terms: Terms, privacy: Privacy, watch: Watch | None = None) -> DocumentSums:
        kept = self._kept_documents(terms)
        if kept is not None:
            return kept
        prior = self.noisy.prior(privacy)
        if prior is None:
            raise Refused(
                "prior_missing", f"this holder has not got the prior {privacy.prior[:12]} that the terms name"
            )
        return sum_documents(self._document_job(terms, privacy), prior, self.noisy.folder / SUMS, watch)

    def _document_job(self, terms: Terms, privacy: Privacy) -> DocumentJob:
        encoder = self.encoder(terms)
        if not self.settings.corpus or not isinstance(encoder, TableEncoder) or encoder.more:
            raise Refused(
                "statistics_do_not_fit",
                "documents are bounded one by one, for which a corpus and a table of tokens alone are needed",
            )
        corpus = self._job(self.settings.corpus, terms, self.settings.holdout)
        return DocumentJob(corpus, encoder, privacy.prior, privacy.mode)

    def _job(self, roots: Sequence[str], terms: Terms, holdout: float) -> PrepareJob:
        return PrepareJob(
            whole=terms.privacy is not None,
            roots=tuple(map(Path, roots)),
            domain=self.domain,
            sampling=terms.sampling.sampling,
            holdout=holdout,
            text_fields=field_names(self.settings.text_field),
            threads=self.settings.threads or cores(),
            devices=chosen(self.settings.device),
            skip_broken=self.settings.skip_broken,
        )

    def encoder(self, terms: Terms) -> AnyEncoder:
        try:
            found = _encoder(terms.encoder, terms.encoder_name, self.settings.encoder)
        except EncoderError as error:
            self.log.exception("encoder")
            raise Refused("encoder_missing", f"encoder {terms.encoder[:12]} is not on this holder's machine") from error
        if found.fingerprint != terms.encoder:
            raise Refused(
                "encoder_mismatch",
                f"the round uses encoder {terms.encoder[:12]} and this holder has {found.fingerprint[:12]}",
            )
        return found

    def held_out(self, terms: Terms) -> HeldOut:
        """Token ids of documents that are in no sum; none where statistics came without them."""
        encoder = self.encoder(terms)
        if self.settings.corpus:
            job = self._job(self.settings.corpus, terms, self.settings.holdout)
        elif self.settings.held_out:
            job = self._job([self.settings.held_out], terms, WHOLE_HOLDOUT)
        else:
            return HeldOut(np.empty(0, np.int32), np.empty(0, np.int64))
        return held_out_sample(job, encoder, self.folder / "held-out")

    # Releases

    def releases(self) -> list[JournalEntry]:
        """The releases that were received, the newest last."""
        return self.journal.entries("received")

    @property
    def newest(self) -> int:
        """The number of the newest release that is stored here; 0 for none."""
        return max((int(entry.facts["number"]) for entry in self.releases()), default=0)

    def release(self, release: str) -> Release | None:
        """A release that was received, verified again; none if it was not, or is not whole any more."""
        number = next((each.facts["number"] for each in self.releases() if each.facts["release"] == release), None)
        try:
            found = number and load_release(self.release_folder(number), key=self.settings.policy.coordinator)
        except FormatError:
            self.log.exception("release %s", number)
            return None
        return found if found and found.id == release else None

    def release_folder(self, number: int) -> Path:
        return release_folder(self.folder, number)

    def store_release(self, number: int, release: str, files: Sequence[bytes | memoryview]) -> None:
        """Verify a release against the pinned key, then put it in place whole; a stored one is never replaced."""
        known = {int(entry.facts["number"]): entry.facts["release"] for entry in self.releases()}
        if known.get(number) == release:
            return
        if known and number <= max(known):
            raise Refused("old_release", f"release {max(known)} is stored here, so another release {number} is not")
        given = tuple(map(bytes, files))
        try:
            verified, domains = _verified_release(given, self.coordinator)
        except FormatError as error:
            self.log.warning("release %s was refused: %s", number, error)
            raise Refused("bad_release", "the release is not whole, or not signed by the key pinned here") from None
        if verified != (release, number):
            raise Refused("bad_release", "the release is not the one that was announced")
        with whole_folder(self.release_folder(number)) as draft:
            for name, content in zip(RELEASE_FILES, given, strict=True):
                write_whole(draft / name, content)
        self.journal.append(("received", {"number": number, "release": release, "domains": list(domains)}))


def earlier_key(folder: Path, key: str) -> Path:
    """Where an identity lies that was handed over: data that it has named goes by that name."""
    return folder / "earlier-keys" / f"{key}.key"


def release_folder(folder: Path, number: int) -> Path:
    return folder / "releases" / f"{number:04}"


_encoder = lru_cache(maxsize=2)(find_by_fingerprint)


@lru_cache(maxsize=1)
def _verified_release(files: tuple[bytes, ...], key: str) -> tuple[tuple[str, Any], tuple[str, ...]]:
    """The id, the number and the domains of a release that a key has signed and that can be used; else raises.

    Pure, so that where many holders run in one process it is verified once for all of them.
    """
    loaded = load_release(Path("received"), key=key, files=dict(zip(RELEASE_FILES, files, strict=True)))
    return (loaded.id, loaded.manifest.get("number")), loaded.domains


def _in_shares(terms: Terms) -> bool:
    """Whether the noise of a sum is made up of shares, which are drawn anew for each."""
    return terms.privacy is not None and terms.privacy.mode == "full" and terms.mode == "masked"


def _fits(given: Prepared, domain: str, terms: Terms) -> bool:
    return (
        given.domain == domain
        and given.fingerprint == terms.encoder
        and given.sampling == terms.sampling.sampling
        and given.statistics.shape[0] == terms.features
    )
