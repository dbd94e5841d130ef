"""Every round that the ledger speaks of: when, how it ended, who refused and who was away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

from ridgeway.common.base.journal import JournalEntry
from ridgeway.coordinator.round.progress import AnswerRefused

Outcome = Literal["released", "unchanged", "failed", "cut off", "running"]
ROUND_KINDS = ("opened", "closed", "refused", "absent")
NOTHING_CHANGED = "nothing has changed"
"""The reason of a round that has ended well and without another release."""


@dataclass(slots=True)
class RoundRecord:
    """One round. ended, release, reason: only of a round that was closed. absent: the steps that a
    holder missed.
    """

    number: int
    nonce: str
    mode: str
    began: str
    ended: str | None = None
    release: str | None = None
    reason: str = ""
    refusals: list[AnswerRefused] = field(default_factory=list)
    absent: dict[str, list[str]] = field(default_factory=dict)

    def outcome(self, is_running: bool) -> Outcome:
        """How it ended. is_running: whether a round runs now, which can only be the newest that is
        not closed.
        """
        if self.ended is None:
            return "running" if is_running else "cut off"
        if self.release is not None:
            return "released"
        return "unchanged" if self.reason == NOTHING_CHANGED else "failed"

    @property
    def seconds(self) -> float | None:
        if self.ended is None:
            return None
        taken = datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.began)
        return taken.total_seconds()

    def to_json(self, outcome: Outcome) -> dict[str, Any]:
        facts = asdict(self)
        del facts["nonce"]
        refusals = facts.pop("refusals")
        return facts | {
            "seconds": self.seconds,
            "outcome": outcome,
            "refused": len(refusals),
            "absent": sorted(self.absent),
        }


LastRound = tuple[RoundRecord, Outcome]


@dataclass(frozen=True, slots=True)
class RoundHistory:
    """The rounds so far, the newest last; entries are taken in once, in their order."""

    rounds: list[RoundRecord] = field(default_factory=list)
    _by_nonce: dict[str, RoundRecord] = field(default_factory=dict)

    def take_in(self, entries: Iterable[JournalEntry]) -> None:
        for entry in entries:
            facts = entry.facts
            if entry.kind == "opened":
                made = RoundRecord(
                    facts["number"], facts["round"], facts["terms"]["mode"], entry.time
                )
                self.rounds.append(made)
                self._by_nonce[made.nonce] = made
                continue
            record = self._by_nonce.get(facts["round"])
            if record is None:  # deliveries are no rounds
                continue
            if entry.kind == "closed":
                record.ended = entry.time
                record.release = facts["release"]
                record.reason = facts["reason"]
            elif entry.kind == "refused":
                known = {
                    field.name: facts[field.name] for field in fields(AnswerRefused)
                }
                record.refusals.append(AnswerRefused(**known))
            else:
                for name in facts["names"]:
                    record.absent.setdefault(name, []).append(facts["step"])

    def outcomes(self, is_running: bool) -> list[Outcome]:
        """How each round ended; only the newest can still run."""
        return [
            record.outcome(is_running and record is self.rounds[-1])
            for record in self.rounds
        ]
