from typing import Any

from numpy.typing import NDArray

def row_means(
    table: NDArray[Any],
    width: int,
    ids: NDArray[Any],
    bounds: NDArray[Any],
    means: NDArray[Any],
    letters: NDArray[Any] = ...,
    starts: NDArray[Any] = ...,
    words: int = ...,
    amplitude: int = ...,
    shortest: int = ...,
    longest: int = ...,
    /,
) -> None: ...
