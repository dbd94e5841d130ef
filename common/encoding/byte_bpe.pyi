from collections.abc import Sequence

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
        self, texts: Sequence[str], table: memoryview = ..., /
    ) -> tuple[bytearray, bytearray]: ...
