"""A holder's evidence: what left is listed as it left, and any disagreement of the records is
found.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ridgeway.client.evidence import HolderRecord, SentItem
from ridgeway.client.round.answers import answer
from ridgeway.client.round.epochs import OPENED, SIGNED
from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.journal import Journal
from ridgeway.common.protocol.messages import Hello
from ridgeway.common.protocol.packet import seal_packet
from tests.support.commands import Workshop
from tests.support.simulated_federation import (
    ONE_EACH,
    Direct,
    Parties,
    found,
    found_private,
    populate,
    round_of,
)

pytestmark = pytest.mark.usefixtures("private_sentences")

NOBODY = 65534
SECRETS = ("identity.key", "node.key", "session", "session.lock", "epochs", "cache")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Parties, Direct]:
    """A masked round of three, after one that the operator broke off and one request by a
    stranger.
    """
    parties = found(tmp_path_factory.mktemp("played"), mode="masked")
    populate(parties, ONE_EACH)
    with pytest.raises(RoundFailed):
        round_of(parties, Direct(parties, ["law"]))
    transport = Direct(parties)
    round_of(parties, transport)
    stranger = parties.holder("code").identity
    answer(parties.law, seal_packet(Hello(), stranger, round="ab" * 16, number=7))
    return parties, transport


@pytest.fixture
def copy(played: tuple[Parties, Direct], tmp_path: Path) -> Path:
    """What a holder may hand over: its folder without anything secret."""
    home = played[0].homes["law"]
    shutil.copytree(home, tmp_path / "copy", ignore=shutil.ignore_patterns(*SECRETS))
    return tmp_path / "copy"


def sent(copy: Path, kind: str) -> list[SentItem]:
    return [item for item in HolderRecord(copy).sent() if item.kind == kind]


def test_what_is_listed_is_what_the_coordinator_received(
    played: tuple[Parties, Direct], copy: Path
) -> None:
    """Hash by hash and byte by byte, in its order, with the round's number in the operator's own
    ledger.
    """
    replies = [reply for name, reply in played[1].replies if name == "law"]
    listed = [item for item in HolderRecord(copy).sent() if item.number == 2]
    assert [item.sha256 for item in listed] == [reply.digest for reply in replies]
    assert [item.bytes for item in listed] == [
        len(reply.header) + sum(map(len, map(bytes, reply.blobs))) for reply in replies
    ]
    opened = [
        entry.facts for entry in played[0].federation.ledger.journal.entries("opened")
    ]
    assert {(item["number"], item["round"]) for item in opened} >= {
        (item.number, item.round) for item in listed
    }


def test_sums_are_listed_with_their_members_and_whether_they_were_opened(
    played: tuple[Parties, Direct], copy: Path
) -> None:
    """Of a round that ended well; what holds nothing of the corpus has neither."""
    keys = {played[0].holder(name).key for name in ONE_EACH}
    sums = sent(copy, "sealed_sums")
    assert [(item.lot, item.opened) for item in sums] == [
        ("statistics", "yes"),
        ("counts", "yes"),
    ]
    assert all(set(item.members) == keys for item in sums)
    assert [(item.members, item.opened) for item in sent(copy, "offer")] == [
        ((), "")
    ] * 2


def test_a_refusal_is_listed_with_its_code(copy: Path) -> None:
    """A request of a stranger tells nothing about the round that it claims to be of."""
    [refused] = sent(copy, "refusal")
    assert (refused.code, refused.number, refused.opened) == (
        "unknown_coordinator",
        0,
        "",
    )


@pytest.mark.parametrize(
    ("kinds", "state"), [(("opened",), "perhaps"), (("opened", "signed"), "no")]
)
def test_a_sum_that_was_not_seen_opened_is_not_called_so(
    copy: Path, kinds: tuple[str, ...], state: str
) -> None:
    """Signed, it may have been; never signed, it was not, and its members are those of the
    cohort.
    """
    change(
        copy,
        f"delete from entries where kind in ({', '.join('?' * len(kinds))})",
        *kinds,
    )
    assert {(item.opened, len(item.members)) for item in sent(copy, "sealed_sums")} == {
        (state, len(ONE_EACH))
    }


def change(copy: Path, command: str, *values: Any) -> None:
    with closing(sqlite3.connect(copy / "journal.db")) as database, database:
        database.execute(command, values)


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_a_copy_without_secrets_verifies(copy: Path, shop: Workshop) -> None:
    """The journal, keys, what was signed, opened and paid for, and the release; the exit code says
    so.
    """
    results = shop.do("client verify", copy, "--json").json
    assert [check["checked"] for check in results] == [
        "journal",
        "keys",
        "sums",
        "spending",
        "release 0001",
    ]
    assert all(check["good"] for check in results)


@contextmanager
def as_nobody() -> Iterator[None]:
    """For root nothing is read-only."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("newest", ["in the file", "beside it"])
def test_a_copy_that_may_not_be_written_verifies_and_stays_as_it_is(
    played: tuple[Parties, Direct], newest: str
) -> None:
    """Also where entries still lie in the file beside the journal that SQLite writes first."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    copy, holder = folder / "copy", played[0].law
    holder.journal.append(("note", {}))
    shutil.copytree(
        holder.folder, copy, ignore=shutil.ignore_patterns(*SECRETS, "*-shm")
    )
    if newest == "in the file":
        with Journal(copy / "journal.db") as journal:
            journal.verify()
    assert (copy / "journal.db-wal").exists() == (newest == "beside it")
    for path in (*copy.rglob("*"), copy):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(copy.rglob("*"))
    try:
        with as_nobody():
            results, items = list(HolderRecord(copy).check()), HolderRecord(copy).sent()
        assert sorted(copy.rglob("*")) == before
        assert all(check.good for check in results)
        assert f"{len(holder.journal.entries()):,} entries" in results[0].words
        assert items == HolderRecord(holder.folder).sent()
    finally:
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(folder)


def unsigned_sum(copy: Path) -> None:
    """As if the holder had opened what it never signed."""
    change(copy, "delete from entries where kind = 'signed'")


def second_total(copy: Path) -> None:
    """As if the data of one epoch were in two totals."""
    journal = Journal(copy / "journal.db")
    facts = {**journal.entries(OPENED)[0].facts, "total": "f" * 64}
    journal.append((SIGNED, facts), (OPENED, facts))


def unpaid_output(copy: Path) -> None:
    change(copy, "delete from entries where kind = 'spent'")


def other_release(copy: Path) -> None:
    path = HolderRecord(copy).release_folder(1) / "router.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def altered_size(copy: Path) -> None:
    change(
        copy,
        (
            'update entries set facts = replace(facts, \'"bytes": \', \'"bytes": '
            "1') where kind = 'sent'"
        ),
    )


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (altered_size, "journal"),
        (unsigned_sum, "sums"),
        (second_total, "sums"),
        (unpaid_output, "spending"),
        (other_release, "release 0001"),
    ],
)
def test_any_disagreement_is_named_and_fails(
    copy: Path, shop: Workshop, damage: Callable[[Path], None], part: str
) -> None:
    """In one sentence, and with an exit code that a script sees."""
    damage(copy)
    done = shop.call("client verify", copy)
    assert done.code == 2 and f"wrong     {part}" in done.stdout
    assert done.stderr.startswith("ridgeway: ") and "Traceback" not in done.stderr


@pytest.mark.parametrize(("mode", "state"), [("private", "noisy"), ("clear", "clear")])
def test_what_is_not_masked_is_listed_as_what_it_is(
    tmp_path: Path, mode: str, state: str
) -> None:
    """Sums and counts: under noise, or in the clear; each with its mode and its epoch."""
    parties = found_private(tmp_path) if mode == "private" else found(tmp_path)
    populate(parties, ONE_EACH)
    round_of(parties)
    record = HolderRecord(parties.homes["law"])
    shown = [
        (item.kind, item.mode, item.opened) for item in record.sent() if item.opened
    ]
    assert shown == [
        (f"{'noisy' if mode == 'private' else 'clear'}_statistics", mode, state),
        ("counted", mode, state),
    ]
    [sums] = [item for item in record.sent() if item.kind.endswith("statistics")]
    assert sums.epoch == record.epochs()[-1].facts["epoch"]
    assert all(check.good for check in record.check())
    unpaid_output(record.folder)
    checks = HolderRecord(record.folder).check()
    assert [check.name for check in checks if not check.good] == ["journal", "spending"]


def test_table_json_and_csv_list_the_same(copy: Path, shop: Workshop) -> None:
    """One row for everything that left; the table shortens hashes and names members."""
    items = shop.do("client export", copy, "--json").json["sent"]
    sheet = shop.do("client export", copy, "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(sheet)))
    assert [row["sha256"] for row in rows] == [item["sha256"] for item in items]
    shown = shop.do("client export", copy).stdout
    assert all(item["sha256"][:12] in shown for item in items)
    assert "code, law (self), medicine" in shown
