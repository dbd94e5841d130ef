"""The events of a round in words: one aligned line each, on stderr or wherever the lines are
wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.cli.terminal import CountingBar, count, size, step
from ridgeway.coordinator.round import progress
from ridgeway.coordinator.round.progress import REMEDIES

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
