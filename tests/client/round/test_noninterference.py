"""The law of non-interference, for the whole surface of a holder.

With what is released held fixed, every byte that a holder sends, refusals, codes, names and sizes
included, is the same for any two corpora, under any sequence of requests, honest or hostile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ridgeway.client.round.answers import HANDLERS
from ridgeway.client.round.holder import Holder
from ridgeway.common.base.files import sha256
from tests.support.crafted_requests import CHANGES
from tests.support.tiny import LETTERS
from tests.support.two_worlds import CORPORA, MODES, Corpus, Stage, Step, TwoWorlds

SELDOM = ("hold", "lock_sum", "calibrate")
"""Requests that no honest round of four members sends; they are made of others of the same fields."""
REQUESTS = [kind.kind for kind in HANDLERS if kind.kind not in SELDOM]
CORPUS = st.sampled_from(list(CORPORA))
NEIGHBOUR = st.sampled_from(("one summed more", "one held out more", "one less"))
PAIR = st.tuples(st.just("its own"), NEIGHBOUR) | st.tuples(CORPUS, CORPUS)
ROUNDS = st.lists(PAIR, min_size=1, max_size=2)


@st.composite
def requests(draw: st.DrawFn) -> Step:
    """A hostile request, mostly at the time when an honest one of its kind is sent."""
    change = draw(st.sampled_from(list(CHANGES)))
    ask = draw(st.sampled_from([kind for kind in REQUESTS if CHANGES[change].fits(kind)]))
    before = draw(st.just(ask) | st.sampled_from(REQUESTS))
    return Step(before, ask, change, draw(st.integers(0, 15)))


STEPS = st.lists(requests(), max_size=4)
RARE = LETTERS.index("z") + 2
"""The token that one document has and the others have not."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("worlds"))


def pairs(rounds: Sequence[tuple[str, str]]) -> list[tuple[Corpus, Corpus]]:
    return [(CORPORA[left], CORPORA[right]) for left, right in rounds]


def must_be_alike(worlds: TwoWorlds, path: str = "") -> None:
    """Fail with what differs first at this path."""
    found = [each for each in worlds.differences if path in each.path]
    assert not found, str(found[0])


def names_held_still(patch: pytest.MonkeyPatch) -> None:
    """Let data have the same names in both worlds, to look behind what they tell."""
    for name in ("source", "held_out_source"):
        patch.setattr(Holder, name, lambda holder, data, name=name: sha256(name.encode(), holder.domain.encode()))


@pytest.mark.parametrize("alter", [None, names_held_still])
@pytest.mark.parametrize("mode", MODES)
@given(rounds=ROUNDS, steps=STEPS)
@settings(max_examples=100, phases=[Phase.explicit, Phase.generate])  # to shrink takes minutes, and tells no more
def test_two_corpora_look_alike(
    stage: Stage, mode: str, alter: Callable[..., None] | None, rounds: list[tuple[str, str]], steps: list[Step]
) -> None:
    """Whatever a holder has, and whatever it is asked, it answers the same."""
    stage.play(mode, *pairs(rounds), steps=steps, strict=True, alter=alter)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_corpus_looks_the_same(stage: Stage, mode: str) -> None:
    """Nothing but the corpus and the disk differs between the worlds, and rounds get to their end."""
    worlds = stage.play(mode, *pairs([("its own", "its own")] * 2), steps=[])
    must_be_alike(worlds)
    assert worlds.heard["receipt"] == 2


# Leaks that were known


def test_data_has_no_name_that_follows_from_it(stage: Stage) -> None:
    """A coordinator that compares adverts would see that one document came."""
    worlds = stage.play("masked columns", *pairs([("its own", "one summed more")]), steps=[])
    must_be_alike(worlds, "source")


def test_noise_that_is_drawn_again_tells_no_change(stage: Stage) -> None:
    """Where noise is repeated as long as nothing changes, other noise tells that something has."""
    again = Step("evaluate", "collect")
    rounds = [("its own", "its own"), ("its own", "one summed more")]
    must_be_alike(stage.play("clear columns", *pairs(rounds), steps=[again]), "blobs")


def test_refusals_of_weights_tell_nothing_of_sums(stage: Stage) -> None:
    """Weights that are made larger and larger are refused alike: else they would measure a gram."""
    search = [Step("evaluate", "evaluate", "one weight", place=place) for place in range(7)]
    rounds = [("its own", "one summed more")]
    must_be_alike(stage.play("masked", *pairs(rounds), steps=search, alter=names_held_still), "reason")


def test_made_up_cohorts_do_not_measure_the_disk(stage: Stage) -> None:
    """What is free on a disk is nobody's to know: the rest of it is private."""
    search = Step("announce", "hello", "features")
    must_be_alike(stage.play("masked", *pairs([("its own", "its own")]), steps=[search]))


@pytest.mark.parametrize("mode", ["clear", "clear columns"])
def test_a_document_is_routed_by_itself_alone(stage: Stage, mode: str) -> None:
    """One more document changes one count by one, whatever weights it is counted with."""
    crafted = Step("evaluate", "evaluate", "unit of logits", place=RARE)
    worlds = stage.play(mode, *pairs([("its own", "one held out more")]), steps=[crafted])
    must_be_alike(worlds, "counts")


@pytest.mark.parametrize("right", ["empty", "all held out", "a broken record"])
def test_a_corpus_that_cannot_be_summed_looks_like_any_other(stage: Stage, right: str) -> None:
    """Whether one document is there, or can be read, would else be told by a refusal."""
    must_be_alike(stage.play("masked columns", *pairs([("its own", right)]), steps=[], alter=names_held_still), "kind")
