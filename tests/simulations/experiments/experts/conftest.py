"""What the tests of experts share: a small language model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_experts import make_language_model


@pytest.fixture(scope="module", name="folder")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_language_model(tmp_path_factory.mktemp("model"))
