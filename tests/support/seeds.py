"""Seeds of long tests: a quick run tries the first alone."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(count: int) -> list[Any]:
    return [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, count))]
