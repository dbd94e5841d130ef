"""Perplexity and normalised performance from likelihoods, and the tables that are made of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.simulations.experiments.baselines.routing_method import of_outcome
from ridgeway.simulations.experiments.experts.experts_part import (
    OWN,
    RANDOM,
    hindsight,
    normalised_rows,
    perplexity_table,
    routed_table,
)
from ridgeway.simulations.experiments.experts.training import (
    BASE,
    DIGITS,
    FULL,
    MERGED,
    SHORT,
    Likelihoods,
    Scored,
    from_json,
    result_key,
)
from tests.support.tiny_experts import tiny_dataset

DOMAINS = ("code", "law", "medicine")


@st.composite
def likelihoods(draw: st.DrawFn) -> Likelihoods:
    """Of one to five documents a domain, costs drawn freely."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    counts = {name: draw(st.integers(1, 5)) for name in DOMAINS}
    tokens = {name: rng.integers(1, 50, count) for name, count in counts.items()}
    costs = {name: rng.uniform(0.5, 4.0, (count, 5)) * tokens[name][:, None] for name, count in counts.items()}
    about = {"rate": 1e-3, "trials": {}, "seconds": 1.0, "device": "CPU"}
    return Likelihoods(DOMAINS, (BASE, *DOMAINS, MERGED), costs, tokens, about)


def sent(found: Likelihoods, place: int | None) -> dict[str, list[int]]:
    """Everything to one place, or everything home."""
    return {
        name: [home if place is None else place] * len(found.tokens[name]) for home, name in enumerate(found.domains)
    }


def test_perplexity_is_per_token() -> None:
    """Two documents of unlike length: the mean is over tokens, not over documents."""
    costs = np.array([[3.0], [1.0]])
    found = Likelihoods(("a",), (BASE,), {"a": costs}, {"a": np.array([1, 3])}, {})
    assert found.perplexity("a", BASE) == pytest.approx(math.exp(4.0 / 4))


@given(found=likelihoods())
def test_the_own_expert_is_a_hundred(found: Likelihoods) -> None:
    """A router that is always right reaches exactly what its measure is."""
    rows = {row.name: row for row in normalised_rows(found, {"right": sent(found, None)})}
    assert rows["right"].by_domain == pytest.approx(rows[OWN].by_domain)
    assert rows["right"].mean == pytest.approx(100.0)
    assert rows["right"].right == 100.0


@given(found=likelihoods(), place=st.integers(0, 2))
def test_a_router_that_always_says_the_same_is_that_expert(found: Likelihoods, place: int) -> None:
    """Routing everything to one expert gives that expert's row."""
    rows = {row.name: row for row in normalised_rows(found, {"always": sent(found, place)})}
    assert rows["always"].by_domain == pytest.approx(rows[f"{DOMAINS[place]} expert"].by_domain)
    assert rows["always"].by_domain[place] == pytest.approx(100.0)
    assert rows["always"].right == pytest.approx(100 / 3)


@given(found=likelihoods(), seed=st.integers(0, 99))
def test_no_router_is_better_than_hindsight(found: Likelihoods, seed: int) -> None:
    """Nor is any worse than picking the unlikeliest."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.integers(0, 3, len(own)).tolist() for name, own in found.tokens.items()}
    worst = {name: found.costs[name][:, 1:4].argmax(axis=1).tolist() for name in DOMAINS}
    rows = {row.name: row for row in normalised_rows(found, {"drawn": drawn, "worst": worst})}
    assert rows["worst"].mean - 1e-9 <= rows["drawn"].mean <= hindsight(found) + 1e-9
    assert rows["worst"].mean - 1e-9 <= rows[RANDOM].mean <= hindsight(found) + 1e-9


@given(found=likelihoods())
def test_likelihoods_survive_json(found: Likelihoods) -> None:
    """As the cache keeps them."""
    again = from_json(json.loads(json.dumps(found.to_json())))
    assert again.domains == found.domains
    assert again.models == found.models
    for name in DOMAINS:
        assert again.costs[name] == pytest.approx(found.costs[name], abs=10.0**-DIGITS)
        assert np.array_equal(again.tokens[name], found.tokens[name])


@given(found=likelihoods())
def test_tables_are_rectangular(found: Likelihoods) -> None:
    """A row of a table has a cell for each of its columns."""
    scored = Scored(tiny_dataset(), SHORT, found)
    tables = [perplexity_table("a", found, ""), routed_table(scored, {"home": sent(found, None)}, "", "texts")]
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert tables[0].column("model")[0] == "base model, not fine-tuned"
    assert tables[0].column("code")[1] == pytest.approx(found.perplexity("code", "code"))
    assert tables[1].column("mean")[-1] == 100.0


def test_what_an_outcome_says_is_taken_for_the_texts_that_were_scored() -> None:
    """Routers are tried on more texts than experts are scored on; each text keeps its own decision."""
    whole = {"a": ("x", "y", "z"), "b": ("u", "v")}
    shown = {"a": ("x", "z"), "b": ("v",)}
    tests = {"a": ("z",), "b": ("v",)}
    every = {"tested": "all", "rows": [{"name": "r", "routed": {"a": [0, 1, 1], "b": [0, 1]}}]}
    some = {"tested": "shown", "rows": [{"name": "s", "routed": {"a": [0, 1], "b": [0]}}]}
    assert of_outcome(every, shown, whole, tests) == {"r": {"a": [1], "b": [1]}}
    assert of_outcome(some, shown, whole, tests) == {"s": {"a": [1], "b": [0]}}


def test_the_key_of_a_result_holds_all_that_decides_it() -> None:
    """Other texts, another recipe, model or seed: another result."""
    few, more = tiny_dataset(20), tiny_dataset(21)
    keys = [
        result_key(few, SHORT, "m", 1),
        result_key(more, SHORT, "m", 1),
        result_key(few, FULL, "m", 1),
        result_key(few, SHORT, "n", 1),
        result_key(few, SHORT, "m", 2),
    ]
    assert len({json.dumps(key) for key in keys}) == len(keys)
    assert result_key(tiny_dataset(20), SHORT, "m", 1) == keys[0]
