"""What `join` tells its owner: every answer, every refusal with the whole reason, and bundles that
were refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeway.client.deploy import notices
from ridgeway.client.deploy.notices import JoinReport
from ridgeway.client.evidence import HolderRecord
from ridgeway.client.round.answers import answer
from ridgeway.client.round.holder import Holder
from ridgeway.common.deploy.approved_bundle import note_in
from ridgeway.common.protocol.messages import Announce, Hello, Message
from ridgeway.common.protocol.packet import seal_packet
from tests.support.simulated_federation import Parties, found

Lines = list[tuple[str, ...]]


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    monkeypatch.setattr(notices, "_LOOK_INTERVAL_S", 0.0)
    return found(tmp_path).with_law(modes=("clear", "masked"))


@pytest.fixture
def holder(parties: Parties) -> Iterator[Holder]:
    with parties.law.journal:
        yield parties.law


def ask(parties: Parties, message: Message, number: int = 0) -> None:
    """As a process of its own would answer."""
    answer(
        parties.law,
        seal_packet(
            message, parties.federation.identity, round="cd" * 16, number=number
        ),
    )


def test_answers_and_refusals_are_told_once_from_now_on(
    parties: Parties, holder: Holder
) -> None:
    """What happened before it joined is in the journal."""
    ask(parties, Hello())
    lines: Lines = []
    report = JoinReport(holder, lambda *words: lines.append(words))
    ask(parties, Hello())
    ask(parties, Announce(terms=parties.terms), number=3)
    ask(parties, Announce(terms=parties.federation.terms_in("masked")), number=4)
    report.tick()
    report.tick()
    assert [words[:2] for words in lines] == [
        ("answered", "here"),
        ("answered", "offer"),
        ("refused", "roster_not_pinned"),
    ]
    assert lines[1][2] == "round 3"
    assert lines[2][2] == "round 4" and "ridgeway client members" in lines[2][3]


def test_the_owner_is_told_why_an_epoch_cannot_be_read(
    parties: Parties, holder: Holder
) -> None:
    """The file, and what to do, which the coordinator is not told."""
    lines: Lines = []
    report = JoinReport(holder, lambda *words: lines.append(words))
    [path] = holder.folder.glob("epochs/*/epoch.json")
    path.write_text("{broken")
    ask(parties, Announce(terms=parties.terms), number=5)
    report.tick()
    [(verb, code, number, reason)] = lines
    assert (verb, code, number) == ("refused", "failed", "round 5")
    assert f"{path} is missing or damaged; open a new epoch" in reason


def test_a_refused_bundle_is_noted_once_however_often_one_joins(holder: Holder) -> None:
    """Also one that was refused while nobody looked; approved ones are not worth a word."""
    note = note_in(str(holder.folder / "logs" / "bundles.log"))
    (holder.folder / "logs").mkdir()
    note("run 7: refused, this machine has not approved the bundle abc")
    lines: Lines = []
    for _ in range(2):
        report = JoinReport(holder, lambda *words: lines.append(words))
        report.tick()
        note("run 7: approved bundle def")
        report.tick()
    assert [words[:3] for words in lines] == [
        ("refused", "bundle", "this machine has not approved the bundle abc")
    ]
    [item] = HolderRecord(holder.folder).sent()
    assert (item.kind, item.bytes, item.reason) == ("refused_bundle", 0, lines[0][2])


def test_code_that_fails_and_a_disk_that_fills_up_are_told(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk once until there is room again."""
    lines: Lines = []
    report = JoinReport(holder, lambda *words: lines.append(words))
    (holder.folder / "logs").mkdir()
    note_in(str(holder.folder / "logs" / "bundles.log"))(
        "the approved code failed\nTraceback (most recent call last):"
    )
    report.tick()
    for limit in (1 << 62, 1 << 62, 0, 1 << 62):
        monkeypatch.setattr(notices, "LOW_DISK_BYTES", limit)
        report.tick()
    assert [words[0] for words in lines] == ["failed", "warning", "warning"]
    assert lines[0][1] == "the approved code failed"
    assert "make room" in lines[1][1]
