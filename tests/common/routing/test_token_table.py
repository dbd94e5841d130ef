"""Tables of tokens and words: held against their definition, compiled and by numpy, one or many,
and as a release.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load, save

from ridgeway.common.base.errors import FormatError, ReleaseError, ShapeMismatch
from ridgeway.common.base.files import storable
from ridgeway.common.base.settings import (
    Confidence,
    Selector,
    SelectorName,
    WordFeatures,
)
from ridgeway.common.routing.conversation import Turn
from ridgeway.common.routing.evaluation import beginnings_routed
from ridgeway.common.routing.release import load_release, save_release
from ridgeway.common.routing.router import PROMPTS_PER_CHUNK, Router, router_of
from ridgeway.common.routing.token_table import (
    MAX_LOGIT,
    MAX_RUN_LOGIT,
    MAX_SHIFT,
    TokenTable,
    compile_table,
    exact_table,
    tally_texts,
)
from ridgeway.common.text.table_encoder import TableEncoder, with_words
from ridgeway.coordinator.solving.solve import draft, sign
from tests.common.text.test_word_sketch import by_hand
from tests.support.making import (
    USUAL_CHOICES,
    contents,
    fixed_identity,
    prepared,
    sign_again,
)
from tests.support.native import without_native
from tests.support.seeds import few_examples
from tests.support.tiny import LETTERS, SPECIAL, tiny_definition, tiny_encoder

OPTIONS = WordFeatures(width=8, amplitude=100)
PLAIN = tiny_encoder()
ENCODER = with_words(PLAIN, OPTIONS)
ENCODERS = st.sampled_from([PLAIN, ENCODER])
DOMAINS = ("code", "law", "zoology")
TEXTS = st.lists(
    st.sampled_from([*"abcABC  .9\n", "é", "<", "\ud800", SPECIAL, "abcab"]),
    max_size=14,
).map("".join)
SELECTORS = st.builds(
    Selector, st.sampled_from(get_args(SelectorName)), st.integers(1, 4)
)


def weights(
    seed: int, encoder: TableEncoder = ENCODER, domains: int = 3
) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((encoder.width + 1, domains))


def table(seed: int = 1, encoder: TableEncoder = ENCODER) -> TokenTable:
    """Its columns have steps of their own: one speaks up, one hardly says a thing."""
    return compile_table(encoder, weights(seed, encoder) * [1, 30, 1e-3])


def router(
    seed: int = 1, selector: Selector | None = None, encoder: TableEncoder = ENCODER
) -> Router:
    return Router(
        DOMAINS,
        table(seed, encoder),
        encoder.reader,
        selector or Selector(),
        Confidence(0.5, 0.3),
    )


def counts_by_hand(encoder: TableEncoder, text: str) -> list[int]:
    """How often each bucket was counted, signs added up; nothing in a text without tokens."""
    assert encoder.options is not None
    counts = [0] * encoder.options.width
    if len(encoder.tokenizer.encode(text)):
        for code in by_hand(storable(text), encoder.options.width):
            counts[code // 2] += 1 if code % 2 else -1
    return counts


def sums_by_hand(encoder: TableEncoder, compiled: TokenTable, text: str) -> list[int]:
    """Token rows, and each bucket's row as often as it was counted, in Python's own numbers."""
    rows = compiled.logits.tolist()
    said = [rows[number] for number in encoder.tokenizer.encode(text).tolist()]
    if compiled.runs is not None:
        counts = counts_by_hand(encoder, text)
        for count, bucket in zip(counts, compiled.runs.tolist(), strict=True):
            said.append([count * logit for logit in bucket])
    columns = range(compiled.domains)
    shifts = compiled.shifts.tolist()
    return [sum(row[column] for row in said) << shifts[column] for column in columns]


@given(seed=st.integers(0, 5), encoder=ENCODERS, texts=st.lists(TEXTS, max_size=4))
def test_sums_are_the_definition_s_compiled_and_by_numpy(
    seed: int, encoder: TableEncoder, texts: list[str]
) -> None:
    """Bit for bit: one path is no other router than the other."""
    compiled = table(seed, encoder)
    tokens = encoder.read(texts)
    expected = [sums_by_hand(encoder, compiled, text) for text in texts]
    assert compiled.token_sums(tokens).tolist() == expected
    rows = compiled.rows(tokens)
    with without_native():
        again = encoder.read(texts)
        assert compiled.token_sums(again).tolist() == expected
        assert np.array_equal(compiled.rows(again), rows)


@given(seed=st.integers(0, 5), encoder=ENCODERS, texts=st.lists(TEXTS, max_size=4))
def test_a_text_s_sum_is_that_of_its_tokens_rows(
    seed: int, encoder: TableEncoder, texts: list[str]
) -> None:
    """A run of letters is in the row of the token in which it ends, and in no other."""
    compiled = table(seed, encoder)
    tokens = encoder.read(texts)
    rows = compiled.rows(tokens)
    assert rows.shape == (len(tokens.ids), compiled.domains)
    stops = np.cumsum(tokens.lengths)
    sums = [part.sum(axis=0).tolist() for part in np.split(rows, stops)[:-1]]
    assert compiled.token_sums(tokens).tolist() == sums


def test_a_single_row_is_that_of_every_token() -> None:
    """Where tokens say nothing, as in private rounds, a table does not repeat it."""
    matrix = weights(3)
    matrix[: PLAIN.width] = 0
    compiled = compile_table(ENCODER, matrix)
    assert compiled.logits.shape == (1, 3)
    whole = replace(compiled, logits=np.repeat(compiled.logits, ENCODER.rows, axis=0))
    tokens = ENCODER.read(["abc cab", "", "9.?"])
    expected = whole.token_sums(tokens)
    assert np.array_equal(compiled.token_sums(tokens), expected)
    with without_native():
        assert np.array_equal(compiled.token_sums(tokens), expected)


def test_a_table_of_one_row_says_what_its_row_says() -> None:
    """An encoder may have a single token."""
    definition = json.loads(tiny_definition())
    definition["model"]["vocab"] = {"<unk>": 0}
    definition["added_tokens"] = []
    kept = json.dumps(definition).encode()
    one = TableEncoder("one", kept, PLAIN.table[:1], PLAIN.scale)
    matrix = weights(2, one)
    expected = PLAIN.table[:1] * PLAIN.scale @ matrix[:-1] + matrix[-1]
    assert np.allclose(exact_table(one, matrix).tokens, expected)


@given(selector=SELECTORS, encoder=ENCODERS, prompts=st.lists(TEXTS, max_size=6))
def test_many_prompts_are_routed_as_each_alone_and_as_without_the_compiled_module(
    selector: Selector, encoder: TableEncoder, prompts: list[str]
) -> None:
    """A word never goes from one prompt into the next."""
    one = router(selector=selector, encoder=encoder)
    decisions = one.route_many(prompts)
    assert decisions == [one.route(prompt) for prompt in prompts]
    with without_native():
        assert one.route_many(prompts) == decisions


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
    assert total == pytest.approx(explained.margin, rel=1e-9, abs=1e-9)
    both = [Turn(text, 1.0), Turn(more, 2.0)]
    assert one.explain_turns(both).decision == one.route_turns(both)
    confidence, best = beginnings_routed(one, [text], 0)
    assert confidence[0] == pytest.approx(decision.confidence, rel=1e-9)
    assert DOMAINS[best[0]] == decision.best


@pytest.mark.parametrize("name", get_args(SelectorName))
def test_many_texts_are_counted_in_parts(
    name: SelectorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many texts are read at a time changes no count."""
    compiled = table()
    tokens = ENCODER.read(["abc ab", "", "cab", "a" * 30, "b c", ""])
    whole = tally_texts(compiled, Selector(name, 2), tokens)
    monkeypatch.setattr("ridgeway.common.routing.token_table.TOKENS_PER_READING", 4)
    parts = tally_texts(compiled, Selector(name, 2), tokens)
    for field in ("points", "sums", "voters"):
        assert np.array_equal(getattr(whole, field), getattr(parts, field))
    assert whole.unit == parts.unit


@pytest.mark.parametrize("name", get_args(SelectorName))
def test_no_texts_are_counted_as_none(name: SelectorName) -> None:
    """Of no texts, and of texts without tokens."""
    for texts in ([], [""], ["", SPECIAL]):
        counted = tally_texts(table(), Selector(name, 2), ENCODER.read(texts))
        assert counted.points.shape == counted.sums.shape == (len(texts), 3)
        assert not counted.points.any() and not counted.voters.any()


@given(
    seed=st.integers(0, 20),
    encoder=ENCODERS,
    gone=st.integers(0, 2),
    texts=st.lists(TEXTS, max_size=3),
)
def test_a_retired_domain_leaves_the_others_sums_as_they_were(
    seed: int, encoder: TableEncoder, gone: int, texts: list[str]
) -> None:
    """Its columns go, of tokens and of letters, and its step."""
    compiled = table(seed, encoder)
    tokens = encoder.read(texts)
    expected = np.delete(compiled.token_sums(tokens), gone, axis=1)
    kept = compiled.without(gone)
    assert np.array_equal(kept.token_sums(tokens), expected)
    assert kept.step == compiled.step and kept.domains == 2


# Compiling


@given(
    seed=st.integers(0, 5),
    encoder=ENCODERS,
    text=TEXTS.filter(lambda text: bool(text.replace(SPECIAL, ""))),
)
def test_a_text_s_score_is_the_product_of_its_features_and_the_weights(
    seed: int, encoder: TableEncoder, text: str
) -> None:
    """(Σ table rows, amplitude · counts) · scale / n and the constant, times W, within half a step
    for each part.
    """
    matrix = weights(seed, encoder)
    compiled = compile_table(encoder, matrix)
    ids = encoder.tokenizer.encode(text)
    features = encoder.table[ids].astype(np.int64).sum(axis=0)
    parts = 1.0
    if encoder.options:
        counts = np.array(counts_by_hand(encoder, text))
        features = np.append(features, OPTIONS.amplitude * counts)
        parts += float(np.abs(counts).sum()) / len(ids)
    exact = (features * encoder.scale / len(ids)) @ matrix[:-1] + matrix[-1]
    sums = compiled.token_sums(encoder.read([text]))[0]
    steps = np.ldexp(compiled.step, compiled.shifts.astype(int))
    off = np.abs(sums * compiled.step / len(ids) - exact)
    assert (off <= 0.51 * steps * parts).all()


@given(
    seed=st.integers(0, 1 << 32),
    encoder=ENCODERS,
    loud=st.lists(st.integers(-40, 40), min_size=2, max_size=5),
)
def test_a_step_is_the_least_power_of_two_that_fits(
    seed: int, encoder: TableEncoder, loud: list[int]
) -> None:
    """Of each domain by itself, down to 2⁻¹² of the largest."""
    matrix = weights(seed, encoder, len(loud)) * np.exp2(loud)
    exact = exact_table(encoder, matrix)
    compiled = compile_table(encoder, matrix)
    steps = np.ldexp(compiled.step, compiled.shifts.astype(int))
    assert np.log2(compiled.step) == np.rint(np.log2(compiled.step))
    assert np.array_equal(steps, exact.steps)
    assert compiled.shifts.min() == 0
    for column, step in enumerate(steps):
        logits = [int(np.abs(compiled.logits[:, column]).max()) / MAX_LOGIT]
        if compiled.runs is not None:
            logits.append(int(np.abs(compiled.runs[:, column]).max()) / MAX_RUN_LOGIT)
        assert max(logits) <= 1
        assert max(logits) > 0.49 or step == steps.max() / (1 << MAX_SHIFT)


@few_examples
@given(
    seed=st.integers(0, 1 << 32),
    encoder=ENCODERS,
    loud=st.lists(st.integers(-4, 4), min_size=3, max_size=3),
)
def test_rounding_changes_no_decision_but_where_domains_are_a_step_apart(
    seed: int, encoder: TableEncoder, loud: list[int]
) -> None:
    """Random texts by random tables, whose domains speak up more or less. Of a thousand texts
    hardly any is so near.
    """
    rng = np.random.default_rng(seed)
    matrix = weights(seed, encoder) * np.exp2(loud)
    compiled = compile_table(encoder, matrix)
    exact = exact_table(encoder, matrix)
    letters = np.array([*LETTERS, "é"])
    texts = ["".join(rng.choice(letters, size)) for size in rng.integers(1, 60, 1000)]
    tokens = encoder.read(texts)
    owners = np.repeat(np.arange(len(texts)), tokens.lengths)
    sums = np.zeros((len(texts), 3))
    np.add.at(sums, owners, exact.tokens[tokens.ids])
    parts = tokens.lengths.copy()
    if exact.runs is not None:
        codes, stops = tokens.runs
        owners = np.repeat(owners, np.diff(stops, prepend=0))
        signs = 2.0 * (codes & 1) - 1
        np.add.at(sums, owners, signs[:, None] * exact.runs[codes >> 1])
        parts += np.bincount(owners, minlength=len(texts))
    rounded = compiled.token_sums(tokens)
    second, best = np.sort(sums, axis=1)[:, -2:].T
    changed = rounded.argmax(axis=1) != sums.argmax(axis=1)
    assert ((best - second)[changed] <= (parts * exact.steps.max())[changed]).all()
    assert changed.sum() <= 5


def test_rows_of_many_tokens_are_compiled_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks cover every token, whatever their size."""
    whole = compile_table(ENCODER, weights(4))
    for rows in (1, 5, ENCODER.rows - 1, ENCODER.rows):
        monkeypatch.setattr("ridgeway.common.routing.token_table.ROWS_AT_ONCE", rows)
        again = compile_table(ENCODER, weights(4))
        assert np.array_equal(again.logits, whole.logits)


def test_weights_of_another_width_are_refused() -> None:
    """Those of the encoder without words, for one."""
    with pytest.raises(ShapeMismatch, match="over 7 features do not fit tiny"):
        compile_table(ENCODER, np.ones((7, 2)))


# What does not fit


def fitting() -> dict[str, Any]:
    return dict(vars(table()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logits": np.zeros((42, 3))}, "is V×C int16"),
        ({"logits": np.zeros((42, 3), dtype=np.int32)}, "is V×C int16"),
        ({"logits": np.zeros(3, dtype=np.int16)}, "is V×C int16"),
        ({"logits": np.zeros((0, 3), dtype=np.int16)}, "is V×C int16"),
        ({"logits": np.zeros((42, 0), dtype=np.int16)}, "is V×C int16"),
        ({"shifts": np.zeros(2, dtype=np.uint8)}, "needs 3 shifts"),
        ({"shifts": np.zeros((3, 1), dtype=np.uint8)}, "needs 3 shifts"),
        ({"shifts": np.zeros(3, dtype=np.int64)}, "needs 3 shifts"),
        ({"shifts": np.array([0, 13, 0], dtype=np.uint8)}, "needs 3 shifts"),
        ({"runs": np.zeros((8, 2), dtype=np.int32)}, "is D×3 int32"),
        ({"runs": np.zeros(3, dtype=np.int32)}, "is D×3 int32"),
        ({"runs": np.zeros((8, 3), dtype=np.int64)}, "is D×3 int32"),
        ({"runs": np.full((8, 3), MAX_RUN_LOGIT + 1, dtype=np.int32)}, "1,048,576"),
        ({"runs": np.full((8, 3), -MAX_RUN_LOGIT - 1, dtype=np.int32)}, "1,048,576"),
    ],
)
def test_tables_that_do_not_fit_together_are_refused(
    change: dict[str, Any], words: str
) -> None:
    """In a sentence, before a prompt comes."""
    with pytest.raises(FormatError, match=words):
        TokenTable(**fitting() | change)


def test_the_largest_logits_are_kept() -> None:
    """At their bounds, on both sides."""
    for sign_of in (1, -1):
        logits = np.full((42, 2), sign_of * MAX_LOGIT, dtype=np.int16)
        runs = np.full((8, 2), sign_of * MAX_RUN_LOGIT, dtype=np.int32)
        shifts = np.array([0, MAX_SHIFT], dtype=np.uint8)
        compiled = TokenTable(logits, 1.0, shifts, runs)
        texts = ["abc cab " * 500]
        expected = [sums_by_hand(ENCODER, compiled, text) for text in texts]
        assert compiled.token_sums(ENCODER.read(texts)).tolist() == expected


# Releases


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words") / "release"
    parts = [prepared(name, ENCODER, seed) for seed, name in enumerate(DOMAINS, 1)]
    sign(draft(parts, ENCODER, USUAL_CHOICES), fixed_identity(), folder)
    return folder


def test_a_release_with_words_is_loaded_as_it_was_made(release: Path) -> None:
    """Its table, and what reads its prompts."""
    loaded = load_release(release)
    assert loaded.manifest["encoder"]["words"] == asdict(OPTIONS)
    assert loaded.manifest["encoder"]["width"] == ENCODER.width
    assert loaded.manifest["version"] == 2
    made = compile_table(ENCODER, loaded.weights)
    kept = loaded.compiled.arrays()
    assert kept.keys() == made.arrays().keys() == {"logits", "shifts", "runs"}
    for name, array in made.arrays().items():
        assert np.array_equal(kept[name], array)
        assert kept[name].dtype == array.dtype
    assert loaded.compiled.step == made.step
    other = Router(DOMAINS, made, ENCODER.reader, Selector())
    assert Router.load(release).route("ABC cab 9") == other.route("ABC cab 9")


def test_a_release_without_a_retired_domain_routes_as_its_router(
    release: Path, tmp_path: Path
) -> None:
    """What `coordinator retire` writes: a table with a column less, under the same facts of the
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"words": {"width": 9, "amplitude": 100}}, "9 buckets"),
        (
            {"words": {"width": 0, "amplitude": 100}},
            "0 word features are not supported",
        ),
        (
            {"words": {"width": 8, "amplitude": 100, "shortest": 2, "longest": 3}},
            "another version",
        ),
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


def test_a_signed_manifest_that_says_nothing_of_words_is_refused(
    release: Path, tmp_path: Path
) -> None:
    """Their rows would be in the table, and nothing would count them."""
    copy = shutil.copytree(release, tmp_path / "release")
    card = json.loads((copy / "manifest.json").read_bytes())["encoder"]
    del card["words"]
    sign_again(copy, fixed_identity(), {"encoder": card})
    with pytest.raises(ReleaseError, match="signed but unusable"):
        load_release(copy)


def replaced(release: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Other arrays in a release, under a signature that holds."""
    content = save(arrays)
    (release / "router.safetensors").write_bytes(content)
    files = json.loads((release / "manifest.json").read_bytes())["files"]
    digest = hashlib.sha256(content).hexdigest()
    changes = {"files": files | {"router.safetensors": digest}}
    sign_again(release, fixed_identity(), changes)


@pytest.mark.parametrize("name", ["logits", "shifts", "runs"])
def test_a_signed_release_that_lacks_a_part_is_refused(
    release: Path, tmp_path: Path, name: str
) -> None:
    """Or has one of another shape or kind."""
    copy = shutil.copytree(release, tmp_path / "release")
    whole = load(contents(copy)["router.safetensors"])
    for broken in (
        {key: value for key, value in whole.items() if key != name},
        whole | {name: whole[name][1:]},
        whole | {name: whole[name].astype(np.int64)},
    ):
        replaced(copy, broken)
        with pytest.raises(ReleaseError, match="signed but unusable"):
            load_release(copy)


def test_a_release_of_version_1_is_refused_in_a_sentence(
    release: Path, tmp_path: Path
) -> None:
    """It says what to do."""
    copy = shutil.copytree(release, tmp_path / "release")
    sign_again(copy, fixed_identity(), {"version": 1})
    with pytest.raises(ReleaseError) as refused:
        load_release(copy)
    words = str(refused.value)
    assert "has version 1; this Ridgeway reads version 2: have it published" in words
    assert "\n" not in words


# The real encoder


def test_the_real_encoder_with_words_routes_the_same_by_every_path(
    use: TableEncoder,
) -> None:
    """Words of real tokens, in several scripts, misspelt and shouted."""
    encoder = with_words(use, WordFeatures())
    compiled = compile_table(encoder, weights(3, encoder, 5))
    texts = [
        "Please REVIEW the copyright licence",
        "plese reveiw teh copyrihgt lisence",
        "",
        "ok",
        "?!",
        "Größe Ωμέγα 数学 🙂",
    ]
    texts.append(" ".join(texts) * 40)
    sums = compiled.token_sums(encoder.read(texts))
    with without_native():
        assert np.array_equal(compiled.token_sums(encoder.read(texts)), sums)
    one = Router(tuple("abcde"), compiled, encoder.reader, Selector())
    assert one.route_many(texts) == [one.route(text) for text in texts]
    shouted, plain = (encoder.read([text]) for text in (texts[0].upper(), texts[0]))
    assert np.array_equal(shouted.runs.codes, plain.runs.codes)
