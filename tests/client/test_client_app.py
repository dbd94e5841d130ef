"""The Flower edge of a holder: whatever goes wrong in it, Flower is handed nothing private to
send.
"""

from __future__ import annotations

import sqlite3
import warnings
from pathlib import Path

import pytest

from ridgeway.common.base.journal import Journal
from ridgeway.common.protocol.messages import DISK_FULL, Hello, Here
from ridgeway.common.protocol.packet import open_packet, seal_packet
from tests.support.flower_parts import (
    MESSAGE_TYPE,
    ConfigRecord,
    FlowerMessage,
    LocalGrid,
    RecordDict,
    from_record,
    to_record,
)
from tests.support.simulated_federation import Parties, found


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return found(tmp_path / "private-place").with_law(12)


def sent(parties: Parties, record: RecordDict) -> FlowerMessage:
    """What comes back over Flower when a record is sent to the holder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # typer's, of click
        from ridgeway.client.client_app import app
    grid = LocalGrid(app, {5: parties.homes["law"]})
    [reply] = grid.send_and_receive([FlowerMessage(record, 5, MESSAGE_TYPE)])
    return reply


def greeting(parties: Parties) -> RecordDict:
    return to_record(seal_packet(Hello(), parties.federation.identity, round="ab" * 16))


def test_a_packet_is_answered_over_flower(parties: Parties) -> None:
    """Decode, ask the holder, encode."""
    reply = sent(parties, greeting(parties))
    assert open_packet(from_record(reply.content)).message == Here()


@pytest.mark.parametrize(
    "trouble", ["no settings", "no key", "broken journal", "not a packet"]
)
def test_trouble_that_cannot_be_answered_is_an_error_without_a_story(
    parties: Parties, trouble: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The coordinator is told that there was none; the story is printed here."""
    record = greeting(parties)
    home = parties.homes["law"]
    if trouble == "no settings":
        (home / "client.toml").unlink()
    elif trouble == "no key":
        (home / "identity.key").write_text("secret")
    elif trouble == "broken journal":
        (home / "journal.db").write_bytes(b"secret" * 1000)
    else:
        record = RecordDict({"other": ConfigRecord({"a": 1})})
    reply = sent(parties, record)
    assert reply.has_error()
    assert reply.error.reason == "this holder could not answer"
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_is_told_by_its_code(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal finds no room, so nothing leaves but that the disk is full."""
    record = greeting(parties)

    def full(journal: Journal, *events: object) -> None:
        with journal._connected():
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Journal, "append", full)
    reply = sent(parties, record)
    assert (reply.error.code, reply.error.reason) == (
        DISK_FULL,
        "this holder's disk is full",
    )
