"""One round over drawn text, weighed and timed. Run as a module in a process of its own, it prints the figures.

python -m simulations.lab.scaling.one_round HOLDERS clear|masked SEED FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from common.cohort import Mode
from common.encoder import save_encoder
from simulations.bench.federation import peak, watched
from simulations.engines import NOBODY
from simulations.falling import falling_app
from simulations.lab.scaling.drawn import drawn_corpora, drawn_encoder
from simulations.lab.scaling.wire import Weighing
from simulations.layout import Village, settle

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp


def measured(holders: int, mode: Mode, seed: int, folder: Path) -> dict[str, Any]:
    """Seconds, bytes and memory of a round."""
    save_encoder(drawn_encoder(seed), folder / "encoder")
    source = f"dir:{(folder / 'encoder').resolve()}"
    village = settle(folder / "village", drawn_corpora(holders, seed), holders=holders, encoder=source, mode=mode)
    weighing = Weighing(falling_app(NOBODY))
    with watched() as watch:
        started = time.perf_counter()
        _run(village, weighing)
        seconds = time.perf_counter() - started - weighing.weighing
    reading, scoring, solving = watch.seconds.values()
    down, up = sum(weighing.down.values()), sum(weighing.up.values())
    return {
        "holders": holders,
        "seconds": seconds,
        "summing": reading + scoring,
        "solving": solving,
        "holder": (weighing.seconds - reading - scoring) / holders,
        "coordinator": seconds - weighing.seconds - solving,
        "up": up / holders,
        "down": down / holders,
        "total": up + down,
        "memory": peak(),
        "kinds": {kind: [weighing.down[kind] / holders, weighing.up[kind] / holders] for kind in weighing.down},
    }


def _run(village: Village, weighing: Weighing) -> None:
    """As the in-memory engine does it."""
    from coordinator.app import GridTransport
    from coordinator.rounds import run_round
    from simulations.local_grid import LocalGrid

    nodes = dict(enumerate(village.nodes.values(), start=1))
    grid = LocalGrid(cast("ClientApp", weighing), nodes)
    run_round(village.federation, GridTransport(grid, _silent, poll_s=0.0), _silent)


def _silent(event: str, facts: object) -> None:
    """A watch that does not look."""


if __name__ == "__main__":
    mode: Mode = "clear" if sys.argv[2] == "clear" else "masked"
    print(json.dumps(measured(int(sys.argv[1]), mode, int(sys.argv[3]), Path(sys.argv[4]))))
