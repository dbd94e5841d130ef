"""What belongs nowhere: text unlike all of the total is told by one more column, which a release keeps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeway.client.sums.accumulate import accumulators
from ridgeway.common.base.files import sha256
from ridgeway.common.base.settings import DEFAULT, Confidence, Sampling, Selector, WordFeatures
from ridgeway.common.encoding.table_encoder import TableEncoder, with_words
from ridgeway.common.routing.conversation import Turn
from ridgeway.common.routing.release import FAMILIAR, load_release
from ridgeway.common.routing.router import Router, router_of
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.coordinator.solving import nowhere
from ridgeway.coordinator.solving.publish import RouterChoices, draft, publish
from tests.support.making import fixed_identity
from tests.support.tiny import LETTERS, tiny_encoder

USUAL = LETTERS[:12]
SAMPLING = Sampling(window=8)
CHOICES = RouterChoices(DEFAULT.weighting, DEFAULT.ridge, False, DEFAULT.selector, Confidence(), abstain=True)


def words_of(letters: str, seed: int, count: int = 60) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices(letters, k=24)) for _ in range(count)]


@pytest.fixture(params=["tokens", "words"], scope="module")
def encoder(request: pytest.FixtureRequest) -> TableEncoder:
    plain = tiny_encoder(width=48)
    return plain if request.param == "tokens" else with_words(plain, WordFeatures(width=8))


@pytest.fixture(scope="module")
def parts(encoder: TableEncoder) -> list[Prepared]:
    """Two domains whose text has the first letters of the alphabet alone."""
    found = []
    for name, letters in (("code", USUAL[:8]), ("law", USUAL[4:])):
        sums = accumulators(encoder.table, SAMPLING, encoder.words)()
        sums.add(*encoder.tokenizer.encode_many(words_of(letters, len(name))))
        facts = name, encoder.name, encoder.fingerprint, SAMPLING
        found.append(Prepared(*facts, sums.statistics(sums.state())))
    return found


@pytest.fixture(scope="module")
def release(encoder: TableEncoder, parts: list[Prepared], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nowhere") / "release"
    publish(parts, encoder, CHOICES, fixed_identity(), folder)
    return folder


def test_text_unlike_all_that_was_summed_belongs_nowhere(release: Path) -> None:
    """Letters that no domain has are abstained on, those of both domains are not; one by one or all together."""
    router = Router.load(release)
    near, far = words_of(USUAL, 5), words_of(LETTERS[16:36], 6)
    assert np.mean([decision.belongs for decision in router.route_many(near)]) > 0.95
    assert np.mean([decision.belongs for decision in router.route_many(far)]) < 0.05
    for text in (near[0], far[0], "", "..", ","):
        decision = router.route(text)
        assert router.route_many([text]) == [decision] == [router.explain(text).decision]
        assert decision.abstained == (not decision.belongs)
        assert (decision.scope == 0.0) == (not decision.belongs)
    assert router.route_turns([Turn(near[0], 1.0), Turn(near[1], 1.0)]).belongs
    assert not router.route_turns([Turn(far[0], 1.0), Turn(far[1], 1.0)]).belongs


def test_the_column_is_the_release_s_own(
    encoder: TableEncoder, parts: list[Prepared], release: Path, tmp_path: Path
) -> None:
    """It comes back as it was compiled, follows a router through all its changes, and is not there unless wanted."""
    made = draft(parts, encoder, CHOICES)
    loaded = load_release(release)
    assert made.familiar is not None and loaded.familiar is not None
    ids, lengths = encoder.tokenizer.encode_many([*words_of(LETTERS, 7), ""])
    assert np.array_equal(loaded.familiar.token_sums(ids, lengths), made.familiar.token_sums(ids, lengths))
    router = router_of(loaded)
    for changed in (router.with_confidence(temperature=2.0), router.with_selector(Selector("all"))):
        assert changed.familiar is router.familiar
    publish(parts, encoder, replace(CHOICES, abstain=False), fixed_identity(), tmp_path / "plain")
    plain = load_release(tmp_path / "plain")
    assert plain.familiar is None and FAMILIAR not in plain.manifest
    assert router_of(plain).route("zzz").scope is None


def test_the_sample_of_nowhere_is_the_same_everywhere() -> None:
    """Its bytes are pinned: a release depends on them."""
    texts = "\n".join([*nowhere.LANGUAGES, *nowhere.random_texts()])
    assert sha256(texts.encode())[:16] == "dd092e2150881bb3"


def test_a_tokenizer_that_knows_none_of_the_sample_learns_from_the_total_alone(
    parts: list[Prepared], encoder: TableEncoder
) -> None:
    """All is familiar then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nowhere, "LANGUAGES", [""])
        patch.setattr(nowhere, "random_texts", lambda: ["<s>" * 0])
        made = draft(parts, encoder, CHOICES)
    assert made.familiar is not None
    sums = made.familiar.token_sums(*encoder.tokenizer.encode_many(words_of(USUAL, 8)))
    assert min(min(each) for each in sums) > 0
