"""Hand-overs of keys: what a key leads to, and which keys are one owner's, whatever is told and in
whichever order.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.identity import HandOver, HandOvers, hand_over
from tests.support.making import fixed_identity

PEOPLE = [fixed_identity(number) for number in range(1, 9)]
KEYS = [person.public for person in PEOPLE]
links = st.builds(
    lambda pair, issued: hand_over(pair[0], pair[1], issued),
    st.lists(st.sampled_from(PEOPLE), min_size=2, max_size=2, unique=True),
    st.integers(0, 2),
)
hand_overs = st.lists(links, max_size=12)


def chain(*at: int) -> list[HandOver]:
    return [hand_over(PEOPLE[one], PEOPLE[other], 0) for one, other in pairwise(at)]


@given(hand_overs, hand_overs)
def test_what_a_key_leads_to_changes_only_by_its_own_hand_over(
    first: list[HandOver], later: list[HandOver]
) -> None:
    """Forks and rings among them: whoever has an old key can lead nobody astray who met its first
    hand-over.
    """
    known = HandOvers().merged_with(first)
    grown = known.merged_with(later)
    for key in KEYS:
        newest = grown.newest(key)
        earlier = [link.before for link in grown.leading_to(newest)]
        assert known.newest(key) in (*earlier, newest)
    assert grown.links[: len(known.links)] == known.links


@given(hand_overs, hand_overs)
def test_keys_once_of_one_owner_stay_so(
    first: list[HandOver], later: list[HandOver]
) -> None:
    """What was judged as one holder is never judged as two afterwards."""
    known = HandOvers().merged_with(first)
    grown = known.merged_with(later)
    for one in KEYS:
        assert grown.owner(known.owner(one)) == grown.owner(one)
    for link in (*grown.links, *grown.forks):
        assert grown.owner(link.before) == grown.owner(link.after)


@given(st.permutations(range(len(PEOPLE))), st.integers(2, len(PEOPLE)), st.data())
def test_a_chain_is_known_in_whichever_order_it_is_told(
    people: list[int], length: int, data: st.DataObject
) -> None:
    """And from the key that somebody pinned in the middle of it."""
    path = people[:length]
    whole = chain(*path)
    known = HandOvers().merged_with(data.draw(st.permutations(whole)))
    keys = [KEYS[at] for at in path]
    assert {known.newest(key) for key in keys} == {keys[-1]}
    assert {known.owner(key) for key in keys} == {keys[0]}
    assert known.keys(keys[1]) == tuple(keys)
    assert known.leading_to(keys[-1]) == tuple(whole)


def test_a_fork_is_kept_once_and_leads_nowhere() -> None:
    """The first hand-over of a key holds; one more is proof, and further ones would only fill a
    journal.
    """
    known = HandOvers().merged_with([*chain(0, 1), *chain(0, 2), *chain(0, 3)])
    assert (known.newest(KEYS[0]), len(known.forks)) == (KEYS[1], 1)
    assert known.owner(KEYS[2]) == KEYS[0]
    assert known.keys(KEYS[0]) == (KEYS[0], KEYS[1])


@given(links, st.integers(0, 127), st.integers(0, 1))
def test_a_signature_that_was_changed_is_refused(
    link: HandOver, position: int, which: int
) -> None:
    """That of the key before as well as that of the key after."""
    signatures = [list(signature) for signature in link.signatures]
    changed = signatures[which]
    changed[position] = "0" if changed[position] != "0" else "1"
    before, after = map("".join, signatures)
    with pytest.raises(Refused, match="not signed"):
        HandOvers().merged_with([replace(link, signatures=(before, after))])


@pytest.mark.parametrize(
    "facts",
    [
        {"before": "A" * 64},
        {"after": "ab"},
        {"issued": -1},
        {"issued": "1"},
        {"signatures": []},
        {"signatures": ["0" * 128, 1]},
        {"before": None},
    ],
)
def test_what_is_no_hand_over_cannot_be_read_as_one(facts: dict[str, object]) -> None:
    """Keys and signatures have one spelling."""
    [link] = chain(0, 1)
    with pytest.raises((ValueError, TypeError)):
        HandOver.of(link.to_json() | facts)
    assert HandOver.of(link.to_json()) == link
