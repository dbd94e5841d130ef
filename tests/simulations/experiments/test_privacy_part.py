"""The parts on privacy: what is promised, what it costs, what attacks find, and the summary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.common.privacy.noise import PrivacyMode
from ridgeway.common.privacy.public_prior import make_prior
from ridgeway.simulations.experiments import privacy_part
from ridgeway.simulations.experiments.privacy_part import (
    _MODES,
    PrivateGround,
    accuracy,
)
from ridgeway.simulations.experiments.report import ReportPart
from ridgeway.simulations.experiments.routers import OURS
from tests.support.experiment_settings import tiny_dataset, tiny_plan
from tests.support.tiny import private_encoder

# What ε promises, against its definitions.


def test_noise_tells_less_than_epsilon_allows_and_more_of_many_documents_than_of_many_rounds(
    tmp_path: Path,
) -> None:
    """Once is the ε itself; k documents cost what k² rounds do."""
    meaning, multiples = privacy_part.run_epsilon(tiny_plan(tmp_path)).tables
    allowed, noise = (
        meaning.column("pairs told apart: allowed, %"),
        meaning.column("by this noise, %"),
    )
    assert all(
        50 < float(str(less)) < float(str(more)) < 100
        for less, more in zip(noise, allowed, strict=True)
    )
    assert meaning.column("odds change by at most")[1] == pytest.approx(
        2.71828, abs=1e-4
    )
    for epsilon, what, once, *more in multiples.rows:
        assert once == pytest.approx(float(str(epsilon)), rel=1e-6)
        assert sorted(map(float, map(str, more))) == [float(str(cell)) for cell in more]
        assert what in ("documents of one person", "rounds")


# Private rounds of an experiment, on tiny corpora: seeds decide, noise costs, attacks stay below
# their bounds.


EPSILONS = (1.0, 20.0)


@pytest.fixture(scope="module")
def ground(private_sentences: None) -> PrivateGround:
    dataset, encoder = tiny_dataset(train=300), private_encoder()
    texts = [*dataset.test["law"], *dataset.test["code"]]
    return PrivateGround(dataset, encoder, make_prior(encoder, texts))


@pytest.mark.parametrize("mode", _MODES)
def test_a_seed_decides_the_noise(ground: PrivateGround, mode: PrivacyMode) -> None:
    """The same seed gives the same figure, and with little noise every text reaches its domain."""
    little, much = ground.privacy(mode, 20.0), ground.privacy(mode, 0.1)
    assert accuracy(ground, little, 3) == accuracy(ground, little, 3) > 95
    assert len({accuracy(ground, much, seed) for seed in range(3)}) > 1


@pytest.fixture(scope="module")
def found(module_path: Path, private_sentences: None) -> ReportPart:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "OURS_WITH_SENTENCES": OURS,
            "EPSILONS": EPSILONS,
            "NOISE_DRAWS": 2,
            "PLANTED_RUNS": 8,
            "CANARIES": 400,
        }.items():
            patch.setattr(privacy_part, name, value)
        two = (
            tiny_dataset(train=120),
            replace(tiny_dataset(("law", "medicine")), name="two"),
        )
        return privacy_part.run_privacy(replace(tiny_plan(module_path), datasets=two))


def test_every_kind_of_round_has_its_row_beside_no_privacy(found: ReportPart) -> None:
    """By mode and ε; attacks on too few documents are left out by name."""
    tiny, _, two = found.tables
    assert len(tiny.rows) == len(two.rows) == len(_MODES) * len(EPSILONS) + 1
    assert tiny.column("mode")[-1] == "no privacy"
    for *_, mean, lowest, highest in tiny.rows:
        assert (
            isinstance(mean, float)
            and isinstance(lowest, float)
            and isinstance(highest, float)
        )
        assert lowest <= mean <= highest
    assert any("attacks on documents of two" in words for words in found.left_out)


def test_membership_stays_below_what_epsilon_allows(found: ReportPart) -> None:
    """Planted documents are told apart as often as this noise lets them be, and never more often
    than ε allows.
    """
    attacks = found.tables[1]
    assert len(attacks.rows) >= 2 * len(EPSILONS)
    for *_, planted, noise, allowed in attacks.rows:
        assert isinstance(planted, float) and isinstance(allowed, float)
        assert planted == pytest.approx(noise, abs=4) and planted <= allowed + 2


# The summary, on tiny corpora.


def test_a_summary_has_a_number_for_each_dataset_and_kind_of_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private_sentences: None
) -> None:
    """With little noise every text reaches its domain."""
    monkeypatch.setattr(privacy_part, "SEEDS", 1)
    monkeypatch.setitem(
        privacy_part._EXACT, "ridgeway with sentences", ("with sentences", OURS)
    )
    monkeypatch.setattr(
        privacy_part,
        "_PRIVATE",
        {"private": ("columns", 20.0), "private, full": ("full", 20.0)},
    )
    sets = (
        tiny_dataset(train=120),
        replace(tiny_dataset(("law", "code", "poetry"), train=120), name="three"),
    )
    part = privacy_part.run_summary(replace(tiny_plan(tmp_path), datasets=sets))
    [table] = part.tables
    assert table.columns == ("router", "tiny", "three")
    assert [str(name).partition(",")[0] for name in table.column("router")] == [
        "the published method",
        "the default",
        "with sentences",
        "private",
        "private",
    ]
    assert all(
        isinstance(cell, float) and 80 < cell <= 100
        for row in table.rows[1:]
        for cell in row[1:]
    )
