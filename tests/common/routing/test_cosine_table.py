"""Routing with cosines: held against features times weights, one or many, explained, released, and in a round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.client.sums.accumulate import WindowTable, accumulators
from ridgeway.common.base.errors import EncoderError, FormatError, ShapeMismatch
from ridgeway.common.base.settings import (
    DEFAULT,
    Confidence,
    CosineFeatures,
    Sampling,
    Selector,
    SelectorName,
    WordFeatures,
)
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.common.encoding.encoder_sources import find_encoder
from ridgeway.common.encoding.table_encoder import TableEncoder, with_cosines, with_words
from ridgeway.common.routing import cosine_table
from ridgeway.common.routing.conversation import Turn
from ridgeway.common.routing.cosine_table import CosineTable, compile_rows, side_by_side
from ridgeway.common.routing.hidden_state_table import compile_router
from ridgeway.common.routing.release import FAMILIAR, ROUTER, load_release
from ridgeway.common.routing.router import PROMPTS_PER_CHUNK, Router, origin, router_of
from ridgeway.common.routing.token_table import sums_by_reading
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.coordinator.solving.publish import RouterChoices, publish
from tests.support.commands import Workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl
from tests.support.in_process import served
from tests.support.making import fixed_identity
from tests.support.tiny import LETTERS, SPECIAL, tiny_encoder

OPTIONS = CosineFeatures(width=7, frequency=900, amplitude=500)
ENCODERS = {
    "tokens": with_cosines(tiny_encoder(), OPTIONS),
    "words": with_cosines(with_words(tiny_encoder(), WordFeatures(width=8, amplitude=100)), OPTIONS),
}
DOMAINS = ("code", "law", "zoology")
TEXTS = st.lists(st.sampled_from([*"abcABC  .9", "é", "<", SPECIAL, "abcab"]), max_size=14).map("".join)
SELECTORS = st.builds(Selector, st.sampled_from(get_args(SelectorName)), st.integers(1, 4))
KINDS = st.sampled_from(sorted(ENCODERS))


def weights(seed: int, encoder: TableEncoder, domains: int = 3) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((encoder.width + 1, domains))


def table(kind: str = "words", seed: int = 1, domains: int = 3) -> CosineTable:
    made = compile_router(ENCODERS[kind], Sampling(), weights(seed, ENCODERS[kind], domains))
    assert isinstance(made, CosineTable)
    return made


def router(kind: str = "words", selector: Selector | None = None, familiar: bool = False) -> Router:
    more = None, None, table(kind, 7, 1) if familiar else None
    return Router(DOMAINS, table(kind), ENCODERS[kind].tokenizer, selector or Selector(), Confidence(0.5, 0.3), *more)


@given(kind=KINDS, seed=st.integers(0, 5), texts=st.lists(TEXTS, max_size=4))
def test_a_text_s_score_is_the_product_of_its_features_and_the_weights(kind: str, seed: int, texts: list[str]) -> None:
    """Its cosines are those that a holder would sum of it as one sample; within what counting in steps leaves."""
    encoder, compiled = ENCODERS[kind], table(kind, seed)
    matrix, cosines, own = weights(seed, encoder), encoder.cosines, encoder.linear_width
    ids, lengths = encoder.tokenizer.encode_many(texts)
    found = compiled.token_sums(ids, lengths).tolist()
    assert found == sums_by_reading(compiled, ids, lengths).tolist()
    linear = compile_rows(encoder.table, encoder.scale, encoder.words, np.delete(matrix, np.s_[own:-1], axis=0))
    plain = linear.token_sums(ids, lengths).tolist()
    for text, size, points, before in zip(texts, lengths.tolist(), found, plain, strict=True):
        if not size:
            assert points == [0, 0, 0]
            continue
        numbers, bounds = encoder.tokenizer.encode(text), np.array([0, size])
        features = WindowTable(encoder.table, encoder.words, cosines).features(numbers, bounds)[0]
        exact = features[own:] * encoder.scale @ matrix[own:-1] + np.array(before) * linear.step / size
        assert np.abs(np.array(points) * compiled.step / size - exact).max() <= 300 * compiled.step


@settings(max_examples=60)
@given(kind=KINDS, selector=SELECTORS, prompts=st.lists(TEXTS, max_size=5), familiar=st.booleans())
def test_many_prompts_are_routed_as_each_alone(
    kind: str, selector: Selector, prompts: list[str], familiar: bool
) -> None:
    """Bit for bit, by every selector, also where one more column tells unfamiliar text; and so are explanations."""
    one = router(kind, selector, familiar)
    assert one.route_many(prompts) == [one.route(prompt) for prompt in prompts]
    assert [one.explain(prompt).decision for prompt in prompts] == [one.route(prompt) for prompt in prompts]


def test_more_prompts_than_one_batch_holds_are_routed_as_each_alone() -> None:
    """Threads take cosines apart."""
    rng = np.random.default_rng(0)
    prompts = ["".join(rng.choice([*LETTERS], size)) for size in rng.integers(0, 30, 2 * PROMPTS_PER_CHUNK + 5)]
    one = router(familiar=True)
    assert one.route_many(prompts) == [one.route(text) for text in prompts]


@settings(max_examples=60)
@given(kind=KINDS, selector=SELECTORS, text=TEXTS, more=TEXTS, most=st.sampled_from([0, 2, 256]))
def test_explanations_and_conversations_are_of_the_same_router(
    kind: str, selector: Selector, text: str, more: str, most: int
) -> None:
    """Weights add up to the margin, whether or not words are left out one by one; a single turn is a prompt."""
    one, both = router(kind, selector), [Turn(text, 1.0), Turn(more, 2.0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cosine_table, "MAX_WORDS_LEFT_OUT", most)
        for turns in ([Turn(text, 1.0)], both):
            explained = one.explain_turns(turns)
            assert explained.decision == one.route_turns(turns)
            assert sum(word.weight for word in explained.words) == pytest.approx(explained.margin, abs=1e-9)


def test_a_word_is_explained_by_what_changes_without_it() -> None:
    """Two words differ in what the cosines say just by what changes when each is left out."""
    compiled, tokenizer = table("tokens"), ENCODERS["tokens"].tokenizer
    ids = tokenizer.encode("abc.9")
    shifts = compiled.shifts(ids, [3, 1, 1])
    without = [compiled.said(np.array(ids[left]), np.array([len(ids[left])]))[0] for left in ([3, 4], [0, 1, 2, 4])]
    assert shifts.sum(axis=0) == pytest.approx(0, abs=1e-9)
    share = compiled.said(ids, np.array([5]))[0] * (3 - 1) / 5
    expected = (without[1] - without[0] - share) * compiled.step
    assert shifts[0] - shifts[1] == pytest.approx(expected, abs=1e-9)


@given(kind=KINDS, seed=st.integers(0, 20), gone=st.integers(0, 2))
def test_a_retired_domain_leaves_the_others_points_as_they_were(kind: str, seed: int, gone: int) -> None:
    """Its columns go, of tokens and of cosines."""
    compiled, numbers = table(kind, seed), ENCODERS[kind].tokenizer.encode_raw(["abc cab", "a9."])
    expected = np.delete(compiled.token_sums(*numbers), gone, axis=1)
    np.testing.assert_array_equal(compiled.without(gone).token_sums(*numbers), expected)


def test_one_cosine_may_say_almost_everything() -> None:
    """Its weight then is a large number of small steps, and no less exact."""
    encoder = with_cosines(tiny_encoder(), CosineFeatures(width=2, amplitude=1))
    matrix = np.full((encoder.width + 1, 2), 1e-9)
    matrix[-2] = 1.0, -1.0
    compiled = compile_router(encoder, Sampling(), matrix)
    assert isinstance(compiled, CosineTable)
    ids = encoder.tokenizer.encode("abc")
    cosine = int(compiled.texts(ids, np.array([3]))[0, 1])
    assert compiled.said(ids, np.array([3]))[0] * compiled.step == pytest.approx(cosine * encoder.scale * matrix[-2])


def test_tables_that_do_not_fit_together_are_refused() -> None:
    """In a sentence, before a prompt comes; two tables that fit alone are then added up apart."""
    made = table()
    with pytest.raises(FormatError, match="a column a domain"):
        replace(made, weights=made.weights[:, :2])
    with pytest.raises(FormatError, match="does not fit 32 bits"):
        replace(made, weights=np.full_like(made.weights, 1 << 40))
    with pytest.raises(ShapeMismatch, match="7 cosines"):
        compile_router(ENCODERS["words"], Sampling(), np.ones((9, 3)))
    assert side_by_side(made, made.linear) is None
    assert made.largest_row > 1 << 28


@pytest.fixture(scope="module")
def parts() -> list[Prepared]:
    encoder, sampling = ENCODERS["words"], Sampling(window=8)
    found = []
    for name, letters in (("code", LETTERS[:8]), ("law", LETTERS[4:12])):
        sums = accumulators(encoder.table, sampling, encoder.words, encoder.cosines)()
        chance = np.random.default_rng(len(name))
        texts = ["".join(chance.choice([*letters], 24)) for _ in range(60)]
        sums.add(*encoder.tokenizer.encode_many(texts))
        found.append(Prepared(name, encoder.name, encoder.fingerprint, sampling, sums.statistics(sums.state())))
    return found


def test_a_release_finds_its_encoder_when_the_first_prompt_comes(parts: list[Prepared], tmp_path: Path) -> None:
    """Where it was met before, or in the folder that is named; without it, or with another, one sentence says so."""
    encoder, choices = (
        ENCODERS["words"],
        RouterChoices(DEFAULT.weighting, DEFAULT.ridge, False, DEFAULT.selector, Confidence(), abstain=True),
    )
    publish(parts, encoder, choices, fixed_identity(), tmp_path / "release")
    loaded = load_release(tmp_path / "release")
    assert loaded.manifest["encoder"]["cosines"] == OPTIONS.to_json()
    assert FAMILIAR in loaded.manifest
    with pytest.raises(EncoderError, match=r"not on this machine.*--model"):
        router_of(loaded).route("abc")
    save_encoder(encoder, tmp_path / "encoder")
    save_encoder(tiny_encoder(seed=1), tmp_path / "other")
    with pytest.raises(EncoderError, match="not the release's"):
        Router.load(tmp_path / "release", model=tmp_path / "other").route("abc")
    named = Router.load(tmp_path / "release", model=tmp_path / "encoder")
    assert named.make_fast() is False
    texts = ["abc", "ghij", "", "!"]
    found = named.route_many(texts)
    assert [each.best for each in found[:2]] == ["code", "law"]
    assert [each.belongs for each in found[2:]] == [False, False]
    find_encoder(f"dir:{tmp_path / 'encoder'}")
    assert Router.load(tmp_path / "release").route_many(texts) == found


def test_a_release_with_cosines_is_served(parts: list[Prepared], tmp_path: Path) -> None:
    """Prompts, many of them, chats and explanations over HTTP are the library's; with
    another encoder the service does not begin, in a sentence."""
    choices = RouterChoices(DEFAULT.weighting, DEFAULT.ridge, False, DEFAULT.selector, Confidence(), abstain=True)
    release, encoder = tmp_path / "release", tmp_path / "encoder"
    publish(parts, ENCODERS["words"], choices, fixed_identity(), release)
    save_encoder(ENCODERS["words"], encoder)
    router = Router.load(release, model=encoder)
    with served(release, None, model=encoder) as local:
        told = local.post("/v1/route", {"prompt": "abc"}).json()
        assert told == router.route("abc").to_json() | origin(router)
        many = local.post("/v1/route", {"prompts": ["abc", "ghij", ""]}).json()
        assert many["decisions"] == [each.to_json() for each in router.route_many(["abc", "ghij", ""])]
        turns = [{"role": "user", "content": "abc"}, {"role": "user", "content": "ghij"}]
        chat = local.post("/v1/route", {"messages": turns, "explain": True}).json()
        weights = [each["weight"] for each in chat["explanation"]]
        assert sum(weights) == pytest.approx(chat["margin"], abs=1e-9)
        assert "stays" in local.post("/v1/route", {"messages": turns, "after": "law"}).json()
        assert local.http.get("/v1/activity").json()["drift"]["alarm"] is False
        assert local.http.get("/").status_code == local.http.get("/v1/releases/current").status_code == 200
    save_encoder(tiny_encoder(seed=1), tmp_path / "other")
    with pytest.raises(EncoderError, match="not the release's"), served(release, None, model=tmp_path / "other"):
        pass


@pytest.mark.slow
def test_a_federation_with_cosines_gives_the_same_router_masked_or_clear(tmp_path: Path) -> None:
    """The same bytes; and its release routes and explains on the command line."""
    save_encoder(tiny_encoder(8), tmp_path / "encoder")
    for domain in ALPHABETS:
        write_jsonl(tmp_path / "data" / f"{domain}.train.jsonl", sentences(domain, 40))
        write_jsonl(tmp_path / "data" / f"{domain}.test.jsonl", sentences(domain, 50)[40:])
    workshop = Workshop(tmp_path)
    words = ["simulate", "--data", "data", "--encoder", f"{workshop.encoder}+words+cosines", "--json"]
    masked = workshop.call(*words, "--out", "masked")
    clear = workshop.call(*words, "--clear", "--out", "clear")
    assert (masked.code, clear.code) == (0, 0), masked.stderr + clear.stderr
    assert masked.json["accuracy"] == 100.0
    assert (tmp_path / "masked" / ROUTER).read_bytes() == (tmp_path / "clear" / ROUTER).read_bytes()
    told = workshop.call("route", "masked", sentences("law", 1)[0], "--explain", "--json")
    assert told.code == 0, told.stderr
    assert told.json["best"] == "law"
    assert sum(each["weight"] for each in told.json["explanation"]) == pytest.approx(told.json["margin"])
