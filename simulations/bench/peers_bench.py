"""The same work by other projects, in turn, in one run: routing, the gateway, secure sums, private
means.

A peer is run by the interpreter of its own environment, which `make peers` builds; a peer that is
not there, or does not run, has a row that says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeway.simulations.bench.measuring import BenchOptions, Row
from ridgeway.simulations.bench.peers.gateway_peers import gateway_rows
from ridgeway.simulations.bench.peers.private_means import private_mean_rows
from ridgeway.simulations.bench.peers.routing_peers import routing_rows
from ridgeway.simulations.bench.peers.secure_sums import secure_sum_rows


def rows(options: BenchOptions) -> Iterator[Row]:
    yield from private_mean_rows(options.work)
    yield from secure_sum_rows(options.work)
    yield from gateway_rows(options)
    yield from routing_rows(options.text, options.encoder, options.work)
