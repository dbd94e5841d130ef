"""What the tests of experiments share: one thread for small models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ridgeway.common.encoding.transformer import one_thread


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small are no quicker on many threads, and many test processes have to share the cores."""
    with one_thread():
        yield
