"""The same work by other projects, in turn, in one run: routing, the gateway, secure sums, private
means.

A peer is run by the interpreter of its own environment, which `make peers` builds; a peer that is
not there, or does not run, has a row that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ridgeway.common.base.errors import InputError
from ridgeway.simulations.bench.measuring import BenchOptions, Row
from ridgeway.simulations.bench.peers.gateway_peers import gateway_rows
from ridgeway.simulations.bench.peers.routing_peers import routing_rows
from ridgeway.simulations.bench.peers.sums_peers import (
    private_mean_rows,
    secure_sum_rows,
)

_PARTS: dict[str, Callable[[BenchOptions], Iterator[Row]]] = {
    "means": lambda options: private_mean_rows(options.work),
    "sums": lambda options: secure_sum_rows(options.work),
    "gateway": gateway_rows,
    "routing": routing_rows,
}


def rows(options: BenchOptions) -> Iterator[Row]:
    if options.only and options.only not in _PARTS:
        raise InputError(
            f"peers has no part {options.only!r}; it has {', '.join(_PARTS)}"
        )
    for name, part in _PARTS.items():
        if options.only in ("", name):
            yield from part(options)
