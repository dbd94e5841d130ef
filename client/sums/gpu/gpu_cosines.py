"""Cosines on a device: what cosine_features.py does with numpy, in torch's words, number by number
the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeway.client.sums.gpu.digit_planes import joined, write_samples
from ridgeway.common.encoding.cosine_features import TURN, Cosines

SAMPLES_AT_ONCE = 1 << 13
"""Their angles as 64-bit numbers are what memory must hold."""


class GpuCosines:
    """Cosines whose signs lie on a device. Products are taken in float64, which no setting of torch
    makes inexact.
    """

    def __init__(self, cosines: Cosines, device: torch.device) -> None:
        self._inputs = cosines.inputs
        self._frequency = cosines.options.frequency
        self._signs = (
            torch.from_numpy(cosines.signs).to(device, torch.float64).T.contiguous()
        )
        self._phases = torch.from_numpy(cosines.phases).to(device)[:, None]
        self._table = torch.from_numpy(cosines.table).to(device)

    def write(self, planes: Tensor, first: int, count: int) -> None:
        """Put the cosines of `count` samples, which lie in the planes from column `first` on,
        behind their features.
        """
        for start in range(first, first + count, SAMPLES_AT_ONCE):
            columns = slice(start, min(start + SAMPLES_AT_ONCE, first + count))
            samples = joined(planes[:, columns], torch.float64)[: self._inputs]
            products = (self._signs @ samples).long()
            squares = (samples * samples).sum(dim=0).long()
            roots = squares.double().sqrt().round().long()
            roots = (roots - (roots * roots > squares).long()).clamp_(min=1)
            angles = (
                torch.div(self._frequency * products, roots, rounding_mode="floor")
                + self._phases
            )
            write_samples(
                self._table[angles & TURN - 1].int().T, planes, start, row=self._inputs
            )
