from typing import Any

from numpy.typing import NDArray

def byte_products(
    samples: NDArray[Any],
    centre: NDArray[Any],
    gram: NDArray[Any],
    times: int = ...,
    coarse: int = ...,
    /,
) -> None: ...
