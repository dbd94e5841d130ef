"""Deals corpora out to holders, lets each sum its own, and runs one masked round between them."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.server_app import GridTransport
from ridgeway.simulations.corpora import read_corpora
from ridgeway.simulations.simulated_federation import (
    create_simulated_federation,
    open_epochs,
)

app = ServerApp()
log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    data = Path(str(config["data"])) if config["data"] else None
    simulated = create_simulated_federation(
        Path(str(config["work"])), read_corpora(data), encoder=str(config["encoder"])
    )
    for name in open_epochs(simulated):
        log.info("ready: %s", name)
    while len(list(grid.get_node_ids())) < len(simulated.nodes):
        time.sleep(1)
    run_round(
        simulated.federation,
        GridTransport(grid),
        lambda event: log.info("round: %s", event.kind),
    )
    log.info("release: %s", simulated.newest_release)
