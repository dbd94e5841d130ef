"""Windows as rows of ids, as a model that reads one window at a time is given them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.encoding.windows import Integers, ceil_div, window_starts

ROW_LENGTH_MULTIPLE = 16
"""Windows of odd lengths are padded to multiples of this, so that there are few shapes."""


class Shape(NamedTuple):
    """length: of every row, in tokens. padded: whether every row has padding at its end, or none
    has.
    """

    length: int
    padded: bool


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Windows of one shape, a row each: what comes before a text, the window's own tokens, what
    comes after, padding.

    counts: how many tokens of its own each window has.
    places: which window each row is.
    first:  where a window's own tokens begin in its row.
    around: how many special tokens stand before and after them.
    """

    shape: Shape
    ids: NDArray[np.int32]
    counts: Integers
    places: Integers
    first: int
    around: int

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, part: slice | Integers) -> Rows:
        """Some of the rows; those that are named by their numbers, each as often as it is named."""
        return replace(
            self, ids=self.ids[part], counts=self.counts[part], places=self.places[part]
        )

    def __add__(self, other: Rows) -> Rows:
        ids = np.concatenate((self.ids, other.ids))
        counts = np.concatenate((self.counts, other.counts))
        places = np.concatenate((self.places, other.places))
        return replace(self, ids=ids, counts=counts, places=places)

    @property
    def used(self) -> Integers:
        """How many tokens of each row are no padding."""
        return self.counts + self.around

    @property
    def own(self) -> NDArray[np.bool_]:
        """Where in the rows the windows' own tokens stand."""
        place = np.arange(self.shape.length)
        return (place >= self.first) & (place < self.first + self.counts[:, None])


@dataclass(frozen=True, slots=True)
class Frame:
    """How windows become rows.

    prefix, suffix: the special tokens that the model wants around a text.
    window:         the usual length of a window; windows of just this length are never padded.
    positions:      the longest row that the model can read.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    window: int
    positions: int

    def shape(self, count: int) -> Shape:
        """The shape of a window of `count` tokens. It depends on nothing else, so neighbours change
        nothing.
        """
        used = count + self.around
        if count == self.window:
            return Shape(used, padded=False)
        padded = ceil_div(used + 1, ROW_LENGTH_MULTIPLE) * ROW_LENGTH_MULTIPLE
        length = min(padded, self.positions)
        return Shape(length, padded=used < length)

    @property
    def around(self) -> int:
        return len(self.prefix) + len(self.suffix)

    def rows(self, ids: Ids, lengths: Integers) -> Iterator[Rows]:
        """The windows of documents whose ids stand in one row, `lengths` of them each: one piece a
        shape.
        """
        return self.rows_between(
            ids, np.append(window_starts(lengths, self.window), len(ids))
        )

    def rows_between(self, ids: Ids, bounds: Integers) -> Iterator[Rows]:
        """The same for windows whose bounds are known."""
        counts = np.diff(bounds)
        shapes = {int(count): self.shape(int(count)) for count in np.unique(counts)}
        for shape in sorted(set(shapes.values())):
            fitting = [count for count, found in shapes.items() if found == shape]
            places = np.flatnonzero(np.isin(counts, fitting))
            yield self._laid_out(shape, ids, bounds[places], counts[places], places)

    def _laid_out(
        self,
        shape: Shape,
        ids: Ids,
        starts: Integers,
        counts: Integers,
        places: Integers,
    ) -> Rows:
        laid = np.zeros((len(counts), shape.length), dtype=np.int32)
        laid[:, : len(self.prefix)] = self.prefix
        rows = Rows(shape, laid, counts, places, len(self.prefix), self.around)
        reach = np.arange(shape.length - self.around)
        found = ids.take(starts[:, None] + reach, mode="clip")
        if shape.padded:
            found[reach >= counts[:, None]] = 0
        laid[:, rows.first : rows.first + len(reach)] = found
        for place, number in enumerate(self.suffix):
            laid[np.arange(len(counts)), rows.first + counts + place] = number
        return rows
