"""The events of a round in words: one aligned line each, on stderr or wherever the lines are
wanted.
"""

from __future__ import annotations

from typing import Protocol

from ridgeway.common.base.schema import MODE_SENTENCES
from ridgeway.common.cli.terminal import CountingBar, count, size, step
from ridgeway.coordinator.round import progress
from ridgeway.coordinator.round.progress import (
    CountsReceived,
    OfferReceived,
    SealedReceived,
    SecretsShared,
    StatisticsReceived,
)
from ridgeway.coordinator.round.remedies import REMEDIES

MAX_HOLDERS_BY_NAME = 20
"""Where more holders take part, a bar counts them instead of a line for each."""

OLDER_COPY = (
    "another release {number:04} or a later one is there: this folder is an older copy,"
    " or was one"
)


class Step(Protocol):
    """Takes one line: what was done, to what, and figures."""

    def __call__(self, verb: str, subject: str, *figures: str) -> None: ...


OfHolder = (
    OfferReceived | StatisticsReceived | SecretsShared | SealedReceived | CountsReceived
)


class Narrator:
    """A watch that tells what happens, step by step."""

    def __init__(self) -> None:
        self._holders = 0
        self._bar = CountingBar()
        self._online = -1

    def __call__(self, event: progress.Event) -> None:
        if isinstance(event, OfHolder):
            if self._holders > MAX_HOLDERS_BY_NAME:
                self._bar.advance(_counted_as(event), self._holders)
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


def _counted_as(event: OfHolder) -> str:
    if isinstance(event, SealedReceived):
        return f"sealed {event.lot}"
    return "ready" if isinstance(event, OfferReceived) else event.kind


def _tell_of_holder(event: OfHolder) -> None:
    match event:
        case OfferReceived(name, domain):
            step("ready", name, f"domain {domain}")
        case StatisticsReceived(name, domain, nbytes):
            step("received", name, f"domain {domain}", size(nbytes))
        case SealedReceived(name, "statistics" as lot, nbytes):
            step("sealed", name, lot, size(nbytes))


def tell_event(event: progress.Event, step: Step = step) -> None:
    """Say what happened, unless it is of a single holder; `step` takes the line."""
    match event:
        case progress.RoundOpened(number, holders, mode, _, encoder):
            step("round", str(number), count(holders, "holder"), f"encoder {encoder}")
            step("mode", mode, MODE_SENTENCES[mode])
            if private := event.privacy:
                step(
                    "privacy",
                    private["mode"],
                    f"ε {private['epsilon']:g} a document",
                    f"δ {private['delta']:g}",
                )
        case progress.OtherBundle(folder):
            words = (
                "this Ridgeway is not the one that holders were invited to run, so they"
                " may refuse it"
            )
            step("note", words, f"run: ridgeway coordinator invite {folder}")
        case progress.PeerFailed(name, code, reason):
            step(
                "failed",
                f"the SuperNode of {name}" if name else "a SuperNode",
                reason or f"error {code}",
            )
        case progress.OperatorNote(words):
            step("note", words)
        case progress.HoldersAwaited(online, wanted):
            step("waiting", "for holders", f"{online} of {wanted} online")
        case progress.TotalReused(members):
            step(
                "kept",
                f"the total of {count(members, 'holder')}",
                "nobody in it has opened a new epoch",
            )
        case progress.HoldersWaiting(names):
            step(
                "waiting",
                ", ".join(names),
                "in an opened total already, until their next epoch",
            )
            step("next", ", ".join(names), REMEDIES[event.kind])
        case progress.SumOpened(lot, members, of):
            fallen = f"{of - members} fell away" if of > members else ""
            step("opened", f"the sum of {lot}", f"of {members} members", fallen)
        case progress.CountsMissing(reason):
            step("note", "no counts were opened", reason)
        case progress.AnswerRefused(_, name, code, reason):
            step("refused", name or "someone unknown", code, reason)
            if name and code in REMEDIES:
                step("next", name, REMEDIES[code])
        case progress.HoldersAbsent(at, names):
            step("absent", ", ".join(names), f"no answer to {at}")
        case progress.TotalGathered(holders, domains):
            step(
                "added",
                f"sums of {count(holders, 'holder')}",
                f"{len(domains)} domains",
                ", ".join(domains),
            )
        case progress.TotalSolved(features, condition):
            # a private total is divided, not inverted
            told = f"condition {condition:.1e}" if condition > 1 else ""
            step("solved", f"{features} features", told)
        case progress.RouterEvaluated() if event.accuracy is None:
            step("counted", "no held-out documents", "the router is not evaluated")
        case progress.RouterEvaluated(documents, ridge, selector, accuracy, interval):
            rule = selector if ridge is None else f"λ {ridge:g}, {selector}"
            within = (
                f" (95 %: {interval[0]:.1f} to {interval[1]:.1f})" if interval else ""
            )
            about = f"about {documents:,}" if interval else f"{documents:,}"
            step(
                "counted",
                rule,
                f"{about} held-out documents",
                f"accuracy {accuracy:.1f} %{within}",
            )
        case progress.ExpertsMeasured(experts, scores):
            step("measured", count(experts, "expert"), f"by {scores:,} scores")
        case progress.ConfidenceCalibrated(temperature, half, tail, gap, separation):
            curve = f"half length {half:g}, tail {tail:g}"
            step(
                "fitted",
                f"temperature {temperature:.3g}",
                curve,
                f"calibration error {gap:.1f} %",
            )
            if separation is not None:
                step("learnt", "what belongs to no domain", f"AUC {separation:.2f}")
        case progress.RouterWorse(domain, lost, won, documents, newcomers, changed):
            who = (
                *(f"new {name}" for name in newcomers),
                *(f"changed {each}" for each in changed),
            )
            step(
                "worse",
                domain,
                f"{lost} of {count(documents, 'document')} lost, {won} won",
                *who,
            )
        case progress.ReleaseStands(number):
            step(
                "kept",
                f"release {number:04}",
                "nothing has changed since it was made, so it stands",
            )
        case progress.ReleasePublished(number, release, domains):
            step("release", f"{number:04}", release[:12], count(len(domains), "domain"))
        case progress.DeliveryBlocked(code, names, number):
            step("other", ", ".join(names), OLDER_COPY.format(number=number))
            step("next", REMEDIES[code])
        case progress.ReleaseDelivered(number, names):
            step(
                "delivered", f"release {number:04}", f"to {count(len(names), 'holder')}"
            )
