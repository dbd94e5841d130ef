"""What happens in a round: events as small values, and a file of JSON lines that another process
can follow.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, dataclass_transform

from ridgeway.common.base.errors import RidgewayError, RoundFailed
from ridgeway.common.base.records import Mode

_POLL_S = 0.2


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Event:
    """Something that has happened, as a frozen dataclass; `kind` is its name in a progress file."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind
        dataclass(frozen=True)(cls)


Watch = Callable[[Event], None]
"""Is told every event as it happens."""


def no_watch(event: Event) -> None:
    """A watch that does not look."""


class RoundOpened(Event, kind="opened"):
    """A round begins; beside its number and the size of the roster, the terms under which it
    runs.
    """

    number: int
    holders: int
    mode: Mode
    encoder: str
    encoder_name: str
    features: int
    sampling: Mapping[str, int]
    weighting: str
    mass: int
    privacy: Mapping[str, Any] | None = None


class HoldersAwaited(Event, kind="waiting"):
    online: int
    wanted: int


class HolderPresent(Event, kind="present"):
    """A holder has answered a greeting."""

    name: str


class OfferReceived(Event, kind="offered"):
    name: str
    domain: str


class StatisticsReceived(Event, kind="received"):
    """One holder's sums, in the clear."""

    name: str
    domain: str
    bytes: int


class SecretsShared(Event, kind="shared"):
    name: str


class SealedReceived(Event, kind="sealed"):
    """One holder's vector, under masks."""

    name: str
    lot: str
    bytes: int


class CountsReceived(Event, kind="counted"):
    """One holder's counts, not under masks."""

    name: str


class HoldersWaiting(Event, kind="epoch_used"):
    """These holders' epochs are in an opened total already; they take part again with their next
    ones.
    """

    names: Sequence[str]


class TotalReused(Event, kind="kept_total"):
    """The masked total of an earlier round still holds: none of its members has changed."""

    members: int


class SumOpened(Event, kind="opened_sum"):
    """The masks are off a sum over `members` of the session's `of` members."""

    lot: str
    members: int
    of: int


class CountsMissing(Event, kind="not_counted"):
    reason: str


class AnswerRefused(Event, kind="refused"):
    """An answer was refused; its sender is unknown where it was not signed by a holder on the
    roster.
    """

    step: str
    name: str | None
    code: str
    reason: str


class HoldersAbsent(Event, kind="absent"):
    step: str
    names: Sequence[str]


class ExchangeDone(Event, kind="exchanged"):
    """Holders were asked, and no more answers are waited for. seconds: from the question to the
    last answer's use.
    """

    step: str
    answers: int
    seconds: float


class TotalGathered(Event, kind="added"):
    holders: int
    domains: Sequence[str]


class TotalSolved(Event, kind="solved"):
    features: int
    condition: float


class RouterEvaluated(Event, kind="evaluated"):
    """How the router does on held-out documents.

    ridge: λ, relative to the mean diagonal of A; None in private rounds.
    accuracy: in percent; None where there were no documents. interval: that of 95 %, where noise is
              in it.
    """

    documents: int
    ridge: float | None
    selector: str
    accuracy: float | None
    interval: tuple[float, float] | None = None


class ExpertsMeasured(Event, kind="measured"):
    """Holders have told the sums of so many scores of experts."""

    experts: int
    scores: int


class ConfidenceCalibrated(Event, kind="calibrated"):
    """separation: how often text stands out more than it does without its own domain; None if that
    is not known.
    """

    temperature: float
    half: float
    tail: float
    gap: float
    separation: float | None = None


class RouterWorse(Event, kind="worse"):
    """On a domain's held-out documents the new router does worse than the last release, by more
    than chance explains.

    newcomers, changed: the holders that are in the new total and were not, or not with these sums,
                        in that of the last release.
    lost, won: documents that only the last release, and only the new router, has right.
    before, after: in private rounds, where the accuracy lies, in percent.
    """

    domain: str
    newcomers: Sequence[str]
    changed: Sequence[str]
    lost: int = 0
    won: int = 0
    documents: int = 0
    before: tuple[float, float] | None = None
    after: tuple[float, float] | None = None


class ReleaseStands(Event, kind="stands"):
    """Nothing has changed since the newest release, so no other was made."""

    number: int


class ReleasePublished(Event, kind="released"):
    number: int
    release: str
    domains: Sequence[str]


class ReleaseDelivered(Event, kind="delivered"):
    number: int
    names: Sequence[str]


class DeliveryBlocked(Event, kind="delivery_blocked"):
    """These holders have what a delivery does not fit to: another release of its number."""

    code: str
    names: Sequence[str]
    number: int


class PeerFailed(Event, kind="failed_peer"):
    """A SuperNode reported an error of Flower's instead of an answer; whose it is, the SuperLink
    may know.
    """

    name: str | None
    code: int
    reason: str


class OperatorNote(Event, kind="note"):
    words: str


class OtherBundle(Event, kind="other_bundle"):
    """The installed code is not the one that holders were invited to run."""

    folder: str


class RunDone(Event, kind="done"):
    """The run has ended well."""


class RunFailed(Event, kind="failed"):
    reason: str


EVENTS: dict[str, type[Event]] = {event.kind: event for event in Event.__subclasses__()}


@contextlib.contextmanager
def progress_file(path: Path) -> Iterator[Watch]:
    """A watch that writes. The last event is `done`, or `failed` with a reason."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:

        def write(event: Event) -> None:
            file.write(json.dumps({"event": event.kind, **asdict(event)}) + "\n")
            file.flush()

        try:
            yield write
        except BaseException as error:
            reason = (
                f"the coordinator crashed: {error!r}; see logs/rounds.log in its folder"
            )
            if isinstance(error, RidgewayError):
                reason = str(error)
            write(RunFailed(reason))
            raise
        write(RunDone())


class Follower:
    """Reads a progress file from where it was left, whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def events(self) -> Iterator[Event]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                facts: dict[str, Any] = json.loads(line)
                kind = EVENTS.get(facts.pop("event"))
                if kind is not None:  # another version may tell more
                    yield kind(**facts)


def follow(
    path: Path, watch: Watch, has_ended: Callable[[], bool], silence_s: float
) -> None:
    """Tell what a run writes until it has ended well. Raises RoundFailed if it does not.

    has_ended: asked after a silence, since a run whose process has ended writes no more.
    """
    follower = Follower(path)
    ended = False
    last_event_at = time.monotonic()
    while True:
        for event in follower.events():
            last_event_at = time.monotonic()
            if isinstance(event, RunDone):
                return
            if isinstance(event, RunFailed):
                raise RoundFailed(event.reason)
            watch(event)
        if ended:
            raise RoundFailed(
                "the round was interrupted: its process ended. Accepted data is kept."
                " Run the round again"
            )
        if time.monotonic() - last_event_at > silence_s:
            ended = has_ended()
            last_event_at = time.monotonic()
        time.sleep(_POLL_S)


# What stands in a holder's way, by a code, and what its owner has to do: one table for every word
# to the operator.
#
# Codes are those of refusals, and a few for holders that did not get so far as to refuse.


AWAY = "away"
NO_ANSWER = "no_answer"
LEFT = "left"
BUNDLE = "bundle_refused"
OTHER_RELEASE = "other_release"
EPOCH_USED = "epoch_used"
ALREADY_COUNTED = "already_counted"
_TERMS = (
    "its owner must allow these terms in `[policy]` of its client.toml, or the"
    " operator must change coordinator.toml"
)
REMEDIES: Mapping[str, str] = {
    AWAY: "check that `ridgeway client join DIR` is running there",
    NO_ANSWER: "see `logs/` in its folder",
    LEFT: "`ridgeway coordinator retire DIR DOMAIN` drops its domain for good",
    BUNDLE: (
        "its owner must read the code (`ridgeway client bundle DIR`) and run"
        " `ridgeway client approve DIR`"
    ),
    OTHER_RELEASE: (
        "publish again, with a round or `coordinator rollback`: it accepts the next"
        " number"
    ),
    EPOCH_USED: (
        "an epoch can be in only one total: its owner must open the next with"
        " `ridgeway client ready DIR`"
    ),
    ALREADY_COUNTED: (
        "its owner must open the next epoch with `ridgeway client ready DIR`"
    ),
    "no_epoch": "its owner must open an epoch with `ridgeway client ready DIR`",
    "epoch_does_not_fit": (
        "its owner must open an epoch under these terms with `ridgeway client ready"
        " DIR`"
    ),
    "not_pinned": (
        "its owner must compare the members with the other holders: `ridgeway client"
        " members DIR`"
    ),
    "roster_not_pinned": (
        "its owner must compare the members with the other holders: `ridgeway client"
        " members DIR`"
    ),
    "too_few_of_roster": (
        "more of the members that it has confirmed must take part; remove those that"
        " have left, then its owner must confirm the new list"
    ),
    "older_copy": (
        "its folder was restored from an older copy: its owner must declare what may"
        " have left since with `ridgeway client restore DIR`"
    ),
    "disk_full": "its owner must free disk space",
    "device_missing": (
        "its owner must set `device` in client.toml to an available device, or to cpu"
    ),
    "encoder_missing": (
        "its owner must install the encoder, or set its path in client.toml (`encoder`)"
    ),
    "encoder_mismatch": (
        "its owner must set the path of the round's encoder in client.toml (`encoder`)"
    ),
    "encoder_not_allowed": _TERMS,
    "mode_not_allowed": _TERMS,
    "weighting_not_allowed": _TERMS,
    "window_not_allowed": _TERMS,
    "mass_not_allowed": _TERMS,
    "privacy_not_allowed": _TERMS,
    "budget_spent": (
        "its privacy budget is spent: its owner may raise `max_epsilon`, or leave the"
        " federation"
    ),
    "prior_missing": (
        "its owner must accept the newest invitation: `ridgeway client accept DIR"
        " --invite invite/`"
    ),
    "cohort_too_small": (
        "more holders must take part, or its owner must lower `min_cohort` in"
        " client.toml"
    ),
    "wrong_domain": (
        "admit it for its domain, or its owner must set `domain` in client.toml"
    ),
    "unknown_coordinator": (
        "its owner pinned another coordinator's key, and must run `init` again with"
        " this invitation"
    ),
    "key_handed_over": (
        "compare keys with its owner over another channel, and see `client status`"
    ),
    "forked_key": "compare keys with its owner over another channel, and see `client status`",
    "repeated_holder": (
        "one holder is on the roster with two keys; remove the older one"
    ),
    "source_changed": (
        "its owner opened a new epoch during the round; run the round again"
    ),
    "failed": "see `logs/holder.log` in its folder",
}
"""What is to be done, by the code. Where a code is not here, the reason that came with it says all
there is.
"""


def why(code: str, reason: str = "") -> str:
    """What a holder did instead of taking part, and the remedy."""
    missing = {
        AWAY: "did not answer",
        LEFT: "has left the federation",
        NO_ANSWER: "did not answer in time",
        EPOCH_USED: "must open a new epoch",
        ALREADY_COUNTED: "has counted for another router",
    }
    done = missing.get(code, f"refused ({code}{': ' if reason else ''}{reason})")
    return f"{done}; {REMEDIES[code]}" if code in REMEDIES else done
