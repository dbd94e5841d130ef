"""Processes that end with the one that started them, and are started again when they die."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.deploy import processes
from ridgeway.common.deploy.processes import (
    Child,
    NewLines,
    end_leftovers,
    flower_environment,
    keep_running,
    last_words,
    marked,
    marked_processes,
    only_one,
    script,
    stop_all,
    toml,
)
from tests.support.waiting import wait_for

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
GRANDCHILD = [
    sys.executable,
    "-c",
    "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])",
    *SLEEP[1:],
]


def child(folder: Path, command: list[str]) -> Child:
    return Child(
        "helper", command, marked(os.environ, folder), folder / "logs" / "helper.log"
    )


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    with (
        only_one(tmp_path, "a helper"),
        pytest.raises(ProcessError, match="runs already"),
        only_one(tmp_path, "b"),
    ):
        pass
    with only_one(tmp_path, "a helper"):
        pass


def test_values_survive_toml() -> None:
    """Quotes, backslashes, line breaks and letters of any script arrive as they were."""
    values: dict[str, processes.Value] = {
        "a key": "q\"uo'te\\s",
        "lines": "a\nb\x7f\t",
        "script": "щ🂡",
        "n": -3,
        "x": 0.5,
        "yes": True,
    }
    assert tomllib.loads(toml(values)) == values


def test_flower_gets_nothing_of_the_users_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_CONTROL_API", "1")
    monkeypatch.setenv("NO_PROXY", "inner.example.org")
    environment = flower_environment(tmp_path)
    assert "FLWR_INTERNAL_GRPC_CONTROL_API" not in environment
    assert (
        environment["FLWR_HOME"] == str(tmp_path)
        and environment["FLWR_TELEMETRY_ENABLED"] == "0"
    )
    assert environment["NO_PROXY"] == "inner.example.org,127.0.0.1,localhost"


def test_a_missing_command_is_named() -> None:
    assert Path(script("pytest")).is_file()
    with pytest.raises(ProcessError, match="no-such-command"):
        script("no-such-command")


def test_what_dies_is_started_again_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RESTART_PAUSES_S", (0.05,))
    words: list[str] = []
    helper = child(tmp_path, SLEEP)
    helper.start()
    first = helper.process
    assert first is not None
    first.kill()
    first.wait()

    def kept() -> bool:
        keep_running([helper], words.append)
        return helper.is_running()

    try:
        wait_for("it runs again", kept)
        assert len(words) == 1 and "code -9" in words[0]
    finally:
        stop_all([helper])


def test_what_dies_again_and_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RESTART_PAUSES_S", (0.0,))
    helper = child(
        tmp_path, [sys.executable, "-c", "print('cannot'); raise SystemExit(3)"]
    )

    def keep() -> bool:
        keep_running([helper], print)
        return False

    with pytest.raises(ProcessError, match=r"died 5 times .* code 3"):
        wait_for("it is given up", keep)
    assert "cannot" in last_words(helper.log)


def test_stopping_ends_grandchildren_too(tmp_path: Path) -> None:
    helper = child(tmp_path, GRANDCHILD)
    helper.start()
    wait_for("both run", lambda: len(marked_processes(tmp_path)) == 2)
    helper.stop(0.2)
    wait_for("both are gone", lambda: marked_processes(tmp_path) == [])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_killed_parent_takes_its_children_along_and_leftovers_are_found(
    tmp_path: Path,
) -> None:
    """The child dies with a parent that is killed outright; a grandchild is found by its mark and
    ended.
    """
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tests.common.deploy.test_processes import GRANDCHILD, child\n"
        "child(Path(sys.argv[1]), GRANDCHILD).start(); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[3]
    ) as parent:
        wait_for("both run", lambda: len(marked_processes(tmp_path)) == 2)
        parent.kill()
    wait_for("the child is gone", lambda: len(marked_processes(tmp_path)) == 1)
    words: list[str] = []
    end_leftovers(tmp_path, words.append)
    assert marked_processes(tmp_path) == [] and len(words) == 1


def test_a_stranger_is_never_ended(tmp_path: Path) -> None:
    with subprocess.Popen(
        SLEEP, env=marked(os.environ, tmp_path / "other")
    ) as stranger:
        end_leftovers(tmp_path, lambda words: None)
        assert stranger.poll() is None
        stranger.kill()


def test_a_log_has_times_and_no_colours_and_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a process prints: each line with its time, nothing that steers a terminal, the
    newest lines kept.
    """
    monkeypatch.setattr(processes, "_MAX_LOG_BYTES", 2000)
    words = r"for n in range(400): print(f'\x1b[92mINFO\x1b[0m : line {n}')"
    helper = child(tmp_path, [sys.executable, "-c", words])
    helper.start()
    wait_for("it has ended", lambda: not helper.is_running())
    logs = [helper.log, helper.log.with_name("helper.log.1")]
    assert all(
        path.stat().st_size <= 2000 and path.stat().st_mode & 0o077 == 0
        for path in logs
    )
    lines = [
        line
        for path in reversed(logs)
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert lines[-1].endswith("line 399")
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO : line \d+", line)
        for line in lines
    )


def test_a_log_that_finds_no_room_stops_nobody(tmp_path: Path) -> None:
    """A full disk must not let the process hang on a pipe that nobody reads."""
    helper = Child(
        "helper",
        [sys.executable, "-c", "print('x' * 1_000_000)"],
        os.environ,
        Path("/dev/full"),
    )
    helper.start()
    wait_for("it has ended", lambda: not helper.is_running())
    assert helper.process is not None and helper.process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_only_a_task_that_runs_keeps_a_process_busy(tmp_path: Path) -> None:
    """One that has ended and that nobody has looked at does not."""
    script = """
import os, sys, time
if not os.fork():
    time.sleep(60 if sys.argv[1] == "runs" else 0)
    os._exit(0)
print("started", flush=True); time.sleep(60)
"""
    for task, idle in (("ended", True), ("runs", False)):
        helper = child(tmp_path / task, [sys.executable, "-c", script, task])
        helper.start()
        try:
            log = helper.log
            wait_for("it has started", lambda: "started" in last_words(log))  # noqa: B023
            wait_for("it is seen", lambda: helper.is_idle() == idle)  # noqa: B023
        finally:
            helper.stop(1.0)
    assert helper.is_idle()


def test_what_is_added_to_a_log_is_read_once_in_whole_lines(tmp_path: Path) -> None:
    """Also where it comes bit by bit, and where the log is put aside for another one."""
    log = tmp_path / "log"
    log.write_text("before\n")
    lines = NewLines(log)
    read = []
    for bit in ("one\ntw", "o\n", "", "three"):
        with log.open("a") as file:
            file.write(bit)
        read.append(lines.read())
    assert read == ["one\n", "two\n", "", ""]
    log.write_text("new\n")
    assert lines.read() == "new\n"
    log.unlink()
    assert lines.read() == ""
