"""Discrete Gaussian noise, sampled exactly: integers x with a probability in proportion to
exp(−x²/2σ²).

After Canonne, Kamath and Steinke (2020), many numbers at a time. Every coin is a uniform integer
compared with another integer, so no number is ever rounded, and nothing here is a float. σ is a
whole number: noise is added to sums in fixed point, whose unit is so small that rounding σ up costs
nothing. Randomness is an argument.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Randomness = Callable[[int], bytes]
"""Gives so many random bytes."""

MAX_SIGMA = 1 << 48
"""Up to this σ a number leaves 64 bits with a probability below e^−16,000."""


def discrete_gaussian(
    sigma: int, count: int, draw: Randomness = secrets.token_bytes
) -> _Integers:
    """So many independent numbers of a discrete Gaussian whose parameter σ is `sigma`."""
    if not 1 <= sigma <= MAX_SIGMA:
        raise ValueError(f"σ must be between 1 and 2^48, not {sigma}")
    drawn_parts = [np.empty(0, np.int64)]
    left = count
    while left > 0:
        drawn = _laplace(sigma, 8 * left // 5 + 16, draw)
        kept = drawn[_is_kept(drawn, sigma, draw)][:left]
        drawn_parts.append(kept)
        left -= len(kept)
    return np.concatenate(drawn_parts)


def _laplace(scale: int, count: int, draw: Randomness) -> _Integers:
    """About `count` numbers with a probability in proportion to exp(−|x|/scale)."""
    rest = _below(scale, 8 * count // 5 + 16, draw)
    rest = rest[_exponential(draw, len(rest), (rest, scale))]
    size = rest + scale * _successes(len(rest), draw)
    minus = _below(2, len(size), draw) == 1
    # else zero would come twice as often
    once: _Integers = np.where(minus, -size, size)[~(minus & (size == 0))]
    return once


def _is_kept(drawn: _Integers, sigma: int, draw: Randomness) -> Flags:
    """Heads with probability exp(−(|y| − σ)²/2σ²), which makes Gaussian numbers of those of
    Laplace.

    With |y| − σ = ±(qσ + r) the exponent is q²/2 + q·r/σ + (r/σ)·(r/2σ): coins of each part, all of
    which must fall.
    """
    whole, rest = np.divmod(np.abs(np.abs(drawn) - sigma), sigma)
    alive = np.arange(len(drawn))
    alive = alive[_exponential(draw, len(alive), (rest, sigma), (rest, 2 * sigma))]
    for times, parts in (
        (whole**2, ((np.ones_like(rest), 2),)),
        (whole, ((rest, sigma),)),
    ):
        tossed = 0
        while (indices := np.flatnonzero(times[alive] > tossed)).size:
            tossing = alive[indices]
            fell = _exponential(
                draw, len(tossing), *((number[tossing], by) for number, by in parts)
            )
            alive = np.delete(alive, indices[~fell])
            tossed += 1
    kept = np.zeros(len(drawn), bool)
    kept[alive] = True
    return kept


def _successes(count: int, draw: Randomness) -> _Integers:
    """How often a coin of exp(−1) falls on heads before the first tails."""
    times = np.zeros(count, np.int64)
    alive = np.arange(count)
    while alive.size:
        alive = alive[_exponential(draw, len(alive))]
        times[alive] += 1
    return times


def _exponential(draw: Randomness, count: int, *parts: tuple[_Integers, int]) -> Flags:
    """Heads with probability exp(−γ); γ ≤ 1 is the product of the parts, numbers and what they are
    divided by.

    γ, γ/2, γ/3, … are the chances of coins; that the first which falls on tails has an odd number
    has just that one.
    """
    heads = np.zeros(count, bool)
    alive = np.arange(count)
    number = 1
    while alive.size:
        fell = _below(number, len(alive), draw) == 0
        for numbers, by in parts:
            fell[fell] = _below(by, int(fell.sum()), draw) < numbers[alive[fell]]
        heads[alive[~fell]] = number % 2 == 1
        alive, number = alive[fell], number + 1
    return heads


def _below(bound: int, count: int, draw: Randomness) -> _Integers:
    """Uniform integers from 0 to bound − 1: bits that make a larger number are drawn again."""
    bits = (bound - 1).bit_length()
    if not bits:
        return np.zeros(count, np.int64)
    kind = np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if bits <= 8 * size)}")
    drawn_parts = [np.empty(0, np.int64)]
    left = count
    while left > 0:
        words = np.frombuffer(draw(left * kind.itemsize), kind) & kind.type(
            (1 << bits) - 1
        )
        fitting = words[words < bound].astype(np.int64)
        drawn_parts.append(fitting)
        left -= len(fitting)
    return np.concatenate(drawn_parts)
