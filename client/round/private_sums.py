"""What a holder sends in private rounds: sums over bounded documents under noise, whose cost it writes down before.

    private/prior.safetensors   the public prior that came with the terms
    private/documents.sums      the sums of the present corpus without noise; they stay here
    private/NAME.noisy          what was noised, by the name under which the journal has its cost

A vector is noised once: of an unchanged corpus and unchanged terms the same one leaves again, and that costs nothing.
Shares of noise (`full` under masks) are drawn anew for each session, since combinations of totals would cancel the same
share. Knows the holder's folder and journal. Knows nothing of messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ridgeway.common.base.errors import FormatError, Refused
from ridgeway.common.base.files import canonical_json, sha256, write_whole
from ridgeway.common.base.identity import HandOvers
from ridgeway.common.base.journal import Journal
from ridgeway.common.privacy.accountant import Cost, epsilon_of, in_all
from ridgeway.common.privacy.discrete_gaussian import Randomness, discrete_gaussian
from ridgeway.common.privacy.document_bound import UNIT, DocumentSums, Integers, check_documents
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.public_prior import PublicPrior, prior_of_bytes, read_prior, write_prior
from ridgeway.common.statistics.sums import Statistics, single_domain

FOLDER, PRIOR, SUMS, NOISY = "private", "prior.safetensors", "documents.sums", ".noisy"
SPENT = "spent"
"""The kind of a journal's entry about a vector that was noised."""

Noised = Literal["statistics", "scores"]


@dataclass(frozen=True, slots=True)
class Expense:
    """What one noised vector costs, as the journal has it.

    vector:  its name. holder: the key that wrote it down.
    holdout: the share of documents that was kept out of sums then, to be counted.
    """

    vector: str
    lot: Noised
    rho: Fraction
    holdout: float
    holder: str
    time: str

    def facts(self) -> dict[str, Any]:
        """What the journal keeps; the time is the entry's own."""
        return {name: value for name, value in asdict(self).items() if name != "time"} | {"rho": str(self.rho)}


def expenses(journal: Journal) -> list[Expense]:
    return [
        Expense(**{**entry.facts, "rho": Fraction(entry.facts["rho"])}, time=entry.time)
        for entry in journal.entries(SPENT)
    ]


def spent(paid: Sequence[Expense]) -> Cost:
    """What a document has cost at most.

    One is either summed or held out, by its own hash, so it pays for one of the two; if the share that is held out was
    changed in between, it may have paid for both.
    """
    lots = [in_all(each.rho for each in paid if each.lot == lot) for lot in ("statistics", "scores")]
    return in_all(lots) if len({each.holdout for each in paid}) > 1 else max(lots)


def laid_out(sums: DocumentSums, privacy: Privacy, members: int = 1) -> tuple[Integers, Integers]:
    """What is noised of some sums, each product once, and the σ of the noise on each number of it."""
    own, products = privacy.shared(members)
    upper = np.triu_indices(len(sums.products))
    shares = np.where(upper[0] == upper[1], own, products)
    scales = np.append(np.full(len(sums.column), privacy.sigma), shares)
    return np.concatenate((sums.column, sums.products[upper])), scales


def with_noise(exact: Integers, scales: Integers, draw: Randomness = secrets.token_bytes) -> Integers:
    """These numbers, each with noise of its own σ."""
    noisy = exact.copy()
    for sigma in np.unique(scales).tolist():
        places = np.flatnonzero(scales == sigma)
        noisy[places] += discrete_gaussian(sigma, len(places), draw)
    return noisy


def opened(sums: DocumentSums, noisy: Integers) -> Statistics:
    """What was laid out of such sums, as statistics of one domain."""
    features = len(sums.column)
    gram = np.zeros((features, features), dtype=np.int64)
    upper = np.triu_indices(len(sums.products))
    gram[upper] = noisy[features:]
    gram.T[upper] = noisy[features:]
    gram[-1] = gram[:, -1] = noisy[:features]
    return single_domain(gram)


class NoisyVectors:
    """A holder's vectors under noise, and the budget that they are paid from."""

    def __init__(
        self, folder: Path, journal: Journal, key: str, handovers: HandOvers, max_epsilon: float, max_delta: float
    ) -> None:
        self.folder = folder / FOLDER
        self._journal, self._key, self._handovers = journal, key, handovers
        self._max_epsilon, self._max_delta = max_epsilon, max_delta

    # The prior

    def take_prior(self, content: bytes | memoryview, privacy: Privacy, encoder: str) -> None:
        """Keep the prior that came with the terms; raises Refused unless it is the one that they name."""
        try:
            prior = prior_of_bytes(bytes(content))
        except FormatError:
            raise Refused("prior_mismatch", "what came with the terms is not a prior, or is damaged") from None
        if (prior.fingerprint, prior.encoder) != (privacy.prior, encoder):
            raise Refused(
                "prior_mismatch",
                f"the terms name prior {privacy.prior[:12]} for encoder {encoder[:12]}; what came is "
                f"{prior.fingerprint[:12]} for {prior.encoder[:12]}",
            )
        if self.prior(privacy) is None:
            self.folder.mkdir(exist_ok=True, mode=0o700)
            write_prior(prior, self.folder / PRIOR)

    def prior(self, privacy: Privacy) -> PublicPrior | None:
        """The prior that terms name, if it is here."""
        path = self.folder / PRIOR
        try:
            found = read_prior(path) if path.exists() else None
        except FormatError:
            return None
        return found if found and found.fingerprint == privacy.prior else None

    # The budget

    def epsilon_spent(self) -> float:
        """What a document has cost so far, at the δ of the holder's cap."""
        return epsilon_of(spent(expenses(self._journal)), self._max_delta)

    def epsilon_with(self, lot: Noised, privacy: Privacy, holdout: float) -> float:
        """What it would have cost with one vector more."""
        more = Expense("", lot, privacy.rho, holdout, self._key, "")
        return epsilon_of(spent([*expenses(self._journal), more]), self._max_delta)

    def account(self) -> dict[str, Any]:
        """What was spent and may be, and every vector that was paid for."""
        paid = expenses(self._journal)
        listed = [{"time": each.time, **each.facts()} for each in paid]
        caps = {"allowed": self._max_epsilon, "delta": self._max_delta}
        return {"spent": self.epsilon_spent(), "rho": str(spent(paid)), **caps, "vectors": listed}

    def is_paid(self, vector: str) -> bool:
        return vector in {each.vector for each in expenses(self._journal)} and self._read(vector) is not None

    def check_affordable(self, lot: Noised, privacy: Privacy, holdout: float) -> None:
        """Raise Refused if another vector would cost more than is left, or the journal is not this folder's."""
        self._check_journal()
        cost = self.epsilon_with(lot, privacy, holdout)
        if cost > self._max_epsilon:
            raise Refused(
                "budget_spent",
                f"this holder has spent an ε of {self.epsilon_spent():.3g} and allows {self._max_epsilon:g} in all; "
                f"with this round it would be {cost:.3g}",
            )

    def _check_journal(self) -> None:
        paid, owner = expenses(self._journal), self._handovers.owner
        unknown = {path.name.removesuffix(NOISY) for path in self.folder.glob(f"*{NOISY}")} - {
            each.vector for each in paid
        }
        if unknown or any(owner(each.holder) != owner(self._key) for each in paid):
            raise Refused(
                "foreign_journal",
                "this holder's journal is of another folder, or older than what it has sent, so what was spent is not "
                "known; its owner must bring the right one back",
            )

    # Noise

    def sums(
        self, sums: DocumentSums, source: str, privacy: Privacy, holdout: float, members: int = 1, session: str = ""
    ) -> Statistics:
        """The sums under noise, as statistics of one domain.

        source:  a name for the sums that only this holder can compute.
        members, session: of how many members' shares the noise on products is made up, and in which session; 1: it is
                 all here. That on the column is always all here: in a domain with one holder nobody else adds to it.
        """
        check_documents(sums.mode, sums.documents, members)
        name = self.name(source, privacy, session)
        exact, scales = laid_out(sums, privacy, members)
        return opened(sums, self._noisy(name, "statistics", privacy, holdout, exact, scales))

    def counts(self, counts: Integers, privacy: Privacy, holdout: float, question: str) -> Integers:
        """How many documents fell where, each in one place alone, in fixed point and under noise.

        question: stands for what was counted, and of which documents, in words that tell nothing of the counts.
        """
        name = self.name(f"counts {question}", privacy)
        scales = np.full(counts.size, privacy.count_sigma)
        return self._noisy(name, "scores", privacy, holdout, UNIT * counts, scales)

    @staticmethod
    def name(source: str, privacy: Privacy, session: str = "") -> str:
        """The name of a noised vector: the same as long as data, terms, and with shares of noise the session, are."""
        return sha256(source.encode(), canonical_json(privacy.model_dump(mode="json")), session.encode())

    def _noisy(
        self, name: str, lot: Noised, privacy: Privacy, holdout: float, exact: Integers, scales: Integers
    ) -> Integers:
        """What was noised before under this name; else it is paid for, noised and kept, in this order."""
        self._check_journal()
        kept = self._read(name)
        if kept is not None and kept.size == exact.size and self.is_paid(name):
            return kept
        self.check_affordable(lot, privacy, holdout)
        self._journal.append((SPENT, Expense(name, lot, privacy.rho, holdout, self._key, "").facts()))
        noisy = with_noise(exact, scales)
        self.folder.mkdir(exist_ok=True, mode=0o700)
        write_whole(self.folder / f"{name}{NOISY}", save({"vector": noisy}), private=True)
        return noisy

    def _read(self, name: str) -> Integers | None:
        try:
            return load_file(self.folder / f"{name}{NOISY}")["vector"]
        except (FileNotFoundError, SafetensorError, KeyError):
            return None
