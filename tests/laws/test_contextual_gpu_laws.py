"""A contextual encoder's sums on a device: exact products, of features that bfloat16 moves a little."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ridgeway.client.sums import transformer_sums as contextual
from ridgeway.client.sums.accumulate import add_states, of_triangle
from ridgeway.client.sums.transformer_sums import ContextualSums, LateSums
from ridgeway.common.base.settings import FEATURE_LIMIT, Sampling
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
from tests.support.gpu import Place, at_every_place, needs_gpu
from tests.support.tiny_models import a_corpus, added, loaded
from tests.support.tiny_models import model_folder as model_folder
from tests.support.tiny_models import tiny_model_encoder as tiny_model_encoder

WINDOW = Sampling(window=16)
GPU = "cuda:0"


@at_every_place
def test_a_device_sums_what_the_cpu_sums(
    encoder: ContextualEncoder, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same features give the same integers, whoever multiplies them."""
    from ridgeway.client.sums.gpu.block_gram import BlockGram

    texts = a_corpus(1, 60)
    here = added(ContextualSums(loaded(encoder), encoder, WINDOW), texts).state()["gram"]
    with place.entered() as device:

        class There(BlockGram):
            def add(self, samples: object) -> None:
                super().add(samples.to(device))  # type: ignore[attr-defined]

        monkeypatch.setattr(contextual, "_gram", lambda _, width: There(device, width))
        there = added(ContextualSums(loaded(encoder), encoder, WINDOW), texts).state()["gram"]
    assert np.array_equal(here, there)


@needs_gpu
def test_a_gpu_gives_nearly_the_features_of_the_cpu(encoder: ContextualEncoder, folder: Path) -> None:
    """bfloat16 differs from float32 by a little; what is counted does not differ at all."""
    from ridgeway.common.encoding.transformer import transformer

    texts = a_corpus(2, 200)
    transformer(encoder, GPU, folder)
    sums = LateSums(encoder, WINDOW, GPU)
    gpu = of_triangle(added(sums, texts).state()["gram"])
    here = of_triangle(added(ContextualSums(loaded(encoder), encoder, WINDOW), texts).state()["gram"])
    assert gpu.mass == here.mass
    assert np.abs(gpu.cross - here.cross).max() <= 0.01 * FEATURE_LIMIT * here.mass


@needs_gpu
def test_dividing_a_corpus_on_a_gpu_changes_no_bit(encoder: ContextualEncoder, folder: Path) -> None:
    """Passes have fixed shapes there too."""
    from ridgeway.common.encoding.transformer import transformer

    texts = a_corpus(3, 400)
    transformer(encoder, GPU, folder)
    make = partial(LateSums, encoder, WINDOW, GPU)
    parts = [added(make(), texts[start::3]).state() for start in range(3)]
    total = add_states(add_states(parts[0], parts[1]), parts[2])
    assert np.array_equal(total["gram"], added(make(), texts).state()["gram"])
