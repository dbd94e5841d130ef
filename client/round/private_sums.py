"""What a holder sends in private rounds: sums over bounded documents, and counts, under noise.

Of an epoch one vector of sums and one of counts may leave, each noised once. A vector is kept
before it is paid for, and paid for before it leaves, so a crash between two of these costs nothing
twice.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from ridgeway.client.round.epochs import Epoch, EpochStore, used_up
from ridgeway.client.round.spending import Account, Output
from ridgeway.common.base.files import sha256
from ridgeway.common.base.records import record_json
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import (
    UNIT,
    DocumentSums,
    Randomness,
    check_documents,
    discrete_gaussian,
)
from ridgeway.common.statistics import Integers, Statistics, single_domain


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
