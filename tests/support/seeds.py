"""How much a run tries: seeds of long tests, examples of slow laws. A quick run tries few, a long
one all.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings


def seeds(count: int, usual: int | None = None) -> list[Any]:
    """The numbers below a count as parameters; those from `usual` on are tried with `--long`
    only.
    """
    return [
        0,
        *(
            pytest.param(seed, marks=seed_marks(seed, usual or count))
            for seed in range(1, count)
        ),
    ]


def seed_marks(seed: int, usual: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if seed < usual else [pytest.mark.slow, pytest.mark.long]


few_examples = settings(max_examples=max(settings().max_examples // 4, 8))
"""For laws whose examples take long: a quarter of what the profile tries."""
