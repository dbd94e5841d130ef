"""Shamir's sharing beside sympy's polynomials over the same prime field: each reads what the other
has made.

Sympy solves Vandermonde's equations and evaluates by its own remainders; nothing of it is in the
code under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st
from sympy import GF, ZZ, isprime, nextprime
from sympy.polys.galoistools import gf_multi_eval
from sympy.polys.matrices import DomainMatrix

from ridgeway.common.masking.shares import PRIME, SECRET_BYTES, SHARE_BYTES, split
from tests.support.masked_session import fixed_random
from tests.support.seeds import few_examples

FIELD = GF(PRIME, symmetric=False)
SECRETS = st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES)
INDICES = st.sets(st.integers(1, 10_000), min_size=1, max_size=8)
EDGES = [
    bytes(SECRET_BYTES),
    b"\xff" * SECRET_BYTES,
    b"\0" * (SECRET_BYTES - 1) + b"\1",
    b"\x80" + bytes(31),
]


def solved(shares: Mapping[int, bytes]) -> list[int]:
    """The coefficients, the constant one first, of the polynomial through these shares."""
    powers = [
        [FIELD(index) ** power for power in range(len(shares))] for index in shares
    ]
    values = [[FIELD(int.from_bytes(share, "big"))] for share in shares.values()]
    equations = DomainMatrix(powers, (len(shares), len(shares)), FIELD)
    answer = equations.lu_solve(DomainMatrix(values, (len(shares), 1), FIELD))
    return [int(row[0]) % PRIME for row in answer.to_list()]


def evaluated(coefficients: Sequence[int], indices: Sequence[int]) -> dict[int, bytes]:
    """Shares of the polynomial with these coefficients, the constant one first."""
    values = gf_multi_eval(
        [ZZ(coefficient) for coefficient in reversed(coefficients)],
        [ZZ(index) for index in indices],
        PRIME,
        ZZ,
    )
    return {
        index: int(value).to_bytes(SHARE_BYTES, "big")
        for index, value in zip(indices, values, strict=True)
    }


def test_the_field_is_one() -> None:
    """The modulus is prime, and no prime between it and 2²⁵⁶ would do as well."""
    assert isprime(PRIME)
    assert nextprime(2**256 - 1) == PRIME


@few_examples
@given(
    secret=SECRETS | st.sampled_from(EDGES),
    indices=INDICES,
    seed=st.text(max_size=4),
    data=st.data(),
)
def test_their_interpolation_of_our_shares_gives_the_secret(
    secret: bytes, indices: set[int], seed: str, data: st.DataObject
) -> None:
    """Of any shares that are enough; all of them together lie on one polynomial of the degree that
    was wanted.
    """
    threshold = data.draw(st.integers(1, len(indices)))
    shares = split(secret, threshold, sorted(indices), fixed_random(seed))
    chosen = data.draw(st.sets(st.sampled_from(sorted(indices)), min_size=threshold))
    assert solved({index: shares[index] for index in chosen})[0] == int.from_bytes(
        secret, "big"
    )
    coefficients = solved(shares)
    assert all(coefficient == 0 for coefficient in coefficients[threshold:])
    assert evaluated(coefficients[:threshold], sorted(indices)) == shares
