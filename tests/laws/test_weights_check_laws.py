"""Weights that a holder is asked to count under: those of any total with its sums pass, and crafted ones do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeway.client.round import weights_check
from ridgeway.client.round.weights_check import Matrix, bound_of, check_weights, largest_square
from ridgeway.common.base.errors import Refused
from ridgeway.common.base.settings import EQUAL_MASS, FEATURE_LIMIT, CosineFeatures, Ridge
from ridgeway.common.encoding.table_encoder import TableEncoder, with_cosines
from ridgeway.common.statistics.sums import Integers, Statistics
from ridgeway.coordinator.solving.solve import solve
from tests.support.making import one_domain
from tests.support.tiny import tiny_encoder

RIDGES = (1e-3, 1e-4, 1e-2, 1e-1)
DOMAINS = 3
RANKS = (0, 2, 64)
"""Of the bound that is tried first: it lets nothing pass at once, something, and all that is to pass."""


def windows(encoder: TableEncoder, rng: np.random.Generator, count: int, tokens: int, few: int) -> Integers:
    """Samples as text gives them: rounded means of a few rows of the table, and the constant."""
    rows = encoder.table[rng.integers(0, few, (count, tokens))].astype(np.float64).mean(axis=1)
    return np.concatenate([np.rint(rows).astype(np.int64), np.ones((count, 1), dtype=np.int64)], axis=1)


def cohort(seed: int, encoder: TableEncoder, members: int, tokens: int, mass: int) -> list[Statistics]:
    """What members of DOMAINS domains put into a total, each its share of its domain's mass."""
    return [raw.weighted(share) if mass else raw for raw, share in raw_cohort(seed, encoder, members, tokens, mass)]


def raw_cohort(seed: int, encoder: TableEncoder, members: int, tokens: int, mass: int) -> list[tuple[Statistics, int]]:
    """The same before they are weighted, and each one's share."""
    rng = np.random.default_rng(seed)
    own = []
    for place in range(members):
        domain = place % DOMAINS
        share = mass // len(range(domain, members, DOMAINS))
        count, few = int(rng.integers(1, 60)), int(rng.integers(1, len(encoder.table)))
        raw = one_domain(windows(encoder, rng, count, tokens, few))
        own.append((raw.placed(domain, DOMAINS), share))
    return own


def solved(total: Statistics, encoder: TableEncoder, ridges: Sequence[float] = RIDGES) -> list[Matrix]:
    return [solve(total, encoder.scale, Ridge(each)).weights for each in ridges]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1 << 32),
    width=st.integers(1, 24),
    members=st.integers(DOMAINS, 8),
    tokens=st.integers(1, 9),
    mass=st.sampled_from([0, 4096, EQUAL_MASS]),
    ridges=st.lists(st.sampled_from([1e-6, 1e-4, 1e-3, 0.1, 1.0, 30.0]), min_size=1, max_size=4, unique=True),
    rank=st.sampled_from(RANKS),
)
def test_the_solutions_of_any_total_are_taken_by_every_member(
    seed: int, width: int, members: int, tokens: int, mass: int, ridges: list[float], rank: int
) -> None:
    """However little text there is, whatever λ: an honest question is never refused."""
    encoder = tiny_encoder(width, seed)
    own = cohort(seed, encoder, members, tokens, mass)
    weights = solved(reduce(add, own), encoder, ridges)
    for each, (raw, share) in zip(own, raw_cohort(seed, encoder, members, tokens, mass), strict=True):
        with patch.object(weights_check, "BOUND_RANK", rank):
            check_weights(weights, ridges, each, encoder, mass, members)
            check_weights(weights, ridges, raw, encoder, mass, members, share=share)


@given(seed=st.integers(0, 1 << 32), width=st.integers(1, 24), count=st.integers(1, 60), rank=st.integers(0, 30))
def test_no_direction_has_more_energy_than_the_bound_says(seed: int, width: int, count: int, rank: int) -> None:
    """So what passes with the bound in place of a holder's sums passes with these."""
    encoder = tiny_encoder(width, seed)
    samples = windows(encoder, np.random.default_rng(seed), count, 3, len(encoder.table)).astype(np.float64)
    gram = samples.T @ samples
    with patch.object(weights_check, "BOUND_RANK", rank):
        factor, rest = bound_of(gram)
    slack = 1e-9 * gram.trace()
    assert np.linalg.eigvalsh(factor @ factor.T + rest * np.eye(width + 1) - gram).min() >= -slack
    assert rank <= width or rest <= slack


@given(
    seed=st.integers(0, 1 << 32),
    width=st.integers(1, 24),
    tokens=st.integers(1, 9),
    kernel=st.none() | st.just(CosineFeatures(32, amplitude=FEATURE_LIMIT)),
)
def test_no_sample_is_longer_than_the_bound(seed: int, width: int, tokens: int, kernel: CosineFeatures | None) -> None:
    """The bound on λ rests on it, with cosines as without."""
    encoder = tiny_encoder(width, seed)
    samples = windows(encoder, np.random.default_rng(seed), 50, tokens, len(encoder.table)).astype(np.float64)
    if kernel:
        encoder = with_cosines(encoder, kernel)
        assert encoder.cosines is not None
        samples = np.hstack([encoder.cosines.of(samples[:, :-1].astype(np.int16)), samples])
    samples[:, :-1] *= encoder.scale
    assert np.square(samples).sum(axis=1).max() <= largest_square(encoder)


def detectors(encoder: TableEncoder, seed: int) -> Matrix:
    """Weights that single tokens out: each column answers to one row of the table, and to nothing else."""
    table = encoder.table.astype(np.float64) * encoder.scale
    centred = table - table.mean(axis=0)
    white = np.linalg.pinv(centred.T @ centred / len(table))
    looked_for = centred[np.random.default_rng(seed).choice(len(table), DOMAINS, replace=False)]
    columns = 60 * white @ looked_for.T
    return np.concatenate([columns, -(table.mean(axis=0) @ columns)[None]])


CRAFTED: dict[str, Callable[[list[Matrix], TableEncoder], list[Matrix]]] = {
    "detectors": lambda true, encoder: [detectors(encoder, place) for place in range(len(true))],
    "one detector among them": lambda true, encoder: [*true[:-1], detectors(encoder, 1)],
    "one column": lambda true, encoder: [each + np.eye(*each.shape)[:, ::-1] for each in true],
    "louder": lambda true, encoder: [2 * each for each in true],
    "too loud to be squared": lambda true, encoder: [1e200 * detectors(encoder, 0)] * len(true),
    "one of them too loud to be squared": lambda true, encoder: [*true[:-1], 1e200 * detectors(encoder, 1)],
    "not a number": lambda true, encoder: [each * np.nan for each in true],
    "two totals": lambda true, encoder: [true[0], *(each[:, ::-1] for each in true[1:])],
    "another order": lambda true, encoder: true[::-1],
    "the same four times": lambda true, encoder: [true[0]] * len(true),
}


@pytest.mark.parametrize("way", CRAFTED)
@pytest.mark.parametrize(("seed", "rank"), list(enumerate(RANKS)))
def test_crafted_weights_are_refused_by_every_member(
    way: str, seed: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are solutions of no total that the member's sums are in."""
    monkeypatch.setattr(weights_check, "BOUND_RANK", rank)
    encoder = tiny_encoder(seed=seed)
    own = cohort(seed, encoder, 6, 4, EQUAL_MASS)
    true = solved(reduce(add, own), encoder)
    for each in own:
        with pytest.raises(Refused, match="no solution of a total that holds this holder's sums") as refused:
            check_weights(CRAFTED[way](true, encoder), RIDGES, each, encoder, EQUAL_MASS, len(own))
        assert refused.value.code == "foreign_weights"


def turned(gram: Matrix, cross: Matrix) -> None:
    """Make a gram into one that is no sum of squares: its energies are the same, but it is not symmetric."""
    turn = np.triu(gram[:-1, :-1], 1)
    gram[:-1, :-1] += turn - turn.T


def torn(gram: Matrix, cross: Matrix) -> None:
    """Add to one domain's targets what another's lose."""
    cross[:, :2] += 100 * gram[:, :1] * [1, -1]


@pytest.mark.parametrize(
    ("change", "reason"), [(turned, "not of one total"), (torn, "more energy than its samples")], ids=["gram", "cross"]
)
@pytest.mark.parametrize("seed", range(3))
def test_weights_that_solve_what_no_total_is_are_refused(
    change: Callable[[Matrix, Matrix], None], reason: str, seed: int
) -> None:
    """Each of these crafted ones is told by a single one of the checks: no other would do instead."""
    encoder = tiny_encoder(seed=seed)
    own = cohort(seed, encoder, 6, 4, EQUAL_MASS)
    total, units = reduce(add, own), np.array([*[encoder.scale] * encoder.width, 1.0])
    gram, cross = total.gram * units[:, None] * units, total.cross * units[:, None]
    mean = gram.diagonal().mean()
    change(gram, cross)
    weights = [np.linalg.solve(gram + ridge * mean * np.eye(len(gram)), cross) for ridge in RIDGES]
    for each in own:
        with pytest.raises(Refused, match=reason):
            check_weights(weights, RIDGES, each, encoder, EQUAL_MASS, len(own))
