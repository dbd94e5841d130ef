"""Private rounds of an experiment, on tiny corpora: seeds decide, noise costs, attacks stay below their bounds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.common.privacy.public_prior import make_prior
from ridgeway.simulations.experiments.privacy import privacy_part
from ridgeway.simulations.experiments.privacy.private_tables import MODES, PrivateSizes
from ridgeway.simulations.experiments.privacy.private_trials import PrivateGround, PrivateTrial, accuracy
from ridgeway.simulations.experiments.report.report_tables import ReportPart, Table, part_from_json
from tests.support.experiment_settings import tiny_dataset, tiny_plan
from tests.support.tiny import tiny_encoder

SIZE = PrivateSizes(epsilons=(1.0, 20.0), documents=(10, None), seeds=2, runs=30)


@pytest.fixture(scope="module")
def ground() -> PrivateGround:
    dataset, encoder = tiny_dataset(train=300), tiny_encoder(16)
    return PrivateGround(dataset, encoder, {"far": make_prior(encoder, [dataset.test["law"], dataset.test["code"]])})


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_decides_noise_and_documents(ground: PrivateGround, mode: str) -> None:
    """The same seed gives the same figure, and with little noise every text reaches its domain."""
    trial = PrivateTrial("full" if mode == "full" else "columns", 20.0, None, "far")
    assert accuracy(ground, trial, 3) == accuracy(ground, trial, 3) > 95
    few = replace(trial, epsilon=0.1, documents=10)
    assert len({accuracy(ground, few, seed) for seed in range(6)}) > 1


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> ReportPart:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ridgeway.common.privacy.built_in_text.MAX_KIND_CHARACTERS", 20_000)
        two = tiny_dataset(train=120), replace(tiny_dataset(("law", "medicine")), name="two")
        plan = replace(tiny_plan(tmp_path_factory.mktemp("private")), datasets=two)
        return privacy_part.with_private_rounds(plan, ReportPart("privacy", "", ()), SIZE)


def table(part: ReportPart, key: str) -> Table:
    return next(each for each in part.tables if each.key == key)


def test_every_kind_of_round_has_its_row_beside_no_privacy(part: ReportPart) -> None:
    """By prior, documents, mode and ε; a round where there are holders enough; and it survives JSON."""
    rounds = 2 * len(SIZE.documents) * len(MODES) * len(SIZE.epsilons)
    assert len(table(part, "private-tiny").rows) == rounds + 2 and len(table(part, "private-two").rows) == rounds + 1
    assert table(part, "private-tiny").column("mode")[-2:] == ("full, a round", "no privacy")
    for *_, mean, lowest, highest in table(part, "private-tiny").rows:
        assert isinstance(mean, float) and isinstance(lowest, float) and isinstance(highest, float)
        assert lowest <= mean <= highest
    assert {plot.key for plot in part.plots} == {"private-plot-tiny", "private-plot-two"}
    assert any("attacks on documents of two" in words for words in part.left_out)
    assert part_from_json(json.loads(json.dumps(part.to_json()))).tables == part.tables


def test_membership_stays_below_what_epsilon_allows(part: ReportPart) -> None:
    """Planted documents are told apart as often as this noise lets them be, and never more often than ε allows."""
    for *_, planted, noise, allowed in table(part, "private-attacks-tiny").rows:
        assert isinstance(planted, float) and isinstance(allowed, float)
        assert planted == pytest.approx(noise, abs=4) and planted <= allowed + 2
