"""Secure aggregation: what is sealed and opened is the plain sum, whoever falls away, and is noise
until then.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from ridgeway.common.base.errors import MaskingError, Refused
from ridgeway.common.masking.agreement import threshold_for
from ridgeway.common.masking.member import reveal
from ridgeway.common.masking.reference_session import Step, Transcript
from ridgeway.common.masking.shares import (
    BLOCK,
    COMPLETE,
    MAX_GONE,
    PRIME,
    apply_masks,
    combine,
    pack_by_member,
    split,
    unpack_by_member,
)
from tests.support.making import refusing
from tests.support.masked_session import (
    SUM_NAMES,
    fixed_random,
    run_session,
    small_neighbourhoods,
)
from tests.support.seeds import few_examples

LARGEST = 1 << 61
STEPS: st.SearchStrategy[Step] = st.sampled_from(("share", "send", "open"))


def vectors(members: int, size: int, seed: int = 0) -> list[NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-LARGEST // members, LARGEST // members, size)
        for _ in range(members)
    ]


# Shares


@given(
    secret=st.binary(min_size=32, max_size=32),
    indices=st.sets(st.integers(1, 300), min_size=1, max_size=12),
    data=st.data(),
)
def test_any_threshold_of_shares_gives_the_secret_back(
    secret: bytes, indices: set[int], data: st.DataObject
) -> None:
    """Which ones does not matter, nor do more of them."""
    threshold = data.draw(st.integers(1, len(indices)))
    shares = split(secret, threshold, sorted(indices), fixed_random("law"))
    chosen = data.draw(st.sets(st.sampled_from(sorted(indices)), min_size=threshold))
    assert combine({index: shares[index] for index in chosen}) == secret


@given(
    first=st.binary(min_size=32, max_size=32),
    second=st.binary(min_size=32, max_size=32),
)
def test_fewer_shares_than_the_threshold_fit_every_secret(
    first: bytes, second: bytes
) -> None:
    """Two of three shares of one secret are, with some third share, shares of any other: they say
    nothing.
    """
    shares = split(first, 3, [1, 2, 3], fixed_random("hidden"))
    known = {index: int.from_bytes(shares[index], "big") for index in (1, 2)}
    wanted = int.from_bytes(second, "big")
    third = (wanted - 3 * known[1] + 3 * known[2]) % PRIME  # from s = 3a - 3b + c
    made = {**{index: shares[index] for index in (1, 2)}, 3: third.to_bytes(33, "big")}
    assert combine(made) == second


def test_shares_that_cannot_be_are_refused() -> None:
    """Wrong sizes, indices and values are errors, not other secrets."""
    with pytest.raises(MaskingError):
        split(bytes(31), 1, [1], fixed_random(""))
    for threshold, indices in ((0, [1]), (2, [1]), (1, [0]), (1, [1, 1])):
        with pytest.raises(MaskingError):
            split(bytes(32), threshold, indices, fixed_random(""))
    for shares in (
        {},
        {0: bytes(33)},
        {1: PRIME.to_bytes(33, "big")},
        {1: (PRIME - 1).to_bytes(33, "big")},
    ):
        with pytest.raises(MaskingError):
            combine(shares)


def test_parts_by_place_come_back_whole_and_in_order_or_not_at_all() -> None:
    """Cut off, with more at their end, in another order, or one of them twice."""
    packed = pack_by_member({2: b"ab", 1: b"cd"})
    assert unpack_by_member(packed, 2) == {1: b"cd", 2: b"ab"}
    first, second = packed[: len(packed) // 2], packed[len(packed) // 2 :]
    for damaged in (packed[:-1], packed + b"x", second + first, first + first):
        with pytest.raises(MaskingError, match="parts of 2 bytes in order"):
            unpack_by_member(damaged, 2)


# Sums


def opened_as_plain(members: int, most_gone: int, data: st.DataObject) -> Transcript:
    """A session in which some fall away at drawn stages, and whose total is the plain sum of those
    who have sent.
    """
    spare = members - threshold_for(members)
    order = data.draw(st.permutations(range(1, members + 1)))
    steps = data.draw(st.lists(STEPS, max_size=min(spare, most_gone)))
    fallen = dict(zip(order, steps, strict=False))
    given_ = vectors(members, 40, members)
    sum_name = data.draw(st.sampled_from(SUM_NAMES))
    run = run_session(members, sum_name, given_, fallen)
    counted = [
        vector
        for member, vector in enumerate(given_, start=1)
        if fallen.get(member, "open") == "open"
    ]
    assert np.array_equal(run.total, np.sum(counted, axis=0))
    return run


@few_examples
@given(members=st.integers(3, 9), data=st.data())
def test_the_opened_sum_is_the_plain_sum_whoever_falls_away(
    members: int, data: st.DataObject
) -> None:
    """Before sharing, after sharing, after sending: any pattern that leaves the threshold."""
    opened_as_plain(members, members, data)


@few_examples
@given(members=st.integers(6, 11), data=st.data())
def test_the_opened_sum_of_a_large_cohort_is_the_plain_sum(
    members: int, data: st.DataObject
) -> None:
    """Though nobody's shares lie with more than a few: as long as enough of these are left of every
    member's.
    """
    with small_neighbourhoods(5, 2):
        run = opened_as_plain(members, 3, data)
    assert all(
        len(holders) == 5 and member not in holders
        for member, holders in run.holders.items()
    )
    assert len(run.locks) >= threshold_for(members)


@pytest.mark.slow
def test_a_cohort_of_true_size_opens_with_a_sixth_away_and_not_with_a_lock_less() -> (
    None
):
    """101 members with the neighbourhoods of a real round; a third that colludes has too few shares
    of anybody.
    """
    members = COMPLETE + 1
    given_, away = vectors(members, 8), members // MAX_GONE
    run = run_session(
        members, "sums", given_, dict.fromkeys(range(1, away + 1), "send")
    )
    shared, sent = run.agreement.indices, sorted(run.reveals)
    assert np.array_equal(run.total, np.sum(given_[away:], axis=0))
    first = sent[0]
    held = run.held[first]
    asked = run.agreement, first, "sums", held, shared, sent
    few = dict(list(run.locks.items())[: run.agreement.threshold - 1])
    with pytest.raises(Refused, match="signatures of 1 members are missing"):
        reveal(*asked, run.confirmations, locks=few)
    dealer = min(member for member in held if member in sent)
    signed, locks = (
        {member: word for member, word in words.items() if member != dealer}
        for words in (run.confirmations, run.locks)
    )
    with pytest.raises(Refused, match="has not signed"):
        reveal(*asked, signed, locks=locks)
    # who has locked a set has signed it
    assert reveal(*asked, signed, locks=run.locks) == run.reveals[first]
    colluding = set(shared[::3][: (members - 1) // 3])
    assert all(
        len(holders & colluding) < run.agreement.share_threshold
        for holders in run.holders.values()
    )


def test_a_large_cohort_opens_nothing_if_too_few_hold_a_members_shares() -> None:
    """However many others are left."""
    with small_neighbourhoods(3, 3), refusing("too_few_shares"):
        run_session(10, fallen=dict.fromkeys((1, 2, 3), "open"))


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("share", "too_few_survivors"),
        ("send", "too_few_survivors"),
        ("open", "too_few_shares"),
    ],
)
@pytest.mark.parametrize("members", [3, 4, 7])
def test_one_member_fewer_than_the_threshold_opens_nothing(
    members: int, step: Step, code: str
) -> None:
    """The session ends in a refusal that says so."""
    gone = range(1, members - threshold_for(members) + 2)
    with refusing(code):
        run_session(members, fallen=dict.fromkeys(gone, step))


@given(
    size=st.integers(0, 3)
    | st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3, 4 * BLOCK + 1])
)
@few_examples
def test_masks_that_are_added_and_subtracted_cancel(size: int) -> None:
    """At any length, also across the edges of blocks and of what threads share out, and wrapping
    around 2⁶⁴.
    """
    vector = np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    masked = vector.copy()
    keys = [bytes([number]) * 16 for number in range(3)]
    apply_masks(masked, keys, [])
    assert size == 0 or not np.array_equal(masked, vector)
    apply_masks(masked, [], keys[::-1], threads=3)
    assert np.array_equal(masked, vector)


EXTREME = 1 << 63


@few_examples
@given(pairs=st.integers(1, 3), data=st.data())
def test_sums_within_the_bound_are_exact_though_parts_of_them_wrap_around(
    pairs: int, data: st.DataObject
) -> None:
    """Half the members are near 2⁶³ − 1 and half near −2⁶³: adding up wraps around, and the total
    is within ±2⁶².
    """
    near = st.integers(0, EXTREME // 2 // (2 * pairs + 2))
    high = [[EXTREME - 1 - data.draw(near) for _ in range(4)] for _ in range(pairs)]
    low = [[data.draw(near) - EXTREME for _ in range(4)] for _ in range(pairs)]
    rest = data.draw(
        st.lists(st.integers(-EXTREME // 4, EXTREME // 4), min_size=4, max_size=4)
    )
    rows = [*high, *low, rest]
    exact = [sum(column) for column in zip(*rows, strict=True)]
    assert all(abs(number) <= EXTREME // 2 for number in exact)
    run = run_session(
        len(rows), "sums", [np.array(row, dtype=np.int64) for row in rows]
    )
    assert run.total.tolist() == exact


# Noise


def all_sealed(size: int) -> list[NDArray[np.uint64]]:
    """The same numbers, sealed by every member, for every sum, in two sessions of the very same
    members with the very same secrets.
    """
    same = [np.full(size, 12_345, dtype=np.int64)] * 4
    return [
        np.frombuffer(vector.data, dtype="<u8")
        for round_ in ("5" * 32, "6" * 32)
        for sum_name in SUM_NAMES
        for vector in run_session(4, sum_name, same, round_=round_).sealed.values()
    ]


def test_equal_vectors_sealed_anywhere_have_nothing_in_common() -> None:
    """Members, sums, rounds with the very same keys: each two differ by noise, in every byte, and
    do not correlate.
    """
    size = 1 << 13
    sealed = all_sealed(size)
    assert len(sealed) == 2 * len(SUM_NAMES) * 4
    for one, other in combinations(sealed, 2):
        for between in (one - other, one + other, one ^ other):
            assert (
                chisquare(np.bincount(between.view(np.uint8), minlength=256)).pvalue
                > 1e-7
            )
        assert (
            abs(np.corrcoef(one.astype(np.float64), other.astype(np.float64))[0, 1])
            < 6 / size**0.5
        )


def test_secrets_do_not_print_themselves() -> None:
    """Neither the keys nor what was dealt out."""
    run = run_session(3)
    secrets, dealt = run.secrets[1], run.dealt[1]
    words = repr(run) + repr(secrets) + repr(dealt)
    for secret in (secrets.cipher, *secrets.masks, *secrets.seeds, dealt.kept):
        assert secret.hex() not in words
        assert repr(secret) not in words
