"""The progress file: one line of JSON an event, which another process reads back as the same
event.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.coordinator.round.progress import (
    AnswerRefused,
    Follower,
    HoldersAbsent,
    RoundOpened,
    RunDone,
    RunFailed,
    progress_file,
)

SAMPLING = {"window": 64, "max_tokens": 0, "stride": 0, "documents": 0}
OPENED = RoundOpened(1, 3, "masked", "ab" * 32, "tiny", 9, SAMPLING, "equal", 1 << 24)
TERMS = ("mode", "encoder", "encoder_name", "features", "sampling", "weighting", "mass")
REFUSED = AnswerRefused("announce", None, "malformed", "no message")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress" / "run.jsonl"


def test_an_event_is_written_as_its_name_and_its_fields(path: Path) -> None:
    """The form that whoever follows a round by other means relies on."""
    with progress_file(path) as watch:
        watch(OPENED)
        watch(REFUSED)
    opened, refused, done = map(
        json.loads, path.read_text(encoding="utf-8").splitlines()
    )
    assert list(opened) == ["event", "number", "holders", *TERMS, "privacy"]
    assert (opened["event"], opened["sampling"]) == ("opened", SAMPLING)
    assert refused == {
        "event": "refused",
        "step": "announce",
        "name": None,
        "code": "malformed",
        "reason": "no message",
    }
    assert done == {"event": "done"}


def test_a_follower_reads_the_same_events_once_and_whole_lines_only(path: Path) -> None:
    """A line that is still being written waits; an event of another version is passed over."""
    follower = Follower(path)
    assert list(follower.events()) == []
    absent = HoldersAbsent("collect", ["law", "code"])
    with progress_file(path) as watch:
        watch(OPENED)
        assert list(follower.events()) == [OPENED]
        watch(absent)
        with path.open("a", encoding="utf-8") as file:
            file.write('{"event": "of a later version", "more": 1}\n{"event": "ref')
            file.flush()
            assert list(follower.events()) == [absent]
            file.write(
                'used", "step": "announce", "name": null, "code": "malformed",'
                ' "reason": "no message"}\n'
            )
        assert list(follower.events()) == [REFUSED]
    assert list(follower.events()) == [RunDone()]


def test_what_fails_is_the_last_event(path: Path) -> None:
    """A known error by its sentence, any other as a failure of the program."""
    for error, words in (
        (RoundFailed("too few"), "too few"),
        (ValueError("x"), "the coordinator crashed"),
    ):
        follower = Follower(path)
        with pytest.raises(type(error)), progress_file(path):
            raise error
        (*_, last) = follower.events()
        assert isinstance(last, RunFailed)
        assert last.reason.startswith(words)
