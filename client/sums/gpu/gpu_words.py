"""The sketch of words on a device: what word_sketch.py does with numpy, in torch's words, number by
number the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from ridgeway.client.sums.gpu.digit_planes import Windows, why_no_kernels
from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.encoding.word_sketch import (
    MULTIPLIERS,
    WORD_BEGIN,
    WORD_BYTES,
    WORD_END,
    WordSketch,
)

TOKENS_AT_ONCE = 1 << 20
"""Of windows that are sketched together; their letters, a dozen times as 64-bit numbers, are what
memory must hold.
"""

LOW_HALF = (1 << 32) - 1

KERNEL_TOKENS = 128
"""What a program of the kernel takes."""

TRIED_TOKENS = 4096
"""Over so many tokens the kernel is compared with torch."""


class GpuWords:
    """A sketch whose spelling lies on a device."""

    def __init__(self, words: WordSketch, device: torch.device) -> None:
        self.width = words.width
        self._amplitude = words.options.amplitude
        self._sizes = words.options.sizes
        parts = (words.spelling.letters, words.spelling.starts, WORD_BYTES)
        self._letters, self._starts, self._word_bytes = (
            torch.from_numpy(part.copy()).to(device) for part in parts
        )
        # as signed numbers, which wrap alike
        self._multipliers = [int(each) - (1 << 64) for each in MULTIPLIERS]

    def features(self, windows: Windows) -> Iterator[tuple[int, Tensor]]:
        """Pieces of N × width features, each with the number of its first window."""
        for start, ids, lengths in windows.pieces(TOKENS_AT_ONCE):
            tokens = lengths[:, None]
            counts = self._counts(ids, lengths)
            means = torch.div(
                2 * self._amplitude * counts + tokens, 2 * tokens, rounding_mode="floor"
            )
            yield start, means.clamp_(-FEATURE_LIMIT, FEATURE_LIMIT)

    def _counts(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The signed counts of every bucket in each window."""
        return (self._kernel_counts if self._with_kernel else self._plain_counts)(
            ids, lengths
        )

    @cached_property
    def _with_kernel(self) -> bool:
        """Whether Triton's kernel works here, and gives what torch gives over windows of the first
        tokens.
        """
        if why_no_kernels(self._letters.device):
            return False
        ids = torch.arange(
            min(TRIED_TOKENS, len(self._starts) - 1),
            dtype=torch.int32,
            device=self._letters.device,
        )
        lengths = torch.diff(
            torch.arange(0, len(ids) + 7, 7, device=ids.device).clamp(max=len(ids))
        )
        try:
            return torch.equal(
                self._kernel_counts(ids, lengths), self._plain_counts(ids, lengths)
            )
        except (
            Exception
        ):  # whatever a compiler or a GPU has against it, torch does it then
            return False

    def _kernel_counts(self, ids: Tensor, lengths: Tensor) -> Tensor:
        from ridgeway.client.sums.gpu.kernels import count_words

        windows = torch.arange(len(lengths), device=ids.device)
        owners = torch.repeat_interleave(windows, lengths, output_size=len(ids))
        found = torch.zeros(
            len(lengths), self.width, dtype=torch.int32, device=ids.device
        )
        spelt = (self._letters, self._starts)
        sizes = (len(ids), self.width)
        runs = (self._sizes[0], self._sizes[-1])
        programs = (-(-len(ids) // KERNEL_TOKENS),)
        count_words[programs](
            *spelt,
            ids,
            owners,
            found,
            *sizes,
            *self._multipliers,
            *runs,
            TOKENS=KERNEL_TOKENS,
        )
        return found.long()

    def _plain_counts(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The same in torch's own words, for devices without Triton."""
        ids = ids.long()
        device = ids.device
        first = self._starts[ids]
        sizes = self._starts[ids + 1] - first
        owners = torch.repeat_interleave(torch.arange(len(ids), device=device), sizes)
        within = (
            torch.arange(len(owners), device=device)
            - (torch.cumsum(sizes, 0) - sizes)[owners]
        )
        letters = self._letters[first[owners] + within]
        inside = self._word_bytes[letters.int()].nonzero().flatten()
        found = torch.zeros(len(lengths) * self.width, dtype=torch.int64, device=device)
        if len(inside):
            windows = torch.repeat_interleave(
                torch.arange(len(lengths), device=device), lengths
            )[owners[inside]]
            self._add_words(letters[inside].long(), inside, windows, found)
        return found.view(-1, self.width)

    def _add_words(
        self, letters: Tensor, places: Tensor, windows: Tensor, found: Tensor
    ) -> None:
        """Count the runs of letters in words with their borders. places: where each letter stands
        in the row of ids.
        """
        apart = (torch.diff(places) > 1) | (torch.diff(windows) > 0)
        begins_word = torch.cat((apart.new_ones(1), apart))
        firsts = begins_word.nonzero().flatten()
        word = torch.cumsum(begins_word, 0) - 1
        at = torch.arange(len(letters), device=letters.device) + 2 * word + 1
        begins = at[firsts] - 1
        stops = torch.cat((begins[1:], at[-1:] + 2)) - 1
        size = len(letters) + 2 * len(firsts)
        framed = torch.full(
            (size,), WORD_BEGIN, dtype=torch.int64, device=letters.device
        )
        framed[at], framed[stops] = letters, torch.full_like(stops, WORD_END)
        of_word = torch.repeat_interleave(
            torch.arange(len(firsts), device=letters.device), stops - begins + 1
        )
        since = torch.arange(size, device=letters.device) - begins[of_word]
        window = windows[firsts][of_word]
        for count in self._sizes:
            ends = (since >= count - 1).nonzero().flatten()
            packed = torch.zeros_like(ends)
            for back in range(count - 1, -1, -1):
                packed = packed << 8 | framed[ends - back]
            for multiplier in self._multipliers:
                packed = packed * multiplier
                packed = packed ^ (packed >> 32 & LOW_HALF)
            buckets = (packed >> 32 & LOW_HALF) * self.width >> 32
            found.index_add_(
                0, window[ends] * self.width + buckets, 2 * (packed & 1) - 1
            )
