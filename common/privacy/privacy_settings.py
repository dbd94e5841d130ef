"""Privacy as a mode of the terms: what is noised, by how much, and what that costs a document."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, cast, get_args

from pydantic import Field

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.schema import Digest, Record
from ridgeway.common.base.settings import DEFAULT_DELTA
from ridgeway.common.masking.agreement import threshold_for
from ridgeway.common.privacy.accountant import rho_for, sigma_for
from ridgeway.common.privacy.document_bound import UNIT, PrivacyMode, moved_square

MAX_EPSILON = 20.0
"""A larger ε is a promise of nothing: e²⁰ is half a billion."""
Epsilon = Annotated[float, Field(gt=0, le=MAX_EPSILON)]
Delta = Annotated[float, Field(ge=1e-30, le=1e-3)]


class Privacy(Record):
    """The terms of a private round.

    epsilon, delta: what one round costs any document, if a release uses it once.
    prior:   the fingerprint of the public prior by which documents become rows.
    """

    mode: PrivacyMode
    epsilon: Epsilon
    delta: Delta = DEFAULT_DELTA
    prior: Digest

    @property
    def rho(self) -> Fraction:
        """What each vector that is opened costs a document at most."""
        return _rho(self.epsilon, self.delta)

    @property
    def sigma(self) -> int:
        """σ of the noise on a total of sums, in their own unit."""
        return sigma_for(moved_square(self.mode), self.rho)

    @property
    def product_sigma(self) -> int:
        """σ of the noise on a product of two different features, which stands in the sums once and
        counts twice.
        """
        return math.isqrt((self.sigma**2 - 1) // 2) + 1

    @property
    def count_sigma(self) -> int:
        """σ of the noise on counts of documents, each of which adds UNIT to one of them."""
        return sigma_for(UNIT**2, self.rho)

    def shared(self, members: int) -> tuple[int, int]:
        """σ of the noise that one of several members adds, and that on products.

        The noise of those members who surely add it, honest ones in a sum that opens, is all of σ.
        """
        sure = surely_noised(members)
        sums, products = (
            math.isqrt((sigma**2 - 1) // sure) + 1
            for sigma in (self.sigma, self.product_sigma)
        )
        return sums, products

    def facts(self) -> dict[str, Any]:
        """What a release's manifest says of it."""
        return {
            **self.model_dump(mode="json"),
            "adjacency": "add or remove one document",
            "rho": str(self.rho),
        }


def surely_noised(members: int) -> int:
    """How many honest members' shares of noise are at least in a sum of so many members who were
    asked.

    A member draws its share before it knows who falls away. A hostile coordinator lets as many fall
    away as leave a sum that opens, honest ones alone; colluders, fewer than a third of all who were
    asked, stay, and know their own shares or have drawn none.
    """
    colluders = (members - 1) // 3
    return threshold_for(members) - colluders


@lru_cache(maxsize=16)
def _rho(epsilon: float, delta: float) -> Fraction:
    return rho_for(epsilon, delta)


def check_privacy(
    mode: str, epsilon: float, delta: float = DEFAULT_DELTA
) -> PrivacyMode:
    """The mode of this name; raises InputError with one sentence if it, or what it is to cost,
    cannot be.
    """
    if mode not in get_args(PrivacyMode):
        raise InputError(
            f"there is no privacy mode {mode!r}; use "
            f"{' or '.join(get_args(PrivacyMode))}"
        )
    if not 0 < epsilon <= MAX_EPSILON:
        raise InputError(
            f"ε must be above 0 and at most {MAX_EPSILON:g}, not {epsilon:g}: 0.3 is"
            " strong, 1 is usual, and 8 is weak"
        )
    if not 1e-30 <= delta <= 1e-3:
        raise InputError(
            f"δ must be between 1e-30 and 0.001, not {delta:g}; the default is "
            f"{DEFAULT_DELTA:g}"
        )
    return cast(PrivacyMode, mode)


def delta_warning(delta: float, documents: int) -> str:
    """Why this δ promises little to so many documents; empty if it does not."""
    if documents and delta >= 1 / documents:
        return (
            f"δ = {delta:g} is not below 1/{documents:,}, so whole documents may "
            "leak; choose a smaller δ"
        )
    return ""
