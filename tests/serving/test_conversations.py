"""Conversations: they stay with their expert unless the evidence is clear, and never change within
a tool's loop.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.routing.conversation import Message
from ridgeway.common.routing.conversations import exchange_of
from ridgeway.common.web import key_budgets
from ridgeway.serving import recent_notes
from ridgeway.serving.recent_notes import NOTE_WAIT_S, Assignment, RecentNotes
from tests.support.fake_expert import well
from tests.support.in_process import CHATS, DOMAINS, Local, answered_by
from tests.support.serving import prompt_for, release_of
from tests.support.waiting import processes_per_core

SOME_EVIDENCE = 2
"""The logit of a domain's letter: evidence, and no proof."""
LONG = {domain: 4 * prompt_for(domain, DOMAINS) for domain in DOMAINS}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conversations") / "release"
    release_of(folder, DOMAINS, strength=SOME_EVIDENCE)
    return folder


def chat(*said: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "model": "auto",
        "messages": [{"role": role, "content": content} for role, content in said],
        **more,
    }


def ask(local: Local, *said: str, **more: Any) -> tuple[str, str]:
    """What a user said, whom something was answered each time: who answers now, and why."""
    turns = [part for text in said for part in (("user", text), ("assistant", "ok"))]
    body = chat(*turns[:-1], **more)
    return answered_by(local.post(CHATS, body))


def test_a_follow_up_stays_and_a_new_topic_is_followed(local: Local) -> None:
    """Also where the client sends no history, under a session's name; and another session is
    another conversation.
    """

    def of(text: str, session: str) -> tuple[str, str]:
        named = {"x-session-id": session}
        return answered_by(local.post(CHATS, chat(("user", text)), **named))

    law, code = LONG["law"], LONG["code"]
    assert ask(local, law)[0] == "law"
    assert ask(local, law, code[:3]) == ("law", "sticky")
    assert ask(local, law, code) == ("code", "best")
    assert of(law, "one")[0] == "law"
    assert of(code[:3], "one") == ("law", "sticky")
    assert of(code[:3], "two")[0] == "code"
    assert of(code, "one")[0] == "code"
    assert of(law[:3], "one") == ("code", "sticky")


def test_what_is_not_known_is_seen_from_the_turns_before(local: Local) -> None:
    """After a restart, or in another worker, a follow-up goes where its conversation was."""
    assert ask(local, LONG["law"], LONG["code"][:3]) == ("law", "sticky")


@pytest.mark.parametrize(
    "result",
    [("tool", LONG["code"]), ("user", [{"type": "tool_result", "text": LONG["code"]}])],
    ids=["openai", "anthropic"],
)
def test_tools_stay_with_who_asked_for_them(
    local: Local, result: tuple[str, Any]
) -> None:
    """Whatever a tool says, and also if another expert had answered in the first one's place."""
    loop = chat(("user", LONG["law"]), ("assistant", ""), result)

    def goes_on() -> tuple[str, str]:
        return answered_by(local.post(CHATS, loop))

    assert ask(local, LONG["law"])[0] == "law"
    assert goes_on() == ("law", "sticky")
    local.experts["law"].part = lambda asked: asked.reply(500, b"{}")
    assert ask(local, LONG["law"])[0] == "generalist"
    local.experts["law"].part = well("law")
    assert goes_on() == ("generalist", "sticky")


def test_memory_is_bounded_and_shared_and_holds_no_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of too many, those heard last are known, to all who name the same file; kept are a digest and
    three names.
    """
    monkeypatch.setattr(recent_notes, "MAX_NOTES", 3)
    known, sharing = (RecentNotes(Assignment, tmp_path / "notes") for _ in range(2))
    law = Assignment("law", "law", "law")
    code = Assignment(None, "code", "law")
    keys = [exchange_of([("user", f"secret {number}")]).noted_as for number in range(5)]
    for key in keys:
        known.note(key, law)
    assert [sharing.find(key) for key in keys] == [None, None, law, law, law]
    assert known.find(keys[4]) == law
    known.note(keys[2], code)
    sharing.note(keys[0], law)
    assert sharing.find(keys[2]) == code and known.find(keys[3]) is None
    assert all(b"secret" not in path.read_bytes() for path in tmp_path.iterdir())
    assert len(set(keys)) == 5 and all(len(key) == 16 for key in keys)


def test_a_file_that_cannot_be_used_fails_no_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A request waits for another worker no longer than a moment; what could not be written is
    known here, and written with the next note; one that cannot be made is a sentence at the start.
    """
    monkeypatch.setattr(key_budgets, "_WAIT_S", 0.01)
    known = RecentNotes(Assignment, tmp_path / "notes")
    assignment = Assignment("law", "law", "law")
    known.note(b"one", assignment)
    with closing(sqlite3.connect(tmp_path / "notes", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        known.note(b"two", assignment)
        assert time.monotonic() - began < NOTE_WAIT_S + processes_per_core()
        assert known.find(b"one") == known.find(b"two") == assignment
        assert RecentNotes(Assignment, tmp_path / "notes").find(b"two") is None
        other.execute("COMMIT")
        known.note(b"three", assignment)
        assert RecentNotes(Assignment, tmp_path / "notes").find(b"two") == assignment
        other.execute("DROP TABLE notes")
    assert known.find(b"one") is None
    locked, gone = caplog.messages
    assert "locked" in locked and "locked" not in gone
    assert (tmp_path / "notes").stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").write_text("no database " * 1000)
    with pytest.raises(
        InputError,
        match="workers share cannot be made: file is not a database; give its folder",
    ):
        RecentNotes(Assignment, tmp_path / "other")


def test_a_conversation_is_its_users_own() -> None:
    """The same session's name of two keys, and two users with the same messages, are two
    conversations.
    """
    said = [("user", "hello")]
    named = [
        exchange_of(said, names, "s").noted_as
        for names in (("shop",), ("other",), ("", "shop"))
    ]
    named += [exchange_of(said, names).noted_as for names in (("u",), ("v",))]
    assert len(set(named)) == 5
    assert exchange_of(said).found_by is None
    assert exchange_of(said, ("shop",), "s").found_by == named[0]
    goes_on = exchange_of([*said, ("assistant", "hi"), ("user", "more")], ("u",))
    assert goes_on.found_by == named[3]


def test_two_chats_are_told_apart_by_all_that_was_said_before() -> None:
    """What was asked, what was answered and what the system says; of its numbers alone, nothing
    depends.
    """

    def found_by(*said: Message) -> bytes | None:
        return exchange_of([*said, ("user", "and why?")]).found_by

    start: list[Message] = [
        ("system", "It is 10:02."),
        ("user", "hi"),
        ("assistant", "Hello!"),
    ]
    contract: list[Message] = [("user", "a contract"), ("assistant", "Yes.")]
    law = found_by(*start, *contract)
    assert law == exchange_of([*start, contract[0]]).noted_as
    assert law != found_by(*start, ("user", "a neural network"), contract[1])
    assert law != found_by(*start[:2], ("assistant", "Hey"), *contract)
    assert law != found_by(("system", "Be brief."), *start[1:], *contract)
    assert law == found_by(("system", "It is 10:03."), *start[1:], *contract)


def test_what_a_coding_agent_adds_decides_nothing() -> None:
    """Reminders and results of tools are neither routed nor part of a conversation's name."""
    reminder = "<system-reminder>\nCLAUDE.md: " + LONG["code"] + "</system-reminder>"
    plain = exchange_of(
        [("user", LONG["law"]), ("assistant", "ok"), ("user", "and why?")]
    )
    added = exchange_of(
        [
            ("user", reminder + LONG["law"]),
            ("assistant", "ok"),
            ("tool", LONG["code"]),
            ("user", "and why?" + reminder),
        ]
    )
    assert added == plain
    only = exchange_of([("user", LONG["law"]), ("assistant", "ok"), ("user", reminder)])
    assert only.uses_tools
    assert only.turns == exchange_of([("user", LONG["law"])]).turns
    open_ended = exchange_of([("user", "<system-reminder> is what?")])
    assert open_ended.turns.turns[0].text == "<system-reminder> is what?"


@pytest.mark.parametrize(
    "field", ["user", "safety_identifier", "prompt_cache_key", "metadata"]
)
def test_who_speaks_is_read_from_the_body(local: Local, field: str) -> None:
    """A follow-up of another user is routed by what it says, not by where somebody else's chat
    is.
    """
    opening = LONG["code"][:3]
    other: Any = {field: {"user_id": "b"} if field == "metadata" else "b"}
    assert ask(local, opening)[0] == "code"
    assert ask(local, opening, LONG["law"])[0] == "law"
    assert ask(local, opening, LONG["law"], opening) == ("law", "sticky")
    assert ask(local, opening, LONG["law"], opening, **other)[0] == "law"


def test_users_who_begin_alike_are_not_mixed_up(local: Local) -> None:
    """Neither gets the other's expert, and one who has spoken of neither gets none of theirs."""
    first = ask(local, "?")[0]
    assert ask(local, "?", LONG["law"])[0] == "law"
    assert ask(local, "?", LONG["code"])[0] == "code"
    assert ask(local, "?", LONG["law"], "?")[0] == "law"
    assert ask(local, "?", LONG["code"], "?")[0] == "code"
    assert ask(local, "?", "?")[0] == first


def test_a_chat_with_the_fallback_stays_there(local: Local) -> None:
    """A few words are no reason to leave it; a question that is clearly of a domain is."""
    local.abstains(0.6)
    assert ask(local, "?") == ("generalist", "abstained")
    assert ask(local, "?", LONG["code"][:3]) == ("generalist", "sticky")
    assert ask(local, "?", LONG["code"]) == ("code", "best")
