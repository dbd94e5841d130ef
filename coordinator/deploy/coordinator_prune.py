"""What a coordinator's folder gathers over the years and can do without, and taking it away.

What stays: the ledger, whole; every release's signed manifest; the sums and totals that the ledger still needs; keys
and settings. So `verify` holds as before, and differences are judged by the same sums. Knows the folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.deploy.leftovers import Leftover, outdated_apps
from ridgeway.common.deploy.processes import only_one
from ridgeway.coordinator.deploy.kept_bundles import kept_bundles
from ridgeway.coordinator.round.federation import NODES, Federation
from ridgeway.coordinator.round.ledger import LedgerRelease

KEPT_RUNS = 50


def leftovers(federation: Federation, keep: int) -> list[Leftover]:
    """Everything that may go, by kind. keep: how many releases keep their routers, the newest ones."""
    with _down(federation.link) as is_down:
        return _found(federation, keep, is_down)


def prune(federation: Federation, keep: int) -> list[Leftover]:
    """Take it all away. The ledger says first which releases lose their routers, so that none is missed later."""
    with federation.alone(), _down(federation.link) as is_down:
        found = _found(federation, keep, is_down)
        if old := [each.number for each in _old(federation, keep)]:
            federation.ledger.note("pruned", releases=old)
        for each in found:
            each.remove()
        return found


def _found(federation: Federation, keep: int, is_down: bool) -> list[Leftover]:
    link, bundles = federation.link, [each.sha256 for each in kept_bundles(federation.link)]
    routers = (path for each in _old(federation, keep) for path in federation.release_bulk(each.number))
    runs = sorted((federation.folder / "progress").glob("*.jsonl"))
    state = (*sorted(link.glob("state.db*")), *link.glob(NODES)) if is_down else ()
    flower = "nothing: `coordinator up` makes it anew" if is_down else "all of it while the coordinator is up"
    return [
        Leftover("routers of old releases", f"the newest {keep}, and every signed manifest", tuple(routers)),
        Leftover("what past runs told", f"the newest {KEPT_RUNS}", tuple(runs[:-KEPT_RUNS])),
        outdated_apps(link / "flwr-home", bundles),
        Leftover("what Flower keeps of past runs", flower, state),
    ]


def _old(federation: Federation, keep: int) -> list[LedgerRelease]:
    return [each for each in federation.ledger.standing().releases[:-keep] if federation.release_bulk(each.number)]


@contextlib.contextmanager
def _down(link: Path) -> Iterator[bool]:
    """Whether no coordinator runs in the folder; then none starts while this lasts."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(only_one(link, "a coordinator"))
            is_down = True
        except ProcessError:
            is_down = False
        yield is_down
