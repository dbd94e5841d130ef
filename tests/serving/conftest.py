"""Fixtures of the gateway's tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_expert import Expert, well
from tests.support.in_process import (
    DOMAINS,
    EVERYONE,
    FALLBACK,
    Fleet,
    GatewayExperts,
    GatewayMaker,
    experts_toml,
    served,
)
from tests.support.serving import release_of


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gateway") / "release"
    release_of(folder, DOMAINS)
    return folder


@pytest.fixture
def cast(release: Path, tmp_path: Path) -> GatewayMaker:
    @contextlib.contextmanager
    def play(top: str = FALLBACK, **more: Any) -> Iterator[GatewayExperts]:
        with contextlib.ExitStack() as stack:
            experts = {
                name: stack.enter_context(Expert(well(name))) for name in EVERYONE
            }
            file = tmp_path / "experts.toml"
            file.write_text(
                experts_toml(
                    {name: expert.url for name, expert in experts.items()}, top, **more
                )
            )
            yield GatewayExperts(stack.enter_context(served(release, file)), experts)

    return play


@pytest.fixture
def fleet(release: Path, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(release, tmp_path / "experts.toml") as fleet:
        yield fleet
