"""A round as it runs, read by another process than the one that runs it.

The round appends its events to a file in the folder as they happen, and holds the folder's lock as
long as it lives. So a file that has no end while nobody holds the lock is that of a round that
died.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeway.coordinator.page.narrator import tell_event
from ridgeway.coordinator.round import progress

FILES_LOOKED_AT = 20
"""Deliveries write such files too; a round's is searched for among this many, the newest first."""

HOLDER_STATES: dict[type[progress.Event], str] = {
    progress.OfferReceived: "ready",
    progress.StatisticsReceived: "sums received",
    progress.SecretsShared: "shared",
    progress.SealedReceived: "sealed",
    progress.CountsReceived: "counted",
}


def round_progress(folder: Path, number: int) -> dict[str, Any] | None:
    """What the round of this number has told so far; None where it has left no file, as a
    simulation does not.
    """
    paths = sorted((folder / "progress").glob("*.jsonl"), reverse=True)[
        :FILES_LOOKED_AT
    ]
    for path in paths:
        events = _events(path)
        if any(
            isinstance(event, progress.RoundOpened) and event.number == number
            for event in events
        ):
            heard = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(
                timespec="seconds"
            )
            return {
                "heard": heard,
                "stages": stages(events),
                "holders": holder_states(events),
                "lines": lines(events),
            }
    return None


def last_preflight(folder: Path, after: str) -> list[progress.HolderChecked]:
    """What the newest preflight found, holder by holder; nothing if it was made before a time, such
    as a round's.
    """
    for path in sorted((folder / "progress").glob("*.jsonl"), reverse=True)[
        :FILES_LOOKED_AT
    ]:
        checked = [
            event
            for event in _events(path)
            if isinstance(event, progress.HolderChecked)
        ]
        if checked:
            return (
                checked
                if path.stat().st_mtime > datetime.fromisoformat(after).timestamp()
                else []
            )
    return []


def _events(path: Path) -> list[progress.Event]:
    """The events of a file up to its end, or up to a line that another version wrote."""
    found: list[progress.Event] = []
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        for event in progress.Follower(path).events():
            found.append(event)  # noqa: PERF402  what came before a line that cannot be read counts
    return found


def stages(events: Sequence[progress.Event]) -> list[dict[str, Any]]:
    """How many holders have come how far: a name, how many, and of how many, in the order in which
    it began.
    """
    wanted = next(
        (event.holders for event in events if isinstance(event, progress.RoundOpened)),
        0,
    )
    counts: dict[str, set[str]] = {}
    for event in events:
        if (state := _state(event)) is not None:
            counts.setdefault(state[1], set()).add(state[0])
    return [
        {"name": name, "done": len(names), "of": wanted}
        for name, names in counts.items()
    ]


def holder_states(events: Sequence[progress.Event]) -> dict[str, str]:
    """How far each holder has come, by its name."""
    found: dict[str, str] = {}
    for event in events:
        if (state := _state(event)) is not None:
            found[state[0]] = state[1]
        elif isinstance(event, progress.AnswerRefused) and event.name is not None:
            found[event.name] = f"refused: {event.code}"
        elif isinstance(event, progress.HoldersWaiting):
            found |= dict.fromkeys(event.names, "waits for its next epoch")
        elif isinstance(event, progress.HoldersAbsent):
            found |= dict.fromkeys(event.names, f"no answer to {event.step}")
    return found


def _state(event: progress.Event) -> tuple[str, str] | None:
    words = HOLDER_STATES.get(type(event))
    name = getattr(event, "name", None)
    if words is None or name is None:
        return None
    return name, (
        f"{words} {event.lot}" if isinstance(event, progress.SealedReceived) else words
    )


def lines(events: Sequence[progress.Event]) -> list[list[str]]:
    """The events that are not of a single holder, in the words of the terminal."""
    told: list[list[str]] = []

    def take(verb: str, subject: str, *figures: str) -> None:
        told.append([verb, subject, *filter(None, figures)])

    for event in events:
        if (
            isinstance(event, progress.HoldersAwaited)
            and told
            and told[-1][0] == "waiting"
        ):
            told.pop()
        if isinstance(event, progress.RunFailed):
            take("failed", event.reason)
        tell_event(event, take)
    return told
