"""The engines that a simulated round can run on: this very process, or Flower's simulation engine.

Both run the same ClientApp, ServerApp and protocol as a deployment; only the way messages travel differs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from common.bundle import write_app
from common.errors import LinkError, RoundFailed
from common.processes import end_leftovers, flower_environment, free_port, marked, script, toml
from coordinator.progress import Follower
from coordinator.talk import Watch
from simulations.falling import APP, falling_app, write_falls
from simulations.layout import Village

Engine = Literal["memory", "flower"]
PATIENCE_S = 3600.0
POLL_S = 0.5
RUN_NAME = "simulation"
NOBODY: Mapping[str, int] = MappingProxyType({})


def run_in_memory(village: Village, watch: Watch, falls: Mapping[str, int] = NOBODY) -> None:
    """One round in this process; messages go through Flower's own serialisation.

    falls: holders that fall away, and after how many answers.
    """
    from coordinator.app import GridTransport
    from coordinator.rounds import run_round
    from simulations.local_grid import LocalGrid

    nodes = dict(enumerate(village.nodes.values(), start=1))
    run_round(village.federation, GridTransport(LocalGrid(falling_app(falls), nodes), watch, poll_s=0.0), watch)


def run_on_flower(village: Village, watch: Watch, falls: Mapping[str, int] = NOBODY) -> None:
    """One round on Flower's simulation engine (Ray): `flwr run` with a local SuperLink that is stopped afterwards."""
    app = village.folder / "app"
    write_falls(village.folder, falls)
    write_app(app, client=APP)
    config = village.folder / "run.toml"
    config.write_text(toml({"work": "round", "name": RUN_NAME, "mode": ""}), encoding="utf-8")
    with _local_superlink(village) as environment:
        resources = f"num-supernodes={len(village.nodes)} client-resources-num-cpus=1"
        words = ["run", str(app), "local", "--federation-config", resources, "--run-config", str(config)]
        log = village.folder / "flower.log"
        with log.open("wb") as out:
            started = subprocess.run([script("flwr"), *words], env=environment, stdout=out, stderr=subprocess.STDOUT)
        if started.returncode:
            raise LinkError(f"Flower's simulation did not start; {log} says why")
        _follow(Follower(village.federation.progress(RUN_NAME)), environment, watch, log)


def _follow(follower: Follower, environment: dict[str, str], watch: Watch, log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for event, facts in follower.events():
            if event == "done":
                return
            if event == "failed":
                raise RoundFailed(str(facts["reason"]))
            watch(event, facts)
        if _has_ended(environment) and not list(follower.events()):
            break
        time.sleep(POLL_S)
    raise RoundFailed(f"Flower's simulation ended without a word from the round; {log} may say why")


def _has_ended(environment: dict[str, str]) -> bool:
    words = ["list", "local", "--limit", "1", "--format", "json"]
    listed = subprocess.run([script("flwr"), *words], env=environment, capture_output=True, text=True)
    try:
        return str(json.loads(listed.stdout)["runs"][0]["status"]).startswith("finished")
    except (ValueError, LookupError):
        return listed.returncode != 0


@contextmanager
def _local_superlink(village: Village) -> Iterator[dict[str, str]]:
    """The environment of a SuperLink of our own, which `flwr run` starts; whatever came of it is stopped at the end."""
    folder = village.folder.resolve()
    home = folder / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local-in-memory:"\n', encoding="utf-8"
    )
    scratch = tempfile.mkdtemp(prefix="rw-")  # Ray's sockets need a short path
    port = free_port()
    environment = marked(flower_environment(home), folder) | {
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "RIDGEWAY_SIMULATION": str(folder),
        "RIDGEWAY_COORDINATOR": str(village.federation.link.resolve()),
        "RAY_TMPDIR": scratch,
        "PATH": os.pathsep.join((str(Path(script("flower-superlink")).parent), os.environ.get("PATH", ""))),
    }
    try:
        yield environment
    finally:
        end_leftovers(folder, lambda word: None)
        shutil.rmtree(scratch, ignore_errors=True)
