"""From statistics to weights and releases: what solving promises, and what it may not depend on."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from ridgeway.common.base.errors import EncoderMismatch, UnsolvableTotal
from ridgeway.common.base.settings import (
    DEFAULT,
    EQUAL_MASS,
    PAPER,
    Preset,
    Ridge,
    Sampling,
    Selector,
    Weighting,
)
from ridgeway.common.routing.release import load_release
from ridgeway.common.routing.router import router_of
from ridgeway.common.routing.token_table import normalised_columns
from ridgeway.common.statistics import Integers, Prepared, Statistics, single_domain
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.solving.calibration import temperatures
from ridgeway.coordinator.solving.solve import (
    Draft,
    RouterChoices,
    _Matrix,
    add_up,
    draft,
    sign,
    solve,
)
from tests.support.making import (
    contents,
    fixed_identity,
    one_domain,
    prepared,
    random_samples,
    statistics_of,
)
from tests.support.seeds import few_examples
from tests.support.tiny import tiny_encoder

ENCODER = tiny_encoder()
FEATURES = ENCODER.width + 1
SCALE = 2.0**-9


def random_total(
    seed: int, features: int = FEATURES, domains: int = 3, count: int = 400
) -> Statistics:
    """Statistics that are well conditioned: many more samples than features."""
    samples = random_samples(seed, count, features)
    labels = np.random.default_rng(seed + 1).integers(0, domains, count).tolist()
    return statistics_of(samples, labels, domains)


def weights_of(total: Statistics, ridge: float = DEFAULT.ridge.value) -> _Matrix:
    """The solution under a relative λ."""
    return solve(total, SCALE, Ridge(ridge)).weights


def scaled_system(total: Statistics, scale: float) -> tuple[_Matrix, _Matrix]:
    """A and B in the embedding's own units."""
    units = np.array([scale] * (total.shape[0] - 1) + [1.0])
    return total.gram * units[:, None] * units, total.cross * units[:, None]


def published(parts: list[Prepared], folder: Path, preset: Preset = DEFAULT) -> Draft:
    made = draft(parts, ENCODER, RouterChoices.of_preset(preset))
    sign(made, fixed_identity(), folder)
    return made


# Solving


@few_examples
@given(
    seed=st.integers(0, 1 << 32),
    domains=st.integers(1, 5),
    scale=st.floats(1e-5, 1e-2),
    ridge=st.builds(Ridge, st.floats(1e-4, 10), st.booleans()),
)
def test_weights_solve_the_ridge_equation(
    seed: int, domains: int, scale: float, ridge: Ridge
) -> None:
    """(A + λI) W = B, as any other solver has it; λ is relative to the mean of A's diagonal or
    absolute.
    """
    total = random_total(seed, domains=domains)
    gram, cross = scaled_system(total, scale)
    added = ridge.value * (np.trace(gram) / len(gram) if ridge.relative else 1.0)
    solution = solve(total, scale, ridge)
    expected = np.linalg.solve(gram + added * np.eye(len(gram)), cross)
    assert np.allclose(
        solution.weights, expected, rtol=1e-8, atol=1e-10 * np.abs(expected).max()
    )
    assert solution.ridge == pytest.approx(added, rel=1e-12)


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0])
def test_the_figures_of_a_solution_are_true(scale: float) -> None:
    """The condition number is that of A + λI in the 1-norm, and the residual is as small as it
    says.
    """
    total, ridge = random_total(3), Ridge(1e-3)
    solution = solve(total, scale, ridge)
    gram, cross = scaled_system(total, scale)
    gram += solution.ridge * np.eye(len(gram))
    true = np.linalg.cond(gram, 1)
    assert 0.1 * true <= solution.condition <= 1.01 * true
    residual = np.linalg.norm(gram @ solution.weights - cross) / np.linalg.norm(cross)
    assert solution.residual == pytest.approx(residual, abs=1e-12)
    assert solution.residual < 1e-10


@few_examples
@given(seed=st.integers(0, 1 << 32), domains=st.integers(3, 20), data=st.data())
def test_a_column_does_not_depend_on_the_others(
    seed: int, domains: int, data: st.DataObject
) -> None:
    """Without a domain's column the others' weights are the same, within 1e-12 of their size."""
    total = random_total(seed, domains=domains)
    gone = data.draw(st.integers(0, domains - 1))
    kept = Statistics(total.gram, np.delete(total.cross, gone, axis=1))
    weights = np.delete(weights_of(total), gone, axis=1)
    slack = 1e-12 * np.abs(weights).max()
    assert np.allclose(weights_of(kept), weights, rtol=0, atol=slack)


@few_examples
@given(seed=st.integers(0, 1 << 32), other=st.integers(-(1 << 30), 1 << 30))
def test_what_other_columns_hold_changes_no_bit(seed: int, other: int) -> None:
    """Where the shape stays, a domain's weights are bit for bit the same, whatever the other
    domains say.
    """
    total = random_total(seed, features=60)
    cross = total.cross.copy()
    cross[:, 1:] = other
    changed = weights_of(Statistics(total.gram, cross))
    assert np.array_equal(changed[:, 0], weights_of(total)[:, 0])


@pytest.mark.parametrize("width", [6, 30, 130, 300])
def test_the_number_of_threads_changes_no_bit(width: int) -> None:
    """One thread or two: the same weights, and the same temperatures to try. (Bare LAPACK gives
    other bits.)
    """
    scale = tiny_encoder(width=width).scale
    total = random_total(5, features=width + 1, domains=40, count=500)
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            weights = solve(total, scale, Ridge()).weights
            tried = temperatures(total, weights, scale, Selector("average"))
            results.append((weights.tobytes(), tried))
    assert results[0] == results[1]


@given(seed=st.integers(0, 1 << 32), doublings=st.integers(1, 8))
@few_examples
def test_a_relative_ridge_does_not_see_the_size_of_the_sums(
    seed: int, doublings: int
) -> None:
    """Twice or three times the text of the same kind is the same router: λ grows with it."""
    total = random_total(seed)
    once = solve(total, SCALE, Ridge(0.1))
    for times in (4**doublings, 3):
        larger = Statistics(total.gram * times, total.cross * times)
        more = solve(larger, SCALE, Ridge(0.1))
        assert np.allclose(more.weights, once.weights, rtol=1e-10, atol=1e-13)
        assert more.ridge == pytest.approx(times * once.ridge)


def test_an_absolute_ridge_is_added_as_it_is() -> None:
    """The published method's λ does not grow with the text."""
    assert solve(random_total(1), SCALE, Ridge(0.01, relative=False)).ridge == 0.01


@given(seed=st.integers(0, 1 << 32))
@few_examples
def test_normalised_columns_have_length_one_without_their_constant_part(
    seed: int,
) -> None:
    """Each column is divided by the norm of its embedding part, constant part and all."""
    plain = weights_of(random_total(seed))
    normalised = normalised_columns(plain.copy())
    assert np.linalg.norm(normalised[:-1], axis=0) == pytest.approx(1.0)
    ratios = normalised / plain
    assert np.allclose(ratios, ratios[0], rtol=1e-12)
    assert ratios.min() > 0


def test_a_column_without_signal_cannot_be_normalised() -> None:
    """A domain of which nothing is known is an error with a reason, not a column of NaN."""
    total = random_total(1)
    total.cross[:, 1] = 0
    with pytest.raises(UnsolvableTotal, match="all zero"):
        normalised_columns(weights_of(total))


def test_a_total_that_is_not_positive_definite_is_refused() -> None:
    """The refusal says how much was summed, at which λ, and what to try; there is no silent
    fallback.
    """
    indefinite = single_domain(np.array([[100, 900, 0], [900, 100, 0], [0, 0, 1234]]))
    with pytest.raises(
        UnsolvableTotal,
        match=r"1_234 samples is not positive definite at λ=0\.5; .* raise the ridge",
    ):
        solve(indefinite, 1.0, Ridge(0.5, relative=False))


def test_a_removed_domain_leaves_the_router_that_never_had_it() -> None:
    """Subtracting its sums is exact, so the weights are the same bits."""
    one, two, three = (
        one_domain(random_samples(seed, 200, FEATURES)).placed(seed, 3)
        for seed in range(3)
    )
    kept = (one + two + three) - two
    assert weights_of(kept).tobytes() == weights_of(one + three).tobytes()


# Releases


def three_parts() -> list[Prepared]:
    return [
        prepared("law", ENCODER, 1),
        prepared("code", ENCODER, 2, count=300),
        prepared("medicine", ENCODER, 3),
    ]


@pytest.mark.parametrize("preset", [DEFAULT, PAPER], ids=["default", "paper"])
def test_the_order_of_the_files_changes_no_byte_of_a_release(
    tmp_path: Path, preset: Preset
) -> None:
    """Whoever comes first, every file of the release is the same."""
    releases = []
    for number, order in enumerate(permutations(three_parts())):
        published(list(order), tmp_path / str(number), preset)
        releases.append(contents(tmp_path / str(number)))
    assert sorted(releases[0]) == [
        "manifest.json",
        "router.safetensors",
        "tokenizer.json",
    ]
    assert all(release == releases[0] for release in releases[1:])


def test_the_order_of_holders_who_name_the_encoder_differently_changes_no_byte(
    tmp_path: Path,
) -> None:
    """One encoder may be known as `smollm2` here and `local` there; the fingerprint counts, not who
    comes first.
    """
    one, two = (
        prepared("law", ENCODER, 1, name="smollm2"),
        prepared("code", ENCODER, 2, name="local"),
    )
    published([one, two], tmp_path / "one")
    published([two, one], tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("preset", [DEFAULT, PAPER], ids=["default", "paper"])
def test_dividing_a_domain_over_files_leaves_the_router_unchanged(
    tmp_path: Path, preset: Preset
) -> None:
    """Several holders of one domain give, byte for byte, the router their pooled statistics would
    give.
    """
    samples = random_samples(8, 300, FEATURES, lean=500)
    cuts = [samples[:1], samples[1:120], samples[120:]]
    other = prepared("code", ENCODER, 2)
    whole = published([_law(samples), other], tmp_path / "whole", preset)
    parts = [_law(cuts[2]), other, _law(cuts[0]), _law(cuts[1])]
    divided = published(parts, tmp_path / "divided", preset)
    files, others = contents(tmp_path / "whole"), contents(tmp_path / "divided")
    assert files["router.safetensors"] == others["router.safetensors"]
    assert whole.solution.weights.tobytes() == divided.solution.weights.tobytes()
    assert (whole.total.holders, divided.total.holders) == (2, 4)
    assert whole.total.statistics.equals(divided.total.statistics)


def _law(samples: Integers) -> Prepared:
    return Prepared(
        "law", ENCODER.name, ENCODER.fingerprint, Sampling(), one_domain(samples)
    )


def test_equal_weighting_hides_how_much_text_a_domain_has(tmp_path: Path) -> None:
    """A domain with its text twice over gives the same router, and its mass is the public one."""
    samples, other = random_samples(8, 100, FEATURES), prepared("code", ENCODER, 2)
    once = published([_law(samples), other], tmp_path / "once")
    published([_law(np.concatenate([samples, samples])), other], tmp_path / "twice")
    ids = {load_release(tmp_path / name).id for name in ("once", "twice")}
    assert len(ids) == 1
    assert once.total.masses == {"code": EQUAL_MASS, "law": EQUAL_MASS}


@pytest.mark.parametrize("weighting", ["equal", "tokens"])
def test_a_total_is_the_sum_of_its_placed_domains(weighting: Weighting) -> None:
    """Domains stand in the order of their names, weighted or as they are."""
    parts = three_parts()
    total = add_up(parts, weighting)
    assert total.domains == ("code", "law", "medicine")
    placed = []
    for part in parts:
        sums = part.statistics
        weighted = sums.weighted(EQUAL_MASS) if weighting == "equal" else sums
        placed.append(weighted.placed(total.domains.index(part.domain), 3))
    assert total.statistics.equals(placed[0] + placed[1] + placed[2])


def test_a_release_holds_the_weights_that_were_solved(tmp_path: Path) -> None:
    """What is loaded is what was computed: weights, order of the domains, and the id."""
    made = published(three_parts(), tmp_path / "release")
    release = load_release(tmp_path / "release")
    assert release.weights.tobytes() == made.solution.weights.tobytes()
    assert release.domains == made.total.domains
    assert release.id == router_of(release).release


def test_statistics_of_another_encoder_are_not_published() -> None:
    """The refusal names both fingerprints, before anything is written."""
    other: TableEncoder = tiny_encoder(seed=1)
    with pytest.raises(
        EncoderMismatch, match=f"{ENCODER.fingerprint}.*{other.fingerprint}"
    ):
        draft(three_parts(), other, RouterChoices.of_preset(DEFAULT))
