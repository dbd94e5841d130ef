"""Routing held against a slow router written from the definitions, with loops and Python's own
numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import Confidence, Scope, Selector, SelectorName
from ridgeway.common.routing.decision import LOW_CONFIDENCE, Decision
from ridgeway.common.routing.router import PROMPTS_PER_CHUNK, Router
from ridgeway.common.routing.token_table import (
    MAX_LOGIT,
    MAX_SHIFT,
    RouterTable,
    TokenTable,
    compile_table,
    entropies,
)
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import Tokenizer
from ridgeway.common.text.tokens import TextReader
from tests.support.making import letter_router, plain_entropies
from tests.support.native import without_native
from tests.support.tiny import LETTERS, SPECIAL, tiny_definition, tiny_encoder

ROWS = len(LETTERS) + 2
TOKENIZER = Tokenizer(tiny_definition())
READER = TextReader(TOKENIZER)
SELECTORS = [Selector(name, k) for name in get_args(SelectorName) for k in (1, 3)]

texts = st.lists(
    st.sampled_from([*LETTERS[:8], *LETTERS[-3:], "é", "<", "🙂", "\ud800", SPECIAL]),
    min_size=0,
    max_size=12,
).map("".join)
scopes = st.builds(
    Scope, st.floats(0.01, 40), *[st.floats(-40, 40)] * 2, st.floats(0, 1)
)
selectors = st.builds(
    Selector, st.sampled_from(get_args(SelectorName)), st.integers(1, 5)
)


@st.composite
def tables(draw: st.DrawFn, few: int = 2, many: int = 5) -> TokenTable:
    """Tables in which points, sums and entropies often tie."""
    domains = draw(st.integers(few, many))
    spread = draw(st.sampled_from([1, 3, MAX_LOGIT]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    logits = rng.integers(-spread, spread + 1, (ROWS, domains)).astype(np.int16)
    step = draw(st.sampled_from([2.0**-30, 2.0**-3, 1.0]))
    shifts = rng.integers(0, draw(st.sampled_from([1, 3, MAX_SHIFT + 1])), domains)
    return TokenTable(logits, step, shifts.astype(np.uint8))


@st.composite
def routers(draw: st.DrawFn, few: int = 2, many: int = 5) -> Router:
    return router_of(
        draw(tables(few, many)),
        draw(selectors),
        Confidence(
            draw(st.sampled_from([0.01, 1.0, 7.5])),
            draw(st.sampled_from([0.0, 0.3, 1.0])),
            half=draw(st.sampled_from([0.0, 3.0])),
            tail=draw(st.sampled_from([0.0, 0.25, 0.3])),
        ),
    )


def router_of(
    table: TokenTable, selector: Selector, confidence: Confidence | None = None
) -> Router:
    return Router(names(table), table, READER, selector, confidence or Confidence())


def names(table: TokenTable) -> tuple[str, ...]:
    return tuple(f"domain{column}" for column in range(table.logits.shape[1]))


# The slow router


@dataclass(frozen=True)
class Slow:
    """What the definitions say of one prompt: domains from best to worst, scores before
    temperature, chances.
    """

    ranking: list[int]
    scores: list[float]
    chances: list[float]
    tokens: int


def slow_ids(text: str) -> list[int]:
    """One id a character, special tokens left out."""
    return [
        LETTERS.index(letter) + 2 if letter in LETTERS else 1
        for letter in text.replace(SPECIAL, "")
    ]


def slow_words(text: str) -> list[str]:
    """Letters and digits that stand side by side are one word, all else stands alone."""
    return [
        word
        for part in text.replace("\ud800", "?").split(SPECIAL)
        for word in re.findall("[a-z0-9é]+|.", part, re.S)
    ]


def slow_logits(table: RouterTable) -> list[list[int]]:
    """What each token says, in steps."""
    arrays = table.arrays()
    return [
        [logit << shift for logit, shift in zip(row, shifts, strict=True)]
        for shifts in [arrays["shifts"].tolist()]
        for row in arrays["logits"].tolist()
    ]


def slow_voters(selector: Selector, table: RouterTable, text: str) -> list[int]:
    """The places of a text's tokens that count: the k of least entropy, of equals the first."""
    ids = slow_ids(text)
    if selector.name != "entropy":
        return list(range(len(ids)))
    rows = slow_logits(table)
    # of each token alone
    certain = [float(entropies(np.array([row]), table.step)[0]) for row in rows]
    ranked = sorted(range(len(ids)), key=lambda place: (certain[ids[place]], place))
    return sorted(ranked[: selector.k])


def slow_route(router: Router, text: str) -> Slow:
    logits = slow_logits(router.compiled)
    domains = range(len(router.domains))
    ids = slow_ids(text)
    voters = [ids[at] for at in slow_voters(router.selector, router.compiled, text)]
    sums = [0 for _ in domains]
    votes = [0 for _ in domains]
    for number in voters:
        row = logits[number]
        votes[row.index(max(row))] += 1
        for domain in domains:
            sums[domain] += row[domain]
    points = (
        [total * router.compiled.step for total in sums]
        if router.selector.name == "average"
        else votes
    )
    ranking = sorted(
        domains, key=lambda column: (-points[column], -sums[column], column)
    )
    scores = [point / max(len(voters), 1) for point in points]
    sure, count = router.confidence, max(len(voters), 1)
    heat = sure.temperature / count**sure.growth * (count + sure.half) / count
    logs = [(max(scores) - score) / heat for score in scores]
    odds = [
        math.exp(-math.log1p(sure.tail * log) / sure.tail if sure.tail else -log)
        for log in logs
    ]
    return Slow(ranking, scores, [odd / sum(odds) for odd in odds], len(ids))


def agrees(router: Router, decision: Decision, text: str) -> None:
    slow = slow_route(router, text)
    assert decision.best == decision.domain == router.domains[slow.ranking[0]]
    assert decision.tokens == slow.tokens
    assert not decision.abstained
    expected = dict(zip(router.domains, slow.chances, strict=True))
    assert decision.scores == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert decision.confidence == decision.scores[decision.best]


@given(
    table=tables(),
    prompts=st.lists(texts, max_size=4),
    confidence=st.builds(
        Confidence,
        st.floats(1e-12, 1e3),
        st.floats(0, 1),
        threshold=st.sampled_from([0.0, 0.4, 0.9]),
        fallback=st.just("other"),
        scope=st.none() | scopes,
        half=st.floats(0, 1e4),
        tail=st.just(0.0) | st.floats(1e-3, 1),
    ),
)
def test_routing_without_the_compiled_module_gives_the_same_bits(
    table: TokenTable, prompts: list[str], confidence: Confidence
) -> None:
    """Where there is no compiled module, numpy adds up the rows."""
    router = router_of(table, Selector("average"), confidence)
    decisions = router.route_many(prompts)
    assert decisions == [router.route(prompt) for prompt in prompts]
    with without_native():
        assert router.route_many(prompts) == decisions


@given(router=routers() | routers(15, 20), prompts=st.lists(texts, max_size=8))
def test_prompts_are_routed_as_the_definitions_say(
    router: Router, prompts: list[str]
) -> None:
    """Points, then summed logits, then order decide; of the tokens, those of least entropy vote, of
    equals the first. Sums over many domains are taken otherwise, and are the same.
    """
    for text, decision in zip(prompts, router.route_many(prompts), strict=True):
        agrees(router, decision, text)


# One or many


@pytest.mark.parametrize(
    "selector", SELECTORS, ids=lambda selector: f"{selector.name}-{selector.k}"
)
@pytest.mark.parametrize(
    "count",
    [0, 1, PROMPTS_PER_CHUNK - 1, PROMPTS_PER_CHUNK, PROMPTS_PER_CHUNK + 1, 1025],
)
def test_more_prompts_than_one_batch_holds_are_routed_as_each_alone(
    selector: Selector, count: int
) -> None:
    """The size of a batch does not matter, nor does what stands at its edge."""
    rng = np.random.default_rng(count)
    encoder = tiny_encoder()
    table = compile_table(encoder, rng.standard_normal((encoder.width + 1, 3)))
    router = router_of(table, selector)
    letters = np.array([*LETTERS, "é", SPECIAL])
    prompts = [
        "".join(rng.choice(letters, size)) for size in rng.integers(0, 30, count)
    ]
    edge = slice(PROMPTS_PER_CHUNK - 2, PROMPTS_PER_CHUNK + 2)
    prompts[edge] = ["", SPECIAL, "", "a"][: len(prompts[edge])]
    assert router.route_many(prompts) == [router.route(text) for text in prompts]


@given(
    router=routers(),
    letters=st.lists(st.sampled_from(LETTERS), max_size=12),
    data=st.data(),
)
def test_the_order_of_tokens_does_not_matter(
    router: Router, letters: list[str], data: st.DataObject
) -> None:
    """Integers are summed, so every selector gives the same bits for the same tokens in any order,
    but that by entropy, of tokens that are equally certain, the first count.
    """
    shuffled = data.draw(st.permutations(letters))
    if router.selector.name == "entropy":
        ids = sorted({*slow_ids("".join(letters))})
        rows = np.array([slow_logits(router.compiled)[number] for number in ids])
        rows = rows.reshape(-1, len(router.domains))
        assume(len({*entropies(rows, router.compiled.step).tolist()}) == len(ids))
    assert router.route("".join(shuffled)) == router.route("".join(letters))


def test_a_gap_in_the_vocabulary_drops_no_token() -> None:
    """Ids above the vocabulary's size are not special: a tokenizer may leave ids unused."""
    definition = json.loads(tiny_definition())
    definition["model"]["vocab"] = {"<unk>": 0, "b": 10}
    definition["added_tokens"][0]["id"] = 2
    tokenizer = Tokenizer(json.dumps(definition).encode())
    ids, lengths = tokenizer.encode_many([f"b{SPECIAL}b", "b"])
    assert tokenizer.rows == 11
    assert tokenizer.encode(f"b{SPECIAL}b").tolist() == [10, 10]
    assert (ids.tolist(), lengths.tolist()) == ([10, 10, 10], [2, 1])


# The compiled table


@given(
    weights=st.lists(
        st.lists(st.integers(-(1 << 20), 1 << 20), min_size=4, max_size=4).map(tuple),
        min_size=2,
        max_size=4,
    ),
    exponent=st.integers(-30, 10),
    seed=st.integers(0, 1 << 32),
)
def test_a_compiled_logit_is_the_product_within_half_a_step(
    weights: list[tuple[int, ...]], exponent: int, seed: int
) -> None:
    """Each token's logit is φW, φ = (scale · row, 1), to the nearest step of its domain,
    which is as small as it can be.
    """
    rows = np.random.default_rng(seed).integers(-4096, 4097, (ROWS, 3)).astype(np.int16)
    scale = 2.0**exponent
    encoder = TableEncoder("random", tiny_definition(), rows, scale)
    compiled = compile_table(encoder, np.array(weights, dtype=np.float64).T / 1024)
    shifts = compiled.shifts.tolist()
    logits = compiled.logits.tolist()
    if len(logits) == 1:
        logits = logits * ROWS
    for column, (weight, shift) in enumerate(zip(weights, shifts, strict=True)):
        step = Fraction(compiled.step) * (1 << shift)
        for row, said in zip(rows.tolist(), logits, strict=True):
            features = [Fraction(scale) * value for value in row] + [Fraction(1)]
            parts = zip(features, weight, strict=True)
            exact = sum(feature * Fraction(part, 1024) for feature, part in parts)
            assert abs(said[column] * step - exact) <= step / 2
        largest = max(abs(said[column]) for said in logits)
        assert largest <= MAX_LOGIT
        coarsest = shift == max(shifts) - MAX_SHIFT or not largest
        assert largest >= MAX_LOGIT // 2 or coarsest
    assert math.frexp(compiled.step)[0] == 0.5, "a step is a power of two"


@given(table=tables())
def test_entropies_are_those_of_the_definition(table: TokenTable) -> None:
    """−Σ p log p; a token's does not depend on those beside it."""
    rows = np.array(slow_logits(table))
    found = entropies(rows, table.step)
    assert found == pytest.approx(plain_entropies(rows, table.step), abs=1e-6)
    alone = [entropies(row[None], table.step).item() for row in rows]
    assert found.tolist() == alone


# Explanations


@given(router=routers(), text=texts)
def test_the_words_of_an_explanation_add_up_to_the_margin(
    router: Router, text: str
) -> None:
    """The weights sum to what separates best and runner-up, for every selector."""
    explanation = router.explain(text)
    slow = slow_route(router, text)
    first, second = slow.ranking[:2]
    margin = slow.scores[first] - slow.scores[second]
    assert explanation.decision == router.route(text)
    assert explanation.runner_up == router.domains[second]
    assert explanation.margin == pytest.approx(margin, rel=1e-9, abs=1e-12)
    assert math.fsum(word.weight for word in explanation.words) == pytest.approx(
        margin, rel=1e-9, abs=1e-9
    )


@given(router=routers(), text=texts)
def test_an_explanation_shows_each_word_with_its_vote(
    router: Router, text: str
) -> None:
    """Every word stands there in its place, with the domain that its tokens together speak for."""
    explanation = router.explain(text)
    logits = np.array(slow_logits(router.compiled))
    expected = [
        router.domains[int(logits[slow_ids(word)].sum(axis=0).argmax())]
        for word in slow_words(text)
    ]
    assert [word.text for word in explanation.words] == slow_words(text)
    assert [word.domain for word in explanation.words] == expected


@given(table=tables(), text=texts, k=st.integers(1, 5))
def test_only_voters_weigh_under_entropy(table: TokenTable, text: str, k: int) -> None:
    """A token that is not among the k most certain adds nothing: a word has the votes of its tokens
    that are.
    """
    selector = Selector("entropy", k)
    explanation = router_of(table, selector).explain(text)
    rows = slow_logits(table)
    voters = slow_voters(selector, table, text)
    sides = {explanation.decision.best: 1, explanation.runner_up: -1}
    place = 0
    for word, shown in zip(slow_words(text), explanation.words, strict=True):
        votes = []
        for number in slow_ids(word):
            if place in voters:
                votes.append(f"domain{rows[number].index(max(rows[number]))}")
            place += 1
        expected = sum(sides.get(vote, 0) for vote in votes) / max(len(voters), 1)
        assert shown.weight == pytest.approx(expected, abs=1e-12)
    assert place == len(slow_ids(text))


# Chances, temperature, abstention


@given(
    router=routers(),
    text=texts,
    fitted=st.fixed_dictionaries(
        {
            "temperature": st.floats(1e-300, 1e300),
            "growth": st.floats(0, 1),
            "half": st.floats(0, 1e300),
            "tail": st.floats(0, 1),
        }
    ),
)
def test_calibration_never_changes_the_best(
    router: Router, text: str, fitted: dict[str, float]
) -> None:
    """It moves confidence alone, and scores stay probabilities however hot or cold."""
    decision = router.with_confidence(**fitted).route(text)
    assert decision.best == router.route(text).best
    assert sum(decision.scores.values()) == pytest.approx(1, abs=1e-12)
    assert decision.confidence == max(decision.scores.values())


@given(router=routers(), text=texts, threshold=st.floats(0.001, 1))
def test_below_the_threshold_the_fallback_is_named(
    router: Router, text: str, threshold: float
) -> None:
    """The router abstains if and only if its confidence lies below the threshold, and says who was
    ahead.
    """
    plain = router.route(text)
    shy = router.with_confidence(threshold=threshold, fallback="general")
    changes: dict[str, Any] = {}
    if plain.confidence < threshold:
        changes = {"abstained": True, "domain": "general", "reason": LOW_CONFIDENCE}
    assert shy.route(text) == plain._replace(**changes)


def test_confidence_at_the_threshold_is_enough() -> None:
    """Abstention is strict: a confidence equal to the threshold is acted on."""
    router = letter_router(TOKENIZER, {}, ("x", "y"))
    for threshold in (0.5, math.nextafter(0.5, 1)):
        shy = router.with_confidence(threshold=threshold, fallback="z")
        assert shy.route("a").abstained == (threshold > 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"half": -1.0},
        {"half": math.inf},
        {"half": math.nan},
        {"tail": -0.1},
        {"tail": 1.1},
        {"tail": math.nan},
        {"growth": -0.1},
        {"growth": 1.1},
        {"growth": math.nan},
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"threshold": -0.1, "fallback": "x"},
        {"threshold": 1.1, "fallback": "x"},
        {"threshold": math.nan, "fallback": "x"},
        {"threshold": 0.5},
        {"threshold": 0.5, "fallback": ""},
    ],
)
def test_confidence_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    """A temperature is positive, a growth and a tail are shares, half a number of tokens.

    A threshold is a probability that needs a fallback.
    """
    with pytest.raises(InputError):
        letter_router(TOKENIZER, {}, ("x", "y")).with_confidence(**wrong)


# Retiring


@given(
    table=tables(3, 18),
    selector=selectors,
    prompts=st.lists(texts, max_size=4),
    data=st.data(),
)
def test_a_router_without_a_domain_is_the_one_of_the_kept_columns(
    table: TokenTable, selector: Selector, prompts: list[str], data: st.DataObject
) -> None:
    """Retiring drops a column and solves nothing: decisions are those of the table that never had
    it.
    """
    gone = data.draw(st.integers(0, table.logits.shape[1] - 1))
    kept = np.delete(table.logits, gone, axis=1)
    shifts = np.delete(table.shifts, gone)
    domains = tuple(name for column, name in enumerate(names(table)) if column != gone)
    retired = router_of(table, selector).without(f"domain{gone}")
    other = Router(domains, TokenTable(kept, table.step, shifts), READER, selector)
    assert retired.domains == domains
    assert retired.route_many(prompts) == other.route_many(prompts)


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_retiring_after_compiling_is_compiling_what_is_kept(
    encoder: TableEncoder, gone: int
) -> None:
    """The kept columns' weights compile to the same logits, within the rounding of the two
    steps.
    """
    weights = np.random.default_rng(9).standard_normal((encoder.width + 1, 4))
    retired = compile_table(encoder, weights).without(gone)
    again = compile_table(encoder, np.delete(weights, gone, axis=1))
    one, other = (
        np.ldexp(kept.step, kept.shifts.astype(int)) for kept in (retired, again)
    )
    difference = np.abs(retired.logits * one - again.logits * other)
    assert (difference <= 0.51 * (one + other)).all()
    tokens = encoder.read([LETTERS])
    votes = [kept.rows(tokens).argmax(axis=1).tolist() for kept in (retired, again)]
    assert votes[0] == votes[1]


def test_a_retired_router_is_no_release_and_not_calibrated() -> None:
    """What was fitted and signed for all domains does not speak for fewer."""
    whole = letter_router(TOKENIZER, {}, ("x", "y", "z"))
    fitted = Confidence(2.0, calibrated=True)
    signed = replace(whole, confidence=fitted, release="abc")
    retired = signed.without("y")
    assert retired.release is None
    assert retired.confidence == replace(fitted, calibrated=False)


def test_another_selector_is_not_calibrated() -> None:
    """A temperature is fitted for one selector."""
    router = letter_router(TOKENIZER, {}, ("x", "y")).with_confidence(calibrated=True)
    assert router.with_confidence(threshold=0.1, fallback="z").confidence.calibrated
    assert not router.with_selector(Selector("all")).confidence.calibrated


@pytest.mark.parametrize(
    ("domains", "gone", "words"), [("xyz", "w", "x, y, z"), ("xy", "x", "two domains")]
)
def test_a_domain_that_cannot_be_retired_is_refused(
    domains: Sequence[str], gone: str, words: str
) -> None:
    """An unknown domain is named beside those there are, and two domains always stay."""
    with pytest.raises(InputError, match=words):
        letter_router(TOKENIZER, {}, list(domains)).without(gone)


def test_domains_that_do_not_fit_the_table_are_refused() -> None:
    """There is one name for each column."""
    with pytest.raises(InputError, match="3 domains"):
        replace(letter_router(TOKENIZER, {}, ("x", "y")), domains=tuple("xyz"))
