"""A federation of three holders on one machine, in a masked round.

    python examples/federation.py work                    # text of this machine
    python examples/federation.py work DATA dir:encoder   # DOMAIN.{train,test}.jsonl

prints what happens, and how often the release is right on test texts:

    ready       c
    ...
    release     work/coordinator/releases/0001
    accuracy    99.3 %
"""

from __future__ import annotations

import sys
from pathlib import Path

from ridgeway import Router
from ridgeway.common.routing.evaluation import evaluate
from ridgeway.simulations import simulated_federation as simulated
from ridgeway.simulations.corpora import read_corpora
from ridgeway.simulations.simulated_federation import run_in_memory


def main(work: str, data: str | None = None, encoder: str = "use+words") -> None:
    corpora = read_corpora(Path(data) if data else None)[:3]
    federation = simulated.create_simulated_federation(
        Path(work), corpora, encoder=encoder
    )
    for name in simulated.open_epochs(federation):  # each holder sums its own texts
        print(f"ready       {name}")
    run_in_memory(federation, lambda event: print(f"event       {event.kind}"))
    print(f"release     {federation.newest_release}")
    result = evaluate(Router.load(federation.newest_release), federation.tests)
    print(f"accuracy    {result.accuracy:.1f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
