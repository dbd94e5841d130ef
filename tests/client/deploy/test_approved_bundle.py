"""The guard before a holder's machine: nothing of a bundle runs unless the holder approved its very bytes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ridgeway.client.deploy import approved_bundle as pinned
from ridgeway.client.deploy.approved_bundle import (
    AppFailed,
    BundleGuard,
    BundleRefused,
    approved_bundles,
    guard,
    note_in,
)

CONTENT = b"the code of a round"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NAME = ("ridgeway/ridgeway", "1.0.0")


@dataclass
class FlowerStandIn:
    """A module with the names of Flower's, which does in order what `run_clientapp` does and notes it."""

    content: bytes = CONTENT
    said_hash: str = DIGEST
    fab_id: str = NAME[0]
    fab_version: str = NAME[1]
    app: Callable[..., Any] = lambda message, context: "reply"
    done: list[str] = field(default_factory=list)

    def module(self) -> ModuleType:
        made = ModuleType("run_clientapp")
        run = SimpleNamespace(run_id=7, fab_id=self.fab_id, fab_version=self.fab_version, fab_hash=self.said_hash)
        fab = SimpleNamespace(content=self.content, hash_str=self.said_hash)
        made.__dict__.update(
            pull_task_input=lambda client: ("message", "context", run, fab),
            install_from_fab=lambda content, skip_prompt: self.done.append("unpacked"),
            get_load_client_app_fn=lambda **named: self.load,
        )
        exec(RUN_CLIENTAPP, made.__dict__)
        return made

    def load(self, *identity: str) -> Callable[..., Any]:
        self.done.append("imported")
        return self.app


RUN_CLIENTAPP = """
def run_clientapp(client):
    message, context, run, fab = pull_task_input(client)
    install_from_fab(fab.content, skip_prompt=True)
    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    return load(run.fab_id, run.fab_version, fab.hash_str)(message=message, context=context)
"""


def unheard(text: str) -> None:
    """A log that nobody reads."""


def run(flower: FlowerStandIn, approved: frozenset[str] = frozenset({DIGEST}), notes: list[str] | None = None) -> Any:
    module = flower.module()
    guard(module, BundleGuard(approved, (notes if notes is not None else []).append, lambda content: NAME))
    return module.run_clientapp("client")


def test_an_approved_bundle_runs() -> None:
    notes: list[str] = []
    flower = FlowerStandIn()
    assert run(flower, notes=notes) == "reply"
    assert flower.done == ["unpacked", "imported"]
    assert notes == [f"run 7: approved bundle {DIGEST}"]


@pytest.mark.parametrize(
    ("flower", "approved"),
    [
        (FlowerStandIn(content=b"other"), frozenset({DIGEST})),
        (FlowerStandIn(), frozenset()),
        (FlowerStandIn(), frozenset({DIGEST.upper()})),
        (FlowerStandIn(said_hash="0" * 64), frozenset({DIGEST})),
        (FlowerStandIn(fab_id="other/name"), frozenset({DIGEST})),
        (FlowerStandIn(fab_version="1.0.0/../../elsewhere"), frozenset({DIGEST})),
    ],
    ids=["other bytes", "nothing approved", "other spelling", "false hash", "false name", "false version"],
)
def test_nothing_of_another_bundle_is_unpacked_or_imported(flower: FlowerStandIn, approved: frozenset[str]) -> None:
    """Neither other bytes nor approved bytes under a name that leads to other code."""
    notes: list[str] = []
    with pytest.raises(BundleRefused) as refusal:
        run(flower, approved, notes)
    assert flower.done == []
    assert "/" not in str(refusal.value)
    assert "refused" in notes[-1]


def test_code_that_was_never_unpacked_here_is_not_loaded() -> None:
    """If Flower came to load without unpacking, what lies there from earlier is not run."""
    flower = FlowerStandIn()
    module = flower.module()
    guard(module, BundleGuard(frozenset({DIGEST}), unheard, lambda content: NAME))
    with pytest.raises(BundleRefused):
        module.get_load_client_app_fn()(*NAME, DIGEST)
    assert flower.done == []


def test_what_the_approved_code_raises_stays_with_the_holder() -> None:
    """The coordinator gets one sentence; path, text and traceback are in the holder's log."""

    def fails(message: object, context: object) -> None:
        raise ValueError("cannot read /home/holder/patients.jsonl")

    notes: list[str] = []
    with pytest.raises(AppFailed) as failure:
        run(FlowerStandIn(app=fails), notes=notes)
    assert "patients" not in str(failure.value)
    assert failure.value.__context__ is None and failure.value.__cause__ is None
    assert "patients.jsonl" in notes[-1] and "Traceback" in notes[-1]


@pytest.mark.parametrize("gone", pinned.HOOKS)
def test_a_flower_that_has_changed_is_refused(gone: str) -> None:
    """Where a name is missing, or is there but no longer called, nothing starts."""
    renamed = FlowerStandIn().module()
    delattr(renamed, gone)
    with pytest.raises(BundleRefused, match=gone):
        guard(renamed, BundleGuard(frozenset({DIGEST}), unheard, lambda content: NAME))
    uncalled = FlowerStandIn().module()
    exec(RUN_CLIENTAPP.replace(gone, "another_name"), uncalled.__dict__)
    with pytest.raises(BundleRefused, match=gone):
        guard(uncalled, BundleGuard(frozenset({DIGEST}), unheard, lambda content: NAME))


def test_the_installed_flower_has_every_hook() -> None:
    """Against the real module: the guard goes in, and the function calls what the guard stands before."""
    runtime = pytest.importorskip("flwr.supernode.runtime.run_clientapp")
    assert set(pinned.HOOKS) <= set(runtime.run_clientapp.__code__.co_names)
    assert all(callable(getattr(runtime, name)) for name in pinned.HOOKS)


@pytest.mark.parametrize("words", ["", "abc", DIGEST + ",", DIGEST.upper(), f"{DIGEST} {DIGEST}", f"{DIGEST},x"])
def test_a_malformed_allow_list_approves_nothing(words: str) -> None:
    assert approved_bundles({pinned.APPROVED: words}) == frozenset()
    assert approved_bundles({}) == frozenset()


def test_an_allow_list_approves_what_it_names() -> None:
    assert approved_bundles({pinned.APPROVED: f"{DIGEST},{'0' * 64}"}) == {DIGEST, "0" * 64}


def test_the_log_is_the_holders_own(tmp_path: Path) -> None:
    note_in(str(tmp_path / "bundles.log"))("refused")
    note_in(str(tmp_path / "bundles.log"))("again")
    lines = (tmp_path / "bundles.log").read_text(encoding="utf-8").splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["refused", "again"]
    assert (tmp_path / "bundles.log").stat().st_mode & 0o077 == 0


def test_every_other_task_is_refused_by_name(tmp_path: Path) -> None:
    """What a coordinator could ask for besides a ClientApp ends at once, with a word to the holder."""
    environment = {pinned.LOG: str(tmp_path / "bundles.log")}
    command = [sys.executable, "-P", str(Path(pinned.__file__)), "refuse", "flwr-agentapp", "--token", "t"]
    assert subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 1
    assert "flwr-agentapp" in (tmp_path / "bundles.log").read_text(encoding="utf-8")


def test_it_runs_alone() -> None:
    """It imports nothing of Ridgeway, so that the packages of a bundle are the bundle's own."""
    code = f"import runpy, sys; runpy.run_path({str(pinned.__file__)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert not {"client", "common", "coordinator", "flwr"} & set(done.stdout.split())
