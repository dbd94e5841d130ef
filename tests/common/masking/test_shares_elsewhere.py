"""Shamir's sharing beside sympy's polynomials over the same prime field: each reads what the other has made.

Sympy solves Vandermonde's equations and evaluates by its own remainders; nothing of it is in the code under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import GF, ZZ, isprime, nextprime
from sympy.polys.galoistools import gf_multi_eval
from sympy.polys.matrices import DomainMatrix

from ridgeway.common.masking.shares import PRIME, SECRET_BYTES, SHARE_BYTES, combine, split
from tests.support.masked_session import fixed_random
from tests.support.seeds import few_examples

FIELD = GF(PRIME, symmetric=False)
SECRETS = st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES)
PLACES = st.sets(st.integers(1, 10_000), min_size=1, max_size=8)
EDGES = [bytes(SECRET_BYTES), b"\xff" * SECRET_BYTES, b"\0" * (SECRET_BYTES - 1) + b"\1", b"\x80" + bytes(31)]


def solved(shares: Mapping[int, bytes]) -> list[int]:
    """The coefficients, the constant one first, of the polynomial through these shares."""
    powers = [[FIELD(place) ** power for power in range(len(shares))] for place in shares]
    values = [[FIELD(int.from_bytes(share, "big"))] for share in shares.values()]
    equations = DomainMatrix(powers, (len(shares), len(shares)), FIELD)
    answer = equations.lu_solve(DomainMatrix(values, (len(shares), 1), FIELD))
    return [int(row[0]) % PRIME for row in answer.to_list()]


def evaluated(coefficients: Sequence[int], places: Sequence[int]) -> dict[int, bytes]:
    """Shares of the polynomial with these coefficients, the constant one first."""
    values = gf_multi_eval([ZZ(each) for each in reversed(coefficients)], [ZZ(place) for place in places], PRIME, ZZ)
    return {place: int(value).to_bytes(SHARE_BYTES, "big") for place, value in zip(places, values, strict=True)}


def test_the_field_is_one() -> None:
    """The modulus is prime, and no prime between it and 2²⁵⁶ would do as well."""
    assert isprime(PRIME)
    assert nextprime(2**256 - 1) == PRIME


@few_examples
@given(secret=SECRETS | st.sampled_from(EDGES), places=PLACES, seed=st.text(max_size=4), data=st.data())
def test_their_interpolation_of_our_shares_gives_the_secret(
    secret: bytes, places: set[int], seed: str, data: st.DataObject
) -> None:
    """Of any shares that are enough; all of them together lie on one polynomial of the degree that was wanted."""
    threshold = data.draw(st.integers(1, len(places)))
    shares = split(secret, threshold, sorted(places), fixed_random(seed))
    chosen = data.draw(st.sets(st.sampled_from(sorted(places)), min_size=threshold))
    assert solved({place: shares[place] for place in chosen})[0] == int.from_bytes(secret, "big")
    coefficients = solved(shares)
    assert all(coefficient == 0 for coefficient in coefficients[threshold:])
    assert evaluated(coefficients[:threshold], sorted(places)) == shares


@few_examples
@given(
    secret=SECRETS | st.sampled_from(EDGES),
    others=st.lists(st.integers(0, PRIME - 1), max_size=7),
    places=PLACES,
)
def test_our_combination_of_their_shares_gives_the_secret(secret: bytes, others: list[int], places: set[int]) -> None:
    """Whatever the coefficients, and however many shares there are beyond those needed."""
    chosen = others[: len(places) - 1]
    shares = evaluated([int.from_bytes(secret, "big"), *chosen], sorted(places))
    assert combine(shares) == secret
    needed = dict(list(shares.items())[: len(chosen) + 1])
    assert combine(needed) == secret


@pytest.mark.parametrize("secret", EDGES)
def test_both_agree_on_every_choice_of_shares(secret: bytes) -> None:
    """All ways to take three of six, for secrets at the edges of the field."""
    shares = split(secret, 3, range(1, 7), fixed_random("choices"))
    for places in combinations(shares, 3):
        chosen = {place: shares[place] for place in places}
        assert solved(chosen)[0] == int.from_bytes(combine(chosen), "big") == int.from_bytes(secret, "big")


def test_too_few_shares_give_both_the_same_wrong_secret() -> None:
    """One short of the threshold, both interpolate a polynomial of too low a degree, and it is the same one."""
    secret = b"\x11" * SECRET_BYTES
    shares = split(secret, 4, range(1, 8), fixed_random("short"))
    for places in combinations(shares, 3):
        chosen = {place: shares[place] for place in places}
        wrong = solved(chosen)[0]
        assert wrong != int.from_bytes(secret, "big")
        assert wrong >> 256 or combine(chosen) == wrong.to_bytes(SECRET_BYTES, "big")
