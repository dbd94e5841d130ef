"""How far a model's features differ between devices: measured on windows, and by what becomes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ridgeway.common.base.devices import gpus
from ridgeway.common.base.errors import DeviceError, InputError
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.common.encoding.model_rows import Rows
from ridgeway.common.encoding.transformer import Transformer
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
from ridgeway.simulations.bench.device import Device
from ridgeway.simulations.bench.measuring import BenchReport
from ridgeway.simulations.bench.transformer_bench import bench_features
from ridgeway.simulations.cli import bench_commands as bench_cli
from tests.support.corpora_on_disk import sentences
from tests.support.tiny import tiny_encoder
from tests.support.tiny_models import KINDS, loaded, tiny_contextual

TEXTS = {"law": sentences("law", 12, 40), "code": sentences("code", 12, 40)}


@pytest.fixture(params=KINDS)
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> ContextualEncoder:
    return tiny_contextual(tmp_path / "model", str(request.param))


def found(encoder: ContextualEncoder, there: Transformer) -> dict[str, float]:
    return {result.name: result.ratio for result in bench_features(encoder, TEXTS, loaded(encoder), there)}


def test_the_same_machine_differs_in_nothing(encoder: ContextualEncoder) -> None:
    """Not a unit, not a decision."""
    figures = found(encoder, loaded(encoder))
    assert figures.pop("windows that go to the same domain, share") == 1.0
    assert set(figures.values()) == {0.0}


class Moved(Transformer):
    """A machine whose features are all larger by so much."""

    by: float

    def means(self, rows: Rows) -> torch.Tensor:
        return super().means(rows) + self.by


def test_features_that_differ_are_counted(encoder: ContextualEncoder) -> None:
    """All of them are moved, by one unit or by two."""
    moved = Moved(loaded(encoder)._model, "cpu", encoder.tokenizer)
    moved.by = 1.5 * encoder.scale
    figures = found(encoder, moved)
    assert figures["features that differ, share"] == 1.0
    assert figures["largest difference, units"] == 2.0
    assert 0.0 < figures["features that differ by more than one unit, share"] < 1.0
    assert 1.0 < figures["difference, root mean square, units"] < 2.0


def test_an_encoder_with_a_table_has_nothing_to_compare(tmp_path: Path) -> None:
    """Its features are the same integers everywhere."""
    save_encoder(tiny_encoder(), tmp_path / "table")
    options = bench_cli.BenchOptions(Device(), encoder=f"dir:{tmp_path / 'table'}")
    with pytest.raises(InputError, match="the same everywhere"):
        bench_cli.add_features(BenchReport("features", {}), options)


@pytest.mark.skipif(bool(gpus()), reason="a CUDA device is here")
def test_without_a_gpu_there_is_nothing_to_compare_with() -> None:
    """One sentence, and nothing is measured."""
    with pytest.raises(DeviceError, match="the device cuda cannot be used"):
        bench_cli.features("contextual:nowhere")
