"""The guard before a machine: nothing of a bundle runs unless its owner approved its very bytes."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.common.deploy import approved_bundle as pinned
from ridgeway.common.deploy.approved_bundle import (
    AppFailed,
    BundleGuard,
    BundleRefused,
    approved_bundles,
    note_in,
)
from ridgeway.common.deploy.bundle import SERVER_FILE, source_files, write_files
from ridgeway.common.deploy.flower_patches import (
    CLIENT_APP,
    HOOKS,
    LOOP_HOOKS,
    RUNTIMES,
    SERVER_APP,
    OtherFlower,
    guard,
    replace_executor,
)
from tests.support.native import needs_native
from tests.support.waiting import wait_for

CONTENT = b"the code of a round"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NAME = ("ridgeway/ridgeway", "1.0.0")
APPROVED = frozenset({DIGEST})


@dataclass
class FlowerStandIn:
    """A module with the names of Flower's, which does in order what `run_clientapp` or
    `run_serverapp` does.
    """

    task: str = CLIENT_APP
    content: bytes = CONTENT
    said_hash: str = DIGEST
    fab_id: str = NAME[0]
    fab_version: str = NAME[1]
    app: Callable[..., Any] = lambda message, context: "reply"
    done: list[str] = field(default_factory=list)

    def module(self) -> ModuleType:
        made = ModuleType("runtime")
        run = SimpleNamespace(
            run_id=7,
            fab_id=self.fab_id,
            fab_version=self.fab_version,
            fab_hash=self.said_hash,
        )
        made.__dict__.update(
            pull_task_input=lambda client: ("message", "context", run, self.bundle()),
            run_from_proto=lambda client: run,
            fab_from_proto=lambda client: self.bundle(),
            run_=lambda message, context: self.load()(message, context),
            install_from_fab=lambda content, skip_prompt: self.done.append("unpacked"),
            get_load_client_app_fn=lambda **named: self.load,
        )
        exec(RUN[self.task], made.__dict__)
        return made

    def bundle(self) -> SimpleNamespace:
        return SimpleNamespace(content=self.content, hash_str=self.said_hash)

    def load(self, *identity: str) -> Callable[..., Any]:
        self.done.append("imported")
        return self.app


RUN = {
    CLIENT_APP: """
def run_clientapp(client):
    message, context, run, fab = pull_task_input(client)
    install_from_fab(fab.content, skip_prompt=True)
    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    return load(run.fab_id, run.fab_version, fab.hash_str)(message=message, context=context)
""",
    SERVER_APP: """
def run_serverapp(client):
    run = run_from_proto(client)
    fab = fab_from_proto(client)
    install_from_fab(fab.content, skip_prompt=True)
    return run_(message="message", context="context")
""",
}
BOTH = pytest.mark.parametrize("task", [CLIENT_APP, SERVER_APP])


def unheard(text: str) -> None:
    """A log that nobody reads."""


def printed(code: str, **environment: str) -> str:
    """What a new Python prints that runs this code, without its folder on the path."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def guarding(
    note: Callable[[str], None] = unheard, approved: frozenset[str] = APPROVED
) -> BundleGuard:
    return BundleGuard(approved, note, lambda content: NAME)


def run(
    flower: FlowerStandIn, notes: list[str], approved: frozenset[str] = APPROVED
) -> Any:
    module = flower.module()
    guard(module, guarding(notes.append, approved), flower.task)
    return getattr(module, RUNTIMES[flower.task].rpartition(".")[2])("client")


@BOTH
def test_an_approved_bundle_runs(task: str) -> None:
    notes: list[str] = []
    flower = FlowerStandIn(task=task)
    assert run(flower, notes) == "reply"
    assert flower.done == ["unpacked", "imported"]
    assert notes == [f"run 7: approved bundle {DIGEST}"]


@BOTH
@pytest.mark.parametrize(
    ("sent", "approved"),
    [
        ({"content": b"other"}, APPROVED),
        ({}, frozenset()),
        ({}, frozenset({DIGEST.upper()})),
        ({"said_hash": "0" * 64}, APPROVED),
        ({"fab_id": "other/name"}, APPROVED),
        ({"fab_version": "1.0.0/../../elsewhere"}, APPROVED),
    ],
    ids=[
        "other bytes",
        "nothing approved",
        "other spelling",
        "false hash",
        "false name",
        "false version",
    ],
)
def test_nothing_of_another_bundle_is_unpacked_or_imported(
    task: str, sent: dict[str, Any], approved: frozenset[str]
) -> None:
    """Neither other bytes nor approved bytes under a name that leads to other code."""
    flower = FlowerStandIn(task=task, **sent)
    notes: list[str] = []
    with pytest.raises(BundleRefused) as refusal:
        run(flower, notes, approved)
    assert flower.done == []
    assert "/" not in str(refusal.value)
    assert "refused" in notes[-1]


def test_code_that_was_never_unpacked_here_is_not_loaded() -> None:
    """If Flower came to load without unpacking, what lies there from earlier is not run."""
    flower = FlowerStandIn()
    module = flower.module()
    guard(module, guarding())
    with pytest.raises(BundleRefused):
        module.get_load_client_app_fn()(*NAME, DIGEST)
    server = FlowerStandIn(task=SERVER_APP)
    module = server.module()
    guard(module, guarding(), SERVER_APP)
    with pytest.raises(BundleRefused):
        module.run_("message", "context")
    assert flower.done == server.done == []


@BOTH
def test_what_the_approved_code_raises_stays_with_the_owner(task: str) -> None:
    """The other side gets one sentence; path, text and traceback are in the owner's log."""

    def fails(message: object, context: object) -> None:
        raise ValueError("cannot read /home/holder/patients.jsonl")

    notes: list[str] = []
    with pytest.raises(AppFailed) as failure:
        run(FlowerStandIn(task=task, app=fails), notes)
    assert "patients" not in str(failure.value)
    assert failure.value.__context__ is None and failure.value.__cause__ is None
    assert "patients.jsonl" in notes[-1] and "Traceback" in notes[-1]


@pytest.mark.parametrize(
    ("task", "gone"), [(task, name) for task, names in HOOKS.items() for name in names]
)
def test_a_flower_that_has_changed_is_refused(task: str, gone: str) -> None:
    """Where a name is missing, or is there but no longer called, nothing starts."""
    renamed = FlowerStandIn(task=task).module()
    delattr(renamed, gone)
    with pytest.raises(OtherFlower, match=gone):
        guard(renamed, guarding(), task)
    uncalled = FlowerStandIn(task=task).module()
    exec(RUN[task].replace(f"{gone}(", "another_name("), uncalled.__dict__)
    with pytest.raises(OtherFlower, match=gone):
        guard(uncalled, guarding(), task)


@BOTH
def test_the_installed_flower_has_every_hook(task: str) -> None:
    """Against the real module: the guard goes in, and the function calls what the guard stands
    before.
    """
    pytest.importorskip("flwr")
    runtime = importlib.import_module(RUNTIMES[task])
    called = getattr(runtime, RUNTIMES[task].rpartition(".")[2]).__code__.co_names
    assert set(HOOKS[task]) <= set(called)
    assert all(callable(getattr(runtime, name)) for name in HOOKS[task])


def test_an_allow_list_approves_what_it_names_and_a_malformed_one_nothing() -> None:
    other = "0" * 64
    assert approved_bundles({pinned.APPROVED: f"{DIGEST},{other}"}) == {DIGEST, other}
    assert approved_bundles({}) == frozenset()
    upper = DIGEST.upper()
    for words in ("", "abc", f"{DIGEST},", upper, f"{DIGEST} {other}", f"{DIGEST},x"):
        assert approved_bundles({pinned.APPROVED: words}) == frozenset(), words


def test_the_log_of_bundles_is_its_owners_and_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has grown large is put aside, and the one before it is gone."""
    monkeypatch.setattr(pinned, "_MAX_LOG_BYTES", 100)
    log, older = tmp_path / "bundles.log", tmp_path / "bundles.log.1"
    note = note_in(str(log))
    for number in range(20):
        note(f"line {number}")
    assert {*tmp_path.iterdir()} == {log, older}
    for path in (log, older):
        assert path.stat().st_size < 200 and path.stat().st_mode & 0o077 == 0
    lines = (older.read_text() + log.read_text()).splitlines()
    words = [line.split(" ", 1)[1] for line in lines]
    assert words == [f"line {number}" for number in range(20)][-len(words) :]


@pytest.mark.parametrize(
    ("kind", "other"), [(CLIENT_APP, "flwr-agentapp"), (SERVER_APP, "flwr-simulation")]
)
def test_every_other_task_is_refused_by_name(
    tmp_path: Path, kind: str, other: str
) -> None:
    """What could be asked for besides the one kind of app is not started, with a word to the
    owner.
    """
    house = House(tmp_path, kind=kind)
    assert house.executor.launch(task("one", task_type=other)).status == "failed"
    assert other in house.log()
    assert house.answers() == []


def test_it_runs_alone() -> None:
    """It imports nothing of Ridgeway, so that the packages of a bundle are the bundle's own."""
    code = f"import runpy, sys; runpy.run_path({str(pinned.__file__)!r}); print(*sys.modules)"
    modules = {*printed(code).split()}
    assert not {"client", "common", "coordinator", "flwr"} & modules


@pytest.mark.parametrize(
    "installed", [True, False], ids=["the installed sources", "other sources"]
)
@needs_native
def test_only_a_bundle_of_the_installed_sources_finds_the_compiled_module(
    installed: bool, tmp_path: Path
) -> None:
    """Compiled code that a holder has installed runs with the sources that it was built from, and
    with no others.
    """
    write_files(tmp_path / "bundle", source_files())
    digest = "ab" * 32
    code = (
        "import runpy, sys\n"
        f"runner = runpy.run_path({pinned.__file__!r})\n"
        f"runner['offer_native']({digest!r})\n"
        f"sys.path.insert(0, {str(tmp_path / 'bundle')!r})\n"
        "from ridgeway.common.base import machine\n"
        f"assert machine.__file__.startswith({str(tmp_path)!r})\n"
        "print(machine.native and machine.native.__file__)\n"
    )
    known = {pinned.INSTALLED: digest if installed else "cd" * 32}
    file = printed(code, **known).strip()
    assert Path(file).is_relative_to(IMPORT_ROOT) if installed else file == "None"


# Forks


class House:
    """An executor over Flower's stand-in, whose answers write down who gave them and what was
    imported for them.
    """

    def __init__(
        self,
        folder: Path,
        app: Callable[..., Any] = lambda **named: secrets.token_hex(4),
        kind: str = CLIENT_APP,
    ) -> None:
        self.folder = folder
        self.flower = FlowerStandIn(app=app)
        self.note = note_in(str(folder / "log"))
        self.send(CONTENT)
        self.executor = pinned.ForkingExecutor(self.answer, self.note, kind)

    def send(self, content: bytes) -> None:
        """Let Flower send these bytes as the bundle of each task."""
        self.flower.content = content
        self.module = self.flower.module()
        guard(self.module, guarding(self.note))

    def answer(self, token: str) -> None:
        """In a fork: what an answer does."""
        word = self.module.run_clientapp("client")
        facts = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "did": self.flower.done,
            "word": word,
        }
        (self.folder / "draft").mkdir(exist_ok=True)
        (self.folder / "draft" / token).write_text(json.dumps(facts), encoding="utf-8")
        (self.folder / "draft" / token).rename(self.folder / f"{token}.answer")

    def ask(self, token: str) -> dict[str, Any]:
        """Let a task be answered, as Flower's loop would."""
        assert self.executor.launch(task(token)).status == "accepted"
        return self.answered(token)

    def answered(self, token: str) -> dict[str, Any]:
        path = self.folder / f"{token}.answer"
        wait_for(f"{token} is answered", path.exists, details=self.log)
        return dict(json.loads(path.read_text(encoding="utf-8")))

    def answers(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.answer"))

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(encoding="utf-8") if path.exists() else ""


def task(token: str, task_type: str = "flwr-clientapp") -> Any:
    return SimpleNamespace(task_type=task_type, token=token)


def is_gone(pid: int) -> bool:
    pinned.reap()
    path = Path(f"/proc/{pid}/stat")
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    wait_for("every fork has ended", is_gone_all)


def is_gone_all() -> bool:
    """Whether no fork is left. A helper of multiprocessing, which another test may have started,
    stays.
    """
    pinned.reap()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return all(
        b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in children
    )


def test_each_answer_imports_the_bundle_in_a_process_of_its_own(house: House) -> None:
    """With randomness of its own, judged anew; the process that starts them has imported
    nothing.
    """
    answers = [house.ask(token) for token in ("first", "second", "third")]
    assert all(answer["did"] == ["unpacked", "imported"] for answer in answers)
    assert {answer["parent"] for answer in answers} == {os.getpid()}
    for name in ("pid", "word"):
        assert len({answer[name] for answer in answers}) == 3
    assert house.flower.done == []
    assert house.log().count("approved bundle") == 3


def test_a_bundle_that_is_not_approved_is_refused_in_the_fork_too(
    tmp_path: Path,
) -> None:
    """Also right after an answer of one that is."""
    house = House(tmp_path)
    house.ask("first")
    house.send(b"other")
    house.executor.launch(task("second"))
    wait_for("the refusal is noted", lambda: "has not approved" in house.log())
    wait_for("every fork has ended", is_gone_all)
    assert house.answers() == ["first"]


def test_an_answer_that_crashes_stops_no_other(tmp_path: Path) -> None:
    """Killed in the middle, or failed: its process is gone, and the next one is answered."""

    def crashes(**named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    house = House(tmp_path, app=crashes)
    house.executor.launch(task("first"))
    house.executor.launch(task("second"))
    wait_for("every fork has ended", is_gone_all)
    assert house.answers() == []
    house.flower.app = lambda **named: "word"
    assert house.ask("third")["word"] == "word"
    wait_for("every fork has ended", is_gone_all)


def test_where_flower_may_not_be_forked_a_task_has_a_process_that_reads_its_token(
    tmp_path: Path,
) -> None:
    """No fork answers, and the token is on no command line."""
    house = House(tmp_path)
    code = (
        "import json, sys; from pathlib import Path; "
        "Path(sys.argv[1]).write_text(json.dumps([*sys.argv, input()]))"
    )
    house.executor.begin = partial(
        pinned.spawn, [sys.executable, "-c", code, str(tmp_path / "told")]
    )
    assert house.executor.launch(task("secret")).status == "accepted"
    wait_for("the task has ended", is_gone_all)
    assert json.loads((tmp_path / "told").read_text()) == [
        "-c",
        str(tmp_path / "told"),
        "secret",
    ]
    assert house.answers() == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_fork_ends_with_the_process_that_is_killed(tmp_path: Path) -> None:
    """Also in the middle of an answer."""
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from tests.common.deploy.test_approved_bundle import *\n"
        "def sleeps(**named):\n"
        "    (house.folder / f'{os.getpid()}.pid').touch(); time.sleep(600)\n"
        "house = House(Path(sys.argv[1]), app=sleeps)\n"
        "house.executor.launch(task('first')); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as process:
        wait_for("an answer is being given", lambda: list(tmp_path.glob("*.pid")) != [])
        [path] = tmp_path.glob("*.pid")
        fork = int(path.stem)
        assert process.pid != fork
        process.kill()
    wait_for("its fork is gone", lambda: is_gone(fork))


def test_the_bell_ends_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is heard also by one who was busy when it rang, and once; without it a look comes after a
    while.
    """
    monkeypatch.setattr(pinned, "LOOK_PAUSE_S", 600.0)
    pinned.wake(str(tmp_path / "wakeup"))
    pipe = pinned.WakeupPipe(str(tmp_path / "wakeup"))
    pinned.wake(str(tmp_path / "wakeup"))
    pinned.wake(str(tmp_path / "wakeup"))
    pipe.sleep(0.25)
    monkeypatch.setattr(pinned, "LOOK_PAUSE_S", 0.01)
    pipe.sleep(0.25)
    assert (tmp_path / "wakeup").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("gone", LOOP_HOOKS)
def test_a_superexec_that_has_changed_is_refused(
    gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = pytest.importorskip("flwr.supercore.superexec.run_superexec")
    for name in LOOP_HOOKS:
        monkeypatch.setattr(real, name, getattr(real, name))
    replace_executor(real, "executor", "clock")
    assert real.get_executor("x", y=1) == "executor" and real.time == "clock"
    names = [name for name in LOOP_HOOKS if name != gone]
    changed = ModuleType("run_superexec")
    exec(f"def run_superexec(): return {', '.join(names)}", changed.__dict__)
    with pytest.raises(OtherFlower, match=gone):
        replace_executor(changed, "executor")


@pytest.mark.parametrize("kept", [True, False])
def test_a_coordinator_runs_its_own_code_beside_a_bundle(
    tmp_path: Path, kept: bool
) -> None:
    """All of Ridgeway comes from the kept folder, as the bundle has no ServerApp; without it
    nothing is imported.
    """
    folder = tmp_path / f"{DIGEST}{pinned.SERVER_SUFFIX}"
    if kept:
        write_files(folder, source_files([SERVER_FILE]))
    code = (
        "import runpy, sys\n"
        f"runpy.run_path({pinned.__file__!r})['use_server_code']({DIGEST!r})\n"
        "print(*(module.__file__ for name, module in sys.modules.items()"
        " if name.split('.')[0] == 'ridgeway'))"
    )
    words = printed(code, **{pinned.SERVER_CODE: str(tmp_path)}).split()
    files = [word for word in words if word.endswith(".py")]
    assert bool(files) == kept
    assert all(file.startswith(str(folder)) for file in files)


def test_the_loop_begins_as_soon_as_somebody_listens() -> None:
    """The SuperNode takes some seconds to start; nobody waits longer for it than it takes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    waiting = threading.Thread(target=pinned.await_listener, args=(address,))
    waiting.start()
    time.sleep(0.05)
    assert waiting.is_alive()
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        waiting.join(10)
        assert not waiting.is_alive()
