"""What only some systems have: the plain answers of others, tried by turning Linux's off."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from ridgeway.common.base import operating_system
from ridgeway.common.base.operating_system import (
    end_session_with,
    flush,
    most_open_files,
)
from tests.support.commands import Workshop, workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl
from tests.support.serving import Serving
from tests.support.waiting import MAX_WAIT_S, wait_for, wait_for_end
from tests.test_architecture import project_files, read

SPAWNING = """
import multiprocessing
multiprocessing.set_start_method("spawn")
from ridgeway.simulations import simulated_federation
simulated_federation.MANY_HOLDERS = 2
from ridgeway.__main__ import main
main()
"""
"""The `ridgeway` command as macOS starts it; a simulation's holders are shared out over processes.
"""
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return workshop(tmp_path_factory.mktemp("workshop"))


def printed(shop: Workshop, words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SPAWNING, *words.split()],
        env=shop.environment(RIDGEWAY_LINUX="0"),
        cwd=shop.folder,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_sums_releases_and_decisions_need_no_linux(shop: Workshop) -> None:
    """`prepare` gives the same bytes; `solve` and `route` do their work."""
    encoder = f"--encoder {shop.encoder}"
    for domain in ("code", "law"):
        words = f"{domain}.jsonl --domain {domain} --threads 2 --fresh --out"
        printed(shop, f"client prepare {words} other-{domain}.stats {encoder}")
        assert shop.prepare(*words.split(), f"same-{domain}.stats").code == 0
        other, same = (shop / f"{name}-{domain}.stats" for name in ("other", "same"))
        assert other.read_bytes() == same.read_bytes()
    names = "other-code.stats other-law.stats"
    printed(shop, f"coordinator solve {names} {encoder} --out other")
    assert printed(shop, "route other 0123").startswith("code")


@pytest.mark.slow
def test_a_federation_is_simulated_by_processes_that_are_not_forked(
    shop: Workshop,
) -> None:
    """Each imports what it needs, finds its holders, and answers for them to the end of the
    round.
    """
    for domain in ALPHABETS:
        for part in ("train", "test"):
            write_jsonl(shop / "data" / f"{domain}.{part}.jsonl", sentences(domain, 30))
    words = f"simulate --data data --encoder {shop.encoder} --out simulated --json"
    assert json.loads(printed(shop, words))["holders"] == len(ALPHABETS)
    assert printed(shop, "route simulated abcdefgh").startswith("law")


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_release_is_served_by_processes_that_are_not_forked(
    workers: str, shop: Workshop, tmp_path: Path
) -> None:
    """With keys, which every worker reads by itself."""
    key = shop.call("keys", "add", tmp_path / "keys", "me").stdout.strip()
    options = ("--workers", workers, "--keys", tmp_path / "keys")
    with Serving(tmp_path, shop / "release", *options, RIDGEWAY_LINUX="0") as serving:
        for authorization, code in ((f"Bearer {key}", 200), ("Bearer no", 401)):
            answer = httpx.post(
                f"{serving.url}/v1/route",
                json={"prompt": "abcdefgh"},
                headers={"authorization": authorization},
                trust_env=False,
            )
            assert answer.status_code == code
        assert serving.stop() == 0


def is_running(command: str) -> bool:
    """Whether there is a process with this command line, as a regular expression."""
    return not subprocess.run(["pgrep", "-f", command], capture_output=True).returncode


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["parent", "child"])
def test_a_session_ends_with_the_process_that_it_was_started_for(
    killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel does not see to it; nobody is killed for a child that ends by itself."""
    monkeypatch.setattr(operating_system, "IS_LINUX", False)
    with (
        subprocess.Popen(SLEEP) as parent,
        subprocess.Popen(SLEEP, start_new_session=True) as child,
    ):
        try:
            end_session_with(parent.pid, child.pid)
            watch = f"sh {parent.pid} {child.pid}$"
            assert is_running(watch)
            {"parent": parent, "child": child}[killed].kill()
            parent.wait() if killed == "parent" else child.wait()
            wait_for_end(child)
            wait_for("the watch has ended", lambda: not is_running(watch))
            assert (parent.poll() is None) == (killed == "child")
        finally:
            parent.kill()
            child.kill()


def test_what_is_flushed_has_left_the_drives_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By F_FULLFSYNC where there is one, by fsync where a file system does not know that."""
    asked: list[object] = []
    monkeypatch.setattr(operating_system, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", lambda handle, what: asked.append(what))
    monkeypatch.setattr(os, "fsync", lambda handle: asked.append("fsync"))
    flush(0)
    assert asked == [51]

    def refuse(handle: int, what: int) -> None:
        raise OSError

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    flush(0)
    assert asked == [51, "fsync"]


@pytest.mark.parametrize(
    ("allowed", "had"), [(1 << 20, 1 << 20), (20_000, 10_240), (1_000, 256)]
)
def test_no_more_files_are_counted_on_than_the_system_gives(
    allowed: int, had: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS names no limit, and refuses to give that many."""

    def give(which: int, limits: tuple[int, int]) -> None:
        if limits[0] > allowed:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(
        resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY)
    )
    monkeypatch.setattr(resource, "setrlimit", give)
    assert most_open_files() == had


ASKING = re.compile(
    r"prctl|sched_getaffinity|sys\.platform|platform\.system|get_context\(\"fork|[\"']/proc/?[\"'{]"
)


def test_one_module_asks_which_system_this_is() -> None:
    """All others call its functions."""
    asking = {file for file in project_files() if ASKING.search(read(file))}
    assert asking == {"common/base/operating_system.py"}
    assert not re.search(
        r"^\s*(from|import) ridgeway",
        read("common/base/operating_system.py"),
        re.MULTILINE,
    )
