"""The journal: entries are only added, the chain notices every change, and a crash leaves all of an
append or none.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import JournalError
from ridgeway.common.base.journal import Journal
from tests.support.waiting import MAX_WAIT_S

ROOT = Path(__file__).resolve().parents[3]
DAY = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = ("number", "time", "kind", "facts", "hash")

words = st.text(max_size=8)
facts = st.dictionaries(
    words,
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    max_size=3,
)
events = st.tuples(words, facts)


def filled(folder: Path, count: int = 4) -> Journal:
    """A journal with some entries, all of one time."""
    journal = Journal(folder / "journal.db", lambda: DAY)
    for number in range(count):
        journal.append((f"kind-{number % 2}", {"number": number, "name": "law"}))
    return journal


def change(journal: Journal, command: str, *values: Any) -> None:
    with closing(sqlite3.connect(journal.path)) as database, database:
        database.execute(command, values)


def must_not_verify(journal: Journal) -> None:
    with pytest.raises(JournalError, match="restore"):
        Journal(journal.path).verify()


@given(appends=st.lists(st.lists(events, max_size=3), max_size=4))
def test_what_was_appended_is_read_back_in_its_order_and_verifies(
    tmp_path_factory: pytest.TempPathFactory,
    appends: list[list[tuple[str, dict[str, Any]]]],
) -> None:
    """By another process, too, which opens the file anew."""
    path = tmp_path_factory.mktemp("journal") / "journal.db"
    journal = Journal(path)
    added = [entry for batch in appends for entry in journal.append(*batch)]
    for reader in (journal, Journal(path)):
        assert reader.entries() == added
        assert reader.verify() == len(added)
    assert [(entry.kind, entry.facts) for entry in added] == [
        event for batch in appends for event in batch
    ]
    assert [entry.number for entry in added] == list(range(1, len(added) + 1))


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """And reading does not make it. So is an empty file, as SQLite has it."""
    journal = Journal(tmp_path / "journal.db")
    assert journal.entries() == []
    assert journal.verify() == 0
    assert not journal.path.exists()
    journal.path.touch()
    assert journal.verify() == 0


def test_an_entry_that_is_no_longer_json_is_not_left_out_in_silence(
    tmp_path: Path,
) -> None:
    """It is said to have been altered, as wherever it is read."""
    journal = filled(tmp_path)
    change(journal, "update entries set facts = 'not json' where number = 2")
    with pytest.raises(JournalError, match="entry 2 was altered"):
        journal.entries()


@given(number=st.integers(1, 4), column=st.sampled_from(COLUMNS), data=st.data())
def test_any_change_of_any_column_of_any_entry_is_noticed(
    tmp_path_factory: pytest.TempPathFactory,
    number: int,
    column: str,
    data: st.DataObject,
) -> None:
    """Also a change that says the same in other words: what was hashed is what stands there."""
    journal = filled(tmp_path_factory.mktemp("journal"))
    row = {entry.number: entry for entry in journal.entries()}[number]
    value: Any
    if column == "number":
        value = data.draw(
            st.integers(5, 99)
            if number == 4
            else st.integers(5, 99) | st.integers(-9, 0)
        )
    elif column == "facts":
        same = json.dumps(dict(row.facts))
        value = data.draw(
            st.sampled_from(
                (same, f" {same}", "{}", "[]", "null", "not json", '{"a": NaN}')
            )
            | words
        )
    else:
        value = data.draw(words.filter(lambda text: text != getattr(row, column)))
    change(journal, f"update entries set {column} = ? where number = ?", value, number)
    must_not_verify(journal)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_entry_that_was_taken_out_is_noticed(tmp_path: Path, number: int) -> None:
    """Also where the later ones are counted anew. Only the end of a chain can be cut off unseen."""
    journal = filled(tmp_path)
    change(journal, "delete from entries where number = ?", number)
    must_not_verify(journal)
    change(journal, "update entries set number = number - 1 where number > ?", number)
    must_not_verify(journal)


@pytest.mark.parametrize(("one", "other"), [(1, 2), (1, 4), (2, 3), (3, 4)])
def test_entries_that_changed_places_are_noticed(
    tmp_path: Path, one: int, other: int
) -> None:
    """The chain holds all of them in one order."""
    journal = filled(tmp_path)
    for new, old in ((99, one), (one, other), (other, 99)):
        change(journal, "update entries set number = ? where number = ?", new, old)
    must_not_verify(journal)


def test_an_entry_put_in_between_or_copied_from_another_journal_is_noticed(
    tmp_path: Path,
) -> None:
    """A chain that was begun elsewhere does not go on here."""
    (tmp_path / "other").mkdir()
    other = Journal(tmp_path / "other" / "journal.db", lambda: DAY)
    other.append(*((f"kind-{n}", {}) for n in range(5)))
    journal = filled(tmp_path)
    row = other.entries()[4]
    values = (row.number, row.time, row.kind, json.dumps(dict(row.facts)), row.hash)
    change(journal, "insert into entries values (?, ?, ?, ?, ?)", *values)
    must_not_verify(journal)


@pytest.mark.parametrize(
    "content", [b"not a database at all" * 60, b"SQLite format 3\x00" + bytes(4000)]
)
def test_a_damaged_file_is_an_error_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    with pytest.raises(JournalError, match="is unusable"):
        Journal(path).verify()
    with pytest.raises(JournalError, match="is unusable"):
        Journal(path).append(("kind", {}))


def test_facts_that_cannot_be_written_leave_nothing(tmp_path: Path) -> None:
    """Of an append of several, none is there, and the next one goes on from before."""
    journal = filled(tmp_path)
    with pytest.raises(JournalError):
        journal.append(("good", {}), ("bad", {"value": float("nan")}))
    assert journal.verify() == 4
    journal.append(("good", {}))
    assert journal.verify() == 5


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("survived", [0, 1, 2])
def test_a_crash_within_an_append_leaves_none_of_it(
    tmp_path: Path, survived: int
) -> None:
    """However far it had come; afterwards the same journal and a new one go on."""
    filled(tmp_path)

    def clock() -> Iterator[datetime]:
        yield from [DAY] * survived
        raise Crash

    ticks = clock()
    journal = Journal(tmp_path / "journal.db", lambda: next(ticks))
    with pytest.raises(Crash):
        journal.append(*[("lost", {})] * 3)
    fresh = Journal(journal.path)
    assert fresh.verify() == journal.verify() == 4
    fresh.append(("kept", {}))
    assert journal.verify() == 5


WRITER = """
import sys
from pathlib import Path
from ridgeway.common.base.journal import Journal
journal = Journal(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    journal.append(("mine", {"who": sys.argv[2], "number": number}), ("and", {"who": sys.argv[2]}))
"""


def test_appends_of_several_processes_stay_one_chain(tmp_path: Path) -> None:
    """From the first on, when all of them find no file: every entry is there, each append in one
    piece.
    """
    path, count = tmp_path / "journal.db", 60
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [
        subprocess.Popen(
            [*command, who, str(count)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for who in "abc"
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=MAX_WAIT_S)
        assert writer.returncode == 0, errors
    journal = Journal(path)
    assert journal.verify() == 3 * 2 * count
    entries = journal.entries()
    for first, second in zip(entries[::2], entries[1::2], strict=True):
        assert (first.kind, second.kind, first.facts["who"]) == (
            "mine",
            "and",
            second.facts["who"],
        )
    for who in "abc":
        numbers = [
            entry.facts["number"] for entry in entries[::2] if entry.facts["who"] == who
        ]
        assert numbers == list(range(count))


def test_a_reader_sees_what_another_has_appended_since(tmp_path: Path) -> None:
    """A connection that is kept open is no picture of the past."""
    writer, reader = filled(tmp_path), Journal(tmp_path / "journal.db")
    assert len(reader.entries()) == 4
    writer.append(("new", {}))
    assert [entry.kind for entry in reader.entries(after=4)] == ["new"]


def test_what_may_not_be_written_is_never_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only a copy can be read, an append fails instead of being lost with the copy."""
    filled(tmp_path)
    journal = Journal(tmp_path / "journal.db")
    monkeypatch.setattr(journal, "_open", journal._open_copy)
    assert journal.verify() == 4
    with pytest.raises(JournalError, match="is not available now"):
        journal.append(("new", {}))
    assert len(Journal(tmp_path / "journal.db").entries()) == 4
