"""The engines that a simulated round can run on: this very process, or Flower's simulation engine.

Both run the same ClientApp, ServerApp and protocol as a deployment; only the way messages travel
differs.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ridgeway.common.base.errors import InputError, LinkError
from ridgeway.common.base.operating_system import cores, may_fork
from ridgeway.common.deploy.bundle import SERVER_FILE, write_app
from ridgeway.common.deploy.processes import (
    end_leftovers,
    flower_environment,
    free_port,
    marked,
    script,
)
from ridgeway.coordinator.round.ask import RunOrder, give_order
from ridgeway.coordinator.round.progress import Watch, follow
from ridgeway.coordinator.round.round import run_round
from ridgeway.simulations.simulated_federation import MANY_HOLDERS, SimulatedFederation

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp


# Holders that drop out in the middle of a round, as a simulation was asked to let them.
#
# A ClientApp around the holders' own: it answers a number of requests, then fails for good, as a
# machine does whose network is cut. Which holders drop out, and when, is the same in every run.
# Flower's simulation engine loads `app`.


DROPOUTS_FILE = "dropouts.json"
APP = "ridgeway.simulations.engines:app"
APP_FILES = ("simulations/__init__.py", "simulations/engines.py")
"""What the bundle of a simulation holds beside the rooms of a round."""

STAGES = {
    1: "before sharing",
    2: "after sharing",
    3: "after sending",
    4: "before opening",
}
UNMASKED_STAGES = {1: "before sending", 2: "before counting", 3: "before the delivery"}
"""After how many answers a holder drops out, and what that means: in a round under masks, and in
one without.
"""


def choose_dropouts(
    names: Sequence[str], rate: float, stages: Mapping[int, str] = STAGES
) -> dict[str, int]:
    """Which holders drop out, and after how many answers: the given part of them, spread over the
    stages.
    """
    if not 0 <= rate < 1:
        raise InputError(f"a drop rate lies between 0 and 1, not at {rate:g}")
    order = sorted(names)
    random.Random("ridgeway falls").shuffle(order)
    chosen = order[: round(rate * len(order))]
    return {name: 1 + index % len(stages) for index, name in enumerate(chosen)}


def write_dropouts(folder: Path, dropouts: Mapping[str, int]) -> None:
    (folder / DROPOUTS_FILE).write_text(json.dumps(dict(dropouts)), encoding="utf-8")


def dropout_app(
    dropouts: Mapping[str, int], plain: ClientApp | None = None
) -> ClientApp:
    """The holders' ClientApp, in which some drop out. plain: one in its place."""
    from flwr.app import ConfigRecord, Context, Error, Message
    from flwr.clientapp import ClientApp

    from ridgeway.client.client_app import app, holder_folder
    from ridgeway.common.protocol.messages import CANNOT_ANSWER

    answering = plain or app
    wrapped = ClientApp()

    @wrapped.query("ridgeway")
    def ridgeway(message: Message, context: Context) -> Message:
        limit = dropouts.get(holder_folder(context).name)
        given = context.state.config_records.get("given") or ConfigRecord(
            {"answers": 0}
        )
        answers = int(str(given["answers"]))
        if limit is not None and answers >= limit:
            return Message(
                Error(code=CANNOT_ANSWER, reason="fell away, as asked for"),
                reply_to=message,
            )
        context.state["given"] = ConfigRecord({"answers": answers + 1})
        return answering(message, context)

    return wrapped


def __getattr__(name: str) -> ClientApp:
    """`app`, made when Flower asks for it, of what stands in the folder that the environment
    names.
    """
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path = Path(os.environ["RIDGEWAY_SIMULATION"]) / DROPOUTS_FILE
    # Flower looks for an assignment to this name
    app = dropout_app(json.loads(path.read_text(encoding="utf-8")))
    return app  # noqa: RET504


_SILENCE_S = 10.0
"""After no event for this long, Flower is asked whether the run has ended; asking starts a process.
"""
RUN_NAME = "simulation"
NO_DROPOUTS: Mapping[str, int] = MappingProxyType({})


def run_in_memory(
    simulated: SimulatedFederation,
    watch: Watch,
    dropouts: Mapping[str, int] = NO_DROPOUTS,
    app: ClientApp | None = None,
) -> None:
    """One round in this process; messages go through Flower's own serialisation.

    Many holders are shared out over as many further processes as there are cores; what comes of
    the round is the same.

    dropouts: holders that drop out, and after how many answers.
    app:      in place of the holders' own.
    """
    from ridgeway.coordinator.server_app import GridTransport
    from ridgeway.simulations.local_grid import process_grid

    # an app that was made here reaches another process by a fork alone
    shared = app is None or may_fork()
    processes = cores() if shared and len(simulated.nodes) >= MANY_HOLDERS else 1
    make_app = partial(dropout_app, dropouts, app)
    nodes = dict(enumerate(simulated.nodes.values(), start=1))
    with process_grid(make_app, nodes, processes) as grid:
        run_round(simulated.federation, GridTransport(grid, least_pause_s=0.0), watch)


def run_on_flower(
    simulated: SimulatedFederation,
    watch: Watch,
    dropouts: Mapping[str, int] = NO_DROPOUTS,
) -> None:
    """One round on Flower's simulation engine (Ray): `flwr run` with a local SuperLink that is
    stopped afterwards.
    """
    app = simulated.folder / "app"
    write_dropouts(simulated.folder, dropouts)
    write_app(app, client=APP, also=[SERVER_FILE, *APP_FILES])
    with _local_superlink(simulated) as environment:
        resources = f"num-supernodes={len(simulated.nodes)} client-resources-num-cpus=1"
        words = ["run", str(app), "local", "--federation-config", resources]
        log = simulated.folder / "flower.log"
        answer = simulated.folder / "run.json"
        # files: a SuperLink that stays would hold a pipe open
        with log.open("wb") as err, answer.open("wb") as out:
            subprocess.run(
                [script("flwr"), *words, "--format", "json"],
                env=environment,
                stdout=out,
                stderr=err,
            )
        try:
            text = answer.read_text(encoding="utf-8")
            run = int(json.loads(text[text.index("{") :])["run-id"])
        except (ValueError, LookupError):
            raise LinkError(
                f"Flower's simulation did not start; {log} says why"
            ) from None
        give_order(
            simulated.federation.link, run, RunOrder(work="round", name=RUN_NAME)
        )
        follow(
            simulated.federation.progress(RUN_NAME),
            watch,
            lambda: _has_ended(environment),
            _SILENCE_S,
        )


def _has_ended(environment: dict[str, str]) -> bool:
    words = "list local --limit 1 --format json".split()
    listed = subprocess.run(
        [script("flwr"), *words], env=environment, capture_output=True, text=True
    )
    try:
        return str(json.loads(listed.stdout)["runs"][0]["status"]).startswith(
            "finished"
        )
    except (ValueError, LookupError):
        return listed.returncode != 0


@contextmanager
def _local_superlink(simulated: SimulatedFederation) -> Iterator[dict[str, str]]:
    """The environment of a SuperLink of our own, which `flwr run` starts; all that came of it is
    stopped at the end.
    """
    folder = simulated.folder.resolve()
    home = folder / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress ='
        ' ":local-in-memory:"\n',
        encoding="utf-8",
    )
    scratch = tempfile.mkdtemp(prefix="rw-")  # Ray's sockets need a short path
    port = free_port()
    environment = marked(flower_environment(home), folder) | {
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "RIDGEWAY_SIMULATION": str(folder),
        "RIDGEWAY_COORDINATOR": str(simulated.federation.link.resolve()),
        "RAY_TMPDIR": scratch,
        "PATH": os.pathsep.join(
            (str(Path(script("flower-superlink")).parent), os.environ.get("PATH", ""))
        ),
    }
    try:
        yield environment
    finally:
        end_leftovers(folder, lambda word: None)
        shutil.rmtree(scratch, ignore_errors=True)
