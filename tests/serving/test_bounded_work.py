"""Hostile mixes of legal requests to a release of the usual size, and experts that fail: memory
stays under its bound, and nobody waits behind what is long.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ridgeway.common.text.table_encoder import TableEncoder
from tests.support.fake_expert import (
    Asked,
    Expert,
    Part,
    endless_body,
    fails,
    hangs,
    well,
)
from tests.support.in_process import chat
from tests.support.serving import Serving, usual_release, write_experts
from tests.support.waiting import processes_per_core

ROLES = ("user", "assistant", "user")
DOMAINS = ["art", "code", "food", "law", "maths", "news", "sport", "travel"]
MAX_MEMORY = 512 * 1024**2
BODY = 4 * 1024**2 - 1024
"""Nearly the longest body that is taken."""
MAX_WAIT_S = 5.0
"""Of a short chat under the mix, where every process has a core; alone it takes a few milliseconds.
"""
TEXTS = (
    "words and words " * (BODY // 16),
    "x" * BODY,
    "\N{GRINNING FACE}" * (BODY // 4),
    "漢" + "a" * (BODY - 8),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, use: TableEncoder) -> Path:
    """Of a release of the usual size."""
    folder = tmp_path_factory.mktemp("bounded")
    usual_release(folder / "release", DOMAINS, use)
    return folder


@pytest.fixture(scope="module")
def serving(folder: Path) -> Iterator[Serving]:

    def answer(asked: Asked) -> None:
        if len(asked.body) < 1000:
            asked.reply(200, b'{"model": "art", "choices": []}')
        else:
            time.sleep(2.0)
            asked.reply(200, b'{"data": [' + b"0.1234," * 300_000 + b"0]}")

    with Expert(answer) as expert:
        file = write_experts(
            folder / "experts.toml", dict.fromkeys(DOMAINS, expert.url)
        )
        with Serving(folder, folder / "release", "--experts", file) as serving:
            yield serving


def peak(serving: Serving) -> int:
    """The most memory that the process ever held, in bytes."""
    status = Path(f"/proc/{serving.pid}/status").read_text()
    [size] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(size) * 1024


def long_prompts(turn: int) -> tuple[str, Any]:
    return "/v1/route", {"prompt": TEXTS[turn % len(TEXTS)]}


def long_chats(turn: int) -> tuple[str, Any]:
    text = TEXTS[turn % len(TEXTS)]
    thirds = [text[: len(text) // 3], text[: len(text) // 3], text[: len(text) // 4]]
    pairs = zip(ROLES, thirds, strict=True)
    messages = [{"role": role, "content": part} for role, part in pairs]
    return "/v1/chat/completions", {"model": "auto", "messages": messages}


def batches(turn: int) -> tuple[str, Any]:
    text = TEXTS[turn % len(TEXTS)]
    size = BODY // 1100 // (1 + 3 * (turn % 4 == 2))
    return "/v1/route", {"prompts": [text[:size]] * 1024}


def explanations(turn: int) -> tuple[str, Any]:
    longest = (
        10_000 if turn % len(TEXTS) == 2 else 100_000
    )  # a face has several tokens, and these are limited, too
    return "/v1/route", {"prompt": TEXTS[turn % len(TEXTS)][:longest], "explain": True}


def ids(turn: int) -> tuple[str, Any]:
    return "/v1/embeddings", {"model": "art", "input": [1000 + turn] * (BODY // 7)}


def many_numbers(turn: int) -> tuple[str, Any]:
    return "/v1/completions", {
        "model": "art",
        "prompt": "x",
        "extra": [9e15] * (BODY // 22),
    }


Kinds = tuple[Callable[[int], tuple[str, Any]], ...]
KINDS: Kinds = (
    long_prompts,
    long_chats,
    batches,
    explanations,
    ids,
    many_numbers,
)


@contextlib.contextmanager
def short_chats(serving: Serving) -> Iterator[list[float]]:
    """The times that chats of three turns take meanwhile, one after the other."""
    messages = [{"role": role, "content": "hello there, what is it?"} for role in ROLES]
    times: list[float] = []
    stopped = False

    def ask() -> None:
        with httpx.Client(base_url=serving.url, trust_env=False, timeout=120.0) as http:
            while not stopped:
                began = time.perf_counter()
                answer = http.post(
                    "/v1/chat/completions", json={"model": "auto", "messages": messages}
                )
                if answer.status_code != 503:
                    assert answer.status_code == 200, answer.text
                times.append(time.perf_counter() - began)
                time.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield times
        finally:
            stopped = True
            asking.result()


HALF_A_HEAD = b"POST /v1/route HTTP/1.1\r\nx-filling: " + b"x" * 20_000


@contextlib.contextmanager
def half_requests(serving: Serving, count: int) -> Iterator[None]:
    """Connections over which the head of a request does not end."""
    address = ("127.0.0.1", httpx.URL(serving.url).port or 0)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(address, 30))
            connection.sendall(HALF_A_HEAD)
        yield


def flood(serving: Serving, kinds: Kinds, requests: int) -> Counter[int]:
    """Statuses of many requests that are made at once."""

    def one(turn: int) -> int:
        path, body = kinds[turn % len(kinds)](turn // len(kinds))
        content = json.dumps(body, ensure_ascii=False).encode()
        assert len(content) <= 4 * 1024**2, (path, len(content))
        headers = {"content-type": "application/json"}
        return httpx.post(
            f"{serving.url}{path}",
            content=content,
            headers=headers,
            trust_env=False,
            timeout=300.0,
        ).status_code

    with ThreadPoolExecutor(requests) as pool:
        return Counter(pool.map(one, range(requests)))


def long_questions(turn: int) -> tuple[str, Any]:
    return "/v1/chat/completions", chat("auto", TEXTS[0][:3_900_000])


def short_questions(turn: int) -> tuple[str, Any]:
    return "/v1/chat/completions", chat("auto", f"{turn} words")


@contextlib.contextmanager
def failing(folder: Path, *parts: Part) -> Iterator[Serving]:
    """The first expert serves every domain, and each is followed by the next where it fails."""
    with contextlib.ExitStack() as stack:
        urls = {
            f"e{number}": stack.enter_context(Expert(part)).url
            for number, part in enumerate(parts)
        }
        settings: dict[str, Any] = {
            name: {"fallbacks": list(urls)[number:]}
            for number, name in enumerate(urls, 1)
        }
        settings["e0"] |= {"domains": DOMAINS}
        file = write_experts(
            folder / f"{len(parts)}.toml",
            urls,
            "e0",
            every={"timeout": 4.0},
            **settings,
        )
        yield stack.enter_context(
            Serving(folder, folder / "release", "--experts", file)
        )


@pytest.mark.slow
def test_the_bound_holds_while_experts_fail(folder: Path) -> None:
    """Three experts fail and the fourth hangs, with 24 prompts of 3.9 MB at once, again and
    again.
    """
    with failing(folder, fails, fails, fails, hangs) as serving:
        for _ in range(6):
            assert set(flood(serving, (long_questions,), 24)) <= {502, 503, 504}
        assert peak(serving) < MAX_MEMORY


@pytest.mark.slow
def test_an_endless_answer_leads_to_the_fallback(folder: Path) -> None:
    """One at a time or 24 at once, each is answered by the next expert, and the memory stays under
    its bound.
    """
    with failing(folder, endless_body, endless_body, well("e2")) as serving:
        assert flood(serving, (short_questions,), 1) == {200: 1}
        assert flood(serving, (short_questions,), 24) == {200: 24}
        assert peak(serving) < MAX_MEMORY


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(long_chats, many_numbers), KINDS], ids=len)
def test_no_mix_of_legal_requests_breaks_the_bound_or_holds_a_chat_up(
    serving: Serving, kinds: Kinds
) -> None:
    """Peak memory stays below 512 MB, every request is answered or told to come again, and chats
    wait little.
    """
    with half_requests(serving, 500), short_chats(serving) as times:
        statuses = flood(serving, kinds, 24)
    assert set(statuses) <= {200, 503}, statuses
    assert peak(serving) < MAX_MEMORY
    assert max(times) < MAX_WAIT_S * processes_per_core()
