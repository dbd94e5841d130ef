"""Where in a text the part of each id ends, as both tokenizers say."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import storable
from ridgeway.common.text.sentence_encoder import UseEncoder
from ridgeway.common.text.tokenizer import Tokenizer
from ridgeway.common.text.unigram import PieceTokenizer
from tests.support.native import without_native
from tests.support.seeds import few_examples
from tests.support.tiny import tiny_definition

AnyTokenizer = Tokenizer | PieceTokenizer

TINY = Tokenizer(tiny_definition())
BATCHES = st.lists(
    st.text("ab é日😀\n\ud800\u0301▁", max_size=9)
    | st.text(max_size=9)
    | st.sampled_from(["a<end>b<end>", "<end>", "  a\n\n b  "]),
    max_size=4,
)


def ends_of_each(tokenizer: AnyTokenizer, texts: list[str]) -> list[list[int]]:
    """Checks what holds for every tokenizer; the ends of each text's ids."""
    ids, lengths, ends = tokenizer.encode_with_ends(texts)
    assert [ids.tolist(), lengths.tolist()] == [
        array.tolist() for array in tokenizer.encode_many(texts)
    ]
    assert ends.dtype == np.int64
    bounds = np.cumsum([0, *lengths]).tolist()
    rows = [ends[start:stop].tolist() for start, stop in pairwise(bounds)]
    for text, row in zip(texts, rows, strict=True):
        assert row == sorted(row)
        assert not row or (row[0] >= 0 and row[-1] == len(storable(text).encode()))
    return rows


@given(BATCHES)
def test_parts_of_ids_are_the_whole_text(batch: list[str]) -> None:
    """In UTF-8: what is left out goes with what follows, or with the last id."""
    for text, ends in zip(batch, ends_of_each(TINY, batch), strict=True):
        letters = storable(text).replace("<end>", "")
        sizes = np.diff(ends, prepend=0).tolist()
        assert len(sizes) == len(letters)
        if letters == storable(text):
            assert sizes == [len(letter.encode()) for letter in letters]


def test_special_tokens_go_with_what_follows() -> None:
    """Those at the end go with the last id."""
    texts = ["<end>a<end>é<end>", "<end>", "", "b"]
    assert ends_of_each(TINY, texts) == [[6, 18], [], [], [1]]


@few_examples
@given(BATCHES)
def test_parts_of_pieces_end_where_their_letters_do(
    sentences: UseEncoder, batch: list[str]
) -> None:
    """By the compiled module and without."""
    tokenizer = sentences.tokenizer
    compiled = ends_of_each(tokenizer, batch)
    with without_native():
        assert ends_of_each(tokenizer, batch) == compiled
    rows = [tokenizer.pieces(text) for text in batch]
    for text, ends, pieces in zip(batch, compiled, rows, strict=True):
        raw = storable(text).encode()
        for end, (_, piece) in zip(ends[:-1], pieces, strict=False):
            assert raw[:end].endswith(piece.encode()) or end == 0


@pytest.mark.slow
@few_examples
@given(BATCHES)
def test_parts_of_bytes_end_where_the_character_does(
    smollm2_tokenizer: Tokenizer, batch: list[str]
) -> None:
    """Tokens of one character end together, behind it."""
    for text, ends in zip(batch, ends_of_each(smollm2_tokenizer, batch), strict=True):
        raw = storable(text).encode()
        for end in ends:
            raw[:end].decode()


@pytest.fixture(scope="module")
def smollm2_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(request.getfixturevalue("smollm2").definition)


def test_a_copy_in_another_process_is_the_same() -> None:
    copy = pickle.loads(pickle.dumps(TINY))
    assert copy.encode("a copy").tolist() == TINY.encode("a copy").tolist()


def test_a_definition_that_cannot_be_used_is_told_of_at_once() -> None:
    for wrong in (b"", b"{}", b"\xff"):
        with pytest.raises(EncoderError, match="definition is invalid"):
            Tokenizer(wrong)
