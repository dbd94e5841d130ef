"""A running coordinator: its SuperLink kept up, its roster registered, rounds submitted and
followed.

Imports nothing of Flower.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from ridgeway.common.base.errors import (
    FormatError,
    LinkDown,
    LinkError,
    RidgewayError,
    RoundFailed,
)
from ridgeway.common.base.files import is_locked, sha256, write_whole
from ridgeway.common.base.records import record_json
from ridgeway.common.deploy.bundle import installed_sha256
from ridgeway.common.deploy.processes import Log
from ridgeway.common.protocol.cohort import (
    ANNOUNCED_ROSTER,
    AUTHORITY,
    INVITE,
    NOTICE,
    Invite,
    Leaving,
    Notice,
    Roster,
    RosterMember,
    in_order,
    read_signed_json,
    write_signed_json,
)
from ridgeway.coordinator.deploy.authority import (
    check_certificates,
    ending_certificates,
)
from ridgeway.coordinator.deploy.coordinator_folder import (
    bundle_content,
    chosen_bundle,
    keep_installed,
    kept_bundles,
)
from ridgeway.coordinator.deploy.fleet_proxy import LEAVING
from ridgeway.coordinator.deploy.superlink import PresenceLog, SuperLinkClient, run
from ridgeway.coordinator.round.ask import RunOrder, give_order
from ridgeway.coordinator.round.federation import PRIOR, Federation
from ridgeway.coordinator.round.progress import OperatorNote, OtherBundle, Watch, follow

_SILENCE_S = 5.0
"""After no event for this long, the SuperLink is asked whether the run has ended."""
DELIVERY_INTERVAL_S = 15.0
REDELIVERY_PAUSE_S = 60.0
MAX_DOUBLINGS = 6
"""Who does not take a release is asked again after one, two, four … minutes, and at last every
hour.
"""
LOST_TIMEOUT_S = 120.0
REMINDER_INTERVAL_S = 86_400.0


def up(
    federation: Federation,
    stopped: Callable[[], bool],
    started: Callable[[], None],
    log: Log,
) -> None:
    """Keep the SuperLink running; register the roster, and hand the newest release to holders that
    come back.
    """
    federation.ledger.journal.verify()
    check_certificates(federation.link, federation.settings.address, datetime.now(UTC))
    delivery = LateDelivery(federation, log)
    presence = PresenceLog(federation, log)
    remind_at = 0.0
    keep_installed(federation)
    announce(federation)

    def tick(client: SuperLinkClient) -> None:
        nonlocal remind_at
        delivery.tick(client)
        take_leaves(federation, client, log)
        presence.tick(client)
        if time.monotonic() >= remind_at:
            remind_at = time.monotonic() + REMINDER_INTERVAL_S
            for words in ending_certificates(federation.link, datetime.now(UTC)):
                log(words)

    def on_start(client: SuperLinkClient) -> None:
        register(federation, client, log)
        started()

    run(federation, stopped, on_start, tick, log)


def register(federation: Federation, client: SuperLinkClient, log: Log) -> None:
    """Let the SuperNodes of the roster in, and shut out those that are not on it."""
    standing = federation.standing
    roster = {
        holder.node: name
        for name, holder in standing.roster.items()
        if name not in standing.left
    }
    known = {node.public_line: node.node_id for node in client.nodes()}
    for line, name in roster.items():
        if line in known:
            continue
        try:
            client.register(line, name)
        except LinkDown:
            raise
        except LinkError as error:
            # one key that cannot be registered must not keep the others out
            log(f"cannot register {name}: {error}")
    for line, node_id in known.items():
        if line not in roster:
            client.unregister(node_id)
    client.note_nodes()


def take_leaves(federation: Federation, client: SuperLinkClient, log: Log) -> None:
    """Note who has signed that it leaves, let everybody know, and shut its SuperNode out."""
    for path in sorted((federation.link / LEAVING).glob("*.json")):
        with contextlib.suppress(FormatError, FileNotFoundError):
            name = federation.ledger.leave(read_signed_json(path, Leaving))
            if name is not None:
                announce(federation)
                register(federation, client, log)
                log(f"{name} has left the federation")
        path.unlink(missing_ok=True)


def run_work(federation: Federation, order: RunOrder, watch: Watch) -> None:
    """Submit a round, or a delivery, and follow it to its end. Raises RoundFailed if it does not
    end well.
    """
    client = SuperLinkClient(federation.link)
    if not client.is_up():
        raise LinkDown(
            "the coordinator is not running; run `ridgeway coordinator up"
            f" {federation.folder}` first"
        )

    def log(words: str) -> None:
        watch(OperatorNote(words))

    take_leaves(federation, client, log)
    register(federation, client, log)
    for words in ending_certificates(federation.link, datetime.now(UTC)):
        log(words)
    kept = kept_bundles(federation.link)
    newest = installed_sha256()
    if not kept or kept[0].sha256 != newest:
        raise LinkError(
            "the running coordinator was started from different Ridgeway code;"
            " restart `coordinator up`"
        )
    bundle = chosen_bundle(federation)
    invite = federation.folder / "invite" / INVITE
    # holders refuse other code than they were invited to run
    if invite.exists() and read_signed_json(invite, Invite).bundle != bundle:
        watch(OtherBundle(str(federation.folder)))
    if bundle != newest:
        log(f"running the bundle {bundle[:12]}, which coordinator.toml names")
    name, number = _submit(federation, client, order, bundle)
    try:
        _follow(federation.progress(name), client, number, watch)
    except KeyboardInterrupt:
        with contextlib.suppress(LinkError):
            client.stop_run(number)
        raise KeyboardInterrupt(
            "the round was stopped; accepted data is kept. Run the round again"
        ) from None


def _submit(
    federation: Federation, client: SuperLinkClient, order: RunOrder, bundle: str
) -> tuple[str, int]:
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    number = client.submit(bundle_content(federation.link, bundle))
    give_order(federation.link, number, order.model_copy(update={"name": name}))
    return name, number


def _follow(path: Path, client: SuperLinkClient, number: int, watch: Watch) -> None:
    answered = time.monotonic()

    def has_ended() -> bool:
        nonlocal answered
        try:
            ended = client.has_finished(number)
        except LinkError:  # down for the moment, it says nothing about the round
            silent = time.monotonic() - answered
            is_running = is_locked(client.folder / "lock")
            if is_running and silent <= LOST_TIMEOUT_S:
                return False
            raise RoundFailed(
                f"the SuperLink has not answered for {silent:.0f} s: check that"
                " `coordinator up` is running. Accepted data is kept. Run the round"
                " again"
            ) from None
        answered = time.monotonic()
        return ended

    follow(path, watch, has_ended, _SILENCE_S)


class LateDelivery:
    """Brings the newest release to holders that were away when it was made."""

    def __init__(self, federation: Federation, log: Log) -> None:
        self._federation = federation
        self._log = log
        self._look = self._again = 0.0
        self._asked: set[str] = set()
        self._tries = 0

    def tick(self, client: SuperLinkClient) -> None:
        """Called again and again while the SuperLink runs; mostly there is nothing to do."""
        if time.monotonic() < self._look:
            return
        self._look = time.monotonic() + DELIVERY_INTERVAL_S
        try:
            self._deliver(client)
        except (RidgewayError, OSError) as error:
            self._log(f"the newest release could not be delivered yet: {error}")

    def _deliver(self, client: SuperLinkClient) -> None:
        federation = self._federation
        now = time.monotonic()
        missing = self._missing()
        is_asked = missing == self._asked
        if not missing or (is_asked and now < self._again) or federation.is_busy():
            return
        online = {node.name for node in client.nodes() if node.online} & missing
        if not online:
            return
        self._log(f"delivering the newest release to {', '.join(sorted(online))}")
        self._tries = self._tries + 1 if is_asked else 0
        self._asked = missing
        bundle = chosen_bundle(Federation(federation.folder))
        _submit(federation, client, RunOrder(work="deliver"), bundle)
        self._again = now + REDELIVERY_PAUSE_S * 2 ** min(self._tries, MAX_DOUBLINGS)

    def _missing(self) -> set[str]:
        newest = self._federation.newest
        standing = self._federation.standing
        if newest is None:
            return set()
        held = {name: given.number for name, given in standing.delivered.items()}
        return {name for name in standing.active if held.get(name, 0) < newest.number}


def announce(federation: Federation) -> None:
    """Let the gate tell holders what holds now, if it does not already."""
    path = federation.link / NOTICE
    notice = Notice(
        coordinator=federation.identity.public,
        issued=time.time_ns() // 1_000_000,
        authority=(federation.link / AUTHORITY).read_text(encoding="ascii"),
        bundles=kept_bundles(federation.link),
        roster=_write_roster(federation),
        handovers=federation.identity.handovers,
    )
    with contextlib.suppress(FormatError):
        before = read_signed_json(path, Notice)
        if before.model_copy(update={"issued": notice.issued}) == notice:
            return
        issued = max(notice.issued, before.issued + 1)
        notice = notice.model_copy(update={"issued": issued})
    write_signed_json(notice, federation.identity, path)


def _write_roster(federation: Federation) -> str:
    """Write the list of members that the notice names; returns its hash."""
    standing = federation.standing
    members = in_order(
        RosterMember(name=holder.name, domain=holder.domain, key=holder.key)
        for holder in standing.active.values()
    )
    roster = Roster(members=members, handovers=standing.holder_handovers)
    content = record_json(roster.model_dump(mode="json"))
    write_whole(federation.link / ANNOUNCED_ROSTER, content)
    return sha256(content)


def write_invite(federation: Federation) -> Invite:
    """Write the folder to hand to holders: the invitation, the authority's certificate, the notice
    and the roster.
    """
    check_certificates(federation.link, federation.settings.address, datetime.now(UTC))
    announce(federation)
    invite = Invite(
        coordinator=federation.identity.public,
        address=federation.settings.address,
        terms=federation.terms,
        bundle=chosen_bundle(federation),
        authority=sha256((federation.link / AUTHORITY).read_bytes()),
        handovers=federation.identity.handovers,
    )
    folder = federation.folder / "invite"
    folder.mkdir(exist_ok=True)
    for name in (AUTHORITY, NOTICE, ANNOUNCED_ROSTER):
        write_whole(folder / name, (federation.link / name).read_bytes())
    if invite.terms.privacy:
        write_whole(folder / PRIOR, (federation.folder / PRIOR).read_bytes())
    write_signed_json(invite, federation.identity, folder / INVITE)
    return invite
