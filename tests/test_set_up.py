"""`make demo` and `make test` set themselves up; what is in the way gets one sentence, and the next
run heals.
"""

from __future__ import annotations

import builtins
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[1]
NOWHERE = "http://127.0.0.1:9/"
Version = namedtuple("Version", "major minor micro")


@pytest.fixture
def set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, for a checkout of its own that holds what it reads."""
    (tmp_path / "packages").mkdir()
    for name in ("packages/set_up.py", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    spec = spec_from_file_location("set_up", tmp_path / "packages/set_up.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["set_up.py", "demo"])
    return module


def said(set_up: ModuleType, capfd: pytest.CaptureFixture[str]) -> str:
    """The last sentence of a set-up that stops with exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        set_up.main()
    assert stopped.value.code == 2
    shown = capfd.readouterr().err
    assert "Traceback" not in shown
    return shown.strip().rpartition("\n")[2]


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 15, 0)])
def test_another_python_is_told_which_ones_will_do(
    set_up: ModuleType,
    version: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "version_info", Version(*version))
    assert "3.11 to 3.14" in said(set_up, capfd)
    assert not (set_up.ROOT / ".venv").exists()


def test_a_python_without_venv_is_told_what_to_install(
    set_up: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As Debian's is without python3-venv."""
    load = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "ensurepip":
            raise ModuleNotFoundError(name=name)
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "apt install python3-venv" in said(set_up, capfd)


def test_a_checkout_that_cannot_be_written_is_named(
    set_up: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    (set_up.ROOT / ".venv.lock").mkdir()  # also root cannot open it
    assert "cannot write to the checkout" in said(set_up, capfd)


@pytest.mark.slow
def test_without_a_network_it_says_so_and_the_next_run_begins_anew(
    set_up: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What a cut-off set-up has left is not taken for an environment."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert "see to the network and the disk, then run make again" in said(set_up, capfd)
    left = set_up.VENV / "left"
    left.touch()
    assert not set_up.is_ready("demo")
    said(set_up, capfd)
    assert not left.exists()


def test_what_is_installed_serves_until_the_lock_changes(set_up: ModuleType) -> None:
    """Tests' environment is good enough for the demo, and not the other way round."""
    set_up.VENV.mkdir()
    (set_up.VENV / "bin").mkdir()
    set_up.PYTHON.touch()
    for installed, fits_test in (("demo", False), ("test", True)):
        set_up.READY.write_text(f'{{"{installed}": "{set_up.digest()}"}}')
        assert set_up.is_ready("demo") and set_up.is_ready("test") is fits_test
    set_up.LOCK.write_text("other==1\n")
    assert not set_up.is_ready("test")


def test_two_at_once_wait_for_each_other(set_up: ModuleType) -> None:
    """The second goes on when the first has ended."""
    with (set_up.ROOT / ".venv.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = subprocess.Popen(
            [sys.executable, str(set_up.__file__), "demo"],
            stderr=subprocess.PIPE,
            text=True,
            env={"PIP_INDEX_URL": NOWHERE},
            start_new_session=True,
        )
        assert waiting.stderr
        assert "waiting for it" in waiting.stderr.readline()
        assert not (set_up.ROOT / ".venv").exists()
    try:
        wait_for("an environment", (set_up.ROOT / ".venv").exists)
    finally:
        os.killpg(waiting.pid, signal.SIGKILL)
        waiting.communicate()


def test_uv_is_installed_with_the_hashes_of_the_lock(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them: pip takes the wheel of whatever machine this is."""
    monkeypatch.setattr(set_up, "run", lambda command, failure: None)
    set_up.VENV.mkdir()
    set_up.install_uv()
    written = (set_up.VENV / "uv.txt").read_text()
    assert written.startswith("uv==") and written.count("==") == 1
    assert written in (ROOT / "requirements.lock").read_text()
    assert written.count("--hash=sha256:") > 5
