"""How often somebody may ask: so many requests a second, and a few more at once after a pause.

Knows a clock. Knows nothing of HTTP and keys.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

BURST_S = 2
"""Who paused so long may ask for as many seconds' requests at once."""
TICK_S = 1e-6
"""Who is early by less is not: times are rounded."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So many requests a second on average; `burst`: so many at once after a pause, at least 1."""

    per_s: float
    burst: int


def rate_of(per_s: float) -> Rate:
    return Rate(per_s, max(1, math.ceil(BURST_S * per_s)))


class Limiter:
    """A bucket of requests for everybody who asks; one number each, the time by which what was taken is paid off.

    most: of so many the buckets are kept, of more those who asked last; a bucket that is made anew is full.

    Law: in any t seconds nobody is let through more than per_s·(t + a tick) + burst times, whatever others do.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int | None = None) -> None:
        self._clock = clock
        self._most = most
        self._paid: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._paid)

    def wait_s(self, who: str, rate: Rate) -> float:
        """0 if a request may go on, and then it is counted; else the seconds until one may."""
        now = self._clock()
        paid = max(self._paid.get(who, now), now)
        early = paid - now - (rate.burst - 1) / rate.per_s
        refused = early > TICK_S
        self._paid[who] = paid if refused else paid + 1 / rate.per_s
        self._paid.move_to_end(who)
        if self._most is not None and len(self._paid) > self._most:
            self._paid.popitem(last=False)
        return early if refused else 0.0


def neighbourhood(address: str) -> str:
    """Whom a client's address stands for: itself, or in IPv6 the network of 64 bits that one household is given."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
