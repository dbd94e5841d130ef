"""Texts as tokens in one row: parts of a row, texts beside others, and how tokenizers are kept."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import storable
from ridgeway.common.base.settings import WordFeatures
from ridgeway.common.text.sentence_encoder import UseEncoder
from ridgeway.common.text.tokenizer import Tokenizer, shared_tokenizer
from ridgeway.common.text.tokens import (
    AnyTokenizer,
    TextReader,
    Tokens,
    taken,
    tokenizer_file,
    tokenizer_of,
)
from ridgeway.common.text.unigram import PieceTokenizer
from ridgeway.common.text.word_sketch import WordSketch
from tests.common.text.test_word_sketch import by_hand
from tests.support.native import without_native
from tests.support.seeds import few_examples
from tests.support.sentence_texts import TEXTS
from tests.support.tiny import SPECIAL, tiny_definition

WIDTH = 64
TINY = Tokenizer(tiny_definition())
WORDS = WordSketch(WordFeatures(WIDTH))
READERS = (
    "tiny",
    "tiny+words",
    "tiny+words+tiny",
    "tiny+words+pieces",
    "pieces",
    "pieces+words",
    "pieces+pieces",
    "pieces+words+pieces",
    "pieces+words+tiny",
)
"""What reads the tokens, whether words count, and what reads the sentences."""

BATCHES = st.lists(
    st.text("ab É日😀\n\ud800\u0301▁\u200b", max_size=9)
    | st.text(max_size=9)
    | st.sampled_from(
        [f"a{SPECIAL}b{SPECIAL}", SPECIAL, "  a\n\n b  ", "", " \t", "\0"]
    )
    | st.sampled_from([text[:40] for text in TEXTS.values()]),
    max_size=5,
)


class Part(NamedTuple):
    """A token with all that stands beside it."""

    number: int
    codes: list[int]
    sentence_ids: list[int]


def parts_of(values: Sequence[int], stops: Sequence[int]) -> list[list[int]]:
    """What belongs to each thing, by where it ends."""
    return [list(values[start:stop]) for start, stop in pairwise([0, *stops])]


def texts_of(tokens: Tokens) -> list[list[Part]]:
    """Each text's tokens."""
    none: list[list[int]] = [[] for _ in tokens.ids]
    runs = parts_of(tokens.runs.codes.tolist(), tokens.runs.stops.tolist())
    read = parts_of(tokens.sentence_ids.tolist(), tokens.sentence_stops.tolist())
    rows = zip(tokens.ids.tolist(), runs or none, read or none, strict=True)
    parts = [Part(*row) for row in rows]
    stops = np.cumsum(tokens.lengths).tolist()
    return [parts[start:stop] for start, stop in pairwise([0, *stops])]


@pytest.fixture(scope="module", params=READERS)
def reader(request: pytest.FixtureRequest, sentences: UseEncoder) -> TextReader:
    tokenizers: dict[str, AnyTokenizer] = {
        "tiny": TINY,
        "pieces": sentences.tokenizer,
    }
    first, *more = request.param.split("+")
    last = more[-1] if more else ""
    words = WORDS if "words" in more else None
    return TextReader(tokenizers[first], words, tokenizers.get(last))


# Rows


@st.composite
def rows(draw: st.DrawFn) -> Tokens:
    """Tokens of some texts: with runs of letters or without, with ids of sentences or without."""
    lengths = np.array(draw(st.lists(st.integers(0, 5), max_size=5)), np.int64)
    rolls = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    count = int(lengths.sum())
    sizes = [rolls.integers(0, 4, count if draw(st.booleans()) else 0) for _ in "ab"]
    codes, ids = (rolls.integers(0, 99, size.sum()) for size in sizes)
    stops, id_stops = map(np.cumsum, sizes)
    runs = WORDS.runs(np.zeros(0, np.uint8), np.zeros(0, np.int64), lengths[:0])
    runs = runs._replace(codes=codes.astype(np.uint16), stops=stops)
    numbers = rolls.integers(0, 99, count).astype(np.int32)
    return Tokens(numbers, lengths, runs, ids.astype(np.int32), id_stops)


@given(rows(), st.data())
def test_tokens_are_taken_with_all_that_is_theirs(
    tokens: Tokens, data: st.DataObject
) -> None:
    """In any order, and as often as they are asked for."""
    parts = [part for text in texts_of(tokens) for part in text]
    places = st.integers(0, max(len(parts) - 1, 0))
    size = 4 if parts else 0
    texts = data.draw(st.lists(st.lists(places, max_size=size), max_size=3))
    flat = [place for text in texts for place in text]
    positions = np.array(flat, np.int32)
    chosen = tokens.take(positions, np.array(list(map(len, texts)), np.int64))
    assert texts_of(chosen) == [[parts[place] for place in text] for text in texts]


@given(rows(), st.integers(0, 6))
def test_the_first_tokens_are_those_of_each_text(tokens: Tokens, limit: int) -> None:
    """Those of the next text never fill up a short one; 0 keeps all."""
    expected = [text[: limit or None] for text in texts_of(tokens)]
    assert texts_of(tokens.first(limit)) == expected


@given(rows(), st.data())
def test_texts_are_chosen_whole(tokens: Tokens, data: st.DataObject) -> None:
    """None, some or all of them, those without tokens too."""
    count = len(tokens.lengths)
    chosen = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    kept = tokens.of_texts(np.array(chosen, bool))
    texts = zip(texts_of(tokens), chosen, strict=True)
    assert texts_of(kept) == [text for text, is_chosen in texts if is_chosen]


@given(rows())
def test_tokens_are_the_same_after_they_were_kept(tokens: Tokens) -> None:
    """As arrays by name."""
    kept = tokens.arrays()
    assert list(kept) == [
        "ids",
        "lengths",
        "sentence_ids",
        "sentence_stops",
        "codes",
        "stops",
    ]
    again = Tokens.of_arrays(kept)
    assert texts_of(again) == texts_of(tokens)
    for name, array in again.arrays().items():
        assert array.dtype == kept[name].dtype


def test_values_are_taken_of_things_without_any() -> None:
    """And of none at all."""
    values = np.array([7, 8, 9], np.int32)
    stops = np.array([0, 2, 2, 3])
    chosen, ends = taken(values, stops, np.array([3, 0, 1, 2, 1], np.int32))
    assert (chosen.tolist(), ends.tolist()) == ([9, 7, 8, 7, 8], [1, 1, 3, 3, 5])
    none, ends = taken(values, stops, np.zeros(0, np.int32))
    assert none.dtype == np.int32 and len(none) == len(ends) == 0


# Reading


@few_examples
@given(BATCHES)
def test_a_text_is_read_as_it_is_alone(reader: TextReader, batch: list[str]) -> None:
    """Whatever stands beside it: its ids, its runs of letters, and what is read of its sentences.
    By the compiled module and without.
    """
    together = texts_of(reader.read(batch))
    assert together == [texts_of(reader.read([text]))[0] for text in batch]
    turned = texts_of(reader.read(["a b", *batch[::-1], ""]))
    assert turned[1:-1] == together[::-1]
    with without_native():
        assert texts_of(reader.read(batch)) == together


@given(BATCHES)
def test_tokens_are_the_tokenizer_s(reader: TextReader, batch: list[str]) -> None:
    """In their numbers and kinds, with a stop for each where there is something beside them."""
    tokens = reader.read(batch)
    ids, lengths = reader.tokenizer.encode_many(batch)
    assert np.array_equal(tokens.ids, ids)
    assert np.array_equal(tokens.lengths, lengths)
    assert len(tokens.runs.stops) == (len(ids) if reader.words else 0)
    assert len(tokens.sentence_stops) == (len(ids) if reader.sentences else 0)
    kinds = [np.int32, np.int64, np.int32, np.int64, np.uint16, np.int64]
    assert [array.dtype for array in tokens.arrays().values()] == kinds


@given(BATCHES)
def test_each_id_of_a_sentence_belongs_to_one_token(
    reader: TextReader, batch: list[str]
) -> None:
    """All ids of a text are its tokens', in their order; a text without tokens gives nothing to
    those beside it.
    """
    if reader.sentences is None:
        return
    texts = texts_of(reader.read(batch))
    for text, parts in zip(batch, texts, strict=True):
        read = [number for part in parts for number in part.sentence_ids]
        assert read == (reader.sentences.encode(text).tolist() if parts else [])


@given(BATCHES)
def test_an_id_of_a_sentence_belongs_to_the_token_in_whose_part_it_ends(
    reader: TextReader, batch: list[str]
) -> None:
    """Where both tokenizers are one, each token is its own id."""
    if reader.sentences is None:
        return
    for text, parts in zip(batch, texts_of(reader.read(batch)), strict=True):
        if reader.sentences.fingerprint == reader.tokenizer.fingerprint:
            assert all([part.number] == part.sentence_ids for part in parts)
            continue
        ends = reader.tokenizer.encode_with_ends([text])[2].tolist()
        id_ends = reader.sentences.encode_with_ends([text])[2].tolist()
        stops = [0, *np.cumsum([len(part.sentence_ids) for part in parts]).tolist()]
        for end, (first, last) in zip(ends, pairwise(stops), strict=True):
            assert all(id_end <= end for id_end in id_ends[first:last])
            assert all(id_end > end for id_end in id_ends[last : last + 1])


@given(BATCHES)
def test_runs_are_those_of_what_was_typed(batch: list[str]) -> None:
    """Where tokens have no letters of their own: characters that a tokenizer does not know count,
    and special tokens, which are dropped, as the letters that they are written with.
    """
    for text, parts in zip(
        batch, texts_of(TextReader(TINY, WORDS).read(batch)), strict=True
    ):
        codes = [code for part in parts for code in part.codes]
        assert codes == (by_hand(storable(text), WIDTH) if parts else [])


@given(BATCHES)
def test_runs_of_pieces_are_those_of_the_normalised_text(
    sentences: UseEncoder, batch: list[str]
) -> None:
    """A blank stands for each of its marks."""
    tokenizer = sentences.tokenizer
    reader = TextReader(tokenizer, WORDS)
    for text, parts in zip(batch, texts_of(reader.read(batch)), strict=True):
        letters = tokenizer.letters_many([text])[2].tobytes().decode()
        codes = [code for part in parts for code in part.codes]
        assert codes == (by_hand(letters, WIDTH) if parts else [])


def test_what_has_no_tokens_gives_nothing_to_its_neighbours() -> None:
    """Special tokens alone are letters to nobody."""
    reader = TextReader(TINY, WORDS, TINY)
    texts = ["ab", SPECIAL, "", "c"]
    assert texts_of(reader.read(texts)) == [
        texts_of(reader.read(["ab"]))[0],
        [],
        [],
        texts_of(reader.read(["c"]))[0],
    ]


def test_no_texts_have_no_tokens(reader: TextReader) -> None:
    """And the row is empty in all its parts."""
    for batch in ([], ["", " "]):
        tokens = reader.read(batch)
        assert len(tokens.lengths) == len(batch)
        if not tokens.lengths.any():
            codes, stops = tokens.runs
            row = tokens.ids, codes, stops, tokens.sentence_ids, tokens.sentence_stops
            assert not any(array.size for array in row)


def test_a_reader_in_another_process_reads_the_same(reader: TextReader) -> None:
    """As processes that read a corpus do."""
    copy = pickle.loads(pickle.dumps(reader))
    batch = list(TEXTS.values())
    assert texts_of(copy.read(batch)) == texts_of(reader.read(batch))


# Definitions


def test_a_tokenizer_of_pieces_is_its_definition(sentences: UseEncoder) -> None:
    """Kept and read again it is the same, to the bit."""
    tokenizer = sentences.tokenizer
    again = PieceTokenizer.of_definition(tokenizer.definition)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.definition == tokenizer.definition
    texts = list(TEXTS.values())
    ids, lengths = again.encode_many(texts)
    expected, expected_lengths = tokenizer.encode_many(texts)
    assert np.array_equal(ids, expected)
    assert np.array_equal(lengths, expected_lengths)


def test_a_definition_says_whose_it_is(sentences: UseEncoder) -> None:
    """JSON is the tokenizers library's, all else is of pieces; each is made once a process."""
    pieces = sentences.tokenizer.definition
    assert tokenizer_file(tiny_definition()) == "tokenizer.json"
    assert tokenizer_file(pieces) == "tokenizer.safetensors"
    assert tokenizer_of(tiny_definition()) is shared_tokenizer(tiny_definition())
    assert isinstance(tokenizer_of(pieces), PieceTokenizer)
    assert tokenizer_of(pieces) is tokenizer_of(bytes(pieces))


def test_a_corrupt_definition_of_pieces_is_refused(sentences: UseEncoder) -> None:
    """In a sentence: cut off, without a part, with parts that do not fit together, or no definition
    at all.
    """
    definition = sentences.tokenizer.definition
    arrays = sentences.tokenizer.arrays()
    wrong = [b"", b"pieces", definition[:-1], definition + b"x", definition[:100]]
    for name, array in arrays.items():
        wrong.append(save({key: arrays[key] for key in arrays if key != name}))
        wrong.append(save(arrays | {name: array[:-1]}))
        wrong.append(save(arrays | {name: array.astype(np.int64)}))
        wrong.append(save(arrays | {name: array[None]}))
    for content in wrong:
        with pytest.raises(EncoderError, match="get the files that they come from"):
            PieceTokenizer.of_definition(content)
        with pytest.raises(EncoderError):
            tokenizer_of(content)
