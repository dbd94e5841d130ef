"""The coordinator's log of opened sums, as a holder was shown it: kept, extended, and never exchanged for another.

    log/opened.json   the log so far, with the head that the coordinator signed
    log/forked.json   a head that does not extend it: proof, kept whole, and a stop to all answers

Knows files; knows nothing of messages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ridgeway.client.round.holder import Holder
from ridgeway.common.base.errors import FormatError, Refused
from ridgeway.common.base.files import canonical_json, write_whole
from ridgeway.common.masking.history import PastSum
from ridgeway.common.protocol.opened_log import ForkedLog, LogStatement, extend, read_statement

KEPT, FORKED = Path("log/opened.json"), Path("log/forked.json")


def kept_log(folder: Path) -> LogStatement | None:
    """The log as it was last shown; None before the first time."""
    path = folder / KEPT
    try:
        return read_statement(path.read_bytes())
    except FileNotFoundError:
        return None
    except Refused:
        raise FormatError(f"{path} is damaged; restore it from a copy") from None


def log_length(folder: Path) -> int:
    log = kept_log(folder)
    return log.head.number if log else 0


def logged_sums(folder: Path) -> set[str]:
    """The ids of the sums in the log: the coordinator has shown them itself, so they need not be told to it."""
    log = kept_log(folder)
    return {each.id for each in log.entries} if log else set()


def take_log(holder: Holder, content: bytes | memoryview) -> None:
    """Extend the log that is kept here; what does not extend it is kept as evidence."""
    told, kept = read_statement(content), kept_log(holder.folder)
    try:
        whole = extend(kept.entries if kept else (), told, {holder.coordinator})
    except ForkedLog as found:
        assert kept is not None
        heads = {"kept": kept.head.model_dump(mode="json"), "told": told.head.model_dump(mode="json")}
        evidence = {"reason": found.reason, "kept": kept.model_dump(mode="json"), "told": told.model_dump(mode="json")}
        holder.journal.append(("forked_log", {"reason": found.reason, **heads}))
        write_whole(holder.folder / FORKED, canonical_json(evidence), private=True)
        raise
    if whole != kept:
        write_whole(holder.folder / KEPT, whole.to_bytes(), private=True)


def fork(folder: Path) -> dict[str, Any] | None:
    """The evidence that the coordinator has shown two logs, if it has."""
    path = folder / FORKED
    return dict(json.loads(path.read_bytes())) if path.exists() else None


def check_log(holder: Holder) -> None:
    """Raise where there is evidence that nobody has put away."""
    if fork(holder.folder) is not None:
        raise Refused(
            "forked_log",
            "this coordinator has shown this holder two logs of opened sums that cannot both be true; the holder "
            "answers again once its owner has looked into it and moved the evidence away",
        )


def unlogged_sums(holder: Holder) -> list[dict[str, Any]]:
    """The sums that this holder has helped to open and that are not in the log, or not yet."""
    log = kept_log(holder.folder)
    logged = {(each.round, each.lot, each.parts) for each in log.entries} if log else set()
    opened = [entry.facts for entry in holder.journal.entries("opened")]
    return [dict(each) for each in opened if (each["round"], each["lot"], PastSum.from_facts(each).parts) not in logged]
