from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

class Encoder:
    def __new__(
        cls,
        pattern: int,
        classes: bytes,
        byte_ids: bytes,
        merges: bytes,
        words: bytes,
        word_bytes: bytes,
        added: bytes,
        added_bytes: bytes,
        /,
    ) -> Encoder: ...
    def encode_many(self, texts: Sequence[str], table: NDArray[Any] = ..., /) -> tuple[bytearray, bytearray]: ...
