"""The law of non-interference, for the whole surface of a holder.

With what is released held fixed, every byte that a holder sends, refusals, codes, names and sizes
included, is the same for any two corpora of which the owner can open an epoch, under any sequence of
requests, honest or hostile.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.crafted_requests import CHANGES
from tests.support.tiny import LETTERS
from tests.support.two_worlds import CORPORA, MODES, NEW_EPOCH, NO_LIMIT, OWN, Pair, Play, Stage, Step

CORPUS = st.sampled_from(list(CORPORA.values()))
NEIGHBOUR = st.sampled_from(("one summed more", "one held out more", "one less")).map(CORPORA.get)
PAIR = st.tuples(st.just(OWN), NEIGHBOUR) | st.tuples(CORPUS, CORPUS)
PRIVATE = [mode for mode in MODES if "private" in mode]
EXACT = [mode for mode in MODES if "private" not in mode]
ONE_ROUND = 1.0
"""The ε of one round."""
RARE = LETTERS.index("z") + 2
"""The token that one document has and the others have not."""


@st.composite
def steps(draw: st.DrawFn, kinds: Sequence[str]) -> Step:
    """A hostile request, mostly at the time when an honest one of its kind is sent."""
    change = draw(st.sampled_from(list(CHANGES)))
    fitting = [kind for kind in kinds if CHANGES[change].fits(kind)]
    ask = draw(st.sampled_from([*fitting, NEW_EPOCH]))
    before = draw((st.just(ask) if ask in kinds else st.nothing()) | st.sampled_from(kinds))
    return Step(before, ask, change, draw(st.integers(0, 15)))


@st.composite
def plays(draw: st.DrawFn, mode: str, kinds: Sequence[str]) -> Play:
    pairs = draw(st.lists(PAIR, min_size=1, max_size=2))
    budget = draw(st.sampled_from((NO_LIMIT, ONE_ROUND)))
    ahead = mode in EXACT and draw(st.integers(0, 3)) == 0
    return Play(mode, pairs, draw(st.lists(steps(kinds), max_size=4)), budget, ahead, bisections=8)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("worlds"))


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
@settings(max_examples=60, phases=[Phase.explicit, Phase.generate])  # to shrink takes minutes, and tells no more
def test_two_corpora_look_alike(stage: Stage, mode: str, data: st.DataObject) -> None:
    """Whatever a holder has, and whatever it is asked, it answers the same."""
    stage.play(data.draw(plays(mode, stage.kinds(mode))))


@pytest.mark.parametrize("mode", MODES)
def test_the_same_corpus_looks_the_same(stage: Stage, mode: str) -> None:
    """Nothing but the corpus and the disk differs between the worlds, and rounds get to their end."""
    worlds = stage.play(Play(mode, [(OWN, OWN)] * 2))
    assert worlds.heard["receipt"] == 2
    assert worlds.noised == (4 if mode in PRIVATE else 0)


@pytest.mark.parametrize("mode", MODES)
def test_every_corpus_can_be_opened(stage: Stage, mode: str) -> None:
    worlds = stage.play(Play(mode, [(OWN, OWN)]))
    assert {name for name, corpus in CORPORA.items() if not worlds.open((corpus, corpus))} == set()
    assert worlds.opened == len(CORPORA) + 1
