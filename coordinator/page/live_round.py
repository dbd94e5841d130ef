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

from ridgeway.coordinator.page.narrator import holder_state, no_answer, tell_event
from ridgeway.coordinator.round import progress

FILES_LOOKED_AT = 20
"""Deliveries write such files too; a round's is searched for among this many, the newest first."""


def round_progress(folder: Path, number: int) -> dict[str, Any] | None:
    """What the round of this number has told so far; None where it has left no file, as a
    simulation does not.
    """
    paths = sorted((folder / "progress").glob("*.jsonl"), reverse=True)
    for path in paths[:FILES_LOOKED_AT]:
        events: list[progress.Event] = []
        with contextlib.suppress(
            OSError, ValueError, TypeError, KeyError, AttributeError
        ):
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
