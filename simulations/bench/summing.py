"""Ours: threads that take turns at as many accumulators as there may be, as in `prepare`.

Knows accumulators. Knows nothing of timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from importlib.util import find_spec
from queue import SimpleQueue

from client.accumulate import Accumulator, add_states
from client.crew import Maker
from common.statistics import Statistics
from simulations.bench.drawn import Batch


class Summing:
    """From batches of ids in the machine's memory to checked statistics, with new accumulators each time."""

    def __init__(self, makers: Sequence[Maker], threads: int) -> None:
        self._makers, self._threads = makers, threads

    def statistics(self, parts: Sequence[Batch]) -> Statistics:
        crew = [make() for make in self._makers]
        idle: SimpleQueue[Accumulator] = SimpleQueue()
        for accumulator in crew:
            idle.put(accumulator)

        def add(part: Batch) -> None:
            accumulator = idle.get()
            try:
                accumulator.add(*part)
            finally:
                idle.put(accumulator)

        with _one_blas_thread(), ThreadPoolExecutor(self._threads, "feed") as pool:
            for _ in pool.map(add, parts):
                pass
        return crew[0].statistics(reduce(add_states, (each.state() for each in crew)), self._threads)


def _one_blas_thread() -> AbstractContextManager[object]:
    """As in `prepare`, where the library that does it is here; a card has no use for it."""
    if find_spec("threadpoolctl") is None:
        return nullcontext()
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits
