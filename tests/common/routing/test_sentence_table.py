"""Routers that read sentences: their features, the two routers of one total, and when each of them
decides.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import EncoderError, FormatError
from ridgeway.common.base.identity import create_identity
from ridgeway.common.base.settings import (
    FEATURE_LIMIT,
    Confidence,
    Ridge,
    Sampling,
    Selector,
    WordFeatures,
)
from ridgeway.common.routing.decision import SENTENCES, TABLE
from ridgeway.common.routing.release import (
    CASCADE,
    MANIFEST,
    load_release,
    save_release,
)
from ridgeway.common.routing.router import Router, router_of
from ridgeway.common.routing.sentence_table import (
    Cascade,
    SentenceTable,
    compile_router,
    without_domain,
)
from ridgeway.common.statistics import Statistics
from ridgeway.common.text import table_encoder
from ridgeway.common.text.encoder_files import load_encoder, save_encoder
from ridgeway.common.text.sentence_encoder import (
    MAX_PIECES,
    PIECE_TOKENS,
    RANDOM_FEATURES,
    RANDOM_SHIFT,
    UseEncoder,
    pieces_of,
    random_signs,
)
from ridgeway.common.text.table_encoder import (
    TableEncoder,
    with_sentences,
    with_words,
)
from ridgeway.coordinator.solving.solve import solve, solve_router
from tests.support.making import solved_router, total_of
from tests.support.tiny import tiny_encoder

SAMPLING = Sampling(4, stride=8, units=5, opening=3)
TEXTS = {
    "cooking": [
        "bake the bread",
        "boil an egg",
        "peel a potato and fry it",
        "salt the soup",
        "how long to cook rice",
    ],
    "travel": [
        "book a flight",
        "a train to rome",
        "lost my passport at the gate",
        "hotel by the sea",
        "visa for china",
    ],
    "money": [
        "pay the bill",
        "open an account",
        "what is the rate of this loan",
        "move money",
        "my card is blocked",
    ],
}


@pytest.fixture(scope="module", params=[True, False], ids=["words", "tokens"])
def encoder(request: pytest.FixtureRequest, sentences: UseEncoder) -> TableEncoder:
    plain = tiny_encoder()
    return with_sentences(
        with_words(plain, WordFeatures(width=8)) if request.param else plain, sentences
    )


@pytest.fixture(scope="module")
def total(encoder: TableEncoder) -> Statistics:
    return total_of(encoder, TEXTS.values(), SAMPLING)


@pytest.fixture(scope="module")
def router(encoder: TableEncoder, total: Statistics) -> Router:
    return solved_router(encoder, TEXTS, total)


def of(router: Router, margin: float) -> Router:
    assert isinstance(router.compiled, Cascade)
    return replace(router, compiled=replace(router.compiled, margin=margin))


# Features


def test_what_is_read_of_a_text_is_what_its_sentence_encoder_s_tokenizer_gives(
    encoder: TableEncoder, sentences: UseEncoder
) -> None:
    """And of a sample, what ends in its tokens."""
    features = encoder.sentences
    assert features is not None
    texts = ["bake the bread", "", "a b c", "Zug é."]
    tokens = encoder.read(texts)
    bounds = np.append(0, np.cumsum(tokens.lengths))
    stops = np.append(0, tokens.sentence_stops)[bounds].tolist()
    ids = tokens.sentence_ids.tolist()
    for text, (first, last) in zip(texts, pairwise(stops), strict=True):
        assert ids[first:last] == sentences.tokenizer.encode(text).tolist()
    # some tokens of a text are a text of their own
    part = tokens.take(np.arange(4, dtype=np.int32), np.array([4]))
    assert part.sentence_ids.tolist() == sentences.tokenizer.encode("bake").tolist()


def test_features_are_the_vector_and_the_positive_parts_of_random_sums(
    encoder: TableEncoder, sentences: UseEncoder
) -> None:
    features = encoder.sentences
    assert features is not None
    texts = ["bake the bread", "", "a train to rome"]
    rows = features.text_features(encoder.read(texts))
    ids, lengths = sentences.tokenizer.encode_many(texts)
    vectors = sentences.vectors(ids, lengths).astype(int)
    sums = vectors @ random_signs(sentences.width).astype(int)
    positive = np.maximum(sums, 0) >> RANDOM_SHIFT
    assert positive.shape == (3, RANDOM_FEATURES)
    assert (rows == np.hstack([vectors, positive])).all()
    assert np.abs(rows).max() <= FEATURE_LIMIT
    assert not rows[1].any()


@given(st.lists(st.integers(0, 1200), min_size=1, max_size=6))
def test_pieces_are_short_few_and_evenly_spaced(sizes: list[int]) -> None:
    """A window of up to six pieces is read whole; a longer one from its beginning to its end."""
    bounds = np.append(0, np.cumsum(sizes))
    pieces = pieces_of(bounds)
    for number, size in enumerate(sizes):
        first = pieces.firsts[number]
        part = slice(first, first + pieces.counts[number])
        begins = pieces.begins[part] - bounds[number]
        ends = pieces.ends[part] - bounds[number]
        assert 1 <= len(begins) <= MAX_PIECES
        assert begins[0] == 0
        assert ends[-1] == size
        assert (ends - begins).max() <= PIECE_TOKENS
        if size <= MAX_PIECES * PIECE_TOKENS:
            assert (begins[1:] == ends[:-1]).all()
        assert len(begins) <= 2 or np.ptp(np.diff(begins)) <= 1


def test_the_features_of_a_long_sample_are_the_mean_of_its_pieces(
    encoder: TableEncoder,
) -> None:
    features = encoder.sentences
    assert features is not None
    tokens = encoder.read(["bake the bread and book a flight " * 10]).first(
        3 * PIECE_TOKENS
    )
    row = np.arange(3 * PIECE_TOKENS, dtype=np.int32)
    whole = features.window_features(tokens, row, np.array([0, 3 * PIECE_TOKENS]))
    parts = features.window_features(tokens, row, np.arange(4) * PIECE_TOKENS)
    added = parts.astype(int).sum(axis=0)
    assert (whole == (2 * added + 3) // 6).all()
    # a longer one's pieces are apart
    longer = encoder.read(["bake the bread and book a flight " * 20]).first(
        8 * PIECE_TOKENS + 70
    )
    row = np.arange(len(longer.ids), dtype=np.int32)
    bounds = np.array([0, len(row)])
    begins = pieces_of(bounds).begins
    places = np.concatenate(
        [row[begin : begin + PIECE_TOKENS] for begin in begins.tolist()]
    )
    alone = features.window_features(longer, places, np.arange(9) * PIECE_TOKENS)
    added = alone.astype(int).sum(axis=0)
    whole = features.window_features(longer, row, bounds)
    assert (whole == (2 * added + 8) // 16).all()


# Encoders


def test_the_name_width_and_fingerprint_tell_of_sentences(
    encoder: TableEncoder, tmp_path: Path
) -> None:
    name = encoder.name.removesuffix("+sentence")
    assert name != encoder.name
    bare = replace(encoder, name=name, sentence_encoder=None)
    assert encoder.fingerprint != bare.fingerprint
    assert encoder.width == bare.width + encoder.sentences.width  # type: ignore[union-attr]
    save_encoder(encoder, tmp_path / "saved")
    assert load_encoder(tmp_path / "saved").fingerprint == encoder.fingerprint


def test_a_card_of_another_sentence_encoder_is_refused(encoder: TableEncoder) -> None:
    card = {"sentences": {**encoder.more["sentences"], "fingerprint": "0" * 64}}
    with pytest.raises(EncoderError, match="install the pinned wheel"):
        table_encoder.sentence_features(card)


# Two routers out of one total


def test_the_table_is_solved_from_its_block_of_the_total(
    encoder: TableEncoder, total: Statistics
) -> None:
    weights = solve_router(total, encoder, Ridge()).weights
    whole, table = np.hsplit(weights, 2)
    rows = [*range(encoder.table_width), encoder.width]
    block = Statistics(total.gram[np.ix_(rows, rows)], total.cross[rows])
    assert (whole == solve(total, encoder.scale, Ridge()).weights).all()
    assert (table[rows] == solve(block, encoder.scale, Ridge()).weights).all()
    assert not np.delete(table, rows, axis=0).any()


def test_scores_are_those_of_the_weights(
    encoder: TableEncoder, total: Statistics, router: Router
) -> None:
    """Of a text of one window, whose features are those of a sample."""
    cascade = router.compiled
    assert isinstance(cascade, Cascade)
    whole, _ = np.hsplit(solve_router(total, encoder, Ridge()).weights, 2)
    tokens = encoder.read(["boil the soup", "a visa"])
    assert encoder.sentences
    features = encoder.sentences.text_features(tokens)
    exact = features @ (whole[encoder.table_width : -1] * encoder.scale)
    counted = cascade.sentences.sentence_logits(tokens) * cascade.step
    assert np.abs(counted - exact).max() < 1e-6 * np.abs(exact).max() + cascade.step


@pytest.mark.parametrize(("margin", "decides"), [(0.0, TABLE), (1e9, SENTENCES)])
def test_the_margin_says_which_router_decides(
    router: Router, margin: float, decides: str
) -> None:
    cascade = router.compiled
    assert isinstance(cascade, Cascade)
    alone = replace(
        router, compiled=cascade.table if decides == TABLE else cascade.sentences
    )
    for text in chain.from_iterable(TEXTS.values()):
        decision = of(router, margin).route(text)
        assert decision.router == decides
        assert decision == alone.route(text)


@given(
    st.lists(st.text("abcdeghiknorstu ", max_size=30), max_size=5),
    st.sampled_from([0.0, 0.3, 0.6, 1e9]),
)
def test_many_prompts_are_routed_as_each_alone(
    router: Router, prompts: list[str], margin: float
) -> None:
    chosen = of(router, margin)
    assert chosen.route_many(prompts) == [chosen.route(prompt) for prompt in prompts]


@given(st.text("abcdeghiknorstu ", max_size=30), st.sampled_from([0.0, 0.3, 0.6, 1e9]))
def test_an_explanation_adds_up_to_the_decision(
    router: Router, prompt: str, margin: float
) -> None:
    chosen = of(router, margin)
    explained = chosen.explain(prompt)
    assert explained.decision == chosen.route(prompt)


def test_what_needs_no_sentence_is_decided_by_the_table(router: Router) -> None:
    from ridgeway.common.routing.conversation import Turn

    turns = [Turn("bake the bread", 1.0), Turn("and the soup", 0.5)]
    assert of(router, 1e9).route_by_table(turns) is None
    assert of(router, 0.0).route_by_table(turns) == of(router, 0.0).route_turns(turns)


def test_a_text_without_tokens_is_not_read(router: Router) -> None:
    assert of(router, 1e9).route("").router == TABLE


def test_a_retired_domain_leaves_both_routers(
    encoder: TableEncoder, total: Statistics, router: Router
) -> None:
    kept = router.without("travel")
    weights = without_domain(solve_router(total, encoder, Ridge()).weights, 1, 3)
    again = compile_router(encoder, weights)
    assert weights.shape[1] == 4
    assert isinstance(kept.compiled, Cascade) and isinstance(again, Cascade)
    one, other = (made.table for made in (kept.compiled, again))
    steps = [np.ldexp(table.step, table.shifts.astype(int)) for table in (one, other)]
    apart = np.abs(one.logits * steps[0] - other.logits * steps[1])
    assert (apart <= 0.51 * (steps[0] + steps[1])).all()


# Releases


@pytest.fixture(scope="module")
def release(
    router: Router,
    encoder: TableEncoder,
    total: Statistics,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("release") / "made"
    facts = {
        "domains": list(router.domains),
        "encoder": {
            "name": encoder.name,
            "fingerprint": encoder.fingerprint,
            **encoder.more,
        },
        "sampling": SAMPLING.to_json(),
        "selector": asdict(Selector()),
        "confidence": Confidence(calibrated=True).to_json(),
    }
    weights = solve_router(total, encoder, Ridge()).weights
    save_release(
        folder,
        facts,
        weights,
        router.compiled,
        encoder.definition,
        create_identity(folder.parent / "key"),
    )
    return folder


@pytest.mark.usefixtures("real_sentence_cache")
def test_a_release_routes_as_what_it_was_made_of(release: Path, router: Router) -> None:
    loaded = router_of(load_release(release))
    for text in ["boil the soup", "a visa", ""]:
        decision = router.route(text)
        assert loaded.route(text) == decision._replace(confidence=ANY, scores=ANY)
    assert loaded.confidence.calibrated


@pytest.mark.parametrize(
    ("use", "kind"), [("always", SentenceTable), ("auto", Cascade)]
)
@pytest.mark.usefixtures("real_sentence_cache")
def test_one_can_say_which_prompts_are_read(
    release: Path, use: str, kind: type
) -> None:
    loaded = load_release(release, sentences=use)  # type: ignore[arg-type]
    assert isinstance(loaded.compiled, kind)
    assert loaded.confidence.calibrated == (use == "auto")


def test_a_damaged_cascade_is_refused(release: Path, router: Router) -> None:
    cascade = router.compiled
    assert isinstance(cascade, Cascade)
    assert json.loads((release / MANIFEST).read_bytes())[CASCADE] == cascade.to_json()
    weights = cascade.sentences.weights
    wrong: dict[str, Any] = {
        "int32": {"weights": weights[:-1]},
        "1001 bits": {"bits": 1001},
        "out of range": {"weights": np.full_like(weights, 1 << 30)},
    }
    for words, change in wrong.items():
        with pytest.raises(FormatError, match=words):
            replace(cascade.sentences, **change)


@pytest.fixture
def real_sentence_cache(sentences_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEWAY_CACHE", str(sentences_cache))
