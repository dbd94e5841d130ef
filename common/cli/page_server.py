"""Showing a page that is only read: where it listens, whom it lets in, and that it runs.

Knows the options that every page has. Knows nothing of what a page shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeway.common.cli.terminal import step

if TYPE_CHECKING:
    from ridgeway.common.http.page_app import PageParts


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where a page is shown, and to whom, as the options say it."""

    host: str
    port: int
    keys: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    rate: float | None = None
    hosts: tuple[str, ...] = ()


def serve_page(parts: PageParts, where: PageAddress) -> None:
    """Show a page until it is stopped; raises before anything is shown if that is not safe or not possible."""
    from ridgeway.common.http.access_rules import is_loopback, make_rules
    from ridgeway.common.http.page_app import create_page_app
    from ridgeway.common.http.server import Address, bind_sockets, find_certificate, run

    address = Address(where.host, where.port, find_certificate(where.tls_cert, where.tls_key))
    encrypted = address.certificate is not None
    rules = make_rules(where.host, where.keys, rate=where.rate, hosts=where.hosts, tls=encrypted)
    sockets = bind_sockets(address)
    if not encrypted and not is_loopback(where.host):
        step("note", "without --tls-cert and --tls-key, keys and what the page shows travel unencrypted")
    step("showing", address.url, "stop it with Ctrl-C")
    looks = [address.certificate.watch] if address.certificate else []
    run(create_page_app(parts, rules, looks), sockets, address.certificate)
