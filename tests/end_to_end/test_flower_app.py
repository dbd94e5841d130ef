"""The Flower app of examples/ as its README says: real `flwr run`, in a simulation and in a
deployment on loopback.

Nothing is downloaded: uv, which Flower calls before a run, is offline.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeway import Router
from ridgeway.common.deploy.processes import flower_environment, free_port, script
from tests.support.corpora_on_disk import write_domains
from tests.support.deployment import PROCESSES, Deployment
from tests.support.tiny import private_encoder

pytestmark = PROCESSES
APP = Path(__file__).resolve().parents[2] / "examples" / "flower-app"
NAMES = ("code", "law", "medicine")


@pytest.fixture
def town(
    tmp_path: Path, private_sentences: None, sentences_cache: Path
) -> Iterator[Deployment]:
    with Deployment(tmp_path, private_encoder(16), sentences_cache) as made:
        yield made


@pytest.fixture
def environment(town: Deployment) -> Iterator[dict[str, str]]:
    """That of somebody who has just installed Flower."""
    with tempfile.TemporaryDirectory(
        prefix="rw-"
    ) as scratch:  # Ray's sockets need a short path
        made = flower_environment(town.folder / ".flwr") | {
            "HOME": str(town.folder),
            "PATH": os.pathsep.join(
                (str(Path(script("flwr")).parent), os.environ["PATH"])
            ),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "RAY_TMPDIR": scratch,
            "UV_OFFLINE": "1",
        }
        del made["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]
        yield made


def flwr(town: Deployment, environment: dict[str, str], *words: str) -> str:
    """What `flwr WORDS...` says, typed in the app's folder, where it leaves nothing."""
    before = files_of_app()
    running = town.start(
        "flwr", *words, program=script("flwr"), cwd=APP, environment=environment
    )
    done = running.end()
    assert done.code == 0, done.stderr
    assert files_of_app() == before
    return done.stdout


def files_of_app() -> set[Path]:
    return {path for path in APP.rglob("*") if "__pycache__" not in path.parts}


def status(town: Deployment, environment: dict[str, str]) -> tuple[str, str]:
    [run] = json.loads(flwr(town, environment, "list --limit 1 --format json"))["runs"]
    return run["status"], run["status-details"]


def released(said: str) -> Path:
    """The release that a run's log names."""
    [release] = re.findall(r"release: (\S+)", said)
    return Path(release)


def is_listening(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def test_flwr_run_makes_a_release_with_the_two_supernodes_that_flower_simulates(
    town: Deployment, environment: dict[str, str]
) -> None:
    """In a new folder of the user's."""
    write_domains(town.folder / "data", 60, 10)
    small = f'data="{town.folder / "data"}" encoder="dir:{town.folder / "encoder"}" mode="clear"'
    release = released(flwr(town, environment, "run . --stream -c", small))
    assert status(town, environment)[0] == "finished:completed"
    assert release.parents[3] == town.folder / "ridgeway-round"
    assert Router.load(release).domains == NAMES[:2]


@pytest.mark.long
def test_flwr_run_needs_no_settings(
    town: Deployment, environment: dict[str, str]
) -> None:
    """A private round on text of this machine; one that lacks SuperNodes ends as failed, with a
    sentence.
    """
    release = released(flwr(town, environment, "run . --stream"))
    assert Router.load(release).route("May a tenant end a lease early?").best == "law"
    flwr(town, environment, "run . --stream -c", 'mode="masked" wait=1')
    ended, words = status(town, environment)
    assert ended == "finished:failed"
    assert "2 SuperNodes are there after 1 s, and the round needs 3" in words


@pytest.mark.long
def test_the_same_app_runs_in_a_deployment(
    town: Deployment, environment: dict[str, str]
) -> None:
    """Each SuperNode names a holder's folder; corpora are gone before the round, which needs epochs
    alone.
    """
    town.found()
    for name in NAMES:
        town.settle(name)
        town.admit(name)
    town.ready(*NAMES)
    shutil.rmtree(town.folder / "private")
    port = free_port()
    address = f"127.0.0.1:{port}"
    here = "--insecure --host 127.0.0.1 --port"
    town.start(
        "superlink",
        f"{here} {port}",
        program=script("flower-superlink"),
        environment=environment,
    )
    town.wait_for("the SuperLink listens", lambda: is_listening(port))
    for name in NAMES:
        town.start(
            name,
            f"{here} {free_port()} --superlink {address} --node-config",
            f'holder="{town.holder(name)}"',
            program=script("flower-supernode"),
            environment=environment,
        )
    (town.folder / ".flwr").mkdir(exist_ok=True)
    connection = f'[superlink.town]\naddress = "{address}"\ninsecure = true\n'
    (town.folder / ".flwr" / "config.toml").write_text(connection)
    said = flwr(
        town, environment, "run . town --stream -c", f'coordinator="{town.coordinator}"'
    )
    assert released(said) == town.coordinator / "releases" / "0001"
    assert Router.load(released(said)).domains == NAMES
    assert [town.newest(name) for name in NAMES] == [1, 1, 1]
