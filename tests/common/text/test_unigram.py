"""The tokenizer of the sentence encoder's pieces gives what SentencePiece gives."""

from __future__ import annotations

import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.machine import native
from ridgeway.common.text import piece_model, unigram
from ridgeway.common.text.piece_model import double_array, piece_tokenizer
from ridgeway.common.text.sentence_encoder import UseEncoder
from ridgeway.common.text.sentence_source import use_files
from ridgeway.common.text.unigram import LONGEST, VALUE_BIT, PieceTokenizer
from tests.support.native import needs_native, without_native
from tests.support.seeds import few_examples
from tests.support.sentence_texts import TEXTS
from tests.support.unigram_check import (
    BLOCKS,
    ODD,
    SPACES,
    difference,
    ids_of_each,
    letters_of_each,
    library,
    texts,
    vocabulary,
)

LETTERS = st.sampled_from(BLOCKS).flatmap(
    lambda block: st.text(st.sampled_from(block).map(chr), max_size=6)
)
ANY_TEXT = st.lists(
    st.sampled_from(ODD + SPACES)
    | st.sampled_from(list(TEXTS.values())).map(lambda text: text[:60])
    | LETTERS
    | st.text(max_size=4),
    max_size=12,
).map("".join)
BOTH_WAYS = st.just(False) if native is None else st.booleans()
BOTH = pytest.mark.parametrize(
    "by_module",
    [
        pytest.param(nullcontext, marks=needs_native, id="compiled"),
        pytest.param(without_native, id="python"),
    ],
)
SECONDS = 4.0
"""A text of 4 MB is read within a quarter of this on an idle core."""


@pytest.fixture(scope="module")
def tokenizer(sentences: UseEncoder) -> PieceTokenizer:
    return sentences.tokenizer


@pytest.fixture(scope="module")
def by() -> SentencePieceProcessor:
    return library()


def lettered(
    tokenizer: PieceTokenizer, batch: list[str], limit: int = 0
) -> list[list[tuple[int, bytes]]]:
    """The ids of each text, each with its letters."""
    ids, lengths, letters, stops = tokenizer.letters_many(batch, limit)
    assert len(ids) == len(stops) == lengths.sum()
    assert (stops[-1] if len(stops) else 0) == len(letters)
    parts = [
        letters[start:stop].tobytes() for start, stop in pairwise([0, *stops.tolist()])
    ]
    pairs = iter(zip(ids.tolist(), parts, strict=True))
    return [list(islice(pairs, length)) for length in lengths.tolist()]


def everything(tokenizer: PieceTokenizer, batch: list[str]) -> list[Any]:
    """All that is said of texts."""
    return [
        lettered(tokenizer, batch),
        lettered(tokenizer, batch, 3),
        ids_of_each(tokenizer, batch),
        letters_of_each(tokenizer, batch),
        [tokenizer.pieces(text) for text in batch],
        [tokenizer.words(text) for text in batch],
    ]


@needs_native
@few_examples
@given(batch=st.lists(ANY_TEXT, min_size=1, max_size=4))
def test_the_compiled_module_gives_what_python_gives(
    tokenizer: PieceTokenizer, batch: list[str]
) -> None:
    """Ids and their letters, normalised texts, and where in a text each id comes from."""
    compiled = everything(tokenizer, batch)
    with without_native():
        assert everything(tokenizer, batch) == compiled


@given(batch=st.lists(ANY_TEXT, min_size=1, max_size=4))
def test_any_text_has_the_ids_of_sentencepiece(
    tokenizer: PieceTokenizer, by: SentencePieceProcessor, batch: list[str]
) -> None:
    """And its normalised form; a lone surrogate is a question mark first."""
    assert difference(tokenizer, by, batch) is None


@pytest.mark.parametrize(
    ("by_module", "count"),
    [pytest.param(nullcontext, 5000, marks=needs_native), (without_native, 300)],
)
def test_texts_in_many_scripts_have_the_ids_of_sentencepiece(
    tokenizer: PieceTokenizer, by: SentencePieceProcessor, by_module: Any, count: int
) -> None:
    """`python -m tests.support.unigram_check` tries more."""
    source = texts(random.Random(7), vocabulary(by))
    batch = [next(source) for _ in range(count)]
    batch.append("".join(batch))
    with by_module():
        assert difference(tokenizer, by, batch) is None


@needs_native
@pytest.mark.parametrize(
    "part",
    ["a", "the ", "\u0301", "क्ष", " ", "▁", "ﷺ ", "\U00013000", "\0", "\u200b", "ab"],
)
def test_long_texts_take_linear_time(
    tokenizer: PieceTokenizer, by: SentencePieceProcessor, part: str
) -> None:
    """Megabytes of one thing; sums of scores start again on the way, as in SentencePiece."""
    text = part * (4_000_000 // len(part.encode()))
    start = time.process_time()
    ids = tokenizer.encode(text)
    assert time.process_time() - start < SECONDS
    short = part * 40_000
    assert tokenizer.encode(short).tolist() == by.encode(short)
    assert ids[:1000].tolist() == by.encode(short)[:1000]


@given(batch=st.lists(ANY_TEXT, max_size=4), limit=st.integers(1, 9))
def test_a_limit_keeps_the_first_ids(
    tokenizer: PieceTokenizer, batch: list[str], limit: int
) -> None:
    ids, lengths = tokenizer.encode_many(batch, limit)
    rows = [tokenizer.encode(text)[:limit].tolist() for text in batch]
    assert lengths.tolist() == list(map(len, rows))
    assert ids.tolist() == [number for row in rows for number in row]


@few_examples
@given(
    batch=st.lists(ANY_TEXT, max_size=4), limit=st.integers(0, 9), compiled=BOTH_WAYS
)
def test_every_letter_of_the_normalised_text_belongs_to_one_id(
    tokenizer: PieceTokenizer, batch: list[str], limit: int, compiled: bool
) -> None:
    """A blank for each mark; with a limit, the first ids have the letters that they have
    without.
    """
    with nullcontext() if compiled else without_native():
        pairs = lettered(tokenizer, batch)
        limited = lettered(tokenizer, batch, limit)
        marked = letters_of_each(tokenizer, batch)
        ids = ids_of_each(tokenizer, batch) if batch else []
    assert [[number for number, _ in row] for row in pairs] == ids
    joined = [b"".join(part for _, part in row).decode() for row in pairs]
    assert [text.replace("\n", "") for text in joined] == [
        text.replace("▁", " ") for text in marked
    ]
    assert limited == [row[:limit] if limit else row for row in pairs]


@BOTH
@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("a\n\nb c", " a\n\n b c"),
        ("\n a \n ", "\n a"),
        ("a \n\t\nb", " a\n\n b"),
        ("\n\n", ""),
        ("a\r\nb", " a\n b"),
        ("a▁\n▁b", " a\n b"),
        ("\u1310\n\u1310", " \u1310\n \u1310"),
    ],
)
def test_line_breaks_stand_before_the_blank_that_they_become(
    tokenizer: PieceTokenizer, by_module: Any, text: str, letters: str
) -> None:
    """Those at the end go with the spaces there."""
    with by_module():
        made = tokenizer.letters_many([text])[2]
    assert made.tobytes().decode() == letters


@BOTH
def test_unknown_characters_in_a_row_have_all_their_letters(by_module: Any) -> None:
    """Also where a limit ends with them. U+2581 is a space, of which each counts."""
    with by_module():
        assert lettered(small(), ["aéüa", "é▁\t▁ab"]) == [
            [(1, b" "), (2, b"a"), (0, "éü".encode()), (2, b"a")],
            [(1, b" "), (0, "é".encode()), (1, b" "), (1, b" "), (1, b" "), (4, b"ab")],
        ]
        assert lettered(small(), ["aéüé"], 3)[0][-1] == (0, "éüé".encode())
        assert lettered(small(), ["éüé", "ab"], 2) == [
            [(1, b" "), (0, "éüé".encode())],
            [(1, b" "), (4, b"ab")],
        ]


@needs_native
@few_examples
@given(
    batch=st.lists(st.text("aAbBcCdDeEfFgG\n \u2581é", max_size=12), max_size=3),
    limit=st.integers(0, 4),
)
def test_letters_of_rules_that_cut_characters_are_those_of_python(
    batch: list[str], limit: int
) -> None:
    """Rules may make marks of parts, spaces beside letters, and line breaks of their own."""
    parts = [
        b"\xe2",
        b"\x96\x81",
        b"\xf0",
        b" a",
        b"a ",
        b"\n",
        "▁".encode(),
        b"  ",
        b"",
    ]
    row = b"".join(part + b"\0" for part in parts)
    keys = [b"A", b"B", b"C", b"D\n", b"E\n", b"F", b"\nG", b"\n\n", b"G"]
    places = [row.index(part + b"\0") for part in parts]
    made = small(
        rule_links=double_array(dict(zip(keys, places, strict=True))),
        replacements=np.frombuffer(row, np.uint8),
        piece_links=double_array({"▁".encode(): 1, b"a": 2, b"b": 3, b"\x81": 4}),
    )
    compiled = lettered(made, batch, limit)
    with without_native():
        assert lettered(made, batch, limit) == compiled


@needs_native
def test_letters_of_long_texts_take_linear_time(tokenizer: PieceTokenizer) -> None:
    """Megabytes of line breaks, of unknown characters and of words between them."""
    for part, share in [("\n", 0), ("\u1310", 1), ("a\n\n", 1), (" \n a", 0.5)]:
        text = part * (1_000_000 // len(part.encode())) + "z"
        start = time.process_time()
        letters = tokenizer.letters_many([text])[2]
        assert time.process_time() - start < SECONDS
        assert len(letters) >= share * 1_000_000


@needs_native
def test_of_a_long_text_no_more_is_read_than_a_limit_wants(
    tokenizer: PieceTokenizer,
) -> None:
    """A thousand times, since one text alone could be fast by chance."""
    text = "It was read to its end. " * 200_000
    start = time.process_time()
    _, lengths = tokenizer.encode_many([text] * 1000, 128)
    assert time.process_time() - start < SECONDS
    assert lengths.tolist() == [128] * 1000


@given(text=ANY_TEXT)
def test_pieces_stand_for_the_text_in_its_order(
    tokenizer: PieceTokenizer, text: str
) -> None:
    """What no piece stands for becomes nothing: spaces and what rules take away."""
    plain = text.encode("utf-8", "replace").decode()
    spans = tokenizer._spans(plain)
    assert [number for number, _, _ in spans] == tokenizer.encode(text).tolist()
    end = 0
    for _, start, stop in [*spans, (0, len(plain), len(plain))]:
        (between,) = letters_of_each(tokenizer, [plain[end:start]])
        assert not between
        end = max(end, stop)
    words = tokenizer.words(text)
    assert [number for _, ids in words for number in ids] == [
        number for number, _, _ in spans
    ]


def ids_of(tokenizer: PieceTokenizer, text: str) -> list[int]:
    return list(map(int, tokenizer.encode(text)))


def test_words_are_whole(tokenizer: PieceTokenizer) -> None:
    """With the spaces before them; a character of several pieces is one word."""
    text = "  Naïveté costs  ﷺ 日本語"
    words = [word for word, _ in tokenizer.words(text)]
    assert words == ["  Naïveté", " costs", "  ﷺ", " 日本語"]
    assert tokenizer.words(" \n") == tokenizer.words("") == []


def test_frequencies_add_up_to_one(tokenizer: PieceTokenizer) -> None:
    shares = tokenizer.frequencies
    assert shares.shape == (tokenizer.rows,) == (128_000,)
    assert shares.sum() == pytest.approx(1)
    assert not shares[:6].any()
    assert shares[ids_of(tokenizer, "the")[0]] > 1e-3


def test_threads_share_a_tokenizer(tokenizer: PieceTokenizer) -> None:
    batches = [[text] * 50 for text in TEXTS.values()]
    expected = [ids_of_each(tokenizer, batch) for batch in batches]
    with ThreadPoolExecutor(4) as threads:
        made = threads.map(lambda batch: ids_of_each(tokenizer, batch), 4 * batches)
        assert list(made) == 4 * expected


def test_a_copy_in_another_process_is_the_same(tokenizer: PieceTokenizer) -> None:
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint == tokenizer.fingerprint
    assert copy.encode("a copy").tolist() == tokenizer.encode("a copy").tolist()


# Tables


def small(**changed: Any) -> PieceTokenizer:
    """A tokenizer of few pieces and one rule, with some of its tables changed."""
    keys = {"▁".encode(): 1, b"a": 2, b"b": 3, b"ab": 4}
    tables: dict[str, Any] = {
        "piece_links": double_array(keys),
        "scores": np.array([-20, -3, -2, -2, -3], np.float32),
        "rule_links": double_array({b"A": 0, b"\t": 2}),
        "replacements": np.frombuffer(b"a\0 \0", np.uint8),
    }
    return PieceTokenizer(**(tables | changed))


@BOTH
def test_a_small_vocabulary_is_cut_by_its_scores(by_module: Any) -> None:
    with by_module():
        assert ids_of(small(), "ab\tAc c\u00e9 ") == [1, 4, 1, 2, 0, 1, 0]


def changed(array: Any, place: int, value: int | float) -> Any:
    copy = array.copy()
    copy[place] = value
    return copy


@BOTH
def test_tables_that_do_not_fit_together_are_refused(by_module: Any) -> None:
    """No link, value, score or replacement is taken on trust."""
    right = small()
    links = right.piece_links
    first_value = int(np.flatnonzero(links > VALUE_BIT)[0])
    wrong: list[dict[str, Any]] = [
        {"piece_links": links[:0]},
        {"piece_links": links[:255]},
        {"piece_links": changed(links, 0, VALUE_BIT)},
        {"piece_links": changed(links, 7, (1 << 20) << 10)},
        {"piece_links": changed(links, first_value, VALUE_BIT | 5)},
        {"piece_links": changed(links, 9, 1 << 8 | 9 << 10)},
        {"piece_links": links.astype(np.uint64)},
        {"piece_links": links.reshape(2, -1)},
        {"piece_links": np.repeat(links, 2)[::2]},
        {"scores": right.scores[:0]},
        {"scores": right.scores[:4]},
        {"scores": changed(right.scores, 1, np.nan)},
        {"scores": changed(right.scores, 1, -np.inf)},
        {"scores": right.scores.astype(np.float64)},
        {"rule_links": links},
        {"replacements": right.replacements[:0]},
        {"replacements": right.replacements[:3]},
        {"replacements": np.append(np.full(65, 97, np.uint8), np.uint8(0))},
    ]
    for tables in wrong:
        with by_module(), pytest.raises(EncoderError, match="do not fit together"):
            small(**tables)


@needs_native
def test_the_compiled_module_trusts_no_array() -> None:
    """Of whatever kind it is."""
    tables: list[Any] = list(small().arrays().values())
    for place, wrong in [(0, b""), (0, bytes(1027)), (1, b"123"), (2, b""), (3, b"")]:
        given = [*tables]
        given[place] = wrong
        with pytest.raises(ValueError, match="do not fit together"):
            native.Unigram(*given)
    made = native.Unigram(*tables)
    wrong_texts: list[Any] = [None, 1, [None], ["a", b"b"]]
    for texts_given in wrong_texts:
        for function in (made.encode_many, made.letters_many):
            with pytest.raises(TypeError):
                function(texts_given)
    with pytest.raises(UnicodeEncodeError):
        made.encode_many(["\ud800"])
    ids, lengths = made.encode_many(["ab", "", "b"])
    assert np.frombuffer(ids, np.uint32).tolist() == [1, 4, 1, 3]
    assert np.frombuffer(lengths, np.int64).tolist() == [2, 0, 2]


def test_links_that_lead_back_end() -> None:
    """A hostile array whose keys never end: they are followed for LONGEST bytes."""
    links = double_array({b"a": 1})
    base = int(links[0]) >> 10
    at = base ^ ord("a")
    links[at] = ord("a") | 1 << 8 | (at ^ base) << 10
    links[base] = VALUE_BIT | 1
    made = small(piece_links=links)
    text = "a" * 1000
    expected = made.encode(text).tolist()
    assert len(expected) >= 1000 // LONGEST
    with without_native():
        assert made.encode(text).tolist() == expected


@given(
    keys=st.dictionaries(
        st.binary(min_size=1, max_size=6).filter(lambda key: 0 not in key),
        st.integers(0, 1000),
        max_size=60,
    ),
    text=st.binary(max_size=12),
)
def test_a_double_array_has_its_keys_and_no_others(
    keys: dict[bytes, int], text: bytes
) -> None:
    units = double_array(keys).data
    for asked in (*keys, text):
        expected = [
            (size, keys[asked[:size]])
            for size in range(1, len(asked) + 1)
            if asked[:size] in keys
        ]
        assert list(unigram._values(units, asked, 0)) == expected


def test_a_vocabulary_is_that_of_the_library(sentences: UseEncoder) -> None:
    """The piece of every id, but for those of ids that no text has."""
    by = library()
    pieces = [by.id_to_piece(number).encode() for number in range(by.vocab_size())]
    made = sentences.tokenizer.vocabulary()
    missing = [own for own, piece in zip(made, pieces, strict=True) if own != piece]
    assert len(missing) < 10 and not any(missing)


def test_a_vocabulary_of_links_that_lead_back_ends() -> None:
    """Small ones have their keys; what a hostile one has matters little."""
    assert small().vocabulary() == [b"", "▁".encode(), b"a", b"b", b"ab"]
    links = double_array({b"a": 1, b"b": 2})
    base = int(links[0]) >> 10
    for letter in b"ab":
        links[base ^ letter] = letter | 1 << 8 | letter << 10
    links[base] = VALUE_BIT | 1
    assert small(piece_links=links).vocabulary()[1]


def test_a_model_that_means_something_else_is_refused() -> None:
    """Flags and kinds of pieces that the tokenizer does not know."""
    model = use_files()[0].read_bytes()
    fields = dict(piece_model._fields(model))
    for part, flags in [(2, b"\x18\x02"), (2, b"\xc0\x01\x01"), (3, b"\x20\0")]:
        content = fields[part] + flags
        size = bytes([len(content) & 127 | 128, len(content) >> 7 & 127 | 128])
        size += bytes([len(content) >> 14])
        with pytest.raises(EncoderError, match="is not read: not"):
            piece_tokenizer(model + bytes([part << 3 | 2]) + size + content)
    with pytest.raises(EncoderError, match="has pieces that are not read"):
        piece_tokenizer(model + b"\x0a\x05\x0a\x01\x7f\x18\x05")
