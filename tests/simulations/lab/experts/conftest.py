"""What the tests of experts share: a small language model, and one thread to run it on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.transformer import one_thread
from tests.tiny_experts import make_language_model


@pytest.fixture(scope="module", autouse=True)
def _calm() -> Iterator[None]:
    """Models this small are no quicker on many threads."""
    with one_thread():
        yield


@pytest.fixture(scope="module", name="folder")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_language_model(tmp_path_factory.mktemp("model"))
