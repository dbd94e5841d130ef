"""The measurements of serving, made small: that they measure what they say, and fail where something fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ridgeway.common.base.errors import ProcessError
from ridgeway.simulations.bench import serving_bench as serving
from ridgeway.simulations.bench.serving_bench import Server, open_session, put_load, stand_in, stream
from tests.support.serving import release_of
from tests.support.tiny import tiny_definition

TEXT = "abc def ghi jkl mno pqr stu vwx yz " * 10


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SECONDS": 0.3, "_ROUNDS": 1, "FIRST_PIECES": 2, "STREAMS": 5, "STREAMS_S": 0.5, "PACE_S": 0.01}
    for name, value in {**sizes, "_SIZES": (5,), "TOKENS": 5, "BODIES": 4}.items():
        monkeypatch.setattr(serving, name, value)


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with stand_in(tmp_path_factory.mktemp("expert")) as server:
        yield server


def test_prompts_have_as_many_tokens_as_they_should() -> None:
    """They are stretches of the text, one after another; a rest that is too short is left out."""
    tokenizer = Tokenizer.from_str(tiny_definition().decode())
    assert serving.prompts_of(tokenizer, "abcdefghijklmno", 4) == ["abcd", "efgh", "ijkl"]


def test_load_is_counted_and_timed(expert: Server) -> None:
    """Quotes, backslashes, line ends and other alphabets are sent as they are."""
    bodies = [{"prompt": 'a "b" \\n \n ünïcödé 漢字 ]] -- %d'}]
    found = asyncio.run(put_load(expert, "/echo", bodies, connections=2))
    assert found.rate > 1
    assert 0 < found.p50_ms <= found.p99_ms


def test_answers_that_are_errors_are_no_measurement(expert: Server) -> None:
    """A server that refuses quickly is not a quick server."""
    with pytest.raises(ProcessError, match="a request failed"):
        asyncio.run(put_load(expert, "/echo", [{"no": "prompt"}], connections=1))


def test_a_stream_is_read_to_its_end(expert: Server) -> None:
    """Its first piece is timed."""

    async def first() -> float:
        async with open_session() as session:
            return await stream(session, expert, "hm", 5, 0.01)

    assert 0 < asyncio.run(first()) < 5


def test_streams_that_fail_miss_the_aim(expert: Server) -> None:
    """A place that nobody listens at makes failures, not silence."""
    good = asyncio.run(serving.many_streams_row(["hm"], expert))
    bad = asyncio.run(serving.many_streams_row(["hm"], Server(9)))
    assert (good.ratio, good.misses) == (0, False)
    assert bad.ratio > 0
    assert bad.misses


def test_the_whole_measurement_runs(tmp_path: Path) -> None:
    """Over a small release: every row has both figures."""
    release_of(tmp_path / "release", ["code", "law"])
    found = list(serving.release_rows(tmp_path / "release", TEXT, tmp_path))
    assert len(found) == 6
    assert all(row.ours and row.theirs for row in found)
    assert "without" in found[3].theirs
    assert not found[5].misses
