"""A holder's epochs: the data that stands ready for rounds, each under a random name.

    epochs/NAME/epoch.json          what it is
    epochs/NAME/statistics.stats    exact sums, or
    epochs/NAME/documents.sums      sums over bounded documents, without noise; they stay here
    epochs/NAME/scores.json         sums of scores of experts, if there are any
    epochs/NAME/held-out.ids        the documents that are counted, as token ids; they stay here
    epochs/NAME/documents.digests   one number for each document, by which changes are counted
    epochs/NAME/OUTPUT.noisy        what left under noise, or may have
    in-totals/NAME                  the digests of earlier epochs that are in a total

The owner opens an epoch (client/ready.py); a round only reads it, and never the corpus. So nothing
that a round does or refuses depends on what the corpus is like by then.

And what leaves of an epoch in private rounds, under noise.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ridgeway.client.round.spending import RESTORED, Account, Output
from ridgeway.common.base.errors import FormatError, Refused
from ridgeway.common.base.files import canonical_json, sha256, whole_folder, write_whole
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.records import Digest, Record, record_json, sampling_terms
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import (
    UNIT,
    DocumentSums,
    PrivacyMode,
    Randomness,
    check_documents,
    discrete_gaussian,
)
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.protocol.messages import SumName
from ridgeway.common.routing.quality import QualityTable, quality_from_json
from ridgeway.common.statistics import (
    Integers,
    Prepared,
    Statistics,
    load_prepared,
    save_prepared,
    single_domain,
)
from ridgeway.common.text.tokens import Tokens

OPENED_EPOCH = "epoch"
"""The kind of a journal's entry about an epoch that was opened."""
EPOCH = "epoch.json"
STATISTICS = "statistics.stats"
_DOCUMENTS = "documents.sums"
SCORES = "scores.json"
_HELD_OUT = "held-out.ids"
DIGESTS = "documents.digests"
NOISY = ".noisy"

Digests = NDArray[np.uint64]


class Epoch(Record):
    """What stands ready.

    name:      random, so it tells nothing of the data.
    sums:      stands for how the corpus was summed; terms with another one do not fit.
    documents: how many there are, held-out ones among them.
    """

    name: Digest
    sums: Digest
    holdout: float = Field(ge=0, lt=1)
    documents: int = Field(ge=0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EpochData:
    """What an epoch is filled with.

    sums:   exact ones, or those over bounded documents.
    places: where the documents lie, by real paths.
    """

    sums: Prepared | DocumentSums
    held_out: Tokens
    digests: Digests
    scores: QualityTable | None = None
    places: tuple[str, ...] = ()

    def write(self, draft: Path) -> None:
        files: dict[str, bytes] = {}
        if isinstance(self.sums, Prepared):
            save_prepared(self.sums, draft / STATISTICS)
            (draft / STATISTICS).chmod(0o600)
        else:
            arrays = {"products": self.sums.products, "column": self.sums.column}
            files[_DOCUMENTS] = save(arrays)
        files[_HELD_OUT] = save(self.held_out.arrays())
        if self.scores is not None:
            files[SCORES] = canonical_json(self.scores.to_json())
        files[DIGESTS] = save({"digests": self.digests})
        for name, content in files.items():
            write_whole(draft / name, content, private=True)


def sums_id(terms: Terms) -> str:
    """Stands for all of some terms that decides what a corpus adds up to."""
    bounded = [terms.privacy.mode, terms.privacy.prior] if terms.privacy else None
    sampling = sampling_terms(terms.sampling)
    return sha256(record_json([terms.encoder, terms.features, sampling, bounded]))


class EpochStore:
    """The epochs in a holder's folder. The journal says which is the current one."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder = folder / "epochs"
        self._past = folder / "in-totals"
        self._journal = journal

    def current_name(self) -> str | None:
        """The name of the epoch that was opened last; none where the folder was restored since."""
        entries = self._journal.entries(OPENED_EPOCH, RESTORED)
        if not entries or entries[-1].kind == RESTORED:
            return None
        return str(entries[-1].facts["epoch"])

    def current(self) -> Epoch | None:
        """The epoch that is open."""
        name = self.current_name()
        if name is None:
            return None
        path = self._folder / name / EPOCH
        try:
            return Epoch.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            raise _damaged(path) from None

    def open(self, epoch: Epoch, data: EpochData, in_totals: Collection[str]) -> None:
        """Put an epoch in place whole, and make it the current one.

        The one before it stays, since an answer under way may be reading it; earlier ones go.
        in_totals: the epochs that are in a total; the digests of their documents stay.
        """
        before = self._journal.entries(OPENED_EPOCH)[-1:]
        kept = {epoch.name, *(entry.facts["epoch"] for entry in before)}
        with whole_folder(self._folder / epoch.name) as draft:
            data.write(draft)
            content = record_json(epoch.model_dump(mode="json"))
            write_whole(draft / EPOCH, content, private=True)
        self._folder.chmod(0o700)
        facts = {"epoch": epoch.name, "sums": epoch.sums, "places": list(data.places)}
        self._journal.append((OPENED_EPOCH, facts))
        for path in self._folder.iterdir():
            if path.name in kept:
                continue
            if path.name in in_totals and (path / DIGESTS).exists():
                self._past.mkdir(exist_ok=True, mode=0o700)
                (path / DIGESTS).replace(self._past / path.name)
            shutil.rmtree(path, ignore_errors=True)

    # What lies in one

    def statistics(self, epoch: Epoch) -> Prepared:
        return load_prepared(self._path(epoch, STATISTICS), summed_here=True)

    def document_sums(self, epoch: Epoch) -> DocumentSums:
        arrays = self._arrays(epoch, _DOCUMENTS)
        mode: PrivacyMode = "full" if arrays["products"].size else "columns"
        return DocumentSums(mode, arrays["products"], arrays["column"])

    def held_out(self, epoch: Epoch) -> Tokens:
        return Tokens.of_arrays(self._arrays(epoch, _HELD_OUT))

    def digests_of(self, name: str) -> Digests | None:
        """One number for each document of an epoch, the current one or one that is in a total; None
        if not known.
        """
        for path in (self._folder / name / DIGESTS, self._past / name):
            if path.exists():
                return load_file(path)["digests"]
        return None

    def scores(self, epoch: Epoch) -> QualityTable | None:
        """Scores of experts in the holder's domain; None if there are none."""
        path = self._path(epoch, SCORES)
        if not path.exists():
            return None
        return quality_from_json(json.loads(path.read_bytes()))

    def noisy(self, epoch: Epoch, output: str) -> tuple[Integers, str] | None:
        """A vector under noise that was made before, and what it was made for."""
        try:
            arrays = self._arrays(epoch, output + NOISY)
        except FormatError:
            return None
        return arrays["vector"], bytes(arrays["made_for"]).hex()

    def keep_noisy(
        self, epoch: Epoch, output: str, vector: Integers, made_for: str
    ) -> None:
        name = np.frombuffer(bytes.fromhex(made_for), np.uint8)
        content = save({"vector": vector, "made_for": name})
        write_whole(self._path(epoch, output + NOISY), content, private=True)

    def _path(self, epoch: Epoch, name: str) -> Path:
        return self._folder / epoch.name / name

    def _arrays(self, epoch: Epoch, name: str) -> dict[str, NDArray[Any]]:
        path = self._path(epoch, name)
        try:
            return load_file(path)
        except (FileNotFoundError, SafetensorError):
            raise _damaged(path) from None


def _damaged(path: Path) -> FormatError:
    return FormatError(
        f"{path} is missing or damaged; open a new epoch with `ridgeway client ready`"
    )


# The totals that a holder has signed for: its data of one epoch is in one opened total, ever.
#
# A total is named by all that decides its bytes: its terms, its members, their epochs and their
# shares of the mass, and for counts what was asked. So the same total may be signed again after a
# session that failed, and no other. Written in the journal before a signature or a share leaves.


SIGNED = "signed"
OPENED = "opened"
FEW_MEMBERS = 3
"""Fewer members than this that joined or left between two totals are worth a notice."""


def used_up(sum_name: SumName) -> Refused:
    """Why an epoch takes part in no other sum."""
    if sum_name == "statistics":
        return Refused(
            "epoch_used",
            "this holder's epoch is already in another total",
        )
    return Refused(
        "already_counted",
        "this holder has already counted for another router in this epoch",
    )


@dataclass(frozen=True, slots=True)
class SignedTotal:
    """A total that a holder is asked to sign.

    epoch:    the holder's own. epochs: those of all members, by the owners of their keys.
    shares:   of sums, each member's share of its domain's mass: those of the cohort, whoever fell
              away.
    question: what was asked, where counts are summed.
    """

    sum_name: SumName
    terms: str
    epoch: str
    epochs: Mapping[str, str]
    shares: Mapping[str, int] = field(default_factory=dict)
    question: str = ""

    @property
    def id(self) -> str:
        members = sorted(self.epochs.items()), sorted(self.shares.items())
        return sha256(record_json([self.sum_name, self.terms, self.question, *members]))

    def facts(self) -> dict[str, Any]:
        members = sorted(self.epochs)
        return {
            "lot": self.sum_name,
            "epoch": self.epoch,
            "total": self.id,
            "members": members,
        }


class SignedTotals:
    """Law: whatever is asked in whatever order, the totals of one epoch and name that can be opened
    are one.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def sign(self, total: SignedTotal, session: str, *, paid: bool) -> None:
        """Write down a total that is about to be signed; raises Refused if the epoch is in another
        one.

        paid: whether a total of this epoch and name was paid for. If the journal does not know
              which, it is an older copy, and the epoch is in a total that nobody here remembers.

        Within one session a member signs smaller and smaller sets and opens the last one, so totals
        of this very session do not count. If one was opened, the larger ones before it never were.
        """
        noted = [
            entry
            for entry in self._journal.entries(SIGNED, OPENED)
            if (entry.facts["lot"], entry.facts["epoch"])
            == (total.sum_name, total.epoch)
        ]
        opened = {entry.facts["total"] for entry in noted if entry.kind == OPENED}
        signed = {
            entry.facts["total"] for entry in noted if entry.facts["session"] != session
        }
        if (opened or signed) - {total.id} or (paid and not noted):
            raise used_up(total.sum_name)
        self._journal.append((SIGNED, {"session": session, **total.facts()}))

    def open(self, total: SignedTotal, session: str, round_: str) -> None:
        """Write down a total whose shares are about to be revealed."""
        self._journal.append(
            (OPENED, {"round": round_, "session": session, **total.facts()})
        )

    def has_signed(self, sum_name: SumName, epoch: str) -> bool:
        """Whether this epoch's data is, or may be, in an opened total."""
        entries = self._journal.entries(SIGNED)
        return any(
            (entry.facts["lot"], entry.facts["epoch"]) == (sum_name, epoch)
            for entry in entries
        )

    def epochs(self) -> set[str]:
        """The epochs that are, or may be, in an opened total of sums or of counts."""
        return {str(entry.facts["epoch"]) for entry in self._journal.entries(SIGNED)}

    def notices(self) -> list[dict[str, Any]]:
        """Pairs of opened totals, one after the other, that few members joined or left between: for
        the owner.

        What only these members gave, and what the others changed, follows from the difference of
        the two.
        """
        totals = [
            entry.facts
            for entry in self._journal.entries(OPENED)
            if entry.facts["lot"] == "statistics"
        ]
        notices = []
        for before, after in pairwise(totals):
            differ = set(before["members"]) ^ set(after["members"])
            if before["total"] != after["total"] and len(differ) < FEW_MEMBERS:
                rounds = {"before": before["round"], "after": after["round"]}
                notices.append(rounds | {"members": sorted(differ)})
        return notices


# What a holder sends in private rounds: sums over bounded documents, and counts, under noise.
#
# Of an epoch one vector of sums and one of counts may leave, each noised once. A vector is kept
# before it is paid for, and paid for before it leaves, so a crash between two of these costs
# nothing twice.


def laid_out(
    sums: DocumentSums, privacy: Privacy, members: int = 1
) -> tuple[Integers, Integers]:
    """What is noised of some sums, each product once, and the σ of the noise on each number of it.

    members: of how many members' shares the noise on products is made up. That on the column is
             always
    all here: in a domain with one holder nobody else adds to it.
    """
    squares, products = privacy.shared(members)
    upper = np.triu_indices(len(sums.products))
    shares = np.where(upper[0] == upper[1], squares, products)
    scales = np.append(np.full(len(sums.column), privacy.sigma), shares)
    return np.concatenate((sums.column, sums.products[upper])), scales


def with_noise(
    exact: Integers, scales: Integers, draw: Randomness = secrets.token_bytes
) -> Integers:
    """These numbers, each with noise of its own σ."""
    noisy = exact.copy()
    for sigma in np.unique(scales).tolist():
        places = np.flatnonzero(scales == sigma)
        noisy[places] += discrete_gaussian(sigma, len(places), draw)
    return noisy


def as_statistics(sums: DocumentSums, noisy: Integers) -> Statistics:
    """What was laid out of such sums, as statistics of one domain."""
    features = len(sums.column)
    gram = np.zeros((features, features), dtype=np.int64)
    upper = np.triu_indices(len(sums.products))
    gram[upper] = noisy[features:]
    gram.T[upper] = noisy[features:]
    gram[-1] = gram[:, -1] = noisy[:features]
    return single_domain(gram)


@dataclass(frozen=True, slots=True)
class NoisyOutputs:
    """An epoch's outputs under noise."""

    epochs: EpochStore
    epoch: Epoch
    account: Account
    privacy: Privacy

    def column_sums(self) -> Statistics:
        """The sums under all of the noise, paid for: they may leave."""
        sums = self.epochs.document_sums(self.epoch)
        exact, scales = laid_out(sums, self.privacy)
        return as_statistics(sums, self._released("statistics", exact, scales, ""))

    def shared_sums(self, members: int, cohort: str) -> Statistics:
        """The sums under this member's share of the noise, for a session under masks.

        They are paid for when their total is signed; from then on they are in no other cohort's
        total.
        """
        sums = self.epochs.document_sums(self.epoch)
        check_documents(sums.mode, sums.documents, members)
        exact, scales = laid_out(sums, self.privacy, members)
        made_for = self._name("statistics", cohort)
        noisy = self._kept("statistics", made_for)
        if noisy is None:
            if self.account.is_paid(self.epoch.name, "statistics", "private"):
                raise used_up("statistics")
            noisy = with_noise(exact, scales)
            self.epochs.keep_noisy(self.epoch, "statistics", noisy, made_for)
        return as_statistics(sums, noisy)

    def counts(self, counts: Integers, question: str) -> Integers:
        """How many documents fell where, each in one place alone, in fixed point and under noise;
        paid for.

        question: stands for what was counted.
        """
        scales = np.full(counts.size, self.privacy.count_sigma)
        return self._released("counts", UNIT * counts, scales, question)

    def _released(
        self, output: Output, exact: Integers, scales: Integers, question: str
    ) -> Integers:
        """The vector that left before, if it was made for the same; else a new one, kept and then
        paid for.
        """
        account = self.account
        epoch = self.epoch
        made_for = self._name(output, question)
        with account.exclusive():
            if account.is_paid(epoch.name, output, "private"):
                kept = self._kept(output, made_for)
                if kept is None or kept.size != exact.size:
                    raise used_up(output)
                return kept
            expense = account.expense(
                epoch.name, output, "private", self.privacy, epoch.holdout
            )
            account.check_affordable([expense])
            noisy = with_noise(exact, scales)
            self.epochs.keep_noisy(epoch, output, noisy, made_for)
            account.pay(expense)
            return noisy

    def _kept(self, output: Output, made_for: str) -> Integers | None:
        """The vector that was made for this before."""
        kept = self.epochs.noisy(self.epoch, output)
        return kept[0] if kept and kept[1] == made_for else None

    def _name(self, output: Output, scope: str) -> str:
        """Stands for what a vector was made for: the terms of its noise, and a cohort or
        question.
        """
        terms = self.privacy.model_dump(mode="json")
        return sha256(record_json([output, terms, scope]))
