"""What `coordinator up` tells of holders' connections: joins, leaves, and a second log-in with a
holder's key.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.errors import LinkDown
from ridgeway.coordinator.deploy import superlink
from ridgeway.coordinator.deploy.fleet_proxy import SECOND_LOG_IN, key_name
from ridgeway.coordinator.deploy.superlink import Node, PresenceLog, pem_key
from tests.support.simulated_federation import Parties, found, populate

NAMES = ("code", "law")


class Link:
    """A SuperLink with some holders connected; None: it does not answer."""

    online: set[str] | None = None

    def nodes(self) -> list[Node]:
        if self.online is None:
            raise LinkDown("away")
        return [
            Node(number, name in self.online, "", name)
            for number, name in enumerate(NAMES)
        ]


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    monkeypatch.setattr(superlink, "PRESENCE_INTERVAL_S", 0.0)
    made = populate(found(tmp_path), dict(zip(NAMES, NAMES, strict=True)))
    (made.federation.link / "logs").mkdir(parents=True)
    return made


def test_joins_and_leaves_are_told_once_and_a_superlink_that_starts_again_says_nothing(
    parties: Parties,
) -> None:
    logged: list[str] = []
    log, link = PresenceLog(parties.federation, logged.append), Link()
    client: Any = link
    for online in (None, {"law"}, {"law"}, None, {"law", "code"}, {"code"}):
        link.online = online
        log.tick(client)
    assert logged == ["law has joined", "code has joined", "law has left"]


def test_a_second_log_in_is_told_with_the_holder_and_the_address(
    parties: Parties,
) -> None:
    """Once an address, and only of a holder that is connected."""
    gate = parties.federation.link / "logs" / "gate.log"
    keys = {
        name: key_name(base64.b64encode(pem_key(holder.node)))
        for name, holder in parties.standing.roster.items()
    }
    gate.write_text(
        "a line from before\n" + SECOND_LOG_IN % (keys["law"], "10.0.0.1") + "\n"
    )
    logged: list[str] = []
    log, link = PresenceLog(parties.federation, logged.append), Link()
    client: Any = link
    link.online = {"law"}
    log.tick(client)
    lines = [
        (keys["law"], "10.0.0.9"),
        (keys["law"], "10.0.0.9"),
        (keys["code"], "10.0.0.9"),
        ("0" * 16, "10.0.0.8"),
    ]
    with gate.open("a") as file:
        file.writelines(
            f"2026-01-01T00:00:00Z {SECOND_LOG_IN % line}\n" for line in lines
        )
    log.tick(client)
    log.tick(client)
    assert logged[0] == "law has joined"
    assert [words.partition(",")[0] for words in logged[1:]] == [
        "a client at 10.0.0.9 tried to log in with the key of law"
    ]
