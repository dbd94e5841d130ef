"""Private rounds of an experiment, on tiny corpora: seeds decide, noise costs, attacks stay below
their bounds.
"""

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
from tests.support.tiny import tiny_encoder

EPSILONS = (1.0, 20.0)


@pytest.fixture(scope="module")
def ground() -> PrivateGround:
    dataset, encoder = tiny_dataset(train=300), tiny_encoder(16)
    return PrivateGround(
        dataset,
        encoder,
        make_prior(encoder, [dataset.test["law"], dataset.test["code"]]),
    )


@pytest.mark.parametrize("mode", _MODES)
def test_a_seed_decides_the_noise(ground: PrivateGround, mode: PrivacyMode) -> None:
    """The same seed gives the same figure, and with little noise every text reaches its domain."""
    little, much = ground.privacy(mode, 20.0), ground.privacy(mode, 0.1)
    assert accuracy(ground, little, 3) == accuracy(ground, little, 3) > 95
    assert len({accuracy(ground, much, seed) for seed in range(6)}) > 1


@pytest.fixture(scope="module")
def found(module_path: Path) -> ReportPart:
    """Of tokens alone: to read sentences would take minutes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "SENTENCE": "",
            "OURS_WITH_SENTENCES": OURS,
            "EPSILONS": EPSILONS,
            "NOISE_DRAWS": 2,
            "PLANTED_RUNS": 30,
        }.items():
            patch.setattr(privacy_part, name, value)
        patch.setattr(
            "ridgeway.common.privacy.built_in_text.MAX_KIND_CHARACTERS", 20_000
        )
        two = (
            tiny_dataset(train=120),
            replace(tiny_dataset(("law", "medicine")), name="two"),
        )
        return privacy_part.run(replace(tiny_plan(module_path), datasets=two))


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
