"""The measurements of serving, made small: that they measure what they say, and fail where
something fails.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeway.common.base.errors import ProcessError
from ridgeway.simulations.bench import serving_bench as serving
from ridgeway.simulations.bench.serving_bench import Server, put_load, stand_in
from tests.support.serving import (
    CASCADE_DOMAINS,
    prompt_for,
    release_of,
    unsure_prompts,
)
from tests.support.tiny import tiny_library_tokenizer

TEXT = "abc def ghi jkl mno pqr stu vwx yz " * 10


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "SECONDS": 0.3,
        "_ROUNDS": 1,
        "FIRST_PIECES": 2,
        "STREAMS": 5,
        "STREAMS_S": 0.5,
        "PACE_S": 0.01,
        "CPU_TURNS": 1,
        "CPU_TURN_S": 0.1,
    }
    monkeypatch.setattr(serving, "bare_tokenizer", tiny_library_tokenizer)
    for name, value in {**sizes, "_SIZES": (5,), "TOKENS": 5, "BODIES": 4}.items():
        monkeypatch.setattr(serving, name, value)


@pytest.fixture(scope="module")
def expert(module_path: Path) -> Iterator[Server]:
    with stand_in(module_path) as server:
        yield server


def test_answers_that_are_errors_are_no_measurement(expert: Server) -> None:
    """A server that refuses quickly is not a quick server."""
    with pytest.raises(ProcessError, match="a request failed"):
        asyncio.run(put_load(expert, "/echo", [{"no": "prompt"}], connections=1))


def test_streams_that_fail_miss_the_aim(expert: Server) -> None:
    """A place that nobody listens at makes failures, not silence."""
    good = asyncio.run(serving.many_streams_row(["hm"], expert))
    bad = asyncio.run(serving.many_streams_row(["hm"], Server(9, os.getpid())))
    assert (good.ratio, good.misses) == (0, False)
    assert bad.ratio is not None and bad.ratio > 0
    assert bad.misses


def test_the_whole_measurement_runs(tmp_path: Path) -> None:
    """Over a small release: every row has both figures."""
    release_of(tmp_path / "release", ["code", "law"])
    found = list(serving.release_rows(tmp_path / "release", TEXT, tmp_path))
    assert len(found) == 8
    assert all(row.ours and row.theirs for row in found)
    assert "without" in found[4].theirs
    assert all((row.ratio or 0) > 0 for row in found[:7])
    assert not found[7].misses


def test_prompts_that_are_read_and_others_are_measured_at_once(
    cascade: Path, tmp_path: Path
) -> None:
    """Where the table decides some of the prompts, and a sentence encoder the rest; without either,
    nothing is.
    """
    read = unsure_prompts(3)
    sure = [prompt_for("law", CASCADE_DOMAINS)]
    beside, reading = serving.mixed_rows(cascade, [*read, *sure], tmp_path)
    assert (beside.ratio or 0) > 0
    assert "3 of 4 prompts" in reading.theirs
    with pytest.raises(ProcessError, match="of both kinds"):
        list(serving.mixed_rows(cascade, sure, tmp_path))
