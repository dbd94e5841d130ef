"""Headers that every answer carries, so that browsers keep the page and other sites apart.

Knows HTTP's headers. Knows nothing of who asks.
"""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY: Headers = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
]
NOT_KEPT = (b"cache-control", b"no-store")
ONLY_TLS = (b"strict-transport-security", b"max-age=31536000")

ASKING: Headers = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, api-key, content-type, *"),
    (b"access-control-max-age", b"600"),
]
"""What a browser is told that asks whether a page of an allowed site may ask."""


def security_headers(tls: bool) -> Headers:
    return [*SECURITY, ONLY_TLS] if tls else list(SECURITY)


def allowing(origin: bytes) -> Headers:
    """What lets a page of an allowed site read the answer."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"origin"),
    ]


OURS = frozenset(name for name, _ in [*SECURITY, ONLY_TLS, *allowing(b"")]) - {b"vary"}


def dressed(headers: Iterable[tuple[bytes, bytes]], ours: Headers) -> Headers:
    """The headers of an answer and ours; ours stand alone, but whoever says how long to keep an answer is believed."""
    theirs = [each for each in headers if each[0] not in OURS]
    for name, _ in theirs:
        if name == b"cache-control":
            return theirs + ours
    return [*theirs, *ours, NOT_KEPT]
