"""A browser, and fixtures for a story of several tests in one module, each of which
begins where the one before ended.

A module that tells a story has a fixture `town`, the deployment that the story is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.deployment import Deployment

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from tests.support.browser import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def go_on(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Skips what would build upon a part of the story that failed."""
    before = request.session.testsfailed

    def check() -> None:
        if request.session.testsfailed > before:
            pytest.skip("an earlier part of the story failed")

    return check


@pytest.fixture
def show_logs(
    request: pytest.FixtureRequest, go_on: Callable[[], None], town: Deployment
) -> Iterator[None]:
    """Show the logs where a test fails."""
    go_on()
    before = request.session.testsfailed
    yield
    if request.session.testsfailed > before:
        print(town.tails())
