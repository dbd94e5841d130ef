"""Runs one round: a coordinator's in a deployment, a new federation's in a simulation."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ridgeway.common.base.errors import InputError, RoundFailed
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.base.settings import DEFAULT, PRIVATE_ENCODER
from ridgeway.common.masking.agreement import SMALLEST_COHORT
from ridgeway.common.privacy.accountant import check_privacy
from ridgeway.coordinator.cli.federation_commands import open_federation
from ridgeway.coordinator.history import tell_event
from ridgeway.coordinator.round.federation import Federation, PrivacySettings
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.server_app import GridTransport
from ridgeway.simulations.corpora import read_corpora
from ridgeway.simulations.simulated_federation import (
    create_simulated_federation,
    open_epochs,
)
from ridgeway_app import run_folder

app = ServerApp()
log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Wait for SuperNodes, and run the round; its release is the last line of the log."""
    config = context.run_config
    mode = str(config["mode"])
    epsilon = float(config["epsilon"])
    if mode not in MODE_SENTENCES:
        raise InputError(f"there is no mode {mode!r}; use {', '.join(MODE_SENTENCES)}")
    check_privacy("columns", epsilon)
    least = SMALLEST_COHORT if mode == "masked" else 2
    if config["coordinator"]:
        federation = deployed_federation(
            Path(str(config["coordinator"])), mode, epsilon
        )
        wait_for_nodes(grid, least, float(config["wait"]))
    else:
        folder = run_folder(context)
        nodes = wait_for_nodes(grid, least, float(config["wait"]))
        federation = simulated_federation(folder, context, nodes)
    made = run_round(
        federation, GridTransport(grid), lambda event: tell_event(event, log_step)
    )
    log.info("release: %s", federation.release_folder(made.number))


def log_step(verb: str, subject: str, *figures: str) -> None:
    log.info("%s %s", verb.ljust(9), "  ".join(filter(None, (subject, *figures))))


def deployed_federation(folder: Path, mode: str, epsilon: float) -> Federation:
    """The operator's, if its holders have agreed to what the run asks for."""
    federation = open_federation(folder)
    agreed = federation.settings
    if (mode, epsilon) != (agreed.mode, agreed.privacy.epsilon):
        raise InputError(
            f"the run asks for mode {mode} and epsilon {epsilon:g}, and holders have agreed to"
            f" mode {agreed.mode} and epsilon {agreed.privacy.epsilon:g} of {folder}; give these"
            " with --run-config"
        )
    return federation


def simulated_federation(folder: Path, context: Context, nodes: int) -> Federation:
    """Corpora dealt out to a holder for each SuperNode, who sums its own before the round."""
    config: Mapping[str, Any] = context.run_config
    mode = config["mode"]
    corpora = read_corpora(Path(config["data"]) if config["data"] else None, nodes)
    if nodes < len(corpora):
        left_out = ", ".join(corpus.name for corpus in corpora[nodes:])
        log.warning(
            "%s SuperNodes are there, and none is left for: %s", nodes, left_out
        )
    usual = PRIVATE_ENCODER if mode == "private" else DEFAULT.encoder
    made = create_simulated_federation(
        folder,
        corpora[:nodes],
        holders=nodes,
        encoder=config["encoder"] or usual,
        mode=mode,
        privacy=PrivacySettings(epsilon=config["epsilon"]),
    )
    for name in open_epochs(made):
        log.info("ready: %s", name)
    return made.federation


def wait_for_nodes(grid: Grid, least: int, seconds: float) -> int:
    """How many SuperNodes there are, once there are enough and no more come."""
    until = time.monotonic() + seconds
    there = -1
    while True:
        before = there
        there = len(list(grid.get_node_ids()))
        is_over = time.monotonic() >= until
        if there >= least and (there == before or is_over):
            return there
        if is_over:
            raise RoundFailed(
                f"{there} SuperNodes are there after {seconds:g} s, and the round needs {least};"
                " start more, or in a simulation add --federation-config"
                f" 'num-supernodes={least}'"
            )
        if there < least:
            log.info("waiting for SuperNodes: %s of %s", there, least)
        time.sleep(1)
