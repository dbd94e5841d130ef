"""What two and more opened sums give away together: whether some members' part could be told apart from the others'.

Every opened sum is a linear combination of what its members put in. If a combination of the sums leaves the part of a
few members alone, those members' sums lie open, though no single sum shows them. Pure; knows nothing of keys or files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Part = tuple[str, int]
"""What a member put into a sum: what stands for its data, and the weight under which it was added."""

Parts = Mapping[str, Part]
"""The parts of one opened sum, by the members' keys."""

TINY = 1e-9


def set_apart(earlier: Sequence[Parts], new: Parts, least: int) -> tuple[str, ...]:
    """The members whose part could be told apart if `new` were opened beside the earlier sums; none is what is wanted.

    least: the fewest members whose parts, taken together, may be told apart from the rest.

    Found are any two sums that differ in fewer members than that, and any combination of all the sums, however made,
    that leaves one member alone. (Combinations that leave a few alone are as many as there are groups of members.)
    """
    if least < 2 or any(dict(each) == dict(new) for each in earlier):
        return ()
    for each in earlier:
        differing = {key for key in {*each, *new} if each.get(key) != new.get(key)}
        if len(differing) < least:
            return tuple(sorted(differing))
    return tuple(sorted(_alone([*earlier, new]) - _alone(earlier)))


def _alone(sums: Sequence[Parts]) -> set[str]:
    """The members whose part is a combination of the sums."""
    rows = [dict(parts) for parts in {tuple(sorted(each.items())) for each in sums}]
    columns = sorted({(key, source) for each in rows for key, (source, _) in each.items()})
    place = {column: index for index, column in enumerate(columns)}
    matrix = np.zeros((len(rows), len(columns)))
    for row, each in zip(matrix, rows, strict=True):
        for key, (source, weight) in each.items():
            row[place[key, source]] = weight
        row /= max(np.abs(row).max(initial=0.0), 1.0)
    owners = np.array([key for key, _ in columns])
    rank = _rank(matrix)
    return {str(key) for key in set(owners.tolist()) if _rank(matrix[:, owners != key]) < rank}


def _rank(matrix: NDArray[np.float64]) -> int:
    return int(np.linalg.matrix_rank(matrix, tol=TINY)) if matrix.size else 0
