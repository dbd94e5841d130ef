"""The settings that change a router: the two presets, and what is refused."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import (
    _PRESETS,
    DEFAULT,
    PAPER,
    Preset,
    Ridge,
    Sampling,
    Selector,
    WordFeatures,
    changed_sampling,
    preset,
)


def test_the_paper_preset_is_the_published_method() -> None:
    """Single tokens, plain sums, λ = 0.01 absolute, normalised columns, the ten most certain tokens
    vote.
    """
    assert Preset(
        sampling=Sampling(window=1, max_tokens=1024),
        holdout=0.0,
        weighting="tokens",
        ridge=Ridge(0.01, relative=False),
        normalise_columns=True,
        selector=Selector("entropy", 10),
        encoder="smollm2",
    ) == preset("paper")
    assert preset("paper") is PAPER


@pytest.mark.parametrize("name", ["", "Default", "papers"])
def test_an_unknown_preset_is_told_with_those_there_are(name: str) -> None:
    """Names are exact."""
    with pytest.raises(
        InputError, match=f"no preset {name!r}; there are default and paper"
    ):
        preset(name)
    assert list(_PRESETS) == ["default", "paper"]


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        *((Sampling, {"window": size}, str(size)) for size in (0, -1, 65_537)),
        *(
            (Sampling, {"max_tokens": limit}, str(limit))
            for limit in (-1, (1 << 40) + 1, math.nan)
        ),
        (
            Sampling,
            {"window": 64, "stride": 32},
            "a stride of 32 is shorter than the window of 64; use 64 or more, or 0",
        ),
        (
            Sampling,
            {"window": 8, "stride": 65537},
            "stride is 65537; it must be 0 to 65536",
        ),
        (Sampling, {"units": 7}, "units is 7; it must be a multiple of 5, or 0"),
        (Sampling, {"units": -5}, "units is -5; it must be 0 to 4096"),
        (Sampling, {"units": 4100}, "units is 4100"),
        (Sampling, {"mistyped": -1}, "mistyped is -1; it must be 0 to 4096"),
        (Sampling, {"mistyped": 4097}, "mistyped is 4097"),
        *(
            (Ridge, {"value": value}, "must be positive")
            for value in (0.0, -0.1, math.inf, math.nan)
        ),
        *((Selector, {"name": name}, "selector") for name in ("loudest", "", None)),
        *((Selector, {"k": count}, "k must be at least 1") for count in (0, -3)),
        *((WordFeatures, {"width": width}, str(width)) for width in (0, 16_385)),
        *(
            (WordFeatures, {"amplitude": amplitude}, str(amplitude))
            for amplitude in (0, 4_097)
        ),
    ],
)
def test_a_setting_that_cannot_be_is_one_sentence(
    kind: Any, given: dict[str, Any], words: str
) -> None:
    """What was seen, and what can be given instead."""
    with pytest.raises(InputError, match=words):
        kind(**given)


@pytest.mark.parametrize("made", [WordFeatures(), WordFeatures(512, 1)])
def test_words_come_back_from_their_json(made: WordFeatures) -> None:
    """Files of earlier versions, which tell how long runs are, are refused."""
    assert WordFeatures.of_json(asdict(made)) == made
    with pytest.raises(InputError, match="another version"):
        WordFeatures.of_json(asdict(made) | {"shortest": 2, "longest": 3})


@pytest.mark.parametrize(
    ("sampling", "words", "plain"),
    [
        (Sampling(), "window 64", True),
        (Sampling(8, stride=8), "window 8, stride 8", True),
        (Sampling(8, stride=32), "window 8, stride 32", False),
        (PAPER.sampling, "window 1, max_tokens 1024", True),
        (Sampling(8, mistyped=1), "window 8, mistyped 1", False),
        (DEFAULT.sampling, "window 32, stride 128, units 15, mistyped 8", False),
    ],
)
def test_a_sampling_says_what_it_is(
    sampling: Sampling, words: str, plain: bool
) -> None:
    """In the words that errors and steps use; plain ones put every token into one window and no
    more.
    """
    assert (str(sampling), sampling.is_plain) == (words, plain)


def test_a_window_alone_means_plain_windows() -> None:
    """Who asks for a size does not get the default's other settings with it; who asks for others
    keeps its size.
    """
    assert changed_sampling(DEFAULT.sampling, window=16) == Sampling(16)
    assert changed_sampling(DEFAULT.sampling, window=16, units=5) == Sampling(
        16, units=5
    )
    assert changed_sampling(DEFAULT.sampling, units=0, stride=None) == Sampling(
        32, stride=128, mistyped=8
    )
    assert changed_sampling(DEFAULT.sampling, mistyped=0) == Sampling(
        32, stride=128, units=15
    )
    assert changed_sampling(DEFAULT.sampling, window=None) == DEFAULT.sampling
    assert changed_sampling(PAPER.sampling, window=2) == Sampling(2, max_tokens=1024)


@given(
    window=st.integers(1, 9),
    stride=st.just(0) | st.integers(9, 99),
    more=st.fixed_dictionaries(
        {"units": st.integers(0, 9).map(lambda n: 5 * n), "mistyped": st.integers(0, 9)}
    ),
)
def test_a_sampling_survives_its_json(
    window: int, stride: int, more: dict[str, int]
) -> None:
    """Plain windows are written as they always were."""
    sampling = Sampling(window, stride=stride, **more)
    assert Sampling.of_json(sampling.to_json()) == sampling
    assert set(Sampling(window).to_json()) == {"window", "max_tokens"}
