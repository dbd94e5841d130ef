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
from ridgeway.common.base.schema import Mode

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
