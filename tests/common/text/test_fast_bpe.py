"""The compiled encoder gives the ids of the tokenizers library, or leaves texts to it."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from ridgeway.common.base.machine import native
from ridgeway.common.text import fast_bpe
from ridgeway.common.text.characters import character_classes
from ridgeway.common.text.tokenizer import (
    CHARACTERS_BEFORE_FAST,
    Tokenizer,
    plain_definition,
)
from tests.support.native import needs_native, without_native
from tests.support.tokenizer_definitions import (
    FRAGMENTS,
    PATTERNS,
    SENTENCES,
    definition,
    every_character,
)

pytestmark = needs_native

ODD = (
    "It's 12 o'clock, they'LL say;  and\r\n\r\n  then\tnaïve café 東京 12345 +=!?"
    " \u00a0\u2003x ſ'ſ <|im_start|> ﬁ\u0301 🙂🙂 a1b2 ''s\x00\x7f \u200b\ufeff"
    + "no"
    * 40
)
"""A text in which much is met that could go wrong."""
KINDS = "aAsSlL\u017f\u01c5\u02b0\u6771\u0301'1! /\t\r\n"
"""Characters of all classes, between which patterns try several ways before they find one that
fits.
"""
FORMS: dict[str, dict[str, Any]] = {
    **{pattern: {"pattern": pattern} for pattern in PATTERNS},
    **{
        f"{pattern}, whole words": {
            "pattern": pattern,
            "whole_words": True,
            "known": KINDS,
        }
        for pattern in PATTERNS
    },
    "qwen2, NFC": {"pattern": "qwen2", "nfc": True},
    "without some bytes": {
        "pattern": "digits",
        "without": b"\x00\x7f\x80\x81\xc3\xe6 ",
    },
}
TEXTS = st.lists(
    st.sampled_from(FRAGMENTS) | st.text(max_size=3) | st.text(KINDS, max_size=9),
    max_size=14,
).map("".join)


@cache
def both(form: str) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer with the compiled encoder, and the same by the library alone."""
    raw = definition(**FORMS[form])
    fast, reference = Tokenizer(raw), Tokenizer(raw)
    assert fast.make_fast()
    reference._decided = True
    return fast, reference


def test_little_text_is_left_to_the_library_until_there_is_more() -> None:
    """A command that routes one prompt does not wait for the making of tables; ids are the same
    before and after.
    """
    tokenizer = Tokenizer(definition("gpt2"))
    before = tokenizer.encode("It's 12 o'clock").tolist()
    assert tokenizer._fast is None
    tokenizer.encode_many(["x" * CHARACTERS_BEFORE_FAST])
    assert tokenizer._fast is not None
    assert tokenizer.encode("It's 12 o'clock").tolist() == before


def in_lists(encoded: Iterable[Any]) -> list[Any]:
    """Ids and lengths, which can be compared."""
    return [part.tolist() for part in encoded]


def assert_same(fast: Tokenizer, reference: Tokenizer, texts: list[str]) -> None:
    assert in_lists(fast.encode_many(texts)) == in_lists(reference.encode_many(texts))


@pytest.mark.parametrize("form", FORMS)
@given(texts=st.lists(TEXTS, max_size=4))
def test_any_text_has_the_library_s_ids(form: str, texts: list[str]) -> None:
    """Spaces, line ends, contractions, digits, added tokens and lone surrogates in any order; by
    given tables, too.
    """
    fast, reference = both(form)
    assert_same(fast, reference, texts)
    assert_same(
        Tokenizer(definition(**FORMS[form]), tables=fast.tables), reference, texts
    )


@pytest.mark.parametrize("form", ["digits", "cl100k", "o200k"])
def test_characters_of_all_blocks_in_all_contexts_have_the_library_s_ids(
    form: str,
) -> None:
    """A part of all code points in twelve contexts; `make fuzz` tries them all."""
    assert_same(*both(form), list(every_character(step=101)))


@pytest.mark.slow
def test_the_classes_of_characters_are_the_library_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is listed equals the installed library's, and a library of another mind would be
    noticed.
    """
    assert tokenizers.__version__ in fast_bpe.CHECKED_VERSIONS
    monkeypatch.setattr(fast_bpe, "CHECKED_VERSIONS", frozenset())
    assert fast_bpe.classes_are_the_library_s()
    changed = character_classes()
    changed[ord("x")] = fast_bpe._NUMBER
    monkeypatch.setattr(fast_bpe, "character_classes", changed.copy)
    assert not fast_bpe.classes_are_the_library_s()


@pytest.mark.slow
def test_capitals_small_letters_and_marks_are_where_they_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library that was compared has none in other planes."""
    listed = fast_bpe.cased_classes()
    monkeypatch.setattr(fast_bpe, "CHECKED_VERSIONS", frozenset())
    assert np.array_equal(listed, fast_bpe.cased_classes())


@pytest.mark.slow
def test_the_default_encoder_is_fast_and_exact(smollm2: Any) -> None:
    """SmolLM2, whose vocabulary lacks 21 bytes, on real sentences and on odd ones."""
    tokenizer = smollm2.tokenizer
    assert tokenizer.make_fast()
    texts = [*SENTENCES, *FRAGMENTS, ODD, "".join(map(chr, range(0x250)))]
    expected = in_lists(tokenizer._by_the_library(texts))
    assert in_lists(tokenizer.encode_many(texts)) == expected


@pytest.mark.parametrize("pattern", ["cl100k", "o200k"])
def test_a_split_may_also_be_told_as_the_removal_of_what_lies_between_words(
    pattern: str,
) -> None:
    """Some definitions write it so; nothing lies between them."""
    made = json.loads(definition(pattern))
    made["pre_tokenizer"]["pretokenizers"][0] |= {"behavior": "Removed", "invert": True}
    fast = Tokenizer(json.dumps(made).encode())
    assert fast.make_fast()
    texts = [*SENTENCES, *FRAGMENTS, ODD]
    assert in_lists(fast.encode_many(texts)) == in_lists(fast._by_the_library(texts))


def changed(change: Any) -> bytes:
    made = json.loads(definition("gpt2"))
    change(made)
    return json.dumps(made).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(normalizer={"type": "NFKC"}),
        lambda d: d.update(
            normalizer={
                "type": "Sequence",
                "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}],
            }
        ),
        lambda d: d["pre_tokenizer"].update(add_prefix_space=True),
        lambda d: d.update(pre_tokenizer={"type": "Whitespace"}),
        lambda d: d.update(pre_tokenizer=None),
        lambda d: d["model"].update(unk_token="<|a|>"),
        lambda d: d["model"].update(byte_fallback=True),
        lambda d: d["model"].update(end_of_word_suffix="</w>"),
        lambda d: d["model"].update(dropout=0.5),
        lambda d: d["model"].update(something_new=True),
        lambda d: d["added_tokens"][0].update(lstrip=True),
        lambda d: d["added_tokens"][0].update(normalized=True),
        lambda d: d["added_tokens"][0].update(single_word=True),
    ],
)
def test_a_definition_that_is_not_known_is_left_to_the_library(change: Any) -> None:
    """Whatever the extension does not do, it does not try."""
    assert not Tokenizer(changed(change)).make_fast()


def test_what_python_finds_in_form_nfc_the_library_leaves_as_it_is() -> None:
    """Characters that this Python does not know take part in no composition or reordering of the
    library's either.
    """
    unknown = [
        chr(number)
        for number in range(0x32000)
        if unicodedata.category(chr(number)) == "Cn"
    ]
    assert len(unknown) > 1000
    for context in ("{}", "{}\u0334", "\u0301{}"):
        text = "".join(context.replace("{}", letter) for letter in unknown)
        assert normalizers.NFD().normalize_str(text) == text


def test_in_form_nfc_texts_of_both_kinds_are_encoded_in_their_order() -> None:
    """A text that is not in the form, one that is, one with a mark after an added token, which is
    cut out before.
    """
    fast, reference = both("qwen2, NFC")
    marked = ["<tool>\u0338 a", "<tools\u0338 a"]
    assert_same(fast, reference, ["cafe\u0301", "café", "", *marked, "plain"])


def test_without_the_compiled_module_the_library_does_the_work() -> None:
    """With the same ids."""
    fast, _ = both("gpt2")
    with without_native():
        plain = Tokenizer(definition("gpt2"))
        assert not plain.make_fast()
        assert_same(fast, plain, [*SENTENCES, *FRAGMENTS, ODD])


def test_threads_share_an_encoder_and_get_their_own_ids() -> None:
    """Calls that run at the same time have caches of their own."""
    fast, reference = both("digits")
    texts = [
        list(every_character([context], step=97))
        for context in ("{} a", "b{}", "{}1{}", "'{}")
    ]
    expected = [in_lists(reference.encode_many(batch)) for batch in texts]
    with ThreadPoolExecutor(len(texts)) as threads:
        made = list(threads.map(fast.encode_many, 5 * texts))
    assert list(map(in_lists, made)) == 5 * expected


def tables() -> list[Any]:
    """Tables of a smallest encoder: bytes are ids, and `a` and `b` merge."""
    merges = np.array([[97, 98, 256]], dtype=np.uint32).tobytes()
    classes = character_classes().tobytes()
    return [
        0,
        classes,
        np.arange(256, dtype=np.int32).tobytes(),
        merges,
        b"",
        b"",
        b"",
        b"",
    ]


def test_tables_that_do_not_fit_together_are_refused() -> None:
    """No length, place, class or pattern is taken on trust."""
    native.Encoder(*tables())
    entry = np.array([0, 4, 7], dtype=np.uint32).tobytes()
    wrong = {
        0: [-1, 5, 1 << 31],
        1: [
            b"",
            tables()[1] + b"\0",
            *(bytes([wrong]) + tables()[1][1:] for wrong in (0, 3, 16)),
        ],
        2: [b"", bytes(1023), bytes(1025)],
        3: [bytes(11)],
        4: [
            bytes(11),
            bytes(12),
            entry,
            np.array([2**32 - 1, 2, 7], dtype=np.uint32).tobytes(),
        ],
        6: [bytes(13), bytes(12), entry],
    }
    for index, values in wrong.items():
        for value in values:
            given = tables()
            given[index] = value
            with pytest.raises((ValueError, OverflowError)):
                native.Encoder(*given)


def test_what_is_no_text_is_refused() -> None:
    """Other types raise, and leave the encoder usable."""
    encoder = native.Encoder(*tables())
    wrong: list[Any] = [None, 1, [None], ["a", b"b"], [["a"]]]
    for texts in wrong:
        with pytest.raises(TypeError):
            encoder.encode_many(texts)
    with pytest.raises(UnicodeEncodeError):
        encoder.encode_many(["\ud800"])
    ids, counts = encoder.encode_many(["ab", "", "ba"])
    assert np.frombuffer(ids, np.uint32).tolist() == [256, 98, 97]
    assert np.frombuffer(counts, np.int64).tolist() == [1, 0, 2]


@pytest.mark.slow
def test_a_definition_without_limits_is_fast_too(smollm2: Any) -> None:
    """What encoders store is the plain definition."""
    assert Tokenizer(plain_definition(smollm2.definition)).make_fast()
