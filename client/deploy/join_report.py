"""What a joined holder answers and refuses, and what stands in its way, told to its owner as it
happens.

Every answer is given by a process of its own, which writes to the journal, and every bundle is
judged by one that knows no journal and writes to a log: both are read here, and refused bundles are
added to the journal.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable

from ridgeway.client.deploy.holder_folder import LEFT
from ridgeway.client.round.holder import REFUSED_BUNDLE, Holder
from ridgeway.client.round.known_keys import FORKED_KEY, HANDED_OVER
from ridgeway.common.base.errors import JournalError
from ridgeway.common.base.files import stamp_if_there
from ridgeway.common.base.journal import JournalEntry, system_clock

_LOOK_INTERVAL_S = 1.0
LOW_DISK_BYTES = 100_000_000
REASON_BYTES = 16_384
OWN_LOG = re.compile(r"^\S+ \S+ ERROR could not answer: (.*)$", re.MULTILINE)
JUDGED = re.compile(r"^(\d{4}-\d\d-\S+) (.*)$", re.MULTILINE)
"""A line of the log of bundles; lines of a traceback have no time."""

Tell = Callable[..., None]


class JoinReport:
    """Tells what has happened since it was made. tell: gets a verb, a subject and figures."""

    def __init__(self, holder: Holder, tell: Tell) -> None:
        self._holder = holder
        self._tell = tell
        self._bundles = holder.folder / "logs" / "bundles.log"
        self._stamp: list[str | int] | None = None
        self._again = 0.0
        self._trouble = ""
        self.has_left = False
        """Whether the holder has left its federation since, as far as `tick` has seen."""
        self._failed = system_clock().isoformat(timespec="microseconds")
        entries = holder.journal.entries()
        self._told = entries[-1].number if entries else 0
        self._judged = max(
            (entry.facts["noted"] for entry in entries if entry.kind == REFUSED_BUNDLE),
            default="",
        )

    def tick(self) -> None:
        """Called a few times a second; looks once in a while."""
        if time.monotonic() < self._again:
            return
        self._again = time.monotonic() + _LOOK_INTERVAL_S
        trouble = self._disk()
        try:
            self._look_at_bundles()
            for entry in self._holder.journal.entries(after=self._told):
                self._told = entry.number
                self._tell_of(entry)
        except JournalError as error:
            trouble = str(error)
        if trouble and not self._trouble:
            self._tell("warning", trouble)
        self._trouble = trouble

    def _tell_of(self, entry: JournalEntry) -> None:
        facts = entry.facts
        if entry.kind == LEFT:
            self.has_left = True
        if entry.kind == "received":
            self._tell("stored", f"release {facts['number']:04}", facts["release"][:12])
        if entry.kind == HANDED_OVER:
            self._tell(
                "key",
                f"{facts['before'][:12]}… handed over to {facts['after'][:12]}…",
                "and signed for it",
            )
        if entry.kind == FORKED_KEY:
            self._tell(
                "warning",
                f"{facts['before'][:12]}… was handed over twice",
                "see `ridgeway client status`",
            )
        if entry.kind == "sent":
            where = [f"round {facts['number']}"] if facts.get("number") else []
            if "code" in facts:
                reason = self._why(facts["reason"])
                self._tell("refused", facts["code"], *where, *filter(None, [reason]))
            else:
                kind = facts["kind"].replace("_", " ")
                what = f"{kind} {facts.get('lot', '')}".rstrip()
                self._tell("answered", what, *where, f"{facts['bytes']:,} bytes")

    def _why(self, reason: str) -> str:
        """Why a request was refused: what the coordinator was told, or the whole reason where that
        is kept from it.
        """
        path = self._holder.folder / "logs" / "holder.log"
        if "its own log" not in reason or not path.exists():
            return reason
        end = path.read_bytes()[-REASON_BYTES:].decode(errors="replace")
        return str([reason, *OWN_LOG.findall(end)][-1])

    def _look_at_bundles(self) -> None:
        """Note bundles that were refused since the last one that was noted, and tell whatever else
        went wrong.
        """
        stamp = stamp_if_there(self._bundles)
        if stamp is None or stamp == self._stamp:
            return
        text = self._bundles.read_text(encoding="utf-8", errors="replace")
        for noted, words in JUDGED.findall(text):
            _, refused, reason = words.partition("refused, ")
            if refused and noted > self._judged:
                facts = {"noted": noted, "reason": reason}
                self._holder.journal.append((REFUSED_BUNDLE, facts))
                self._judged = noted
                self._tell("refused", "bundle", reason, "see `ridgeway client bundle`")
            elif (
                not refused and "approved bundle" not in words and noted > self._failed
            ):
                self._failed = noted
                self._tell("failed", words, f"see {self._bundles}")
        self._stamp = stamp

    def _disk(self) -> str:
        free = shutil.disk_usage(self._holder.folder).free
        if free >= LOW_DISK_BYTES:
            return ""
        return (
            f"{free / 1e6:.0f} MB are free on the disk of {self._holder.folder}; make"
            " room, or answers will fail"
        )
