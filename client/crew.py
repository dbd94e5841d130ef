"""Who sums a corpus: as many accumulators as threads or graphics cards can use at once.

Knows encoders and devices. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from client.accumulate import Accumulator, accumulators
from common.contextual import AnyEncoder, ContextualEncoder, check_sampling
from common.settings import Sampling

Maker = Callable[[], Accumulator]

ACCUMULATOR_BYTES = 512 << 20


def makers(encoder: AnyEncoder, sampling: Sampling, devices: Sequence[str], threads: int) -> list[Maker]:
    """One maker for each accumulator that may work at the same time.

    devices: the cards to sum on, such as `cuda:0`; without any, the CPU sums.
    """
    check_sampling(encoder, sampling)
    if isinstance(encoder, ContextualEncoder):
        return _contextual(encoder, sampling, devices, threads)
    if devices:
        from client.gpu.sums import card_accumulators

        return [maker for device in devices for maker in card_accumulators(encoder.table, sampling, device)]
    return [accumulators(encoder.table, sampling)] * _at_once(encoder, threads)


def _contextual(encoder: ContextualEncoder, sampling: Sampling, devices: Sequence[str], threads: int) -> list[Maker]:
    from client.contextual import contextual_accumulators

    places = devices or ["cpu"] * _at_once(encoder, threads)
    return [contextual_accumulators(encoder, sampling, device) for device in places]


def _at_once(encoder: AnyEncoder, threads: int) -> int:
    """How many accumulators on the CPU: as many as there are threads, if memory allows."""
    return min(threads, max(1, ACCUMULATOR_BYTES // ((encoder.width + 1) ** 2 * 16)))
