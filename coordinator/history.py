"""What a federation has done: its releases, its rounds, and the one that runs; and the events of a
round in words, as they happen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Protocol

from ridgeway.common.base.journal import JournalEntry
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.cli.terminal import CountingBar, count, size, step
from ridgeway.common.routing.coverage import wilson
from ridgeway.common.routing.release import MANIFEST, release_id
from ridgeway.coordinator.round import progress
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.progress import REMEDIES, AnswerRefused

# The events of a round in words: one aligned line each, on stderr or wherever the lines are wanted.


MAX_HOLDERS_BY_NAME = 20
"""Where more holders take part, a bar counts them instead of a line for each."""

OLDER_COPY = (
    "another release {number:04} or a later one: this folder is, or was, an older copy"
)


_ASKED = {
    "hello": "whether it is online",
    "announce": "to take part",
    "collect": "for its sums",
    "share": "to deal shares of its secrets",
    "hold": "to keep the others' shares",
    "seal": "for its sealed numbers",
    "confirm_sum": "to confirm who is in a sum",
    "lock_sum": "to lock a sum",
    "open_sum": "to open a sum",
    "evaluate": "to count",
    "deliver": "to accept the release",
}
"""What a holder is asked at each step."""


def no_answer(at: str) -> str:
    """That a holder did not answer at a step of a round."""
    return f"no answer when asked {_ASKED.get(at, at)}"


class Step(Protocol):
    """Takes one line: what was done, to what, and figures."""

    def __call__(self, verb: str, subject: str, *figures: str) -> None: ...


class Narrator:
    """A watch that tells what happens, step by step."""

    def __init__(self) -> None:
        self._holders = 0
        self._bar = CountingBar()
        self._online = -1

    def __call__(self, event: progress.Event) -> None:
        if state := holder_state(event):
            if self._holders > MAX_HOLDERS_BY_NAME:
                self._bar.advance(state[1], self._holders)
            else:
                _tell_of_holder(event)
            return
        self._bar.close()
        match event:
            case progress.RoundOpened():
                self._holders = event.holders
            case progress.HoldersAwaited():
                if event.online == self._online:
                    return
                self._online = event.online
            case progress.PeerFailed() if self._holders > MAX_HOLDERS_BY_NAME:
                return
        tell_event(event)


def holder_state(event: progress.Event) -> tuple[str, str] | None:
    """The holder that an event is of, and how far it has come; None for events of others."""
    match event:
        case progress.OfferReceived(name):
            return name, "ready"
        case progress.StatisticsReceived(name):
            return name, "sums received"
        case progress.SecretsShared(name):
            return name, "shared"
        case progress.SealedReceived(name, sum_name):
            return name, f"sealed {sum_name}"
        case progress.CountsReceived(name):
            return name, "counted"
    return None


def _tell_of_holder(event: progress.Event) -> None:
    match event:
        case progress.OfferReceived(name, domain):
            step("ready", name, f"domain {domain}")
        case progress.StatisticsReceived(name, domain, nbytes):
            step("received", name, f"domain {domain}", size(nbytes))
        case progress.SealedReceived(name, "statistics" as sum_name, nbytes):
            step("sealed", name, sum_name, size(nbytes))


def tell_event(event: progress.Event, step: Step = step) -> None:
    """Say what happened, unless it is of a single holder; `step` takes the line."""
    match event:
        case progress.RoundOpened(number, holders, mode, _, encoder):
            name = ("round", str(number)) if number else ("dry", "run")
            step(*name, count(holders, "holder"), f"encoder {encoder}")
            step("mode", mode, MODE_SENTENCES[mode])
            if private := event.privacy:
                cost = f"ε {private['epsilon']:g} per document"
                step("privacy", private["mode"], cost, f"δ {private['delta']:g}")
        case progress.OtherBundle(folder):
            words = (
                "this Ridgeway differs from the one in the invitation, so holders may"
                " refuse it"
            )
            step("note", words, f"run: ridgeway coordinator invite {folder}")
        case progress.PeerFailed(name, code, reason):
            who = f"the SuperNode of {name}" if name else "a SuperNode"
            step("failed", who, reason or f"error {code}")
        case progress.OperatorNote(words):
            step("note", words)
        case progress.HoldersAwaited(online, wanted):
            step("waiting", "for holders", f"{online} of {wanted} online")
        case progress.TotalReused(members):
            total = f"the total of {count(members, 'holder')}"
            step("kept", total, "no member has opened a new epoch")
        case progress.HoldersWaiting(names):
            who = ", ".join(names)
            step("waiting", who, "already in an opened total, until their next epoch")
            step("next", who, REMEDIES[event.kind])
        case progress.SumOpened(sum_name, members, of):
            fallen = f"{of - members} dropped out" if of > members else ""
            step("opened", f"the sum of {sum_name}", f"of {members} members", fallen)
        case progress.CountsMissing(reason):
            step("note", "no counts opened", reason)
        case progress.AnswerRefused(_, name, code, reason):
            step("refused", name or "unknown sender", code, reason)
            if name and code in REMEDIES:
                step("next", name, REMEDIES[code])
        case progress.HoldersAbsent(at, names):
            step("absent", ", ".join(names), no_answer(at))
        case progress.TotalGathered(holders, domains):
            sums = f"sums of {count(holders, 'holder')}"
            step("added", sums, f"{len(domains)} domains", ", ".join(domains))
        case progress.TotalSolved(features, condition):
            # a private total is divided, not inverted
            figure = f"condition {condition:.1e}" if condition > 1 else ""
            step("solved", f"{features} features", figure)
        case progress.RouterEvaluated() if event.accuracy is None:
            step("counted", "no held-out documents", "router not evaluated")
        case progress.RouterEvaluated(documents, ridge, selector, accuracy, interval):
            rule = selector if ridge is None else f"λ {ridge:g}, {selector}"
            texts = f"{documents:,} held-out documents"
            figure = f"accuracy {accuracy:.1f} %"
            if interval:
                texts = f"about {texts}"
                figure += f" (95 %: {_interval(interval)})"
            step("counted", rule, texts, figure)
        case progress.ExpertsMeasured(experts, scores):
            step("measured", count(experts, "expert"), f"by {scores:,} scores")
        case progress.ConfidenceCalibrated(temperature, half, tail, gap, separation):
            curve = f"half length {half:g}, tail {tail:g}"
            error = f"calibration error {gap:.1f} %"
            step("fitted", f"temperature {temperature:.3g}", curve, error)
            if separation is not None:
                step("learnt", "out-of-scope detector", f"AUC {separation:.2f}")
        case progress.RouterWorse(domain, newcomers, changed):
            texts = count(event.documents, "document")
            figures = f"{event.lost} of {texts} lost, {event.won} won"
            if event.before and event.after:
                was = _interval(event.before)
                figures = f"accuracy {_interval(event.after)} %, was {was} %"
            causes = [f"new {name}" for name in newcomers]
            causes += [f"changed {name}" for name in changed]
            step("worse", domain, figures, *causes)
        case progress.ReleaseStands(number):
            words = "nothing has changed since it was made"
            step("kept", f"release {number:04}", words)
        case progress.ReleasePublished(number, release, domains):
            step("release", f"{number:04}", release[:12], count(len(domains), "domain"))
        case progress.DeliveryBlocked(code, names, number):
            step("other", ", ".join(names), OLDER_COPY.format(number=number))
            step("next", REMEDIES[code])
        case progress.ReleaseDelivered(number, names):
            who = f"to {count(len(names), 'holder')}"
            step("delivered", f"release {number:04}", who)


def _interval(ends: Sequence[float]) -> str:
    return f"{ends[0]:.1f} to {ends[1]:.1f}"


# The releases of a federation over time: how accurate, with how much doubt, and what changed
# between two of them.
#
# Accuracies are shares of held-out texts, each with the interval in which the true share lies in 95
# of 100 cases.


Accuracy = dict[str, Any]
Manifest = Mapping[str, Any]

_SETTINGS: Mapping[str, Callable[[Manifest], str]] = {
    "λ": lambda manifest: _ridge(manifest["ridge"]),
    "selector": lambda manifest: _selector(manifest["selector"]),
    "columns": lambda manifest: (
        "normalised" if manifest["normalise_columns"] else "as solved"
    ),
    "weighting": lambda manifest: str(manifest["weighting"]),
    "encoder": lambda manifest: (
        f"{manifest['encoder']['name']} {manifest['encoder']['fingerprint'][:12]}"
    ),
    "samples": lambda manifest: ", ".join(
        f"{name} {value}" for name, value in manifest["sampling"].items()
    ),
}
"""What a manifest says that may differ between releases, and in which words."""


@dataclass(frozen=True, slots=True)
class ReleaseHistory:
    """Reads each manifest once: a release never changes."""

    _folder: Path
    _read: dict[str, Manifest] = field(default_factory=dict)

    def manifest(self, made: LedgerRelease) -> Manifest | None:
        """The manifest of a release; None if it is gone, or is not the one that the ledger speaks
        of.
        """
        if made.release not in self._read:
            path = self._folder / f"{made.number:04}" / MANIFEST
            with suppress(OSError, ValueError, TypeError, AttributeError):
                content = json.loads(path.read_bytes())
                if release_id(content) == made.release:
                    self._read[made.release] = content
        return self._read.get(made.release)

    def summary(self, made: LedgerRelease) -> dict[str, Any]:
        manifest = self.manifest(made)
        accuracies = domain_accuracies(manifest)
        return {
            "number": made.number,
            "release": made.release,
            "time": made.time,
            "cause": made.cause,
            "mode": made.terms.mode,
            "domains": list(made.domains),
            "members": len({member.name for member in made.members}),
            "whole": manifest is not None,
            "settings": settings_words(manifest),
            "accuracies": accuracies,
            "mean": noisy_mean(manifest) or mean_accuracy(accuracies),
        }

    def changes(self, before: LedgerRelease, after: LedgerRelease) -> dict[str, Any]:
        """What is different in `after`: domains, members, settings, accuracies."""
        old = self.summary(before)
        new = self.summary(after)
        was = {member.name: member.source for member in before.members}
        now = {member.name: member.source for member in after.members}
        old_settings = {"mode": old["mode"], **old["settings"]}
        new_settings = {"mode": new["mode"], **new["settings"]}
        return {
            "before": before.number,
            "after": after.number,
            "domains": {
                "added": sorted(set(after.domains) - set(before.domains)),
                "lost": sorted(set(before.domains) - set(after.domains)),
            },
            "members": {
                "joined": sorted(set(now) - set(was)),
                "left": sorted(set(was) - set(now)),
                "changed": sorted(
                    name
                    for name, source in was.items()
                    if now.get(name, source) != source
                ),
            },
            "settings": [
                {"name": name, "before": old_settings.get(name), "after": value}
                for name, value in (dict.fromkeys(old_settings) | new_settings).items()
                if old_settings.get(name) != value
            ],
            "accuracies": accuracy_changes(old["accuracies"], new["accuracies"]),
        }


def domain_accuracies(manifest: Manifest | None) -> dict[str, Accuracy]:
    """The accuracy on each domain's held-out texts, by domain; empty where the release was not
    evaluated.
    """
    evaluation = manifest["evaluation"] if manifest else None
    if not evaluation:
        return {}
    rows = zip(evaluation["order"], evaluation["confusion"], strict=True)
    intervals = evaluation.get("intervals", {})
    accuracies = {}
    for column, (name, row) in enumerate(rows):
        texts = sum(row)
        if name in intervals and name in evaluation["domains"]:
            percent = evaluation["domains"][name]
            accuracies[name] = _of_percent(percent, intervals[name], texts)
        elif texts:
            share = row[column] / texts
            accuracies[name] = _accuracy_of(share, *wilson(share, texts), texts)
    return accuracies


def noisy_mean(manifest: Manifest | None) -> Accuracy | None:
    """The mean over domains, where the manifest names its interval: that of counts under noise."""
    evaluation = (manifest or {}).get("evaluation") or {}
    if "interval" not in evaluation:
        return None
    texts = sum(map(sum, evaluation["confusion"]))
    return _of_percent(evaluation["accuracy"], evaluation["interval"], texts)


def _of_percent(percent: float, interval: Sequence[float], texts: int) -> Accuracy:
    """As a manifest has it."""
    low, high = interval
    return _accuracy_of(percent / 100, low / 100, high / 100, texts)


def _accuracy_of(share: float, low: float, high: float, texts: int) -> Accuracy:
    return {"share": share, "low": low, "high": high, "texts": texts}


def mean_accuracy(accuracies: Mapping[str, Accuracy]) -> Accuracy | None:
    """The mean over domains, its doubt made of theirs."""
    if not accuracies:
        return None
    values = accuracies.values()
    share = fmean(value["share"] for value in values)
    down = math.hypot(*(value["share"] - value["low"] for value in values))
    rise = math.hypot(*(value["high"] - value["share"] for value in values))
    low = share - down / len(values)
    high = share + rise / len(values)
    return _accuracy_of(share, low, high, sum(value["texts"] for value in values))


def accuracy_changes(
    before: Mapping[str, Accuracy], after: Mapping[str, Accuracy]
) -> list[dict[str, Any]]:
    """By domain, the greatest loss first. doubt: half the interval of the change, as of different
    texts.
    """
    rows = []
    for name in dict.fromkeys((*before, *after)):
        old = before.get(name)
        new = after.get(name)
        row: dict[str, Any] = {"domain": name, "before": old, "after": new}
        row |= {"change": None, "doubt": None}
        if old and new:
            widths = (value["high"] - value["low"] for value in (old, new))
            row["change"] = new["share"] - old["share"]
            row["doubt"] = math.hypot(*widths) / 2
        rows.append(row)
    return sorted(
        rows,
        key=lambda row: (row["change"] is None, row["change"] or 0.0, row["domain"]),
    )


def settings_words(manifest: Manifest | None) -> dict[str, str]:
    """The settings that a release was made with; those that a manifest does not name are left
    out.
    """
    settings: dict[str, str] = {}
    for name, words in _SETTINGS.items():
        with suppress(KeyError, TypeError, AttributeError):
            settings[name] = words(manifest or {})
    return settings


def _ridge(ridge: Mapping[str, Any]) -> str:
    relative = " of the mean diagonal" if ridge["relative"] else ""
    return f"{ridge['value']:g}{relative}"


def _selector(selector: Mapping[str, Any]) -> str:
    k = f", k = {selector['k']}" if selector["name"] == "entropy" else ""
    return f"{selector['name']}{k}"


# Every round that the ledger speaks of: when, how it ended, who refused and who was away.


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


# A round as it runs, read by another process than the one that runs it.
#
# The round appends its events to a file in the folder as they happen, and holds the folder's lock
# as long as it lives. So a file that has no end while nobody holds the lock is that of a round that
# died.


FILES_LOOKED_AT = 20
"""Deliveries write such files too; a round's is searched for among this many, the newest first."""


def round_progress(folder: Path, number: int) -> dict[str, Any] | None:
    """What the round of this number has told so far; None where it has left no file, as a
    simulation does not.
    """
    paths = sorted((folder / "progress").glob("*.jsonl"), reverse=True)
    for path in paths[:FILES_LOOKED_AT]:
        events: list[progress.Event] = []
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            # extend keeps what came before a line that another version wrote
            events.extend(progress.Follower(path).events())
        opened = [event for event in events if isinstance(event, progress.RoundOpened)]
        if any(event.number == number for event in opened):
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            return {
                "heard": written.isoformat(timespec="seconds"),
                "stages": stages(events, opened[0].holders),
                "holders": holder_states(events),
                "lines": lines(events),
            }
    return None


def stages(events: Sequence[progress.Event], wanted: int) -> list[dict[str, Any]]:
    """How many holders have come how far: a name, how many, and of how many, in the order in which
    it began.
    """
    reached: dict[str, set[str]] = {}
    for event in events:
        if state := holder_state(event):
            reached.setdefault(state[1], set()).add(state[0])
    return [
        {"name": state, "done": len(names), "of": wanted}
        for state, names in reached.items()
    ]


def holder_states(events: Sequence[progress.Event]) -> dict[str, str]:
    """How far each holder has come, by its name."""
    states: dict[str, str] = {}
    for event in events:
        if state := holder_state(event):
            states[state[0]] = state[1]
        match event:
            case progress.AnswerRefused(_, str(name), code):
                states[name] = f"refused: {code}"
            case progress.HoldersWaiting(names):
                states |= dict.fromkeys(names, "waits for its next epoch")
            case progress.HoldersAbsent(step, names):
                states |= dict.fromkeys(names, no_answer(step))
    return states


def lines(events: Sequence[progress.Event]) -> list[list[str]]:
    """The events that are not of a single holder, in the words of the terminal."""
    taken: list[list[str]] = []

    def take(verb: str, subject: str, *figures: str) -> None:
        taken.append([verb, subject, *filter(None, figures)])

    for event in events:
        repeats = isinstance(event, progress.HoldersAwaited) and taken
        if repeats and taken[-1][0] == "waiting":
            taken.pop()
        if isinstance(event, progress.RunFailed):
            take("failed", event.reason)
        tell_event(event, take)
    return taken
