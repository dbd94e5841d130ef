from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from ridgeway.common.encoding.tokenizer import Numbers

def token_sums(
    ids: Numbers,
    counts: Numbers,
    table: NDArray[Any],
    width: int,
    buckets: NDArray[Any] = ...,
    letters: NDArray[Any] = ...,
    starts: NDArray[Any] = ...,
    shortest: int = ...,
    longest: int = ...,
    alone: Numbers = ...,
    /,
) -> tuple[list[list[int]], list[int]]: ...
def alone_rows(
    table: NDArray[Any],
    width: int,
    buckets: NDArray[Any],
    letters: NDArray[Any],
    starts: NDArray[Any],
    shortest: int,
    longest: int,
    /,
) -> bytearray: ...
def token_decisions(
    rule: Sequence[Any], ids: Numbers, counts: Numbers, /, *operands: Any
) -> list[Any]: ...
