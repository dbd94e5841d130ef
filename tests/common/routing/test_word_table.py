"""Routing with words: held against their definition, compiled and by numpy, one or many, and as a
release.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load, save

from ridgeway.common.base.errors import FormatError, ReleaseError, ShapeMismatch
from ridgeway.common.base.machine import native
from ridgeway.common.base.settings import (
    Confidence,
    Selector,
    SelectorName,
    WordFeatures,
)
from ridgeway.common.routing import word_table
from ridgeway.common.routing.conversation import Turn
from ridgeway.common.routing.evaluation import beginnings_routed
from ridgeway.common.routing.release import load_release, save_release
from ridgeway.common.routing.router import PROMPTS_PER_CHUNK, Router, router_of
from ridgeway.common.routing.sentence_table import compile_router
from ridgeway.common.routing.token_table import sums_by_reading, tally_texts
from ridgeway.common.routing.word_table import WordTable, compile_words, most_grams
from ridgeway.common.text import table_encoder
from ridgeway.common.text.table_encoder import TableEncoder, with_words
from ridgeway.common.text.word_sketch import Spelling, WordSketch
from ridgeway.coordinator.solving.solve import draft, sign
from tests.common.text.test_word_sketch import counted_by_hand
from tests.support.making import (
    USUAL_CHOICES,
    contents,
    fixed_identity,
    prepared,
    sign_again,
)
from tests.support.native import needs_native, without_native
from tests.support.tiny import LETTERS, SPECIAL, tiny_encoder

OPTIONS = WordFeatures(width=8, amplitude=100, longest=4)
ENCODER = with_words(tiny_encoder(), OPTIONS)
DOMAINS = ("code", "law", "zoology")
TEXTS = st.lists(
    st.sampled_from([*"abcABC  .9", "é", "<", SPECIAL, "abcab"]), max_size=14
).map("".join)
SELECTORS = st.builds(
    Selector, st.sampled_from(get_args(SelectorName)), st.integers(1, 4)
)


def weights(
    seed: int, encoder: TableEncoder = ENCODER, domains: int = 3
) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((encoder.width + 1, domains))


def table(seed: int = 1) -> WordTable:
    made = compile_router(ENCODER, weights(seed))
    assert isinstance(made, WordTable)
    return made


def router(seed: int = 1, selector: Selector | None = None) -> Router:
    return Router(
        DOMAINS,
        table(seed),
        ENCODER.tokenizer,
        selector or Selector(),
        Confidence(0.5, 0.3),
    )


def points_by_hand(compiled: WordTable, text: str) -> list[int]:
    """Token rows, and each bucket's row as often as it was counted, in Python's own numbers."""
    ids = ENCODER.tokenizer.encode(text).tolist()
    spelling = compiled.words.spelling
    starts, letters = spelling.starts.tolist(), spelling.letters.tobytes()
    spelt = b"".join(letters[starts[number] : starts[number + 1]] for number in ids)
    counts = counted_by_hand(spelt, OPTIONS.width, OPTIONS.sizes)
    rows, buckets = compiled.logits.tolist(), compiled.buckets.tolist()
    return [
        sum(rows[number][domain] for number in ids)
        + sum(
            count * bucket[domain]
            for count, bucket in zip(counts, buckets, strict=True)
        )
        for domain in range(len(DOMAINS))
    ]


@given(seed=st.integers(0, 5), texts=st.lists(TEXTS, max_size=4))
def test_points_are_the_definition_s_compiled_and_by_numpy(
    seed: int, texts: list[str]
) -> None:
    """Bit for bit: one path is no other router than the other."""
    compiled, numbers = table(seed), ENCODER.tokenizer.encode_many(texts)
    expected = [points_by_hand(compiled, text) for text in texts]
    assert compiled.token_sums(*numbers).tolist() == expected
    compiled.make_fast()
    assert compiled.token_sums(*numbers).tolist() == expected
    assert sums_by_reading(compiled, *numbers).tolist() == expected


@given(selector=SELECTORS, prompts=st.lists(TEXTS, max_size=6))
def test_many_prompts_are_routed_as_each_alone_and_as_without_the_compiled_module(
    selector: Selector, prompts: list[str]
) -> None:
    """A word never goes from one prompt into the next."""
    rest = ENCODER.tokenizer, selector, Confidence(0.5, 0.3)
    router = Router(DOMAINS, table(), *rest)
    router.make_fast()
    decisions = router.route_many(prompts)
    assert decisions == [router.route(prompt) for prompt in prompts]
    with without_native():
        assert router.route_many(prompts) == decisions


@needs_native
def test_rows_of_words_that_are_single_tokens_come_with_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After some calls letters are no longer added up for them; nothing else changes."""
    monkeypatch.setattr(word_table, "CALLS_BEFORE_FAST", 3)
    compiled, numbers = table(), ENCODER.tokenizer.encode_many(["abc a. bc", "a"])
    expected = sums_by_reading(compiled, *numbers).tolist()
    for call in range(5):
        assert compiled.token_sums(*numbers).tolist() == expected
        assert ("_with_rows" in vars(compiled)) == (call >= 3)


def test_more_prompts_than_one_batch_holds_are_routed_as_each_alone() -> None:
    """Threads count words apart."""
    rng = np.random.default_rng(0)
    letters = np.array([*LETTERS, "é", SPECIAL])
    prompts = [
        "".join(rng.choice(letters, size))
        for size in rng.integers(0, 30, 3 * PROMPTS_PER_CHUNK + 5)
    ]
    for name in get_args(SelectorName):
        one = router(selector=Selector(name, 3))
        assert one.route_many(prompts) == [one.route(text) for text in prompts]


@given(selector=SELECTORS, text=TEXTS, more=TEXTS)
def test_explanations_and_conversations_are_of_the_same_router(
    selector: Selector, text: str, more: str
) -> None:
    """Weights add up to the margin; a single turn is a prompt; of a beginning the same is told as
    of such a text.
    """
    one = router(selector=selector)
    explained, decision = one.explain(text), one.route(text)
    assert explained.decision == decision == one.route_turns([Turn(text, 1.0)])
    total = sum(word.weight for word in explained.words)
    assert total == pytest.approx(explained.margin, abs=1e-9)
    both = [Turn(text, 1.0), Turn(more, 2.0)]
    assert one.explain_turns(both).decision == one.route_turns(both)
    confidence, best = beginnings_routed(one, [text], 0)
    assert confidence[0] == pytest.approx(decision.confidence, rel=1e-9)
    assert DOMAINS[best[0]] == decision.best


def test_capitals_change_nothing() -> None:
    """Texts are read in lower case; an explanation shows them as they were typed."""
    assert router().route("ABC cab") == router().route("abc cab")
    assert [piece for _, piece in ENCODER.tokenizer.pieces("Ab c")] == [*"Ab c"]


@given(
    seed=st.integers(0, 5),
    text=TEXTS.filter(lambda text: bool(text.replace(SPECIAL, ""))),
)
def test_a_text_s_score_is_the_product_of_its_features_and_the_weights(
    seed: int, text: str
) -> None:
    """(Σ table rows, amplitude · counts) · scale / n and the constant, times W, within half a step
    for each part.
    """
    compiled, matrix = table(seed), weights(seed)
    ids = ENCODER.tokenizer.encode(text)
    counts = compiled.words.window_counts(ids, np.array([0, len(ids)]))[0]
    features = np.concatenate(
        [ENCODER.table[ids].astype(np.int64).sum(axis=0), OPTIONS.amplitude * counts]
    )
    exact = (features * ENCODER.scale / len(ids)) @ matrix[:-1] + matrix[-1]
    scores = np.array(points_by_hand(compiled, text)) * compiled.step / len(ids)
    parts = 1 + int(np.abs(counts).sum()) / len(ids)
    assert np.abs(scores - exact).max() <= compiled.step * parts


@given(
    words=st.lists(
        st.sampled_from(["abc", "a", ".", "  ", "9bab", SPECIAL]), max_size=40
    ),
    at_once=st.integers(1, 7),
)
def test_a_long_row_of_tokens_is_read_in_parts_without_cutting_words(
    words: list[str], at_once: int
) -> None:
    """What is read at a time changes no row."""
    compiled = table()
    ids, lengths = ENCODER.tokenizer.encode_many(
        ["".join(words), "ab", "", "".join(words[:3])]
    )
    whole = compiled.read(ids, lengths)[0].logits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_table, "_TOKENS_AT_ONCE", at_once)
        assert np.array_equal(compiled.read(ids, lengths)[0].logits, whole)


@pytest.mark.parametrize("name", get_args(SelectorName))
def test_many_texts_are_counted_in_parts(
    name: SelectorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many texts are read at a time changes no count."""
    compiled, texts = table(), ["abc ab", "", "cab", "a" * 30, "b c", ""]
    ids, lengths = ENCODER.tokenizer.encode_many(texts)
    whole = tally_texts(compiled, Selector(name, 2), ids, lengths)
    monkeypatch.setattr("ridgeway.common.routing.token_table.TOKENS_PER_READING", 4)
    parts = tally_texts(compiled, Selector(name, 2), ids, lengths)
    for field in ("points", "sums", "voters"):
        assert np.array_equal(getattr(whole, field), getattr(parts, field))


def test_the_largest_logits_fit_32_bits_for_the_longest_token() -> None:
    """The step leaves room for a token and all runs of letters that can end in it, and no more than
    is needed.
    """
    for seed in range(20):
        compiled = table(seed)
        grams = most_grams(compiled.words) * int(np.abs(compiled.buckets).max())
        most = int(np.abs(compiled.logits).max()) + grams
        assert 1 << 28 < most == compiled.largest_row < 1 << 31


@given(seed=st.integers(0, 20), gone=st.integers(0, 2))
def test_a_retired_domain_leaves_the_others_points_as_they_were(
    seed: int, gone: int
) -> None:
    """Its columns go, of tokens and of letters."""
    compiled = table(seed)
    numbers = ENCODER.tokenizer.encode_many(["abc cab", "a9."])
    expected = np.delete(compiled.token_sums(*numbers), gone, axis=1)
    np.testing.assert_array_equal(compiled.without(gone).token_sums(*numbers), expected)


# What does not fit


def fitting() -> dict[str, Any]:
    made = table()
    return {
        name: getattr(made, name) for name in ("logits", "buckets", "step", "words")
    }


def spelt(
    change: Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]],
) -> WordSketch:
    spelling = table().words.spelling
    return WordSketch(
        OPTIONS, Spelling(*change(spelling.letters.copy(), spelling.starts.copy()))
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logits": np.zeros((42, 3))}, "of tokens"),
        ({"buckets": np.zeros((0, 3), dtype=np.int32)}, "of runs of letters"),
        ({"buckets": np.zeros((7, 3), dtype=np.int32)}, "8 buckets and 3 domains"),
        ({"buckets": np.zeros((8, 2), dtype=np.int32)}, "8 buckets and 3 domains"),
        (
            {"words": spelt(lambda letters, starts: (letters, starts[:-1]))},
            "expected the spelling of 42 tokens",
        ),
        (
            {"words": spelt(lambda letters, starts: (letters.astype(np.int8), starts))},
            "expected the spelling of 42 tokens",
        ),
        (
            {
                "words": spelt(
                    lambda letters, starts: (letters, starts.astype(np.int32))
                )
            },
            "expected the spelling of 42 tokens",
        ),
        (
            {"words": spelt(lambda letters, starts: (letters[:-1], starts))},
            "token spellings do not match their letters",
        ),
        (
            {"words": spelt(lambda letters, starts: (letters, starts + 1))},
            "token spellings do not match their letters",
        ),
        (
            {
                "words": spelt(
                    lambda letters, starts: (letters, starts[np.r_[0, 2, 1, 3:43]])
                )
            },
            "token spellings do not match their letters",
        ),
        ({"buckets": np.full((8, 3), 1 << 28, dtype=np.int32)}, "overflow 32 bits"),
    ],
)
def test_tables_that_do_not_fit_together_are_refused(
    change: dict[str, Any], words: str
) -> None:
    """In a sentence, before a prompt comes."""
    with pytest.raises(FormatError, match=words):
        WordTable(**fitting() | change)


def test_weights_of_another_width_are_refused() -> None:
    """Those of the encoder without words, for one."""
    words = ENCODER.words
    assert words is not None
    with pytest.raises(ShapeMismatch, match="an encoder of 14"):
        compile_words(ENCODER.table, ENCODER.scale, words, np.ones((7, 2)))


@pytest.mark.parametrize(
    ("buckets", "letters", "starts"),
    [
        (np.zeros((0, 2), np.int32), b"abc", [0, 1, 2, 3]),
        (np.zeros(3, np.int32), b"abc", [0, 1, 2, 3]),
        (np.zeros((4, 2), np.int32), b"abc", [0, 1, 2]),
        (np.zeros((4, 2), np.int32), b"abc", [0, 1, 2, 4]),
        (np.zeros((4, 2), np.int32), b"abc", [0, 2, 1, 3]),
        (np.zeros((4, 2), np.int32), b"abc", [-1, 1, 2, 3]),
    ],
)
@needs_native
def test_compiled_sums_refuse_words_that_do_not_fit(
    buckets: NDArray[np.int32], letters: bytes, starts: list[int]
) -> None:
    """No letter is read outside what was handed over."""
    ids, counts = np.arange(3, dtype=np.int32), np.array([3])
    rows = np.zeros((3, 2), dtype=np.int32)
    spelt = np.frombuffer(letters, dtype=np.uint8), np.array(starts, dtype=np.int64)
    for rest in ((*spelt, 2, 3), ()):
        with pytest.raises(ValueError, match="do not fit together"):
            native.token_sums(ids, counts, rows, 2, buckets, *rest)


@needs_native
def test_a_text_with_more_letters_than_are_counted_is_left_to_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counters of 32 bits never turn over: the compiled module says so before it begins."""
    row = np.ones((1, 2), dtype=np.int32)
    long = np.full(1 << 20, ord("a"), dtype=np.uint8)
    rest = np.ones((4, 2), dtype=np.int32), long, np.array([0, len(long)]), 2, 3
    with pytest.raises(OverflowError, match="more letters"):
        native.token_sums(np.zeros(257, dtype=np.int32), np.array([257]), row, 2, *rest)
    compiled, numbers = table(), ENCODER.tokenizer.encode_many(["abc"])
    expected = compiled.token_sums(*numbers).tolist()

    def refuses(*_: Any) -> Any:
        raise OverflowError

    monkeypatch.setattr(word_table, "native", SimpleNamespace(token_sums=refuses))
    assert compiled.token_sums(*numbers).tolist() == expected


# Releases


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words") / "release"
    parts = [prepared(name, ENCODER, seed) for seed, name in enumerate(DOMAINS, 1)]
    sign(draft(parts, ENCODER, USUAL_CHOICES), fixed_identity(), folder)
    return folder


def test_a_release_with_words_is_loaded_as_it_was_made_without_spelling_tokens_again(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How tokens are spelt stands in the release, since working it out takes longer than all else
    of a command.
    """
    monkeypatch.setattr(table_encoder, "spelling", None)
    loaded = load_release(release)
    assert isinstance(loaded.compiled, WordTable)
    assert loaded.manifest["encoder"]["words"] == asdict(OPTIONS)
    assert loaded.manifest["encoder"]["width"] == ENCODER.width
    monkeypatch.undo()
    made = compile_router(ENCODER, loaded.weights)
    for name, array in made.arrays().items():
        assert np.array_equal(loaded.compiled.arrays()[name], array)
    other = Router(DOMAINS, made, ENCODER.tokenizer, Selector())
    assert Router.load(release).route("ABC cab 9") == other.route("ABC cab 9")


def test_a_release_without_a_retired_domain_routes_as_its_router(
    release: Path, tmp_path: Path
) -> None:
    """What `coordinator retire` writes: two tables with a column less, under the same facts of the
    encoder.
    """
    loaded = load_release(release)
    kept = router_of(loaded).without("law")
    facts = loaded.manifest | {
        "domains": list(kept.domains),
        "confidence": kept.confidence.to_json(),
    }
    definition = contents(release)["tokenizer.json"]
    save_release(
        tmp_path / "r",
        facts,
        np.delete(loaded.weights, 1, axis=1),
        kept.compiled,
        definition,
        fixed_identity(),
    )
    texts = ["abc ab", "Cab 9", ""]
    assert Router.load(tmp_path / "r").route_many(texts) == kept.route_many(texts)


def test_an_older_ridgeway_cannot_take_it_for_a_table_of_tokens(release: Path) -> None:
    """It misses the entropies that tables of tokens have, and refuses."""
    assert set(load(contents(release)["router.safetensors"])) == {
        "weights",
        "logits",
        "buckets",
        "letters",
        "starts",
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"words": {"width": 9, "amplitude": 100, "shortest": 3, "longest": 5}},
            "9 buckets",
        ),
        (
            {"words": {"width": 0, "amplitude": 100, "shortest": 3, "longest": 5}},
            "0 word features are not supported",
        ),
        ({"words": {"width": 9, "amplitude": 100}}, "another version"),
        ({"words": {"wide": 8}}, "signed but unusable"),
        ({"words": None}, "signed but unusable"),
    ],
)
def test_a_signed_manifest_whose_words_do_not_fit_is_refused(
    release: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """Also one whose signature holds."""
    copy = shutil.copytree(release, tmp_path / "release")
    card = json.loads((copy / "manifest.json").read_bytes())["encoder"]
    sign_again(copy, fixed_identity(), {"encoder": card | change})
    with pytest.raises(ReleaseError, match=words):
        load_release(copy)


@pytest.mark.parametrize("name", ["buckets", "letters", "starts", "logits"])
def test_a_signed_release_that_lacks_a_part_is_refused(
    release: Path, tmp_path: Path, name: str
) -> None:
    """Or has one of another shape."""
    copy = shutil.copytree(release, tmp_path / "release")
    whole = load(contents(copy)["router.safetensors"])
    files = json.loads((copy / "manifest.json").read_bytes())["files"]
    for broken in (
        save({key: value for key, value in whole.items() if key != name}),
        save(whole | {name: whole[name][1:]}),
    ):
        (copy / "router.safetensors").write_bytes(broken)
        digest = hashlib.sha256(broken).hexdigest()
        changes = {"files": files | {"router.safetensors": digest}}
        sign_again(copy, fixed_identity(), changes)
        with pytest.raises(ReleaseError, match="signed but unusable"):
            load_release(copy)


# The real encoder


def test_the_real_encoder_with_words_routes_the_same_by_every_path(
    smollm2: TableEncoder,
) -> None:
    """Words of real tokens, in several scripts, misspelt and shouted."""
    encoder = with_words(smollm2, WordFeatures())
    compiled = compile_router(encoder, weights(3, encoder, 5))
    assert isinstance(compiled, WordTable)
    texts = [
        "Please REVIEW the copyright licence",
        "plese reveiw teh copyrihgt lisence",
        "",
        "ok",
        "?!",
        "Größe Ωμέγα 数学 🙂",
    ]
    texts.append(" ".join(texts) * 40)
    numbers = encoder.tokenizer.encode_many(texts)
    expected = sums_by_reading(compiled, *numbers).tolist()
    assert compiled.token_sums(*numbers).tolist() == expected
    compiled.make_fast()
    assert compiled.token_sums(*numbers).tolist() == expected
    one = Router(tuple("abcde"), compiled, encoder.tokenizer, Selector())
    assert one.route_many(texts) == [one.route(text) for text in texts]
    assert one.route(texts[0]) == one.route(texts[0].upper())
