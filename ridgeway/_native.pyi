from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from typing_extensions import Buffer

Numbers = Buffer | NDArray[Any]

class SentenceNetwork:
    def __new__(
        cls,
        table: Numbers,
        values: Numbers,
        weights: Numbers,
        scales: Numbers,
        gains: Numbers,
        tanh: Numbers,
        variant: str = ...,
    ) -> SentenceNetwork: ...
    @property
    def variant(self) -> str: ...
    def vectors(self, ids: Numbers, lengths: Numbers, out: Numbers, /) -> None: ...
    def pieces(self, ids: Numbers, out: Numbers, /) -> None: ...

class Unigram:
    def __new__(
        cls,
        piece_links: Numbers,
        scores: Numbers,
        rule_links: Numbers,
        replacements: Numbers,
        /,
    ) -> Unigram: ...
    def encode_many(
        self, texts: Sequence[str], limit: int = ..., /
    ) -> tuple[bytearray, bytearray]: ...
    def letters_many(
        self, texts: Sequence[str], limit: int = ..., /
    ) -> tuple[bytearray, bytearray, bytearray, bytearray]: ...
    def normalise_many(
        self, texts: Sequence[str], /
    ) -> tuple[bytearray, bytearray]: ...
    def spans(
        self, texts: Sequence[str], /
    ) -> tuple[bytearray, bytearray, bytearray]: ...

def letter_runs(
    letters: Numbers, stops: Numbers, counts: Numbers, lower: Numbers, width: int, /
) -> tuple[bytearray, bytearray]: ...
def row_means(
    table: Numbers,
    width: int,
    ids: Numbers,
    bounds: Numbers,
    means: Numbers,
    positions: Numbers = ...,
    codes: Numbers = ...,
    stops: Numbers = ...,
    words: int = ...,
    amplitude: int = ...,
    /,
) -> None: ...
def sentence_variants() -> list[str]: ...
def token_sums(
    ids: Numbers,
    counts: Numbers,
    table: Numbers,
    width: int,
    shifts: Numbers,
    buckets: Numbers = ...,
    codes: Numbers = ...,
    stops: Numbers = ...,
    /,
) -> bytearray: ...
