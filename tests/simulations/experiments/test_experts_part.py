"""The part as a whole, on a tiny model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeway.common.base.devices import gpus
from ridgeway.common.base.errors import DeviceError
from ridgeway.simulations.experiments.experts_part import run
from tests.support.experiment_settings import tiny_plan
from tests.support.tiny_experts import tiny_dataset


def test_a_part_has_the_tables_of_the_paper(folder: Path, tmp_path: Path) -> None:
    """Experts among themselves, and every router among experts: once for whole texts, once for their beginnings.
    Letters that no other domain uses give a text away, so that a router is as good as its experts.
    """
    perplexity, whole, begun = run(tiny_plan(tmp_path, tiny_dataset()), folder, ("bayes", "ir3de")).tables
    assert perplexity.column("model")[1:4] == ("code expert", "law expert", "medicine expert")
    names = whole.column("who answers")
    assert names[3:5] == ("experts average (mean of their weights)", "random")
    assert {"naive Bayes on token counts", "IR3DE-all", "IR3DE-avg", "IR3DE, k chosen on held-out text"} <= set(names)
    assert begun.column("who answers") == names
    place = names.index("naive Bayes on token counts")
    assert whole.column("rightly sent, %")[place] == 100.0
    assert whole.column("mean")[place] == pytest.approx(100.0)


@pytest.mark.skipif(bool(gpus()), reason="a CUDA device is here")
def test_a_full_training_without_a_gpu_is_refused(folder: Path, tmp_path: Path) -> None:
    """It would take days; the sentence says what to do."""
    with pytest.raises(DeviceError, match=r"copy its experts\.json"):
        run(replace(tiny_plan(tmp_path), full=True), folder, ("bayes",))
