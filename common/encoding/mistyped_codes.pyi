from typing import Any

from numpy.typing import NDArray

def mistype(
    codes: NDArray[Any],
    lengths: NDArray[Any],
    seeds: NDArray[Any],
    out: NDArray[Any],
    ends: NDArray[Any],
    /,
) -> None: ...
