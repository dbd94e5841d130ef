"""A deployment over a year, and the same played in one process: every command is the real one, and
the gate speaks TLS, but no Flower carries the messages of rounds.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from ridgeway.client.deploy.holder_folder import has_left
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.spending import SPENT
from ridgeway.common.base.errors import FormatError
from ridgeway.common.deploy.processes import Log
from ridgeway.common.protocol.cohort import (
    ANNOUNCED_ROSTER,
    BUNDLE_PATH,
    LEAVE_PATH,
    NOTICE,
    NOTICE_PATH,
    ROSTER_PATH,
)
from ridgeway.coordinator.deploy import supervisor
from ridgeway.coordinator.deploy.coordinator_folder import keep_installed
from ridgeway.coordinator.deploy.fleet_proxy import keep_leaving
from ridgeway.coordinator.round.ask import RunOrder
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.progress import OperatorNote, Watch
from ridgeway.coordinator.round.round import check_round, run_round
from tests.support.commands import Finished
from tests.support.deployment import Deployment
from tests.support.quiet_server import Quiet, serving, tls_of
from tests.support.simulated_federation import Direct, Parties


class Year(Deployment):
    """A federation of real processes."""

    first_key = ""

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.owner(name, "status"))

    def epochs(self, name: str) -> int:
        """Of how many epochs sums have left, or were charged for, by the holder's own journal."""
        entries = self._entries(name, SPENT)
        return len(
            {
                entry.facts["epoch"]
                for entry in entries
                if entry.facts["output"] == "statistics"
            }
        )

    def spent(self, name: str) -> float:
        return float(self.status(name)["privacy"]["spent"])

    def backup(self, side: str, folder: Path) -> Path:
        target = self.folder / "backups" / f"{folder.name}-{side}.backup"
        target.parent.mkdir(exist_ok=True)
        self.do(side, "backup", folder, target)
        return target

    def play(self, *options: str) -> Finished:
        """A round, to its end."""
        return self.round(*options).end()

    def stops_by_itself(self, name: str) -> bool:
        """Whether a holder's SuperNode ends well, and the coordinator comes to know why."""
        ended = self.running[name].end().code
        self.wait_for("the coordinator knows", lambda: bool(self.ledger("left")))
        return ended == 0

    def lose(self, name: str, folder: Path) -> None:
        """A disk is lost, with all that ran there."""
        self.kill(name)
        shutil.rmtree(folder)

    def all_online(self) -> bool:
        status = self.run("coordinator status --json", self.coordinator).json
        return all(member["online"] for member in status["members"])


class OpenGate(Quiet):
    """What the gate hands out and takes. link: the coordinator's."""

    link: ClassVar[Path]

    def do_GET(self) -> None:  # noqa: N802
        names = {NOTICE_PATH: NOTICE, ROSTER_PATH: ANNOUNCED_ROSTER}
        path = self.link / names.get(
            self.path, f"bundles/{self.path.removeprefix(BUNDLE_PATH)}.fab"
        )
        self.reply(path.read_bytes()) if path.exists() else self.reply(status=404)

    def do_POST(self) -> None:  # noqa: N802
        content = self.rfile.read(int(self.headers["content-length"]))
        try:
            assert self.path == LEAVE_PATH
            keep_leaving(self.link, content)
            self.reply()
        except FormatError:
            self.reply(status=400)


class NoSuperLink:
    """Takes the place of a SuperLink's client, which has nobody to let in or shut out."""

    def nodes(self) -> list[Any]:
        return []

    def register(self, line: str, name: str) -> None: ...

    def note_nodes(self) -> None: ...


class PlayedYear(Year):
    """The same in one process."""

    def __enter__(self) -> Self:
        self._open = ExitStack()
        self._joined: set[str] = set()
        patch = self._open.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("ridgeway.coordinator.cli.round_commands.run_work", self._work)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def up(self) -> Any:
        federation = Federation(self.coordinator)
        keep_installed(federation)
        supervisor.announce(federation)
        OpenGate.link = self.coordinator / "link"
        self._gate = self._open.enter_context(ExitStack())
        port = int(self.address.rpartition(":")[2])
        self._gate.enter_context(serving(OpenGate, tls_of(OpenGate.link), port))

    def join(self, *names: str) -> None:
        assert not any(has_left(Holder(self.holder(name)).journal) for name in names)
        self._joined |= set(names)

    def leave(self, name: str) -> None:
        self._joined.discard(name)

    def play(self, *options: str) -> Finished:
        return self.run("coordinator round --json", self.coordinator, *options)

    def stops_by_itself(self, name: str) -> bool:
        self._joined.discard(name)
        supervisor.take_leaves(Federation(self.coordinator), NoSuperLink(), print)  # type: ignore[arg-type]
        return has_left(Holder(self.holder(name)).journal)

    def lose(self, name: str, folder: Path) -> None:
        if name == "up":
            self._gate.close()
        self._joined.discard(name)
        shutil.rmtree(folder)

    def all_online(self) -> bool:
        return True

    def _work(self, federation: Federation, order: RunOrder, watch: Watch) -> None:
        log: Log = lambda words: watch(OperatorNote(words))  # noqa: E731
        supervisor.take_leaves(federation, NoSuperLink(), log)  # type: ignore[arg-type]
        homes = {name: self.holder(name) for name in sorted(self._joined)}
        transport = Direct(Parties(self.folder, self.encoder, homes))
        work = check_round if order.work == "dry_run" else run_round
        work(federation, transport, watch, order)
