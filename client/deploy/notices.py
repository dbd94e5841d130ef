"""What the coordinator tells between rounds, as a holder takes it: fetched from the gate, verified,
kept.

    notice.json   the last one that was taken
    ca.crt        the authority that it names; another takes its place only if the pinned key
                  has signed it
    bundles/      bundles that it names, as they came: to be compared, never to be run from there
    announced-roster.json   the list of members that it names, as it was shown last
"""

from __future__ import annotations

import queue
import re
import shutil
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

import httpx
from cryptography import x509
from pydantic import ValidationError

from ridgeway.client.deploy.holder_folder import LEFT
from ridgeway.client.round.holder import REFUSED_BUNDLE, Holder
from ridgeway.client.round.policy import (
    FORKED_KEY,
    HANDED_OVER,
    RosterChange,
    check_coordinator,
    known_handovers,
    load_roster,
    roster_change,
)
from ridgeway.common.base.errors import (
    FormatError,
    InputError,
    JournalError,
    NodeError,
    Refused,
    RidgewayError,
)
from ridgeway.common.base.files import sha256, stamp_if_there, write_whole
from ridgeway.common.base.journal import Journal, JournalEntry, system_clock
from ridgeway.common.deploy.bundle import (
    MAX_BUNDLE_BYTES,
    bundle_sha256,
    installed_bundle,
)
from ridgeway.common.protocol.cohort import (
    ANNOUNCED_ROSTER,
    AUTHORITY,
    BUNDLE_PATH,
    MAX_NOTICE_BYTES,
    MAX_ROSTER_BYTES,
    NOTICE,
    NOTICE_PATH,
    ROSTER_PATH,
    AnnouncedBundle,
    Notice,
    Roster,
    RosterMember,
    check_signed_json,
    read_signed_json,
)

FETCH_TIMEOUT_S = 20.0
FETCH_INTERVAL_S = 20.0


@dataclass(frozen=True, slots=True)
class Gate:
    """The coordinator's gate, as a holder reaches it. folder: the holder's, with ca.crt. proxy: the
    URL of one.
    """

    folder: Path
    address: str
    proxy: str | None = None

    def fetch(self, path: str, limit: int) -> bytes:
        """What the gate has under a path."""
        return self._ask("GET", path, limit, "hand over")

    def tell(self, path: str, content: bytes) -> None:
        self._ask("POST", path, 0, "take", content)

    def _ask(
        self, method: str, path: str, limit: int, verb: str, sent: bytes | None = None
    ) -> bytes:
        try:
            context = ssl.create_default_context(cafile=str(self.folder / AUTHORITY))
            url = f"https://{self.address}{path}"
            with (
                httpx.Client(
                    verify=context, timeout=FETCH_TIMEOUT_S, proxy=self.proxy
                ) as client,
                client.stream(method, url, content=sent) as response,
            ):
                response.raise_for_status()
                content = b""
                for piece in response.iter_bytes():
                    content += piece
                    if len(content) > limit:
                        raise NodeError(
                            f"what {self.address} has under {path} is larger than"
                            f" {limit:,} bytes"
                        )
                return content
        except (OSError, httpx.HTTPError) as error:
            through = " through the proxy" if self.proxy else ""
            raise NodeError(
                f"{self.address} did not {verb} {path}{through}"
                f" ({type(error).__name__}); try again later"
            ) from None


def gate_of(holder: Holder) -> Gate:
    return Gate(holder.folder, holder.settings.address, holder.settings.proxy)


def kept_notice(folder: Path) -> Notice | None:
    path = folder / NOTICE
    return read_signed_json(path, Notice) if path.exists() else None


def take_notice(folder: Path, content: bytes, key: str, now: datetime) -> list[str]:
    """Take what holds now, if the coordinator has signed it and nothing later was taken; returns
    the news in words.

    key: the pinned one. A hand-over to another, which the notice brings, is taken first.
    """
    notice = check_signed_json(content, Notice, "what was handed over")
    journal = Journal(folder / "journal.db")
    before = known_handovers(journal).newest(key)
    try:
        links = check_coordinator(journal, key, notice.coordinator, notice.handovers)
    except Refused as error:
        raise FormatError(
            f"the notice is by {notice.coordinator[:12]}…, not by the coordinator that"
            f" is pinned here: {error}"
        ) from None
    kept = kept_notice(folder)
    if kept is not None and notice.issued <= kept.issued:
        return []
    news = _take_authority(folder, notice, now)
    signs = links.newest(key)
    if signs != before:
        news.append(
            f"the coordinator signs with {signs} now; its key before, {before}, has"
            " signed this"
        )
    write_whole(folder / NOTICE, content)
    return news


def unapproved(holder: Holder) -> list[AnnouncedBundle]:
    """The bundles that were announced after the newest one that is approved here, the newest
    first.
    """
    notice = kept_notice(holder.folder)
    bundles = notice.bundles if notice else ()
    approved = holder.settings.bundles
    return list(takewhile(lambda bundle: bundle.sha256 not in approved, bundles))


def tell_unapproved(holder: Holder) -> list[str]:
    """A sentence for each of them, with what the operator says of it."""
    return [
        f"the coordinator announces the bundle {bundle.sha256}, which is not approved"
        " here"
        + (f" ({'; '.join(bundle.changes)})" if bundle.changes else "")
        + f"; to see what it changes: ridgeway client bundle {holder.folder}; to"
        f" approve it: ridgeway client approve {holder.folder}"
        for bundle in unapproved(holder)
    ]


def announced_bundle(gate: Gate, digest: str) -> bytes:
    """The bytes of a bundle, checked against its hash: this installation's, those kept here, or
    fetched now.
    """
    path = gate.folder / "bundles" / f"{digest}.fab"
    installed = installed_bundle()
    if bundle_sha256(installed) == digest:
        return installed
    if path.exists() and bundle_sha256(path.read_bytes()) == digest:
        return path.read_bytes()
    content = gate.fetch(f"{BUNDLE_PATH}{digest}", MAX_BUNDLE_BYTES)
    if bundle_sha256(content) != digest:
        raise FormatError(
            f"what {gate.address} handed over is not the bundle {digest}; do not"
            " approve it"
        )
    write_whole(path, content, private=True)
    notice = kept_notice(gate.folder)
    announced = {bundle.sha256 for bundle in notice.bundles} if notice else {digest}
    for other in path.parent.glob("*.fab"):
        if other.stem not in announced:
            other.unlink()
    return content


def announced_roster(folder: Path, fetch: Callable[[], bytes]) -> Roster:
    """The list of members that the notice names, kept or fetched now, and kept from now on."""
    notice = kept_notice(folder)
    if notice is None or notice.roster is None:
        raise InputError(
            "the coordinator has named no members yet; it does when its operator admits"
            " holders with this version of Ridgeway"
        )
    path = folder / ANNOUNCED_ROSTER
    if path.exists() and sha256(path.read_bytes()) == notice.roster:
        return _read_roster(path.read_bytes())
    content = fetch()
    if sha256(content) != notice.roster:
        raise FormatError(
            "the list of members is not the one that the coordinator's notice"
            " names; try again, for it may have changed just now"
        )
    roster = _read_roster(content)
    write_whole(path, content)
    return roster


def roster_news(holder: Holder, roster: Roster) -> RosterChange:
    """Who is on a list and was not confirmed by this holder, and who was and is not on it."""
    owner = holder.handovers.merged_with(roster.handovers).owner
    others = other_members(holder, roster, owner)
    return roster_change(load_roster(holder.folder), others, owner)


def other_members(
    holder: Holder, roster: Roster, owner: Callable[[str], str]
) -> list[RosterMember]:
    first_key = owner(holder.key)
    return [member for member in roster.members if owner(member.key) != first_key]


def tell_unconfirmed(holder: Holder, gate: Gate) -> list[str]:
    """A sentence if the coordinator names other members than were confirmed, and rounds that this
    holder takes part in need them; nothing to a holder that is not on the list yet.
    """
    policy = holder.policy
    folder = holder.folder
    if "masked" not in policy.modes and policy.privacy != "full":
        return []
    with suppress(NodeError, InputError):
        roster = announced_roster(folder, lambda: fetched_roster(gate))
        is_member = holder.key in {member.key for member in roster.members}
        change = roster_news(holder, roster)
        if change and is_member:
            return [
                "the coordinator names other members than were confirmed here"
                f" ({len(change.added)} more, {len(change.removed)} fewer); look at"
                f" them with: ridgeway client members {folder}"
            ]
    return []


def fetched_roster(gate: Gate) -> bytes:
    return gate.fetch(ROSTER_PATH, MAX_ROSTER_BYTES)


def shown_roster(folder: Path) -> Roster | None:
    """The list of members that was shown last."""
    path = folder / ANNOUNCED_ROSTER
    return _read_roster(path.read_bytes()) if path.exists() else None


def _read_roster(content: bytes) -> Roster:
    try:
        return Roster.model_validate_json(content)
    except ValidationError:
        raise FormatError(
            "the list of members is damaged, or of another version; look at it again"
            " with: ridgeway client members"
        ) from None


def _take_authority(folder: Path, notice: Notice, now: datetime) -> list[str]:
    """Put the authority in place that the notice names, unless it is there or could vouch for
    nothing.
    """
    authority = notice.authority.encode()
    path = folder / AUTHORITY
    if path.exists() and path.read_bytes() == authority:
        return []
    try:
        end = x509.load_pem_x509_certificate(authority).not_valid_after_utc
    except ValueError:
        raise FormatError(
            "the notice names an authority that is not a certificate; tell the operator"
        ) from None
    if end <= now:
        raise FormatError(
            f"the notice names an authority that ended on {end:%Y-%m-%d}; tell the"
            " operator"
        )
    Journal(folder / "journal.db").append(
        ("authority", {"sha256": sha256(authority), "ends": end.isoformat()})
    )
    write_whole(path, authority)
    return [
        f"the coordinator has renewed its authority, to {end:%Y-%m-%d}; its pinned key"
        " has signed this"
    ]


class NoticeWatch:
    """Fetches the notice now and then, in a thread of its own, and has the news when it is
    asked.

    waiting: sentences about what waits for the holder's owner by then.
    """

    def __init__(
        self, gate: Gate, key: str, waiting: Callable[[], Iterable[str]]
    ) -> None:
        self._gate = gate
        self._key = key
        self._waiting = waiting
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._said: set[str] = set()

    def __enter__(self) -> Callable[[], Iterator[str]]:
        threading.Thread(target=self._run, daemon=True).start()
        return self.news

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def news(self) -> Iterator[str]:
        with suppress(queue.Empty):
            while True:
                yield self._news.get_nowait()

    def _run(self) -> None:
        while True:
            for words in self.look():
                self._news.put(words)
            if self._ended.wait(FETCH_INTERVAL_S):
                return

    def look(self) -> list[str]:
        """Fetch once, and tell what was not told before; that nobody answers is told by the
        SuperNode already.
        """
        folder = self._gate.folder
        news = []
        with suppress(NodeError):
            content = self._gate.fetch(NOTICE_PATH, MAX_NOTICE_BYTES)
            try:
                news = take_notice(folder, content, self._key, datetime.now(UTC))
            except (RidgewayError, OSError) as error:
                news = [f"a notice of the coordinator was not taken: {error}"]
        with suppress(RidgewayError, OSError):
            news += self._waiting()
        new = [words for words in news if words not in self._said]
        self._said.update(new)
        return new


# What a joined holder answers and refuses, and what stands in its way, told to its owner as it
# happens.
#
# Every answer is given by a process of its own, which writes to the journal, and every bundle is
# judged by one that knows no journal and writes to a log: both are read here, and refused bundles
# are added to the journal.


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
