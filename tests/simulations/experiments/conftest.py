"""What the tests of experiments share: one thread for small models, and a small language model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeway.common.base.machine import one_torch_thread


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small are no quicker on many threads, and many test processes have to share the
    cores.
    """
    with one_torch_thread():
        yield


@pytest.fixture(scope="module", name="folder")
def model_folder(module_path: Path) -> Path:
    from tests.support.tiny_experts import make_language_model

    return make_language_model(module_path)
