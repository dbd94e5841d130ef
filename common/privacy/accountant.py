"""What noise costs: ρ, which adds up, and the (ε, δ) that it stands for.

ρ of a vector is half the square of how far one document can move it, in standard deviations of its
noise. μ² = 2ρ is the parameter of Gaussian differential privacy (Dong, Roth and Su 2022), in which
composition is exact: ρ of several vectors is the sum, whatever was asked in whichever order, and ε
is that of one Gaussian mechanism (Balle and Wang 2018):

    δ(ε) = Q(ε/μ − μ/2) − e^ε · Q(ε/μ + μ/2), where Q is the upper tail of the normal distribution.

Discrete noise costs next to nothing more. Let X be a normal number with variance σ² − τ², and round
q + X to an integer z with a probability in proportion to exp(−(z − q − X)²/2τ²). That is
post-processing of a Gaussian mechanism. By Poisson's summation the sums that normalise these
probabilities are constant within a factor 1 ± e, e < 2.01·exp(−2π²τ²), so z has the probability
that discrete noise with σ gives it, within a factor (1 + e)/(1 − e). For τ = 4 and σ of at least
SMALLEST_SIGMA = 2¹², 2ρ grows by a factor below 1 + 2⁻¹⁹, which is charged, and e < 10⁻¹³⁶: over
1,000 vectors of 2²⁰ numbers each, ε grows by less than 10⁻¹²⁵, and δ by such a part of itself. The
same holds for sums of shares: two discrete Gaussian numbers with σ and σ′ add up to one with √(σ² +
σ′²), within 1 ± 5·exp(−π²·min(σ, σ′)²).

Everything is computed in decimals of 50 digits, alike on every machine, and rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, cast, get_args

from pydantic import Field

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.records import Digest, Record
from ridgeway.common.base.settings import DEFAULT_DELTA
from ridgeway.common.masking.agreement import threshold_for
from ridgeway.common.privacy.noise import UNIT, PrivacyMode, moved_square

Cost = Fraction | float
"""A ρ. The only float among them is EXACT."""
EXACT = math.inf
"""The cost of numbers that leave without noise."""

SMALLEST_SIGMA = 1 << 12
"""Noise with a smaller σ is never drawn."""
DISCRETE = 1 + Decimal(2) ** -19
"""The factor by which 2ρ of discrete noise may exceed that of continuous noise."""

RHO_BITS = 48
"""ρ of an ε is a multiple of 2^−48: the largest for which ε still holds."""
_STEPS = 10**9
"""ε is a multiple of 1/STEPS."""

PRECISE = Context(prec=50)
ERROR = Decimal("1e-20")
"""More than a computed δ is off by, as a part of itself: Mills' ratio has 37 digits, and where ρ is
2^−64, the difference of two of them loses ten."""
TWO_PI = Decimal("6.2831853071795864769252867665590057683943387987502")
_FAR = 5
"""From here on Mills' ratio is computed as a continued fraction."""
FRACTION_TERMS = 100
"""At FAR they give 37 digits, and more beyond it."""


@lru_cache(maxsize=64)
def epsilon_of(rho: Cost, delta: float) -> float:
    """The ε of the (ε, δ)-differential privacy that ρ gives, rounded up; infinite for what left
    without noise.
    """
    if rho == EXACT:
        return math.inf
    if not rho:
        return 0.0
    mu = _mu(Fraction(rho))
    if _holds(mu, 0, delta):
        return 0.0
    low = 0
    high = 1
    while not _holds(mu, high, delta):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _holds(mu, middle, delta) else (middle, high)
    return high / _STEPS


@lru_cache(maxsize=16)
def rho_for(epsilon: float, delta: float) -> Fraction:
    """The greatest ρ, a multiple of 2^−48, that stands for at most this ε; raises ValueError if
    there is none.
    """
    steps = math.floor(epsilon * _STEPS)
    steps -= steps / _STEPS > epsilon
    low = 0
    high = 1 << (RHO_BITS + 8)
    while steps and high - low > 1:
        middle = (low + high) // 2
        is_enough = _holds(_mu(Fraction(middle, 1 << RHO_BITS)), steps, delta)
        low, high = (middle, high) if is_enough else (low, middle)
    if not low:
        raise ValueError(f"no noise gives an ε of {epsilon:g} with a δ of {delta:g}")
    return Fraction(low, 1 << RHO_BITS)


def sigma_for(square: int, rho: Fraction) -> int:
    """The smallest whole σ for which numbers that one document moves by √`square` at most cost ρ,
    or less.
    """
    least = Fraction(square) / (2 * rho)
    return max(SMALLEST_SIGMA, math.isqrt(math.ceil(least) - 1) + 1)


def in_all(costs: Iterable[Cost]) -> Cost:
    """What several vectors cost together, whatever is combined with whatever."""
    return sum(costs, Fraction(0))


def _mu(rho: Fraction) -> Decimal:
    """Of continuous noise that is no better than discrete noise of cost ρ."""
    with localcontext(PRECISE):
        return (2 * DISCRETE * rho.numerator / rho.denominator).sqrt() * (1 + ERROR)


def _holds(mu: Decimal, steps: int, delta: float) -> bool:
    """Whether Gaussian noise of this μ is (steps/STEPS, δ)-differentially private."""
    with localcontext(PRECISE):
        centre = Decimal(steps / _STEPS) / mu
        low = centre - mu / 2
        high = centre + mu / 2
        # e^ε times the density at `high` is the density at `low`
        density = (-low * low / 2).exp() / TWO_PI.sqrt()
        return density * (_mills_ratio(low) - _mills_ratio(high)) * (
            1 + ERROR
        ) <= Decimal(delta)


def _mills_ratio(x: Decimal) -> Decimal:
    """Q(x) divided by the normal density at x; in the current context."""
    if x < -_FAR:
        return TWO_PI.sqrt() * (x * x / 2).exp() - _mills_ratio(-x)
    if x > _FAR:
        ratio = x
        for numerator in range(FRACTION_TERMS, 0, -1):
            ratio = x + numerator / ratio
        return 1 / ratio
    # The integral from 0 to x, divided by the density at x, is x + x³/3 + x⁵/(3·5) + …
    term = x
    total = Decimal(0)
    factor = 1
    while abs(term) > Decimal("1e-48"):
        total += term
        factor += 2
        term = term * x * x / factor
    return (TWO_PI / 4).sqrt() * (x * x / 2).exp() - total


# Privacy as a mode of the terms: what is noised, by how much, and what that costs a document.


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
        return rho_for(self.epsilon, self.delta)

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
