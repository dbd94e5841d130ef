"""Whom the service lets in, and how often: addresses, hosts, origins, keys and rates, as the
operator chose them.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ridgeway.common.base.errors import InputError
from ridgeway.common.web.api_keys import KeyRing, check_rate_option, usage_path
from ridgeway.common.web.key_budgets import UsageBook
from ridgeway.common.web.request_context import MAX_HELD_BYTES
from ridgeway.common.web.workers import SharedTimes

MAX_BODY_MIB = 1024
LOOPBACK = ("localhost", "127.0.0.1", "::1")
BURST_S = 2
"""A client that paused this long may make as many seconds' requests at once."""
TICK_S = 1e-6
"""A client that is early by less is not early: times are rounded."""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What is asked of each request before it is looked at.

    keys:         the keys that let a client in; None: every client is let in.
    usage:        where keys with limits are counted.
    rates:        the file in which several workers count rates together.
    rate:         requests a second, for each key that has no rate of its own; without keys, for
                  each address.
    hosts:        the names by which the service may be called; None: any.
    origins:      the sites whose pages may ask, besides the service's own.
    tls:          whether it is reached by TLS.
    max_requests: how many are served at once.
    max_held_bytes: of the bodies and answers of all of them.
    """

    keys: KeyRing | None = None
    usage: UsageBook | None = None
    rates: Path | None = None
    rate: float | None = None
    hosts: frozenset[bytes] | None = None
    origins: frozenset[bytes] = frozenset()
    tls: bool = False
    max_body_bytes: int = 4 * 1024**2
    max_requests: int = 2048
    max_held_bytes: int = MAX_HELD_BYTES


def make_rules(
    host: str,
    keys: Path | None = None,
    *,
    usage: Path | None = None,
    rate: float | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    tls: bool = False,
) -> AccessRules:
    """The rules of a service that listens at `host`; raises if it would be open to others without a
    key.
    """
    check_rate_option(rate)
    if keys is None and not is_loopback(host):
        raise InputError(
            f"--host {host} is reachable from other machines, so API keys are "
            "required; make one with `ridgeway keys add FILE NAME` and use --keys FILE"
        )
    ring = None if keys is None else KeyRing(keys)
    if ring is not None and not len(ring):
        raise InputError(
            "the file of --keys is empty, so every request would be refused; make a "
            "key with `ridgeway keys add`"
        )
    return AccessRules(
        keys=ring,
        usage=None if keys is None else UsageBook(usage or usage_path(keys)),
        rate=rate,
        hosts=allowed_hosts(host, hosts),
        origins=frozenset(map(plain_origin, origins)),
        tls=tls,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address to listen on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def allowed_hosts(host: str, given: Iterable[str]) -> frozenset[bytes] | None:
    """The names in a request's Host that are taken, without ports.

    A page of any site can have its own name resolved to 127.0.0.1 and then read what is served
    there; its requests carry its own name in Host. Where keys guard the service, such a page has
    none.
    """
    names = {*given, *((*LOOPBACK, host) if is_loopback(host) else ())}
    return frozenset(map(plain_host, names)) if names else None


def plain_host(name: str) -> bytes:
    """A host's name as a Host header has it, without port."""
    bare = name.strip("[]")
    if "/" in name or " " in name or bare.count(":") == 1:
        raise InputError(
            f"{name!r} is not a plain host name, such as router.example.org; leave "
            "out scheme and port"
        )
    try:
        return host_name(_bracketed(name).encode("idna"))
    except UnicodeError:
        raise InputError(f"{name!r} is not a host name") from None


def _bracketed(name: str) -> str:
    bare = name.strip("[]")
    return f"[{bare}]" if ":" in bare else bare


def host_name(host: bytes) -> bytes:
    """A Host header without its port."""
    name, colon, port = host.rpartition(b":")
    return (name if colon and not port.endswith(b"]") else host).lower().rstrip(b".")


def plain_origin(text: str) -> bytes:
    """An origin as browsers write it: scheme://host, and :port where it is not the usual one."""
    reason = f"{text!r} is not an origin, such as https://app.example.com"
    try:
        parts = urlsplit(text.lower())
        port = parts.port
        name = _bracketed(parts.hostname or "").encode("idna").decode()
    except ValueError:  # of which UnicodeError is one
        raise InputError(reason) from None
    usual = {"http": 80, "https": 443}
    if (
        parts.scheme not in usual
        or not name
        or parts.path not in ("", "/")
        or parts.query
    ):
        raise InputError(reason)
    shown_port = "" if port in (None, usual[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{name}{shown_port}".encode()


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests a second on average; `burst`: how many at once after a pause, at least 1."""

    per_s: float
    burst: int


def rate_of(per_s: float) -> Rate:
    return Rate(per_s, max(1, math.ceil(BURST_S * per_s)))


@dataclass(slots=True)
class RateLimiter:
    """A bucket of requests for every client; one number each, the time by which what was taken is
    paid off.

    max_clients: of more, the buckets of those that asked last are kept; a bucket that is made anew
                 is full.
    shared:      where several processes keep their buckets together.

    Law: in any t seconds no client is let through more than per_s·(t + a tick) + burst times,
    whatever others do.
    """

    _clock: Callable[[], float] = time.monotonic
    _max_clients: int | None = None
    _shared: SharedTimes | None = None
    _paid: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._paid)

    def wait_s(self, who: str, rate: Rate) -> float:
        """0 if a request may go on, and then it is counted; else the seconds until one may."""
        now = self._clock()
        if self._shared is not None:
            with self._shared as times:
                paid, wait_s = _settled(times.get(who, now), now, rate)
                times.put(who, paid)
            return wait_s
        self._paid[who], wait_s = _settled(self._paid.get(who, now), now, rate)
        self._paid.move_to_end(who)
        if self._max_clients is not None and len(self._paid) > self._max_clients:
            self._paid.popitem(last=False)
        return wait_s


def _settled(paid: float, now: float, rate: Rate) -> tuple[float, float]:
    """The time by which what was taken is paid off after one more request, and how long that is too
    early.
    """
    paid = max(paid, now)
    early = paid - now - (rate.burst - 1) / rate.per_s
    return (paid, early) if early > TICK_S else (paid + 1 / rate.per_s, 0.0)
