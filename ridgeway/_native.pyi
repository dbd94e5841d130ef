from collections.abc import Sequence

from typing_extensions import Buffer

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
    def encode_many(
        self, texts: Sequence[str], table: Buffer = ..., /
    ) -> tuple[bytearray, bytearray]: ...

def row_means(
    table: Buffer,
    width: int,
    ids: Buffer,
    bounds: Buffer,
    means: Buffer,
    letters: Buffer = ...,
    starts: Buffer = ...,
    words: int = ...,
    amplitude: int = ...,
    shortest: int = ...,
    longest: int = ...,
    /,
) -> None: ...
def token_sums(
    ids: Buffer,
    counts: Buffer,
    table: Buffer,
    width: int,
    buckets: Buffer = ...,
    letters: Buffer = ...,
    starts: Buffer = ...,
    shortest: int = ...,
    longest: int = ...,
    alone: Buffer = ...,
    borders: Buffer = ...,
    /,
) -> bytearray: ...
