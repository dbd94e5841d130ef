"""What answers take is counted against the budget of the key that asked, streamed or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.web.api_keys import usage_path
from ridgeway.common.web.key_budgets import KeyUsage, UsageBook
from ridgeway.serving.sse import (
    MAX_READ_BYTES,
    StreamedUsage,
    TokenUsage,
    estimated_usage,
    whole_usage,
    without_usage,
)
from tests.support.fake_expert import END, Asked, token
from tests.support.in_process import DOMAINS, Fleet, everyone
from tests.support.serving import complaint
from tests.support.waiting import wait_for

USAGE = {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40}


def tells_usage(asked: Asked) -> None:
    """As OpenAI's servers do: in a stream only if it is asked to."""
    if not asked.json.get("stream"):
        asked.reply(
            200, json.dumps({"model": "m", "choices": [], "usage": USAGE}).encode()
        )
        return
    wants = (asked.json.get("stream_options") or {}).get("include_usage")
    usage = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"
    asked.stream([token("one"), *([usage] if wants else []), END])


@pytest.mark.parametrize(
    "asks", [None, {"include_usage": True}], ids=["quiet", "asks for usage"]
)
def test_tokens_and_cost_are_spent_until_nothing_is_left(
    fleet: Fleet, tmp_path: Path, asks: Any
) -> None:
    """Two answers of 40 tokens, one of them streamed; then 429, with what is left in the headers of
    each.
    """
    keys = tmp_path / "keys.toml"
    prices = {"prompt_price": 1000.0, "answer_price": 2000.0}
    limits = {"window": "month", "max_requests": 5, "max_tokens": 75}
    local, _ = fleet.serve_keyed(everyone(DOMAINS, **prices), **limits)
    local.all_domains(tells_usage)
    streamed = local.chat(stream=True, **({"stream_options": asks} if asks else {}))
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert ("prompt_tokens" in streamed.text) is bool(asks)
    book = UsageBook(usage_path(keys))
    wait_for("the stream is counted", lambda: book.spent("shop", "month").tokens == 40)
    whole = local.chat()
    assert whole.headers["x-ratelimit-remaining-tokens"] == "35"
    assert whole.headers["x-ratelimit-remaining-requests"] == "3"
    spent = local.post("/v1/route", {"prompt": "hello"})
    assert (spent.status_code, complaint(spent)["code"]) == (429, "budget_spent")
    assert spent.headers["x-ratelimit-remaining-tokens"] == "0"
    assert int(spent.headers["retry-after"]) > 0
    assert local.http.get("/v1/models").status_code == 200
    usage = book.spent("shop", "month")
    assert usage == KeyUsage(2, 80, usage.cost)
    assert usage.cost == pytest.approx(0.1)


def test_of_a_long_answer_only_the_end_is_read() -> None:
    """Vectors of many megabytes are not parsed to find what they took; where nothing is said, bytes
    are counted.
    """
    end = b'"usage": {"prompt_tokens": 5, "completion_tokens": 7}, "more": 1}'
    assert whole_usage(
        b'{"data": [' + b"0," * MAX_READ_BYTES + b"0], " + end
    ) == TokenUsage(5, 7)
    assert whole_usage(b"[broken" * MAX_READ_BYTES + b'"usage"') is None
    assert estimated_usage(40, 3) == TokenUsage(10, 3)


def test_only_the_event_that_says_usage_and_nothing_else_is_taken_out() -> None:
    """Whatever words speak of usage stay, and so does an event that says both."""
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n\n'
    both = b'data: {"choices": [{"delta": {}}], "usage": {"prompt_tokens": 3}}\n\n'
    words = b'data: {"choices": [{"delta": {"content": "a \\"usage\\" b"}}]}\n\n'
    counting = StreamedUsage()
    assert without_usage(words + both) == words + both
    assert (
        without_usage(words + usage + b"data: [DONE]\n\n")
        == words + b"\ndata: [DONE]\n\n"
    )
    counting.feed(words + usage + b"data: [DONE]\n\n")
    assert (counting.usage, counting.events) == (TokenUsage(3, 4), 3)
