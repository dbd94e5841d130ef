"""Whom the service lets in: addresses, hosts, origins, keys and limits, as the operator chose them.

Knows names of hosts and of origins. Knows nothing of requests.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from common.errors import InputError
from coordinator.serve.keys import Ring

MOST_MIB = 1024
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Rules:
    """What is asked of each request before it is looked at.

    keys:         the keys that let somebody in; None: everybody is let in.
    rate:         requests a second, for each key that has no rate of its own; without keys, for each address.
    hosts:        the names by which the service may be called; None: any.
    origins:      the sites whose pages may ask, besides the service's own.
    tls:          whether it is reached by TLS.
    max_body:     in bytes.
    max_requests: so many are served at once.
    """

    keys: Ring | None = None
    rate: float | None = None
    hosts: frozenset[bytes] | None = None
    origins: frozenset[bytes] = frozenset()
    tls: bool = False
    max_body: int = 4 * 1024**2
    max_requests: int = 2048


@dataclass(frozen=True, slots=True)
class Names:
    """Where the service listens, and what it may be called and asked by besides."""

    listening: str
    hosts: Iterable[str] = ()
    origins: Iterable[str] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """As on the command line: requests a second, MiB, requests at once."""

    rate: float | None
    max_body: float
    max_requests: int

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise InputError(f"--rate is a number of requests a second, above 0, not {self.rate:g}")
        if not 0 < self.max_body <= MOST_MIB:
            raise InputError(f"--max-body is a number of MiB, above 0 and at most {MOST_MIB}, not {self.max_body:g}")


def make_rules(names: Names, keys: Path | None, limits: Limits, *, tls: bool) -> Rules:
    """The rules of a service; raises if it would be open to others without a key."""
    ring = None if keys is None else Ring(keys)
    check_exposure(names.listening, ring)
    return Rules(
        keys=ring,
        rate=limits.rate,
        hosts=allowed_hosts(names.listening, names.hosts),
        origins=frozenset(allowed_origin(each) for each in names.origins),
        tls=tls,
        max_body=int(limits.max_body * 1024**2),
        max_requests=limits.max_requests,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address to listen on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(host: str, ring: Ring | None) -> None:
    """Nobody else than this machine is let in without a key."""
    if ring is None and not is_loopback(host):
        raise InputError(
            f"--host {host} can be reached from other machines, and that takes keys; "
            "make one with `ridgeway keys add FILE NAME` and give --keys FILE"
        )
    if ring is not None and not len(ring):
        raise InputError("the file of --keys holds no key, so nobody could ask; make one with `ridgeway keys add`")


def allowed_hosts(host: str, given: Iterable[str]) -> frozenset[bytes] | None:
    """The names in a request's Host that are taken, without ports.

    A page of any site can have its own name resolved to 127.0.0.1 and then read what is served there; its requests
    carry its own name in Host. Where keys guard the service, such a page has none.
    """
    names = {*given, *((*LOOPBACK, host) if is_loopback(host) else ())}
    return frozenset(_plain_name(name) for name in names) if names else None


def _plain_name(name: str) -> bytes:
    bare = name.strip("[]")
    if "/" in name or " " in name or (":" in bare and bare.count(":") < 2):
        raise InputError(
            f"--allow-host takes a name alone, without scheme and port, as router.example.org, not {name!r}"
        )
    try:
        return host_name(_bracketed(name).encode("idna"))
    except UnicodeError:
        raise InputError(f"--allow-host: {name!r} is not a name of a host") from None


def _bracketed(name: str) -> str:
    bare = name.strip("[]")
    return f"[{bare}]" if ":" in bare else bare


def host_name(host: bytes) -> bytes:
    """A Host header without its port."""
    name, colon, port = host.rpartition(b":")
    return (name if colon and not port.endswith(b"]") else host).lower().rstrip(b".")


def allowed_origin(text: str) -> bytes:
    """An origin as browsers write it: scheme://host, and :port where it is not the usual one."""
    try:
        parts = urlsplit(text.lower())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise InputError(f"--allow-origin {text} is not an origin; write https://app.example.com, one option for each")
    usual = {"http": 80, "https": 443}[parts.scheme]
    try:
        name = _bracketed(parts.hostname).encode("idna").decode()
    except UnicodeError:
        raise InputError(f"--allow-origin {text} does not name a host") from None
    return f"{parts.scheme}://{name}{'' if port in (None, usual) else f':{port}'}".encode()


def own_origin(origin: bytes, host: bytes, tls: bool) -> bool:
    """Whether a page of this origin came from the very host it asks; if a proxy speaks TLS for us, by https."""
    return origin == b"https://" + host or (not tls and origin == b"http://" + host)
