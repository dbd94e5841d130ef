"""How decisions become experts: the promises of probability·quality − mu·cost, in numbers that floats hold exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.routing.router import Decision
from ridgeway.coordinator.serve.gateway.experts import Expert, Experts

NAMES = ("art", "code", "law", "physics")
OTHER = "generalist"

eighths = st.integers(0, 32).map(lambda number: number / 8)
weights = st.integers(0, 40).map(lambda number: number / 4)


def expert(quality: float = 1.0, cost: float = 0.0) -> Expert:
    return Expert(base_url="http://127.0.0.1:9/v1", model="m", quality=quality, cost=cost)


def changed(cast: Experts, /, **changes: Any) -> Experts:
    return cast.model_copy(update=changes)


@st.composite
def decisions(draw: st.DrawFn, abstained: bool | None = False) -> Decision:
    """Probabilities in 64ths that add up to 1; the domain ahead is one of the most probable."""
    cuts = sorted(draw(st.lists(st.integers(0, 64), min_size=len(NAMES) - 1, max_size=len(NAMES) - 1)))
    shares = [(after - before) / 64 for before, after in zip([0, *cuts], [*cuts, 64], strict=True)]
    scores = dict(zip(NAMES, shares, strict=True))
    best = draw(st.sampled_from([name for name in NAMES if scores[name] == max(shares)]))
    abstains = draw(st.booleans()) if abstained is None else abstained
    return Decision(OTHER if abstains else best, scores[best], scores, abstains, best, 7)


@st.composite
def casts(draw: st.DrawFn, fallback: bool | None = None, everyone: bool = False) -> Experts:
    """Experts for some domains or all, and mostly a generalist to fall back on."""
    named = set(NAMES) if everyone else draw(st.sets(st.sampled_from(NAMES)))
    falls_back = draw(st.booleans()) if fallback is None else fallback
    names = named | ({OTHER} if falls_back or not named else set())
    experts = {name: expert(draw(eighths), draw(eighths)) for name in sorted(names)}
    return Experts(mu=draw(weights), fallback=OTHER if falls_back else None, experts=experts)


def server(domain: str, experts: Experts) -> str | None:
    return domain if domain in experts.experts else experts.fallback


def worths(decision: Decision, experts: Experts) -> Mapping[str, float]:
    """Each domain that somebody serves, and what it is worth, straight from the definition."""
    serving = {domain: experts.experts[name] for domain in NAMES if (name := server(domain, experts)) is not None}
    return {domain: decision.scores[domain] * each.quality - experts.mu * each.cost for domain, each in serving.items()}


@given(decision=decisions(), experts=casts())
def test_the_chosen_expert_is_worth_most(decision: Decision, experts: Experts) -> None:
    """No domain that anybody serves is worth more; of equals none is more probable."""
    choice = experts.choose(decision)
    worth = worths(decision, experts)
    if choice is None:
        assert not worth
        return
    most = max(worth.values())
    equals = [domain for domain in worth if worth[domain] == most]
    likeliest = max(decision.scores[domain] for domain in equals)
    possible = [domain for domain in equals if decision.scores[domain] == likeliest]
    chosen = decision.best if decision.best in possible else possible[0]
    assert choice.expert == server(chosen, experts)
    own = "best" if chosen in experts.experts else "missing"
    assert choice.reason == (own if chosen == decision.best else "cost")


@given(decision=decisions(), experts=casts(everyone=True), quality=st.integers(1, 32).map(lambda number: number / 8))
def test_without_a_weight_of_cost_equals_are_chosen_by_the_router(
    decision: Decision, experts: Experts, quality: float
) -> None:
    """With mu = 0 and one quality for all, the domain ahead is asked, whatever it costs."""
    equal = {name: expert(quality, each.cost) for name, each in experts.experts.items()}
    choice = changed(experts, mu=0.0, experts=equal).choose(decision)
    assert choice == (decision.best, "best")


@given(decision=decisions(), experts=casts(fallback=True), more=weights)
def test_a_greater_weight_of_cost_never_chooses_a_dearer_expert(
    decision: Decision, experts: Experts, more: float
) -> None:
    """Raising mu never raises the cost of whoever is chosen."""
    before = experts.choose(decision)
    after = changed(experts, mu=experts.mu + more).choose(decision)
    assert before is not None and after is not None
    assert experts.experts[after.expert].cost <= experts.experts[before.expert].cost


@given(decision=decisions(), experts=casts(), factor=st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_the_unit_of_cost_does_not_matter(decision: Decision, experts: Experts, factor: float) -> None:
    """Costs in another currency with mu in its inverse, or quality and mu both scaled, choose the same expert."""
    dearer = {name: expert(each.quality, each.cost * factor) for name, each in experts.experts.items()}
    better = {name: expert(each.quality * factor, each.cost) for name, each in experts.experts.items()}
    choice = experts.choose(decision)
    assert changed(experts, mu=experts.mu / factor, experts=dearer).choose(decision) == choice
    assert changed(experts, mu=experts.mu * factor, experts=better).choose(decision) == choice


@given(decision=decisions(abstained=True), experts=casts(fallback=True))
def test_an_abstention_always_goes_to_the_fallback(decision: Decision, experts: Experts) -> None:
    """Whatever the probabilities, qualities and costs are."""
    assert experts.choose(decision) == (OTHER, "abstained")


@given(decision=decisions(abstained=None), experts=casts(fallback=True))
def test_with_a_fallback_there_is_always_somebody(decision: Decision, experts: Experts) -> None:
    """And it is an expert of the file."""
    choice = experts.choose(decision)
    assert choice is not None
    assert choice.expert in experts.experts


@given(decision=decisions(abstained=True), experts=casts(fallback=False))
def test_without_a_fallback_an_abstention_goes_to_whom_the_release_names(decision: Decision, experts: Experts) -> None:
    """To the expert of the name that the release gives, or to nobody."""
    assert experts.choose(decision) == ((OTHER, "abstained") if OTHER in experts.experts else None)


def test_of_equals_the_first_is_chosen() -> None:
    """Where worth and probability are the same and the domain ahead is worth less."""
    decision = Decision("art", 0.5, {"art": 0.5, "code": 0.25, "law": 0.25}, False, "art", 7)
    experts = Experts(mu=1.0, experts={"art": expert(cost=8.0), "code": expert(), "law": expert()})
    assert experts.choose(decision) == ("code", "cost")
