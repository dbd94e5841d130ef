"""How decisions become experts: the promises of quality·Σ p(d)·table[d, e] − mu·cost.

Numbers are such as floats hold exactly. Where nothing was measured, the table says which expert
serves which domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.expert_choice import ExpertChoice, ExpertChooser
from ridgeway.common.routing.experts_file import Expert, Experts
from ridgeway.common.routing.quality import SCORE_UNIT, QualityTable

NAMES = ("art", "code", "law", "physics")
OTHER = "generalist"

eighths = st.integers(0, 32).map(lambda number: number / 8)
weights = st.integers(0, 40).map(lambda number: number / 4)


def expert(quality: float = 1.0, cost: float = 0.0) -> Expert:
    return Expert(
        base_url="http://127.0.0.1:9/v1", model="m", quality=quality, cost=cost
    )


@st.composite
def decisions(draw: st.DrawFn, abstained: bool = False) -> Decision:
    """Probabilities in 64ths that add up to 1; the domain ahead is one of the most probable."""
    cuts = sorted(draw(st.tuples(*[st.integers(0, 64)] * (len(NAMES) - 1))))
    shares = [(after - before) / 64 for before, after in pairwise([0, *cuts, 64])]
    scores = dict(zip(NAMES, shares, strict=True))
    best = draw(
        st.sampled_from([name for name in NAMES if scores[name] == max(shares)])
    )
    domain = OTHER if abstained else best
    return Decision(domain, scores[best], scores, abstained, best, 7)


@st.composite
def casts(
    draw: st.DrawFn, fallback: bool | None = None, everyone: bool = False
) -> Experts:
    """Experts for some domains or all, and mostly a generalist to fall back on."""
    named = set(NAMES) if everyone else draw(st.sets(st.sampled_from(NAMES)))
    falls_back = draw(st.booleans()) if fallback is None else fallback
    names = named | ({OTHER} if falls_back or not named else set())
    experts = {name: expert(draw(eighths), draw(eighths)) for name in sorted(names)}
    return Experts(
        mu=draw(weights), fallback=OTHER if falls_back else None, experts=experts
    )


def chosen(
    experts: Experts, decision: Decision, table: QualityTable | None = None
) -> ExpertChoice | None:
    return ExpertChooser(experts, tuple(decision.scores), table).choose(decision)


def server(domain: str, experts: Experts) -> str | None:
    return domain if domain in experts.experts else experts.fallback


def reached(decision: Decision, experts: Experts) -> Mapping[str, float]:
    """Each expert that serves a domain, and the probability of its domains."""
    served = {
        name: [domain for domain in NAMES if server(domain, experts) == name]
        for name in experts.experts
    }
    return {
        name: sum(decision.scores[domain] for domain in domains)
        for name, domains in served.items()
        if domains
    }


def worths(decision: Decision, experts: Experts) -> Mapping[str, float]:
    """Each expert that serves a domain, and what it is worth, straight from the definition."""
    reach, terms = reached(decision, experts), experts.experts
    return {
        name: terms[name].quality * reach[name] - experts.mu * terms[name].cost
        for name in reach
    }


@given(decision=decisions(), experts=casts())
def test_the_chosen_expert_is_worth_most(decision: Decision, experts: Experts) -> None:
    """No expert of a domain is worth more; of equals none serves more probable domains."""
    choice = chosen(experts, decision)
    worth, reach = worths(decision, experts), reached(decision, experts)
    if choice is None:
        assert not worth
        return
    assert worth[choice.expert] == max(worth.values())
    equals = [name for name in worth if worth[name] == worth[choice.expert]]
    assert reach[choice.expert] == max(reach[name] for name in equals)
    likeliest = [name for name in equals if reach[name] == reach[choice.expert]]
    ahead = server(decision.best, experts)
    assert choice.expert == (ahead if ahead in likeliest else likeliest[0])
    reason = "best" if decision.best in experts.experts else "missing"
    assert choice.reason == (reason if choice.expert == ahead else "cost")


@given(decision=decisions(abstained=True), experts=casts(fallback=True))
def test_an_abstention_always_goes_to_the_fallback(
    decision: Decision, experts: Experts
) -> None:
    """Whatever the probabilities, qualities and costs are."""
    assert chosen(experts, decision) == ExpertChoice(OTHER, "abstained")


@given(decision=decisions(abstained=True), experts=casts(fallback=False))
def test_without_a_fallback_an_abstention_goes_to_whom_the_release_names(
    decision: Decision, experts: Experts
) -> None:
    """To the expert of the name that the release gives, or to nobody."""
    assert chosen(experts, decision) == (
        ExpertChoice(OTHER, "abstained") if OTHER in experts.experts else None
    )


def test_of_equals_the_first_is_chosen() -> None:
    """Where worth and probability are the same and the domain ahead is worth less."""
    decision = Decision(
        "art", 0.5, {"art": 0.5, "code": 0.25, "law": 0.25}, False, "art", 7
    )
    experts = Experts(
        mu=1.0, experts={"art": expert(cost=8.0), "code": expert(), "law": expert()}
    )
    assert chosen(experts, decision) == ExpertChoice("code", "cost")


# Measured


@st.composite
def tables(draw: st.DrawFn, experts: Experts) -> QualityTable:
    """Scores of some experts of the file, and of one that it does not have, in some domains."""
    names = draw(
        st.lists(st.sampled_from(sorted(experts.experts)), min_size=1, unique=True)
    )
    names = [*names, "elsewhere"]
    shape = (len(NAMES), len(names))
    cells = st.tuples(st.integers(0, 200), st.integers(0, 8))
    drawn = draw(st.tuples(*[cells] * (shape[0] * shape[1])))
    counts, eighths = np.array(drawn, dtype=np.int64).T.reshape(2, *shape)
    sums = counts * eighths * SCORE_UNIT // 8
    return QualityTable(NAMES, tuple(names), sums, counts)


@given(data=st.data(), decision=decisions(), experts=casts(fallback=True))
def test_what_was_measured_chooses_among_the_experts_that_were(
    data: st.DataObject, decision: Decision, experts: Experts
) -> None:
    """The expert of the largest quality·Σ p(d)·expected[d, e] − mu·cost[e], whatever the experts
    are called.
    """
    table = data.draw(tables(experts))
    scored = [
        name
        for name in experts.experts
        if name in table.experts and table.counts[:, table.experts.index(name)].any()
    ]
    choice = chosen(experts, decision, table)
    assert choice is not None
    if not scored:
        assert choice == chosen(experts, decision)
        return
    columns = [table.experts.index(name) for name in scored]
    known = QualityTable(
        NAMES, tuple(scored), table.sums[:, columns], table.counts[:, columns]
    )
    quality = np.array(list(decision.scores.values())) @ known.expected
    terms = [experts.experts[name] for name in scored]
    worth = [
        term.quality * value - experts.mu * term.cost
        for term, value in zip(terms, quality, strict=True)
    ]
    assert choice.expert in scored
    column = scored.index(choice.expert)
    assert worth[column] >= max(worth) - 1e-9
    if terms[column].quality:
        assert choice.quality == pytest.approx(quality[column])


@given(
    decision=decisions(),
    experts=casts(everyone=True),
    counts=st.lists(st.integers(1, 999), min_size=4, max_size=4),
)
def test_experts_that_were_scored_in_their_own_domain_alone_are_chosen_by_the_router(
    decision: Decision, experts: Experts, counts: list[int]
) -> None:
    """Nothing tells how good each would be elsewhere, so the easier domain's expert is not sent the
    others' prompts.
    """
    counted = np.diag(np.array(counts, dtype=np.int64))
    table = QualityTable(
        NAMES, NAMES, counted * (SCORE_UNIT // 8) * np.arange(1, 5), counted
    )
    plain = Experts(
        experts={name: expert(cost=old.cost) for name, old in experts.experts.items()}
    )
    choice = chosen(plain, decision, table)
    assert choice is not None
    assert (choice.expert, choice.reason) == (decision.best, "quality")


def test_an_expert_that_only_cost_puts_first_is_said_to_be_so() -> None:
    """`quality` where it is the best that was measured, `cost` where it is not and is chosen all
    the same.
    """
    decision = Decision("art", 0.5, {"art": 0.5, "code": 0.5}, False, "art", 7)
    sums = np.array([[90, 80], [90, 80]], dtype=np.int64) * SCORE_UNIT
    table = QualityTable(
        ("art", "code"), ("large", "small"), sums, np.full((2, 2), 100)
    )
    experts = Experts(experts={"large": expert(cost=3.0), "small": expert(cost=1.0)})
    for mu, name, reason, quality in (
        (0.0, "large", "quality", 0.9),
        (0.125, "small", "cost", 0.8),
    ):
        choice = chosen(experts.model_copy(update={"mu": mu}), decision, table)
        assert choice is not None
        assert (choice.expert, choice.reason) == (name, reason)
        assert choice.quality == pytest.approx(quality, abs=0.02)
