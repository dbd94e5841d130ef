from typing import Any

from numpy.typing import NDArray

from ridgeway.common.encoding.tokenizer import Numbers

def token_sums(
    table: NDArray[Any],
    width: int,
    ids: Numbers,
    counts: Numbers,
    buckets: NDArray[Any] = ...,
    letters: NDArray[Any] = ...,
    starts: NDArray[Any] = ...,
    /,
) -> tuple[list[list[int]], list[int]]: ...
