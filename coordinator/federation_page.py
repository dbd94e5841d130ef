"""A coordinator's folder as its page and its metrics show it, read anew whenever somebody looks.
Writes nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ridgeway.common.base.errors import (
    CertificateError,
    InputError,
    JournalError,
    LinkError,
    RidgewayError,
)
from ridgeway.common.base.files import stamp_if_there, without_folder
from ridgeway.common.base.journal import Clock, system_clock
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.web.request_context import RequestMetrics
from ridgeway.common.web.site import PageParts
from ridgeway.coordinator.deploy.authority import (
    certificate_ends,
    check_certificates,
    ending_certificates,
)
from ridgeway.coordinator.deploy.coordinator_folder import chosen_bundle, kept_bundles
from ridgeway.coordinator.deploy.superlink import SuperLinkClient
from ridgeway.coordinator.history import (
    OLDER_COPY,
    ROUND_KINDS,
    LastRound,
    Outcome,
    ReleaseHistory,
    RoundHistory,
    RoundRecord,
    round_progress,
)
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.ledger import Standing
from ridgeway.coordinator.round.masked_round import too_few_on_roster
from ridgeway.coordinator.round.progress import OTHER_RELEASE, REMEDIES

# What stands in the way of the next round, as far as it can be told without asking anybody, and
# what to do about it. Only a round itself finds out all.


ADMIT = "admit more holders with `ridgeway coordinator admit`"


@dataclass(frozen=True, slots=True)
class RoundProblem:
    """stops: whether the next round would fail for it. names: the holders or domains that it is
    about.
    """

    stops: bool
    words: str
    remedy: str = ""
    names: tuple[str, ...] = ()


Problems = Iterator[RoundProblem]


def problems(
    federation: Federation,
    online: Collection[str] | None,
    last: LastRound | None,
    now: datetime,
) -> list[RoundProblem]:
    """All of them, those that stop a round first.

    online: the holders that are there, or None if the coordinator is down. last: the newest round
            and how it ended.
    """
    all_problems = [
        *_of_presence(federation, online),
        *_of_roster(federation),
        *(_of_round(federation, *last) if last else ()),
        *_of_releases(federation),
        *_of_bundle(federation),
        *_of_certificates(federation, now),
    ]
    return sorted(all_problems, key=lambda problem: not problem.stops)


def _of_roster(federation: Federation) -> Problems:
    active = federation.standing.active
    newest = federation.newest
    if lacking := too_few_on_roster(federation):
        settings = federation.settings
        stops = settings.uses_masks or len(active) < settings.round.min_holders
        yield RoundProblem(stops, lacking, ADMIT)
    if newest is not None and federation.settings.uses_masks:
        new = set(active) - {member.name for member in newest.members}
        if new:
            words = (
                "holders are new since the newest release; the others must confirm"
                " them before a round under masks"
            )
            remedy = "each holder runs `ridgeway client members`"
            yield RoundProblem(False, words, remedy, tuple(sorted(new)))


def _of_presence(federation: Federation, online: Collection[str] | None) -> Problems:
    if online is None:
        remedy = "run `ridgeway coordinator up` and keep it running"
        yield RoundProblem(True, "the coordinator is down", remedy)
        return
    standing = federation.standing
    active = standing.active
    newest = federation.newest
    away = set(active) - set(online)
    if away:
        remedy = "check that `ridgeway client join` is running there"
        yield RoundProblem(False, "holders are offline", remedy, tuple(sorted(away)))
    if newest is None:
        return
    there = {holder.domain for name, holder in active.items() if name in online}
    domain_of = standing.kept_domains
    gone = {domain_of[name] for name in away | standing.left} & set(newest.domains)
    lost = gone - there - set(federation.settings.round.may_lapse)
    if lost:
        words = (
            f"every holder of a domain of release {newest.number:04} is offline or has"
            " left"
        )
        remedy = (
            "wait for one of them, or drop the domain with `ridgeway coordinator"
            " round --allow-missing DOMAIN`"
        )
        yield RoundProblem(True, words, remedy, tuple(sorted(lost)))


def _of_round(
    federation: Federation, record: RoundRecord, outcome: Outcome
) -> Problems:
    if outcome == "running":
        return
    if outcome == "failed":
        yield RoundProblem(False, f"round {record.number} failed: {record.reason}")
    if outcome == "cut off":
        words = (
            f"round {record.number} was interrupted: its process ended. Accepted data"
            " is kept"
        )
        yield RoundProblem(False, words, "run `ridgeway coordinator round` again")
    active = federation.standing.active
    latest = {refusal.name: refusal for refusal in record.refusals}
    alike: dict[tuple[str, str], list[str]] = {}
    for name, refusal in latest.items():
        if name in active:
            alike.setdefault((refusal.code, refusal.reason), []).append(name)
    for (code, reason), names in sorted(alike.items()):
        words = f"refused in round {record.number} ({code}): {reason}"
        yield _with_remedy(code, words, names)


def _with_remedy(code: str, words: str, names: list[str]) -> RoundProblem:
    return RoundProblem(False, words, REMEDIES.get(code, ""), tuple(sorted(names)))


def _of_releases(federation: Federation) -> Problems:
    standing = federation.standing
    ahead = standing.ahead
    newest = federation.newest
    if standing.rolled_back is not None:
        words = f"the router was rolled back to release {standing.rolled_back:04}"
        remedy = "end the rollback with `ridgeway coordinator round --end-rollback`"
        yield RoundProblem(True, words, remedy)
    if ahead and newest:
        words = OLDER_COPY.format(number=newest.number)
        yield _with_remedy(OTHER_RELEASE, words, list(ahead))


def _of_bundle(federation: Federation) -> Problems:
    kept = kept_bundles(federation.link)
    try:
        chosen = chosen_bundle(federation)
    except InputError as error:
        yield RoundProblem(True, str(error))
        return
    if kept and chosen != kept[0].sha256:
        words = (
            f"rounds run the bundle {chosen[:12]}, which coordinator.toml names, and"
            f" not the newest, {kept[0].sha256[:12]}"
        )
        yield RoundProblem(False, words)


def _of_certificates(federation: Federation, now: datetime) -> Problems:
    if not federation.link.exists():
        return
    try:
        check_certificates(federation.link, federation.settings.address, now)
    except CertificateError as error:
        yield RoundProblem(True, str(error))
        return
    for words in ending_certificates(federation.link, now):
        yield RoundProblem(False, words)


BUDGET_SPENT = "budget_spent"
ONLINE_KEPT_S = 3.0
"""Who is online is asked of the SuperLink at most so often."""
MAX_ENTRIES = 100
_MAX_ROUNDS = 50

Facts = dict[str, Any]
Online = frozenset[str] | None
"""The names of the holders that are connected; None if the coordinator is down."""


def connected(federation: Federation) -> Online:
    client = SuperLinkClient(federation.link)
    try:
        if client.is_up():
            return frozenset(node.name for node in client.nodes() if node.online)
    except LinkError:
        pass
    return None


def _seconds(time: str) -> float:
    """Since 1970."""
    return datetime.fromisoformat(time).timestamp()


class FederationView:
    """One look at a time: the ledger's connection is used by one thread."""

    def __init__(
        self,
        federation: Federation,
        online: Callable[[], Online] | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self._federation = federation
        self.folder = federation.folder
        self._clock = clock
        self._ask_online = online or (lambda: connected(federation))
        self._online: Online = None
        self._asked_online = -math.inf
        self._rounds = RoundHistory()
        self._read = 0
        self._stamps: list[Any] = []
        self._valid = False
        self._releases = ReleaseHistory(federation.folder / "releases")
        self._lock = threading.Lock()

    def standing(self) -> Facts:
        """What the page shows at a glance: the coordinator, its members, what is in the way, the
        round, the ledger.
        """
        with self._lock:
            federation = self._federation
            standing = self._standing()
            online = self._who_is_online()
            now = self._clock()
            last = self._last_round()
            live = round_progress(federation.folder, last[0].number) if last else None
            newest = federation.newest
            return {
                "now": now.isoformat(timespec="seconds"),
                "key": federation.identity.public,
                "up": online is not None,
                "listen": federation.settings.listen,
                "mode": federation.settings.mode,
                "sentence": MODE_SENTENCES[federation.settings.mode],
                "privacy": (
                    federation.settings.privacy.model_dump(mode="json")
                    if federation.settings.mode == "private"
                    else None
                ),
                "certificates": self._certificates(),
                "release": newest.number if newest else None,
                "entries": self._read,
                "members": [
                    self._member(standing, name, online, last, live)
                    for name in sorted(standing.roster)
                ],
                "obstacles": [
                    asdict(problem) | {"words": self.plain(problem.words)}
                    for problem in problems(federation, online, last, now)
                ],
                "round": (
                    last[0].to_json(last[1]) | {"progress": live} if last else None
                ),
            }

    def rounds(self) -> list[Facts]:
        """The latest rounds, the newest first."""
        with self._lock:
            self._standing()
            outcomes = self._rounds.outcomes(self._is_running())
            rows = [*map(RoundRecord.to_json, self._rounds.rounds, outcomes)]
            return rows[: -_MAX_ROUNDS - 1 : -1]

    def releases(self) -> list[Facts]:
        """Every release, the oldest first."""
        with self._lock:
            return [self._releases.summary(made) for made in self._standing().releases]

    def changes(self, before: int, after: int) -> Facts:
        """What changed between two releases; raises InputError if there is no such release."""
        with self._lock:
            known = {made.number: made for made in self._standing().releases}
            for number in (before, after):
                if number not in known:
                    raise InputError(
                        f"there is no release {number}; this federation has"
                        f" {len(known)}"
                    )
            return self._releases.changes(known[before], known[after])

    def entries(self, before: int | None = None) -> Facts:
        """Entries of the ledger, the newest first, below a number."""
        with self._lock:
            self._standing()
            end = self._read + 1 if before is None else before
            first = max(0, end - 1 - MAX_ENTRIES)
            entries = self._federation.ledger.journal.entries(after=first)
            rows = [asdict(entry) for entry in entries if entry.number < end]
            return {"entries": self._read, "rows": rows[::-1], "older": first > 0}

    def verification(self) -> Facts:
        """Whether the ledger's chain, the stored sums and the releases are as they were written."""
        with self._lock:
            try:
                counts = self._federation.ledger.verify()
                releases = self._standing().releases
                for made in releases:
                    if self._releases.manifest(made) is None:
                        raise InputError(
                            f"release {made.number:04} is missing or differs from the"
                            " ledger"
                        )
            except RidgewayError as error:
                return {"valid": False, "words": self.plain(error)}
            return {"valid": True, "words": "", **counts, "releases": len(releases)}

    def figures(self) -> Facts:
        """What the page's metrics say, by their names."""
        with self._lock:
            standing = self._standing()
            active = standing.active
            online = self._who_is_online()
            running = self._is_running()
            rounds = self._rounds.rounds
            outcomes = Counter(self._rounds.outcomes(running))
            del outcomes["running"]
            closed = [made.seconds for made in rounds if made.seconds is not None]
            newest = self._federation.newest
            last = self._last_round()
            return {
                "rounds": outcomes,
                "last_round_outcome": {last[1]: 1} if last else {},
                "last_round_timestamp_seconds": (
                    _seconds(last[0].ended or last[0].began) if last else None
                ),
                "release_timestamp_seconds": _seconds(newest.time) if newest else None,
                "rolled_back": standing.rolled_back is not None,
                # said in the last round: what is left is known to its owner alone
                "members_without_budget": len(
                    {
                        refusal.name
                        for refusal in (last[0].refusals if last else ())
                        if refusal.code == BUDGET_SPENT and refusal.name in active
                    }
                ),
                "ledger_valid": self._is_valid(),
                "round_running": running,
                "last_round_seconds": closed[-1] if closed else None,
                "members": len(active),
                "members_online": len(set(active) & (online or set())),
                "coordinator_up": online is not None,
                "release_number": newest.number if newest else 0,
                "certificate_days_left": {
                    name: end["days"] for name, end in self._certificates().items()
                },
                "ledger_entries": self._read,
                "round_refusals": Counter(
                    refusal.code for record in rounds for refusal in record.refusals
                ),
            }

    def plain(self, error: object) -> str:
        return without_folder(error, self.folder)

    def _standing(self) -> Standing:
        """The ledger as it is now; the rounds are brought up to date with it."""
        ledger = self._federation.ledger
        standing = ledger.standing()
        added = ledger.journal.entries(after=self._read)
        self._rounds.take_in(entry for entry in added if entry.kind in ROUND_KINDS)
        self._read = added[-1].number if added else self._read
        return standing

    def _last_round(self) -> LastRound | None:
        if not self._rounds.rounds:
            return None
        record = self._rounds.rounds[-1]
        return record, record.outcome(self._is_running())

    def _is_running(self) -> bool:
        rounds = self._rounds.rounds
        return bool(rounds) and rounds[-1].ended is None and self._federation.is_busy()

    def _is_valid(self) -> bool:
        """Whether the ledger is as it was written; looked at again when its file has changed."""
        journal = self._federation.ledger.journal
        log = journal.path.with_name(f"{journal.path.name}-wal")
        stamps = [stamp_if_there(journal.path), stamp_if_there(log)]
        if self._stamps != stamps:
            self._stamps = stamps
            self._valid = True
            try:
                journal.verify()
            except JournalError:
                self._valid = False
        return self._valid

    def _who_is_online(self) -> Online:
        now = time.monotonic()
        if now - self._asked_online > ONLINE_KEPT_S:
            self._asked_online = now
            self._online = self._ask_online()
        return self._online

    def _certificates(self) -> dict[str, Facts]:
        """When each ends, and the days until then."""
        link = self._federation.link
        ends = certificate_ends(link) if link.exists() else {}
        return {
            name: {
                "ends": end.isoformat(timespec="seconds"),
                "days": round((end - self._clock()).total_seconds() / 86400, 1),
            }
            for name, end in ends.items()
        }

    def _member(
        self,
        standing: Standing,
        name: str,
        online: Online,
        last: LastRound | None,
        live: Mapping[str, Any] | None,
    ) -> Facts:
        holder = standing.roster[name]
        newest = self._federation.newest
        held = standing.delivered.get(name)
        refusal: Facts | None = None
        for latest in last[0].refusals if last else ():
            if latest.name == name:
                refusal = asdict(latest) | {"remedy": REMEDIES.get(latest.code, "")}
        return {
            "name": name,
            "domain": holder.domain,
            "key": holder.key,
            "online": None if online is None else name in online,
            "retired": name in standing.retired,
            "left": name in standing.left,
            "in_newest": any(
                member.name == name for member in (newest.members if newest else ())
            ),
            "release": held.number if held else None,
            "behind": bool(newest and (held and held.release) != newest.release),
            "in_round": live["holders"].get(name, "") if live else "",
            "absent": last[0].absent.get(name, []) if last else [],
            "refusal": refusal,
        }


# The page of a federation: what it asks for.


# What Prometheus reads of a federation: by its page, or from a running coordinator.


GAUGES = {
    "last_round_seconds": "Duration of the last uninterrupted round.",
    "last_round_timestamp_seconds": "End of the last round, or its start if it has not ended.",
    "coordinator_up": "1 while the SuperLink answers.",
    "round_running": "1 while a round runs.",
    "members": "Holders that take part in rounds.",
    "members_online": "Members that are connected.",
    "members_without_budget": "Members that last reported a spent privacy budget.",
    "release_number": "Number of the newest release; 0: none.",
    "release_timestamp_seconds": "Time of the newest release.",
    "rolled_back": "1 during a rollback.",
    "ledger_entries": "Number of ledger entries.",
    "ledger_valid": "1 if the ledger is intact, 0 if it was altered.",
}
LABELLED = (
    (CounterMetricFamily, "rounds", "Rounds by outcome.", "outcome"),
    (CounterMetricFamily, "round_refusals", "Refusals in rounds, by code.", "code"),
    (
        GaugeMetricFamily,
        "last_round_outcome",
        "1 for the outcome of the last round.",
        "outcome",
    ),
    (
        GaugeMetricFamily,
        "certificate_days_left",
        "Days until a certificate expires.",
        "certificate",
    ),
)
"""How each figure of the view is called, and what it says; those with a label have many values."""
METRICS_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class FederationCollector(Collector):
    """Counts at the moment in which Prometheus asks; what was counted is the ledger's, so no
    restart loses it.
    """

    _view: FederationView

    def describe(self) -> list[Metric]:
        """Nothing is looked at when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            figures = self._view.figures()
        except JournalError:
            words = GAUGES["ledger_valid"]
            yield GaugeMetricFamily("ridgeway_ledger_valid", words, value=0.0)
            return
        for kind, name, words, label in LABELLED:
            family = kind(f"ridgeway_{name}", words, labels=[label])
            for label_value, value in sorted(figures[name].items()):
                family.add_metric([label_value], value)
            yield family
        for name, words in GAUGES.items():
            if figures[name] is not None:
                value = float(figures[name])
                yield GaugeMetricFamily(f"ridgeway_{name}", words, value=value)


def serve_metrics(view: FederationView, port: int) -> None:
    """Answer Prometheus on a port of loopback, from a thread of its own, until the process ends."""
    registry = CollectorRegistry()
    registry.register(FederationCollector(view))
    try:
        start_http_server(port, addr=METRICS_HOST, registry=registry)
    except OSError as error:
        raise InputError(
            f"cannot serve metrics on {METRICS_HOST} port {port} ({error.strerror}); choose"
            " another port"
        ) from None


def federation_page(view: FederationView) -> PageParts:
    metrics = RequestMetrics()
    metrics.registry.register(FederationCollector(view))
    looks: dict[str, Callable[..., Any]] = {
        "/standing": view.standing,
        "/rounds": view.rounds,
        "/releases": view.releases,
        "/releases/{before}/{after}": view.changes,
        "/ledger": view.entries,
        "/ledger/verification": view.verification,
    }
    return PageParts(__package__, view.folder, looks, metrics)
