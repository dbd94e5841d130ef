"""Who joins and leaves a running coordinator, and who logs in with the key of a holder that is
connected already: told in words as it happens.
"""

from __future__ import annotations

import base64
import re
import time
from pathlib import Path

from ridgeway.common.base.errors import LinkError
from ridgeway.common.deploy.processes import Log
from ridgeway.coordinator.deploy.fleet_proxy import SECOND_LOG_IN, key_name
from ridgeway.coordinator.deploy.superlink import SuperLinkClient, pem_key
from ridgeway.coordinator.round.federation import Federation

PRESENCE_INTERVAL_S = 5.0
_SECOND = re.compile(SECOND_LOG_IN.replace("%s", r"(\S+)"))


class PresenceLog:
    """Law: each join and each leaving is logged once, and a second log-in once an address while the
    holder is connected.
    """

    def __init__(self, federation: Federation, log: Log) -> None:
        self._federation = federation
        self._log = log
        self._look = 0.0
        self._online: set[str] = set()
        self._reported: set[tuple[str, str]] = set()
        self._gate = federation.link / "logs" / "gate.log"
        self._position = _size(self._gate)

    def tick(self, client: SuperLinkClient) -> None:
        """Called again and again while the SuperLink runs."""
        if time.monotonic() < self._look:
            return
        self._look = time.monotonic() + PRESENCE_INTERVAL_S
        try:
            online = {node.name for node in client.nodes() if node.online}
        except LinkError:  # it is started again just now
            return
        for name in sorted(online - self._online):
            self._log(f"{name} has joined")
        for name in sorted(self._online - online):
            self._log(f"{name} has left")
        self._online = online
        self._reported = {
            (name, address) for name, address in self._reported if name in online
        }
        self._tell_log_ins()

    def _tell_log_ins(self) -> None:
        holders = self._federation.standing.roster.values()
        names = {
            # as the key stands in the head of a SuperNode's requests
            key_name(base64.b64encode(pem_key(holder.node))): holder.name
            for holder in holders
        }
        for key, address in _SECOND.findall(self._new_lines()):
            name = names.get(key)
            if name not in self._online or (name, address) in self._reported:
                continue
            self._reported.add((name, address))
            self._log(
                f"a client at {address} tried to log in with the key of {name}, which"
                " is connected, so the key was copied: its owner must run `ridgeway"
                " client renew DIR`"
            )

    def _new_lines(self) -> str:
        size = _size(self._gate)
        if size < self._position:  # it was put aside
            self._position = 0
        if size == self._position:
            return ""
        with self._gate.open("rb") as file:
            file.seek(self._position)
            whole, end, _ = file.read(1 << 20).rpartition(b"\n")
        self._position += len(whole + end)
        return whole.decode(errors="replace")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
