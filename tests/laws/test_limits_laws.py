"""Laws of the limits: nobody gets more than his rate and a burst, and nobody is held up by
another.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.records import client_network
from ridgeway.common.web.api_keys import TICK_S, Rate, RateLimiter, rate_of
from tests.support.in_process import Clock

rates = st.builds(Rate, st.floats(0.01, 1000), st.integers(1, 50))
pauses = st.lists(st.floats(0, 20) | st.just(0.0), min_size=1, max_size=60)
SLACK = 2 * TICK_S
"""For times are rounded."""


@given(rate=rates, pauses=pauses)
def test_in_any_time_no_more_than_the_rate_and_a_burst_is_let_through(
    rate: Rate, pauses: list[float]
) -> None:
    """Whenever one begins to count, after t seconds it is at most per_s·t + burst."""
    clock = Clock()
    limiter, passed = RateLimiter(clock), []
    for pause in pauses:
        clock.now += pause
        if limiter.wait_s("a", rate) == 0:
            passed.append(clock.now)
    for first, start in enumerate(passed):
        for last, end in enumerate(passed[first:], first):
            assert last - first + 1 <= rate.per_s * (end - start + SLACK) + rate.burst


@given(rate=rates, pauses=pauses)
def test_who_is_refused_may_ask_after_the_time_he_is_told(
    rate: Rate, pauses: list[float]
) -> None:
    """The wait is enough; a refusal itself costs nothing."""
    clock = Clock()
    limiter = RateLimiter(clock)
    for pause in pauses:
        clock.now += pause
        wait = limiter.wait_s("a", rate)
        if wait > 0:
            clock.now += wait + SLACK
            assert limiter.wait_s("a", rate) == 0


@given(rate=rates)
def test_after_a_pause_exactly_a_burst_is_let_through_at_once(rate: Rate) -> None:
    """A bucket is full at first, and full again after as long as it takes."""
    clock = Clock()
    limiter = RateLimiter(clock)
    for _ in range(2):
        passed = [limiter.wait_s("a", rate) == 0 for _ in range(rate.burst + 5)]
        assert passed == [True] * rate.burst + [False] * 5
        clock.now += rate.burst / rate.per_s + SLACK


@given(
    rate=rates,
    asks=st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 5)), max_size=60),
)
def test_two_buckets_are_independent(rate: Rate, asks: list[tuple[str, float]]) -> None:
    """What one is told does not depend on how often the other asks."""
    clock = Clock()
    together = RateLimiter(clock)
    alone = {who: RateLimiter(clock) for who in "ab"}
    for who, pause in asks:
        clock.now += pause
        assert together.wait_s(who, rate) == alone[who].wait_s(who, rate)


@given(most=st.integers(1, 20), asks=st.lists(st.integers(0, 100), max_size=200))
def test_memory_is_bounded_and_those_who_ask_last_are_known(
    most: int, asks: list[int]
) -> None:
    """However many addresses ask, so many are remembered; a flood from one does not make it
    forgotten.
    """
    limiter = RateLimiter(Clock(), most)
    slow = Rate(0.001, 1)
    for who in asks:
        limiter.wait_s(str(who), slow)
        assert len(limiter) <= most
        assert limiter.wait_s(str(who), slow) > 0


@given(per_s=st.floats(0.001, 10_000))
def test_a_rate_always_lets_somebody_through(per_s: float) -> None:
    """A slow rate still has a burst of one."""
    assert RateLimiter(Clock()).wait_s("a", rate_of(per_s)) == 0


@given(
    network=st.integers(0, 2**64 - 1),
    first=st.integers(0, 2**64 - 1),
    second=st.integers(0, 2**64 - 1),
)
def test_a_network_of_ipv6_is_one_client_network(
    network: int, first: int, second: int
) -> None:
    """Whoever has 2^64 addresses has one bucket."""
    one, other = (str(IPv6Address((network << 64) + host)) for host in (first, second))
    if IPv6Address(one).ipv4_mapped is None and IPv6Address(other).ipv4_mapped is None:
        assert client_network(one) == client_network(other)


@given(number=st.integers(0, 2**32 - 1))
def test_an_address_of_ipv4_is_its_own_client_network(number: int) -> None:
    """Also where a socket of IPv6 writes it in its own way."""
    address = str(IPv4Address(number))
    assert client_network(address) == client_network(f"::ffff:{address}") == address
