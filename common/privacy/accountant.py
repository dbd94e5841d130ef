"""What noise costs: ρ of zero-concentrated differential privacy, which adds up, and the (ε, δ) that it stands for.

ρ is a fraction of integers. ε is computed in decimals of 40 digits and rounded up, at one order α for which the bound
holds, whatever α is; the search only makes it small. Knows nothing of noise, journals or messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache

PRECISE = Context(prec=40)
UNIT_OF_EPSILON = Decimal("1e-9")
RHO_BITS = 48
"""ρ of an ε is a multiple of 2^−48: the largest for which ε still holds."""
ORDERS = range(-8 * 32, 32 * 32)
"""α − 1 in steps of 2^(1/32), from 2^−8 on."""


def epsilon_of(rho: Fraction, delta: float) -> float:
    """The ε of the (ε, δ)-differential privacy that ρ-zCDP gives, rounded up.

    For every α > 1, ε = αρ + ln(1/αδ)/(α − 1) + ln(1 − 1/α) holds (Canonne, Kamath and Steinke 2020, Proposition 12).
    """
    if not rho:
        return 0.0
    cost = PRECISE.divide(Decimal(rho.numerator), Decimal(rho.denominator))
    wanted = -PRECISE.ln(Decimal(delta))

    def at(step: int) -> Decimal:
        order, per, apart = _order(step)
        return PRECISE.fma(cost, order, PRECISE.fma(wanted, per, apart))

    found = at(_lowest(at))
    rounded = float(found.quantize(UNIT_OF_EPSILON, "ROUND_CEILING") + UNIT_OF_EPSILON)  # beyond any error of 40 digits
    return max(rounded, 0.0)


def rho_for(epsilon: float, delta: float) -> Fraction:
    """The greatest ρ, a multiple of 2^−48, that stands for at most this ε; raises ValueError if there is none."""
    low, high = 0, 1 << (RHO_BITS + 8)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon_of(Fraction(middle, 1 << RHO_BITS), delta) <= epsilon else (low, middle)
    if not low:
        raise ValueError(f"no noise gives an ε of {epsilon:g} with a δ of {delta:g}")
    return Fraction(low, 1 << RHO_BITS)


def sigma_for(square: int, rho: Fraction) -> int:
    """The smallest whole σ for which numbers that one document moves by √`square` at most cost ρ, or less."""
    least = Fraction(square) / (2 * rho)
    return math.isqrt(math.ceil(least) - 1) + 1


def in_all(costs: Iterable[Fraction]) -> Fraction:
    """What several vectors cost together, whatever is combined with whatever."""
    return sum(costs, Fraction(0))


@cache
def _order(step: int) -> tuple[Decimal, Decimal, Decimal]:
    """α, 1/(α − 1), and what an ε has beside ρ and δ: −ln α/(α − 1) + ln(α − 1) − ln α."""
    above = PRECISE.power(Decimal(2), PRECISE.divide(Decimal(step), Decimal(32)))
    order = PRECISE.add(above, Decimal(1))
    log = PRECISE.ln(order)
    apart = PRECISE.subtract(PRECISE.ln(above), PRECISE.add(log, PRECISE.divide(log, above)))
    return order, PRECISE.divide(Decimal(1), above), apart


def _lowest(at: Callable[[int], Decimal]) -> int:
    """The order at which a bound that falls and then rises is lowest."""
    low, high = ORDERS.start, ORDERS.stop
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) < at(middle - 1) else (low, middle)
    return low
