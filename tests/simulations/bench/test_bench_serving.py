"""The measurements of serving, made small: that they measure what they say, and fail where something fails."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeway.common.base.errors import InputError, ProcessError
from ridgeway.common.encoding.tokenizer import Tokenizer
from ridgeway.simulations.bench.serving import gateway_bench as gateway
from ridgeway.simulations.bench.serving import serving_bench as routes
from ridgeway.simulations.bench.serving.load import (
    Server,
    StreamTotals,
    many_streams,
    one_stream,
    open_session,
    run_wrk,
    stand_in,
    stream_request,
    write_script,
    wrk_is_installed,
)
from tests.support.serving import release_of
from tests.support.tiny import tiny_definition

needs_wrk = pytest.mark.skipif(not wrk_is_installed(), reason="the load generator wrk is not installed")


def test_prompts_have_exactly_as_many_tokens_as_they_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that are too short are passed over, longer ones are cut after a whole token; too few are refused."""
    monkeypatch.setattr(routes, "BATCH", 2)
    release_of(tmp_path / "release", ["code", "law"])
    prompts = routes.prompts_of(tmp_path / "release", ["abc", "defgh ijk", "lmnop"], tokens=5)
    assert prompts == ["defgh", "lmnop"]
    assert [len(Tokenizer(tiny_definition()).encode(prompt)) for prompt in prompts] == [5, 5]
    with pytest.raises(InputError, match="only 1 texts have 6 tokens"):
        routes.prompts_of(tmp_path / "release", ["abc", "defgh ijk", "lmnop"], tokens=6)


@needs_wrk
def test_any_body_survives_the_way_through_a_script(tmp_path: Path) -> None:
    """Quotes, backslashes, line ends and other alphabets: what wrk sends is what was meant."""
    body = {"prompt": 'a "b" \\n \n ünïcödé 漢字 ]] -- %d'}
    script = write_script(tmp_path / "one.lua", [body])
    with stand_in("echo") as echo:
        found = run_wrk(f"{echo.url}/echo", script, connections=1, seconds=1)
    assert found.rate > 1
    assert 0 < found.p50_ms <= found.p99_ms


@needs_wrk
def test_answers_that_are_errors_are_no_measurement(tmp_path: Path) -> None:
    """A server that refuses quickly is not a quick server."""
    script = write_script(tmp_path / "one.lua", [{"no": "prompt"}])
    with stand_in("echo") as echo, pytest.raises(ProcessError, match="failed"):
        run_wrk(f"{echo.url}/echo", script, connections=1, seconds=1)


def test_a_server_that_does_not_start_is_said_to() -> None:
    """And nothing is left running."""
    with pytest.raises(ProcessError, match="did not start"), stand_in("nothing"):
        pass


@pytest.fixture(scope="module")
def expert() -> Iterator[Server]:
    with stand_in("expert") as server:
        yield server


def test_a_stream_is_seen_piece_by_piece(expert: Server) -> None:
    """As many pieces as were asked for, the first of them timed, and its end."""

    async def one() -> None:
        async with open_session() as session:
            seen = await one_stream(session, expert.url + gateway.CHAT, stream_request("steady", "hm", 5, 0.01))
        assert (seen.pieces, seen.whole) == (5, True)
        assert 0 < seen.first < 5
        assert 0 <= seen.longest_way < 5

    asyncio.run(one())


def test_many_streams_are_counted_as_whole_or_failed(expert: Server) -> None:
    """A place that nobody listens at makes failures, not silence."""

    def ask(url: str, seconds: float) -> StreamTotals:
        body = stream_request("steady", "hm", 3, 0.0)
        return asyncio.run(many_streams(url, lambda _: body, streams=4, seconds=seconds, each_second=lambda: None))

    good = ask(expert.url + gateway.CHAT, 0.3)
    assert good.wrong == {}
    assert good.whole >= 4
    assert good.pieces == 3 * good.whole
    bad = ask("http://127.0.0.1:9/v1/chat/completions", 0.05)
    assert bad.whole == 0
    assert bad.wrong  # on a busy machine not every stream has its turn


def test_failed_streams_miss_the_aim() -> None:
    """One is enough; and so is memory that grows by more than a twentieth."""
    fine = gateway._stream_results(StreamTotals(whole=10, pieces=30), [100.0] * 100 + [104.0])
    assert [result.reached for result in fine] == [True, True, True]
    failed = gateway._stream_results(StreamTotals(whole=10, wrong=Counter({"cut short": 1})), [100.0] * 100 + [106.0])
    assert [result.reached for result in failed] == [False, False, True]


@needs_wrk
def test_the_whole_measurement_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made short, over a small release: every result has both figures."""
    release_of(tmp_path / "release", ["code", "law"])
    for name, value in {
        "SECONDS": 1,
        "ROUNDS": 1,
        "BATCH": 2,
        "CONNECTIONS": 2,
        "BATCH_CONNECTIONS": 2,
        "IDLE": 5,
        "SPIN": "import time; time.sleep(60)",
    }.items():
        monkeypatch.setattr(routes, name, value)
    for name, value in {"SECONDS": 1, "ROUNDS": 1, "FIRST_PIECES": 2, "STREAMS": 5, "STREAMS_S": 2}.items():
        monkeypatch.setattr(gateway, name, value)
    monkeypatch.setattr(gateway, "PACE_S", 0.01)
    prompts = ["abc def", "ghi jkl", "mno pqr", "stu vwx"]
    found = routes.bench_routes(tmp_path / "release", {routes.TOKENS: prompts}, tmp_path)
    found += gateway.bench_gateway(tmp_path / "release", prompts, tmp_path)
    assert len(found) == 14
    assert all(result.ours and result.theirs for result in found)
    assert json.loads(json.dumps([result.to_json() for result in found]))
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout == b""
