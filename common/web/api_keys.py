"""API keys, and whom the service lets in by them, by address, host, origin and rate."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import ipaddress
import logging
import math
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import check_output, stamp_if_there, write_whole
from ridgeway.common.base.records import plain_reason, read_settings, toml_literal
from ridgeway.common.web.key_budgets import KeyBudget, UsageBook, Window
from ridgeway.common.web.request_context import MAX_HELD_BYTES
from ridgeway.common.web.workers import SharedTimes

# API keys: a TOML file of their names and hashes, and the ring of keys that requests are checked
# against.
#
# A key is 256 random bits, so no one can find one that fits a plain SHA-256. A slow hash protects
# passwords, which people choose and which can be guessed; here it would only cost each request its
# time. The key is shown once and kept nowhere.


_KEY_BYTES = 32
OTHERS_MAY_WRITE = 0o022
_ABOUT = """\
# The keys of a service, written by `ridgeway keys`. A key itself is not here: only its SHA-256.
"""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]

log = logging.getLogger("ridgeway.http")


class KeyRecord(BaseModel):
    """What is known of a key: whose it is, what it is for, its requests a second, if it has a rate
    of its own, and its budget.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created: str
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    scope: Literal["all", "metrics"] = "all"
    """What a key lets in to: everything, or /metrics alone."""
    window: Window | None = None
    max_requests: Annotated[int, Field(gt=0)] | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_parallel: Annotated[int, Field(gt=0)] | None = None
    """Requests that are served at a time."""

    @model_validator(mode="after")
    def _window_and_limit(self) -> KeyRecord:
        if (self.window is None) != (
            self.max_requests is None
            and self.max_tokens is None
            and self.max_cost is None
        ):
            raise ValueError(
                "a budget needs a window, and at least one of max_requests, "
                "max_tokens and max_cost"
            )
        return self

    @property
    def budget(self) -> KeyBudget | None:
        if self.window is None:
            return None
        return KeyBudget(self.window, self.max_requests, self.max_tokens, self.max_cost)


def usage_path(keys: Path) -> Path:
    """Where is written what the keys of a file spend, unless another place is named: beside it."""
    return keys.with_name(f"{keys.name}.usage")


class KeysFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    keys: list[KeyRecord] = []

    @field_validator("keys")
    @classmethod
    def _each_once(cls, keys: list[KeyRecord]) -> list[KeyRecord]:
        if len({entry.name for entry in keys}) < len(keys) or len(
            {entry.sha256 for entry in keys}
        ) < len(keys):
            raise ValueError("duplicate name or hash")
        return keys

    def to_toml(self) -> str:
        lines = [_ABOUT]
        for record in self.keys:
            fields = record.model_dump(exclude_none=True, exclude_defaults=True)
            lines += [
                "[[keys]]",
                *(f"{name} = {toml_literal(value)}" for name, value in fields.items()),
                "",
            ]
        return "\n".join(lines)


def read_keys(path: Path) -> list[KeyRecord]:
    """The keys of a file, perhaps none."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the keys file in it")
    if not path.is_file():
        raise InputError(
            f"there is no keys file {path}; create it with `ridgeway keys add`"
        )
    if path.stat().st_mode & OTHERS_MAY_WRITE:
        raise InputError(
            f"other users can write {path}, and so add keys; run chmod 600 on it"
        )
    return read_settings(path, KeysFile).keys


def add_key(
    path: Path,
    name: str,
    random: Callable[[int], str] = secrets.token_urlsafe,
    **limits: Any,
) -> tuple[str, KeyRecord]:
    """Make a key, and keep its hash; returns the key, which cannot be had again.

    limits: the fields of its record: rate, scope, window, max_requests, max_tokens, max_cost,
            max_parallel.
    """
    key = f"rw-{random(_KEY_BYTES)}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    created = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        record = KeyRecord(name=name, sha256=digest, created=created, **limits)
    except ValidationError as error:
        first = error.errors()[0]
        field = "".join(f"{part}: " for part in first["loc"])
        raise InputError(f"{field}{plain_reason(first['msg'])}") from None
    check_output(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive_lock(path.parent):
        known = read_keys(path) if path.exists() else []
        if any(entry.name == name for entry in known):
            raise InputError(
                f"a key named {name} exists; revoke it first, or choose another name"
            )
        _write(path, [*known, record])
    return key, record


def check_rate_option(rate: float | None) -> None:
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"--rate is requests per second, above 0, not {rate:g}")


def revoke_key(path: Path, name: str) -> None:
    check_output(path)
    if not path.exists():
        read_keys(path)  # says so
    with _exclusive_lock(path.parent):
        known = read_keys(path)
        left = [entry for entry in known if entry.name != name]
        if len(left) == len(known):
            names = ", ".join(entry.name for entry in known) or "no keys at all"
            raise InputError(f"there is no key named {name}; the file has {names}")
        _write(path, left)


def _write(path: Path, records: list[KeyRecord]) -> None:
    write_whole(path, KeysFile(keys=records).to_toml().encode(), private=True)


@contextlib.contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder: one process at a time changes the keys in it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class KeyRing:
    """The keys of a file as they are now.

    A file that cannot be read, or is not well written, is refused when it changes, and the keys
    before it stay. A file that was emptied or removed is taken at its word: no key is left, and no
    client is let in until there is one again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = stamp_if_there(path)
        self._held = _held(read_keys(path))

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_single(self) -> bool:
        """Whether at most one key lets clients in."""
        return sum(record.scope == "all" for _, record in self._held) <= 1

    def find(self, presented: bytes) -> KeyRecord | None:
        """The record of a key. Each is looked at, so that the time taken does not tell which were
        close.
        """
        digest = hashlib.sha256(presented).digest()
        match = None
        for held, record in self._held:
            if hmac.compare_digest(held, digest):
                match = record
        return match

    def watch(self) -> None:
        """Take the file as it is now, if it has changed."""
        stamp = stamp_if_there(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if stamp is None:
            self._held = ()
            log.error("the keys file is missing; every key is refused until it is back")
            return
        try:
            self._held = _held(read_keys(self._path))
        except OSError:
            self._stamp = []  # that may pass, and a key may have been revoked: look again
            log.error(
                "the new keys file cannot be read; keeping the old keys and trying again"
            )
        except InputError:
            log.error(
                "new keys file refused, keeping the old keys; `ridgeway keys list` says"
                " why"
            )
        else:
            log.warning("the keys file was reloaded; keys: %d", len(self._held))


def _held(records: list[KeyRecord]) -> tuple[tuple[bytes, KeyRecord], ...]:
    return tuple((bytes.fromhex(entry.sha256), entry) for entry in records)


# Whom the service lets in, and how often: addresses, hosts, origins, keys and rates, as the
# operator chose them.


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
