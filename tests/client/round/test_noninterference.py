"""The law of non-interference, for the whole surface of a holder.

With what is released held fixed, every byte that a holder sends, refusals, codes, names and sizes
included, is the same for any two corpora of which an owner can open an epoch, under any sequence
of requests, honest or hostile.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ridgeway.common import statistics
from tests.support.crafted_requests import CHANGES
from tests.support.tiny import LETTERS
from tests.support.two_worlds import (
    CORPORA,
    MODES,
    NEW_EPOCH,
    NO_LIMIT,
    OWN,
    Play,
    Stage,
    Step,
)

pytestmark = pytest.mark.usefixtures("private_sentences")

CORPUS = st.sampled_from(list(CORPORA.values()))
NEIGHBOURS = ("one summed more", "one held out more", "one less")
NEIGHBOUR = st.sampled_from([CORPORA[name] for name in NEIGHBOURS])
PAIR = st.tuples(st.just(OWN), NEIGHBOUR) | st.tuples(CORPUS, CORPUS)
PRIVATE = [mode for mode in MODES if "private" in mode]
EXACT = [mode for mode in MODES if "private" not in mode]
ONE_ROUND = 1.2
"""An ε that allows one round, and not two."""
NO_SHRINKING = (Phase.explicit, Phase.generate)
"""It takes minutes, and tells no more."""
RARE = LETTERS.index("z") + 2
"""The token that one document has and the others have not."""


@st.composite
def steps(draw: st.DrawFn, kinds: Sequence[str]) -> Step:
    """A hostile request, mostly at the time when an honest one of its kind is sent."""
    change = draw(st.sampled_from(list(CHANGES)))
    fitting = [kind for kind in kinds if CHANGES[change].fits(kind)]
    ask = draw(st.sampled_from([*fitting, NEW_EPOCH]))
    before = draw(
        (st.just(ask) if ask in kinds else st.nothing()) | st.sampled_from(kinds)
    )
    return Step(before, ask, change, draw(st.integers(0, 15)), draw(st.booleans()))


@st.composite
def plays(draw: st.DrawFn, mode: str, kinds: Sequence[str], bisections: int) -> Play:
    pairs = draw(st.lists(PAIR, min_size=1, max_size=2))
    budget = draw(st.sampled_from((NO_LIMIT, ONE_ROUND)))
    return Play(
        mode, pairs, draw(st.lists(steps(kinds), max_size=4)), budget, bisections
    )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("worlds"))


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
@settings(max_examples=8, phases=NO_SHRINKING)
def test_two_corpora_look_alike(stage: Stage, mode: str, data: st.DataObject) -> None:
    """Whatever a holder has, and whatever it is asked, it answers the same."""
    stage.play(data.draw(plays(mode, stage.kinds(mode), bisections=4)))


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
@settings(max_examples=300, phases=NO_SHRINKING)
def test_many_more_corpora_look_alike(
    stage: Stage, mode: str, data: st.DataObject
) -> None:
    stage.play(data.draw(plays(mode, stage.kinds(mode), bisections=12)))


@pytest.mark.parametrize("mode", MODES)
def test_the_same_corpus_looks_the_same(stage: Stage, mode: str) -> None:
    """Nothing but corpus and disk differs between the worlds, and rounds get to their end."""
    worlds = stage.play(Play(mode, [(OWN, OWN)] * 2))
    assert worlds.heard["receipt"] == 2
    assert worlds.noised == (4 if mode in PRIVATE else 0)


@pytest.mark.parametrize("mode", MODES)
def test_every_corpus_can_be_opened(stage: Stage, mode: str) -> None:
    worlds = stage.play(Play(mode, [(OWN, OWN)]))
    assert {
        name for name, corpus in CORPORA.items() if not worlds.open((corpus, corpus))
    } == set()
    assert worlds.opened == len(CORPORA) + 1


# Leaks that were known, and others like them


def probes(kind: str, *changes: str, numbers: Sequence[int] = (0, 1)) -> list[Step]:
    """Requests that are tried where an honest one of their kind is sent."""
    return [
        Step(kind, kind, change, number) for change in changes for number in numbers
    ]


@pytest.mark.parametrize("mode", ["clear", "private columns"])
def test_odd_corpora_look_like_any_other(stage: Stage, mode: str) -> None:
    """Whether one document is held out, or can be read, would else be told by a refusal."""
    stage.play(Play(mode, [(OWN, corpus) for corpus in CORPORA.values()]))


@pytest.mark.parametrize("mode", MODES)
def test_data_has_no_name_that_follows_from_it(stage: Stage, mode: str) -> None:
    """A coordinator that compares epochs would see that one document came."""
    stage.play(Play(mode, [(OWN, OWN), (OWN, CORPORA["one summed more"])]))


@pytest.mark.parametrize("mode", PRIVATE)
def test_noise_that_is_drawn_again_tells_no_change(stage: Stage, mode: str) -> None:
    """Where noise is repeated as long as nothing changes, other noise tells that something has."""
    changes = ("the same", "anew")
    again = [
        Step("evaluate", kind, change)
        for kind in ("collect", "seal")
        for change in changes
    ]
    stage.play(Play(mode, [(OWN, OWN), (OWN, CORPORA["one summed more"])], again))


@pytest.mark.parametrize("right", ["one summed more", "none held out"])
def test_refusals_of_counts_tell_nothing(stage: Stage, right: str) -> None:
    """Weights that grow and grow are refused alike: else they would measure a corpus."""
    changes = ("one weight", "weights scaled", "temperatures", "selector")
    stage.play(Play("clear", [(OWN, CORPORA[right])], probes("evaluate", *changes)))


def test_made_up_cohorts_do_not_measure_the_disk(stage: Stage) -> None:
    """What is free on a disk is nobody's to know: the rest of it is private."""
    search = probes("hello", "features", "many members", numbers=(2,))
    stage.play(Play("masked", [(OWN, OWN)], search))


def test_made_up_cohorts_do_not_measure_a_corpus(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many members there may be before sums leave 64 bits depends on how large each is."""
    monkeypatch.setattr(
        statistics, "SUM_BOUND", statistics.MAX_SQUARE << 17
    )  # as if corpora were larger
    stage.play(
        Play("clear", [(OWN, CORPORA["many more"])], probes("collect", "many members"))
    )


def test_a_document_is_routed_by_itself_alone(stage: Stage) -> None:
    """One more document changes one count by one, whatever weights it is counted with."""
    crafted = probes("evaluate", "unit of logits", "one weight", numbers=(RARE,))
    stage.play(Play("clear", [(OWN, CORPORA["one held out more"])], crafted))


@pytest.mark.parametrize("mode", PRIVATE)
def test_a_document_is_routed_by_itself_alone_whatever_the_total(
    stage: Stage, mode: str
) -> None:
    crafted = probes(
        "evaluate", "total scaled", "one number", "one column", numbers=(0, 9)
    )
    stage.play(Play(mode, [(OWN, CORPORA["one held out more"])], crafted))


@pytest.mark.parametrize("mode", PRIVATE)
def test_a_budget_is_spent_alike(stage: Stage, mode: str) -> None:
    """How much is left depends on what was asked, not on what the documents say."""
    pairs = [(OWN, CORPORA["one summed more"])] * 2
    search = probes("announce", "epsilon", "delta", numbers=(0,))
    worlds = stage.play(Play(mode, pairs, search, ONE_ROUND, bisections=8))
    assert worlds.opened == 1
