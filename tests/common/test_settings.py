"""The settings that change a router: the two presets, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from common.errors import InputError
from common.settings import (
    DEFAULT,
    EQUAL_MASS,
    FEATURE_LIMIT,
    PAPER,
    PRESETS,
    Preset,
    Ridge,
    Sampling,
    Selector,
    preset,
)
from common.statistics import check_bound


def test_the_default_preset_is_the_one_that_was_measured() -> None:
    """Windows of 8 every 32 tokens, documents 32 times, equal domains, a relative ridge of 0.001, mean logits."""
    assert Preset(
        sampling=Sampling(window=8, max_tokens=0, stride=32, documents=32),
        holdout=0.05,
        weighting="equal",
        ridge=Ridge(0.001, relative=True),
        normalise_columns=False,
        selector=Selector("average", 10),
    ) == preset("default")
    assert preset("default") is DEFAULT


def test_the_paper_preset_is_the_published_method() -> None:
    """Single tokens, plain sums, λ = 0.01 absolute, normalised columns, the ten most certain tokens vote."""
    assert Preset(
        sampling=Sampling(window=1, max_tokens=1024),
        holdout=0.0,
        weighting="tokens",
        ridge=Ridge(0.01, relative=False),
        normalise_columns=True,
        selector=Selector("entropy", 10),
    ) == preset("paper")
    assert preset("paper") is PAPER


def test_the_public_bounds_are_fixed() -> None:
    """All parties must share them: they are part of what a statistics file means."""
    assert (FEATURE_LIMIT, EQUAL_MASS) == (2**12, 2**24)
    check_bound(EQUAL_MASS * 16_383)


@pytest.mark.parametrize("name", ["", "Default", "papers"])
def test_an_unknown_preset_is_told_with_those_there_are(name: str) -> None:
    """Names are exact."""
    with pytest.raises(InputError, match=f"no preset {name!r}; there are default and paper"):
        preset(name)
    assert list(PRESETS) == ["default", "paper"]


@pytest.mark.parametrize(
    "settings",
    [
        {"window": 0},
        {"window": -1},
        {"window": 65_537},
        {"max_tokens": -1},
        {"max_tokens": (1 << 40) + 1},
        {"max_tokens": math.nan},
    ],
)
def test_a_sampling_that_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    """A window has 1 to 65536 tokens, a limit is positive or none."""
    with pytest.raises(InputError, match=str(next(iter(settings.values())))):
        Sampling(**settings)


@pytest.mark.parametrize("value", [0.0, -0.1, math.inf, math.nan])
def test_a_ridge_that_cannot_be_is_refused(value: float) -> None:
    """λ is a positive number."""
    with pytest.raises(InputError, match="positive number"):
        Ridge(value)


@pytest.mark.parametrize("settings", [{"name": "loudest"}, {"name": ""}, {"name": None}, {"k": 0}, {"k": -3}])
def test_a_selector_that_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    """There are three, and at least one token votes."""
    with pytest.raises(InputError):
        Selector(**settings)


@pytest.mark.parametrize("made", [Sampling(1, 2), Sampling(65_536, 1 << 40)])
def test_a_sampling_comes_back_from_its_json(made: Sampling) -> None:
    """What a file says of its sampling is enough to make it again."""
    assert Sampling(**made.to_json()) == made


def test_ridge_and_selector_come_back_from_their_json() -> None:
    """What a manifest says of them is enough to make them again."""
    ridge, selector = Ridge(0.5, relative=False), Selector("entropy", 3)
    assert Ridge(**ridge.to_json()) == ridge
    assert Selector(**selector.to_json()) == selector
    assert ridge.to_json() == {"value": 0.5, "relative": False}
    assert selector.to_json() == {"name": "entropy", "k": 3}
