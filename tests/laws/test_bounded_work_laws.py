"""Laws of what is routed of a text, and of what requests hold."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.routing.conversation import Turn
from ridgeway.common.routing.conversations import (
    MAX_EARLIER_CHARACTERS,
    MAX_ROUTED_CHARACTERS,
    cut,
    cut_turns,
)
from ridgeway.common.web.http_errors import RefusedRequest
from ridgeway.common.web.request_context import HeldBytes, Holding


@given(text=st.text(max_size=60), most=st.integers(4, 40))
def test_a_cut_text_begins_and_ends_as_the_text(text: str, most: int) -> None:
    """It is as long as it may be, is cut no further, and a short text is left as it is."""
    kept = cut(text, most)
    assert len(kept) == min(len(text), most)
    assert cut(kept, most) == kept
    half = most // 2
    assert kept == text or (
        kept.startswith(text[: half - 1]) and kept.endswith(text[-half:])
    )


@given(
    sizes=st.lists(st.integers(0, 3 * MAX_ROUTED_CHARACTERS), min_size=1, max_size=70),
    equal=st.booleans(),
)
def test_no_request_has_more_routed_than_its_share(
    sizes: list[int], equal: bool
) -> None:
    """However many turns and however long, and what is left out is counted."""
    turns = [
        Turn("x" * size, 1.0 if equal else 8.0**-age) for age, size in enumerate(sizes)
    ]
    kept, left_out = cut_turns(turns)
    total = sum(len(turn.text) for turn in kept)
    assert total + left_out == sum(sizes)
    assert total <= MAX_ROUTED_CHARACTERS + (
        0 if equal else (len(turns) - 1) * MAX_EARLIER_CHARACTERS
    )
    assert [turn.weight for turn in kept] == [turn.weight for turn in turns]


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 50)), max_size=40))
def test_what_is_held_is_the_sum_of_what_each_holds_and_never_above_the_limit(
    steps: list[tuple[int, int]],
) -> None:
    """A refusal changes nothing but the count of refusals; letting go frees all that one held. −1:
    lets go.
    """
    refusals: list[RefusedRequest] = []
    held = HeldBytes(100, refusals.append)
    holdings = [Holding(held) for _ in range(4)]
    refused = 0
    for who, size in steps:
        if size < 0:
            holdings[who].let_go()
            continue
        before = held.total
        with contextlib.suppress(RefusedRequest):
            holdings[who].add(size)
            continue
        refused += 1
        assert held.total == before and before + size > 100
    assert held.total == sum(holding.size for holding in holdings) <= 100
    assert len(refusals) == refused
