"""Who sums a corpus: as many accumulators as threads or graphics cards can use at once.

Knows encoders and devices. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from client.accumulate import Accumulator, accumulators
from common.encoder import Encoder
from common.settings import Sampling

Maker = Callable[[], Accumulator]

ACCUMULATOR_BYTES = 512 << 20


def makers(encoder: Encoder, sampling: Sampling, devices: Sequence[str], threads: int) -> list[Maker]:
    """One maker for each accumulator that may work at the same time.

    devices: the cards to sum on, such as `cuda:0`; without any, the CPU sums.
    """
    size = (encoder.width + 1) ** 2 * 16
    return [accumulators(encoder.table, sampling)] * min(threads, max(1, ACCUMULATOR_BYTES // size))
