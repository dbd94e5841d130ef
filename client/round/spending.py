"""What a corpus has cost its documents: every output that left, whichever folder or federation it
left through.

Each expense stands twice: in the folder's own journal, and in a file of this user's that all
folders share. What was spent is the union of both, so neither a new folder, nor an older copy of
one, nor a second federation on the same corpus starts afresh. An exact output costs an ε of
infinity.

The journal comes first. So if the shared file, or a coordinator, knows of an output of this holder
that the journal does not, the folder is an older copy, and takes part in nothing until its owner
has said what may have left since (`client restore`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from ridgeway.common.base.errors import FormatError, Refused
from ridgeway.common.base.files import locked, state_folder, syncs
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.operating_system import flush
from ridgeway.common.base.records import Mode
from ridgeway.common.privacy.accountant import (
    EXACT,
    Cost,
    Privacy,
    epsilon_of,
    in_all,
    rho_for,
)

SPENT = "spent"
"""The kind of a journal's entry about an output that was paid for."""
UNPACKED = "unpacked"
"""The kind of a journal's entry about a copy that was put back, and not charged yet."""
RESTORED = "restored"
"""That about one that was charged for what may have left since."""
FILE = "spending.jsonl"

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
_LOCAL_SCHEMES = ("file", "local")
_SCHEMES = {"https": "http", "s3a": "s3", "s3n": "s3", "gcs": "gs", "ssh": "sftp"}
"""Schemes that lead to the same places as others."""
_PORTS = {"http": (80, 443), "ftp": (21,), "sftp": (22,)}
"""Those of hosts with ports and users, and their usual ports."""

Output = Literal["statistics", "counts"]
OUTPUTS: tuple[Output, ...] = ("statistics", "counts")


@dataclass(frozen=True, slots=True)
class Expense:
    """What one output cost.

    epoch:   the data it was made of. mode: of the round.
    holdout: the share of documents that was kept out of sums then, to be counted.
    corpus:  the files and folders with the text, as they were named and as links led to them then.
    federation: the coordinator's key, as it was
             pinned.
    holder:  the first key of the holder that it left through.
    """

    epoch: str
    output: Output
    mode: Mode
    rho: Cost
    holdout: float
    corpus: tuple[str, ...]
    federation: str
    time: str = ""
    holder: str = ""

    @property
    def id(self) -> tuple[str, str, str]:
        """An output is paid for once in an epoch and mode."""
        return self.epoch, self.output, self.mode

    def facts(self) -> dict[str, Any]:
        """As it is written; the time is the entry's own."""
        rho = "exact" if self.rho == EXACT else str(self.rho)
        facts = asdict(self) | {"rho": rho, "corpus": list(self.corpus)}
        del facts["time"]
        return facts

    @classmethod
    def of(cls, facts: Mapping[str, Any], time: str) -> Expense:
        rho = EXACT if facts["rho"] == "exact" else Fraction(facts["rho"])
        corpus = tuple(facts["corpus"])
        return cls(**{**facts, "rho": rho, "corpus": corpus, "time": time})


def finite(epsilon: float) -> float | None:
    """An ε for programs: infinity is null."""
    return None if epsilon == math.inf else epsilon


def epsilon_words(epsilon: float) -> str:
    """An ε for people."""
    return "∞" if epsilon == math.inf else f"{epsilon:.3g}"


def shared_file() -> Path:
    """The file of this user's that all folders share."""
    return state_folder() / FILE


def spent(paid: Sequence[Expense]) -> Cost:
    """What a document has cost at most.

    A document is either summed or held out, by its own hash, so it pays for one of the two; if the
    share that is held out was changed in between, it may have paid for both.
    """
    summed = in_all(expense.rho for expense in paid if expense.output == "statistics")
    counted = in_all(expense.rho for expense in paid if expense.output == "counts")
    shares = {expense.holdout for expense in paid}
    return in_all([summed, counted]) if len(shares) > 1 else max(summed, counted)


@dataclass(frozen=True, slots=True)
class Account:
    """A corpus's expenses, and the budget that they are paid from.

    shared: the file that all folders share.
    holder: the first key of the holder whose folder this is; empty where that is not known.
    """

    journal: Journal
    shared: Path
    corpus: tuple[str, ...]
    federation: str
    max_epsilon: float
    delta: float
    holder: str = ""

    def expenses(self) -> list[Expense]:
        """Every output that was paid for, in the order of time."""
        paid = {
            expense.id: expense for expense in (*self._shared_expenses(), *self.noted())
        }
        return sorted(paid.values(), key=lambda expense: expense.time)

    def noted(self) -> list[Expense]:
        """Those that the folder's own journal knows."""
        entries = self.journal.entries(SPENT)
        return [Expense.of(entry.facts, entry.time) for entry in entries]

    def forgotten(self) -> list[Expense]:
        """What left through this holder and its journal does not know: so it is an older copy."""
        noted = {expense.id for expense in self.noted()}
        return [
            expense
            for expense in self._shared_expenses()
            if self.holder and expense.holder == self.holder and expense.id not in noted
        ]

    def check_record(self, counted: Mapping[Output, int] | None = None) -> None:
        """Raise Refused if the journal knows fewer outputs than have left, or may.

        counted: of how many epochs the coordinator has got sums, and counts. It may say fewer, and
                 if it says more than there were, its own rounds go on without this holder.
        """
        noted = {(expense.output, expense.epoch) for expense in self.noted()}
        known = Counter(output for output, _ in noted)
        copies = self.journal.entries(UNPACKED, RESTORED)
        is_charged = not copies or copies[-1].kind == RESTORED
        more = any(known[output] < number for output, number in (counted or {}).items())
        if more or not is_charged or self.forgotten():
            raise Refused(
                "older_copy",
                "this holder's folder is an older copy, which does not record"
                " everything that has left; its owner must declare it with `ridgeway"
                " client restore`",
            )

    def outputs(self) -> list[dict[str, Any]]:
        """The same for programs."""
        return [
            {"time": expense.time, **expense.facts()} for expense in self.expenses()
        ]

    def is_paid(self, epoch: str, output: Output, mode: Mode) -> bool:
        return (epoch, output, mode) in {expense.id for expense in self.expenses()}

    def epsilon(self, more: Iterable[Expense] = ()) -> float:
        """What a document has cost so far, or with some outputs more."""
        return epsilon_of(spent([*self.expenses(), *more]), self.delta)

    def left(self) -> float:
        """What may still be spent."""
        return max(0.0, self.max_epsilon - self.epsilon())

    def exact(self) -> list[Expense]:
        """The outputs that left without noise."""
        return [expense for expense in self.expenses() if expense.rho == EXACT]

    def expense(
        self,
        epoch: str,
        output: Output,
        mode: Mode,
        privacy: Privacy | None,
        holdout: float,
    ) -> Expense:
        rho: Cost = privacy.rho if privacy else EXACT
        return Expense(
            epoch,
            output,
            mode,
            rho,
            holdout,
            self.corpus,
            self.federation,
            holder=self.holder,
        )

    def most(
        self, epoch: str, modes: Iterable[Mode], round_epsilon: float, holdout: float
    ) -> list[Expense]:
        """The most that may have left of an epoch in rounds of these modes: of private ones, what
        an ε a round allows.
        """
        rho: Cost = EXACT
        if round_epsilon != math.inf:
            rho = rho_for(round_epsilon, self.delta)
        costs = {"private": rho}
        return [
            replace(
                self.expense(epoch, output, mode, None, holdout),
                rho=costs.get(mode, EXACT),
            )
            for mode in modes
            for output in OUTPUTS
        ]

    def private_round(
        self, privacy: Privacy, holdout: float, epoch: str = ""
    ) -> list[Expense]:
        """Both outputs of a private round."""
        return [
            self.expense(epoch, output, "private", privacy, holdout)
            for output in OUTPUTS
        ]

    def check_affordable(self, more: Sequence[Expense]) -> None:
        """Raise Refused if these outputs would cost more than is left."""
        paid = {expense.id for expense in self.expenses()}
        due = [expense for expense in more if expense.id not in paid]
        cost = self.epsilon(due)
        if not due or cost <= self.max_epsilon:
            return
        if cost == math.inf:
            raise Refused(
                "budget_spent",
                "exact sums or counts of this holder's corpus have left before, so no"
                " ε bounds what is known about its documents; its owner may set"
                " `max_epsilon = inf`",
            )
        raise Refused(
            "budget_spent",
            f"this holder has spent ε {self.epsilon():.3g} of {self.max_epsilon:g};"
            f" with this round it would be {cost:.3g}",
        )

    def pay(self, *expenses: Expense) -> None:
        """Write expenses down in both places, each once, before what they are for leaves."""
        paid = {expense.id for expense in self.expenses()}
        for expense in expenses:
            if expense.id not in paid:
                self.journal.append((SPENT, expense.facts()))
        self.carry()

    def take_in(self, records: Iterable[dict[str, Any]]) -> None:
        """Write expenses into the shared file that are not there, as from a copy of it."""
        there = {expense.id for expense in self._shared_expenses()}
        for record in records:
            facts = dict(record)
            if Expense.of(facts, facts.pop("time")).id not in there:
                self._share(record)

    def carry(self) -> None:
        """Write the journal's expenses into the shared file if they are not there, as after a crash
        or a loss.
        """
        entries = self.journal.entries(SPENT)
        self.take_in({"time": entry.time, **entry.facts} for entry in entries)

    def to_json(self) -> dict[str, Any]:
        """What was spent and may be, and every output that was paid for; infinity is null."""
        cost = self.epsilon()
        return {
            "spent": finite(cost),
            "exact": cost == math.inf,
            "allowed": finite(self.max_epsilon),
            "delta": self.delta,
            "outputs": self.outputs(),
        }

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the account, so that nobody else, through this folder or another, spends what is
        left meanwhile.
        """
        self.shared.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(self.shared.with_suffix(".lock")):
            yield

    # The file that all folders share

    def _shared_expenses(self) -> list[Expense]:
        """What was paid for documents of this corpus, through whichever folder."""
        try:
            lines = self.shared.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        try:
            records = [json.loads(line) for line in lines]
            expenses = [Expense.of(record, record.pop("time")) for record in records]
        except (ValueError, KeyError, TypeError):
            raise FormatError(
                f"{self.shared} is damaged, so the spent privacy budget is unknown;"
                " restore it from a backup"
            ) from None
        same = {
            corpus: overlap(corpus, self.corpus)
            for corpus in {expense.corpus for expense in expenses}
        }
        return [expense for expense in expenses if same[expense.corpus]]

    def _share(self, record: dict[str, Any]) -> None:
        self.shared.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.shared, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, (json.dumps(record) + "\n").encode())
            if syncs():
                flush(handle)
        finally:
            os.close(handle)


def overlap(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether a document may lie below both: by any spelling, a place is the same, or a folder that
    holds the other.
    """
    ones = {name for location in one for name in _spellings(location)}
    others = {name for location in other for name in _spellings(location)}
    return any(_holds(a, b) or _holds(b, a) for a in ones for b in others)


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _spellings(location: str) -> set[str]:
    """A path or URL as it is written, as expenses before version 0.3 are compared, and the one name
    of all its spellings.
    """
    url = _URL.fullmatch(location)
    with contextlib.suppress(ValueError, OSError):  # no file has such a name
        if url is None or url[1].lower() in _LOCAL_SCHEMES:
            path = location if url is None else f"/{url[2]}"
            return {location, "/" + os.path.realpath(path).lstrip("/")}
        return {location, _url_name(url[1].lower(), url[2])}
    return {location}


def _url_name(scheme: str, rest: str) -> str:
    """The name of a URL. Where stores differ in what they take for the same place, it is the same
    here: a budget that is spent twice would be a false promise.
    """
    scheme = _SCHEMES.get(scheme, scheme)
    host, _, path = rest.partition("/")
    if scheme in _PORTS:
        parts = urlsplit(f"{scheme}://{rest}")
        host = (parts.hostname or "").rstrip(".")
        if parts.port not in (None, *_PORTS[scheme]):
            host = f"{host}:{parts.port}"
        path = parts.path  # a query may be a signature or a version
    path = os.path.normpath("/" + unquote(path).lstrip("/"))
    return f"{scheme}://{host.lower()}{path}".rstrip("/")
