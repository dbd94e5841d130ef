"""Fixtures that every test may use. No test reads or writes the user's own cache or keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from common.devices import cards
from common.encoder import Encoder
from tests.tiny import tiny_encoder

if not cards():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU; Triton must know before it is first imported

settings.register_profile("ridgeway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ridgeway")


@pytest.fixture(scope="session", autouse=True)
def _no_folders_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures that many tests share do not touch the user's folders either."""
    home = tmp_path_factory.mktemp("shared-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIDGEWAY_CACHE", str(home / "cache"))
        patch.setenv("RIDGEWAY_CONFIG", str(home / "config"))
        yield


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a cache and a configuration folder of its own."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("RIDGEWAY_CACHE", str(home / "cache"))
    monkeypatch.setenv("RIDGEWAY_CONFIG", str(home / "config"))


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """A small encoder made on the spot."""
    return tiny_encoder()


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The default encoder, converted once a test run from the installed wheel."""
    from common.encoder_sources import find_encoder

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIDGEWAY_CACHE", str(tmp_path_factory.mktemp("smollm2")))
        return find_encoder("smollm2")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora beside the project; tests that measure on them are skipped where they are absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the corpora in ../shared/data are not on this machine")
    return folder
