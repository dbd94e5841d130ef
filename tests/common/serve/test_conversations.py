"""Conversations: they stay with their expert unless the evidence is clear, and never change within a tool's loop."""

from __future__ import annotations

import gc
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import InputError
from ridgeway.common.http import key_budgets
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.router import Router
from ridgeway.common.serve import conversations
from ridgeway.common.serve.conversations import (
    NOTE_WAIT_S,
    Assignment,
    RecentNotes,
    evidence_to_leave,
    exchange_of,
    leaning,
)
from tests.support.fake_expert import well
from tests.support.in_process import DOMAINS, GatewayMaker, answered_by
from tests.support.serving import prompt_for, release_of

SOME_EVIDENCE = 2
"""The logit of a domain's letter: evidence, and no proof."""
LONG = {domain: prompt_for(domain, DOMAINS) for domain in DOMAINS}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conversations") / "release"
    release_of(folder, DOMAINS, strength=SOME_EVIDENCE)
    return folder


def chat(*said: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": role, "content": content} for role, content in said], **more}


def test_a_follow_up_stays_and_a_new_topic_is_followed(cast: GatewayMaker) -> None:
    """Also where the client sends no history, under a session's name; and another session is another conversation."""
    with cast() as shown:

        def ask(body: Any, **headers: str) -> tuple[str, str]:
            return answered_by(shown.local.post("/v1/chat/completions", body, **headers))

        law, code = LONG["law"], LONG["code"]
        assert ask(chat(("user", law)))[0] == "law"
        follow_up = chat(("user", law), ("assistant", "yes"), ("user", code[:3]))
        assert ask(follow_up) == ("law", "sticky")
        assert ask(chat(("user", law), ("assistant", "yes"), ("user", code))) == ("code", "best")
        named = {"x-session-id": "one"}
        assert ask(chat(("user", law)), **named)[0] == "law"
        assert ask(chat(("user", code[:3])), **named) == ("law", "sticky")
        assert ask(chat(("user", code[:3])), **{"x-session-id": "two"})[0] == "code"
        assert ask(chat(("user", code)), **named)[0] == "code"
        assert ask(chat(("user", law[:3])), **named) == ("code", "sticky")


def test_what_is_not_known_is_seen_from_the_turns_before(cast: GatewayMaker) -> None:
    """After a restart, or in another worker, a follow-up goes where its conversation was."""
    with cast() as shown:
        body = chat(("user", LONG["law"]), ("assistant", "yes"), ("user", LONG["code"][:3]))
        assert answered_by(shown.local.post("/v1/chat/completions", body)) == ("law", "sticky")


@pytest.mark.parametrize(
    "result",
    [("tool", LONG["code"]), ("user", [{"type": "tool_result", "text": LONG["code"]}])],
    ids=["openai", "anthropic"],
)
def test_tools_stay_with_who_asked_for_them(cast: GatewayMaker, result: tuple[str, Any]) -> None:
    """Whatever a tool says, and also if another expert had answered in the first one's place."""
    with cast() as shown:
        asked = chat(("user", LONG["law"]))
        loop = chat(("user", LONG["law"]), ("assistant", ""), result)
        assert answered_by(shown.local.post("/v1/chat/completions", asked))[0] == "law"
        assert answered_by(shown.local.post("/v1/chat/completions", loop)) == ("law", "sticky")
        shown.experts["law"].part = lambda asked: asked.reply(500, b"{}")
        assert answered_by(shown.local.post("/v1/chat/completions", asked))[0] == "generalist"
        shown.experts["law"].part = well("law")
        assert answered_by(shown.local.post("/v1/chat/completions", loop)) == ("generalist", "sticky")


@given(p=st.floats(0.01, 0.99), tokens=st.integers(0, 40))
def test_more_evidence_is_never_less_clear(p: float, tokens: int) -> None:
    """Clear stays clear with more tokens and with higher odds; an abstention is not clear, nor is the own domain."""

    def decision(confidence: float, tokens: int, abstained: bool = False) -> Decision:
        scores = {"a": confidence, "b": 1 - confidence}
        return Decision("a", confidence, scores, abstained, "a", tokens)

    if not evidence_to_leave(decision(p, tokens), "b", {}).stays:
        assert (
            not evidence_to_leave(decision(p, tokens + 1), "b", {}).stays
            and not evidence_to_leave(decision(min(p * 1.01, 0.999), tokens), "b", {}).stays
        )
    assert evidence_to_leave(decision(p, tokens, abstained=True), "b", {}).stays
    assert evidence_to_leave(decision(p, tokens), "a", {}).stays
    assert (
        not evidence_to_leave(decision(p, tokens), "retired", {}).stays
        and not evidence_to_leave(decision(p, tokens), None, {}).stays
    )


def test_what_draws_phrases_of_no_domain_is_no_evidence_in_few_words(release: Path) -> None:
    """Where a router leans to a domain, it takes more to go there, and less to leave it, the fewer words there are."""
    scores = {"code": 0.98, "law": 0.02}
    short, long = (Decision("code", 0.98, scores, False, "code", tokens) for tokens in (20, 400))
    assert (
        not evidence_to_leave(short, "law", {}).stays
        and not evidence_to_leave(short, "law", {"code": -3.0, "law": -0.1}).stays
    )
    assert (
        evidence_to_leave(short, "law", {"code": -0.1, "law": -6.0}).stays
        and not evidence_to_leave(long, "law", {"code": -0.1, "law": -6.0}).stays
    )
    router = Router.load(release)
    found, kept = leaning(router), ref(router)
    assert set(found) == set(DOMAINS) and all(each <= 0 for each in found.values())
    del router
    gc.collect()
    assert kept() is None, "a router that is replaced is not held"


def test_memory_is_bounded_and_shared_and_holds_no_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of too many, those heard last are known, to all who name the same file; kept are a digest and three names."""
    monkeypatch.setattr(conversations, "MAX_NOTES", 3)
    known, sharing = RecentNotes(Assignment, tmp_path / "notes"), RecentNotes(Assignment, tmp_path / "notes")
    keys = [exchange_of([("user", f"secret {place}")], "", "", "").key for place in range(5)]
    for key in keys:
        known.note(key, Assignment("law", "law", "law"))
    assert [sharing.find(key) is not None for key in keys] == [False, False, True, True, True]
    assert known.find(keys[4]) == Assignment("law", "law", "law")
    known.note(keys[2], Assignment(None, "code", "law"))
    sharing.note(keys[0], Assignment("law", "law", "law"))
    assert sharing.find(keys[2]) == Assignment(None, "code", "law") and known.find(keys[3]) is None
    assert all(b"secret" not in path.read_bytes() for path in tmp_path.iterdir())
    assert len(set(keys)) == 5 and all(len(key) == 16 for key in keys)


def test_a_file_that_cannot_be_used_fails_no_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A request waits for another worker no longer than a moment; what could not be written is known here, and written
    with the next note; one that cannot be made is a sentence at the start."""
    monkeypatch.setattr(key_budgets, "_WAIT_S", 0.01)
    known, assignment = RecentNotes(Assignment, tmp_path / "notes"), Assignment("law", "law", "law")
    known.note(b"one", assignment)
    with closing(sqlite3.connect(tmp_path / "notes", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        known.note(b"two", assignment)
        assert time.monotonic() - began < 1 + NOTE_WAIT_S
        assert (
            known.find(b"one") == known.find(b"two") == assignment
            and RecentNotes(Assignment, tmp_path / "notes").find(b"two") is None
        )
        other.execute("COMMIT")
        known.note(b"three", assignment)
        assert RecentNotes(Assignment, tmp_path / "notes").find(b"two") == assignment
        other.execute("DROP TABLE notes")
    assert known.find(b"one") is None
    assert ["locked" in each.getMessage() for each in caplog.records] == [True, False]
    assert (tmp_path / "notes").stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").write_text("no database " * 1000)
    with pytest.raises(InputError, match="workers share cannot be made: file is not a database; give the folder"):
        RecentNotes(Assignment, tmp_path / "other")


def test_a_conversation_is_its_clients_own() -> None:
    """The same session's name of two keys, or two users with the same first turn, are two conversations."""
    said = [("user", "hello")]
    keys = [
        exchange_of(said, *names).key for names in (("", "s", "shop"), ("", "s", "other"), ("u", "", ""), ("v", "", ""))
    ]
    assert len(set(keys)) == 4
    assert exchange_of([*said, ("assistant", "hi"), ("user", "more")], "u", "", "").key == keys[2]
