"""Showing a page that is only read: where it listens, whom it lets in, and that it runs."""

from __future__ import annotations

from pathlib import Path

from ridgeway.common.cli.terminal import step
from ridgeway.common.web.access_rules import is_loopback, make_rules
from ridgeway.common.web.request_context import set_up_logs
from ridgeway.common.web.server import (
    Address,
    bind_sockets,
    find_certificate,
    make_server,
    run,
)
from ridgeway.common.web.site import PageParts, create_page_app


def serve_page(
    parts: PageParts,
    host: str,
    port: int,
    keys: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    rate: float | None,
    allow_host: list[str] | None,
) -> None:
    """Show a page until it is stopped; raises before anything is shown if that is not safe or not
    possible.
    """
    address = Address(host, port, find_certificate(tls_cert, tls_key))
    encrypted = address.certificate is not None
    rules = make_rules(host, keys, rate=rate, hosts=allow_host or (), tls=encrypted)
    sockets = bind_sockets(address)
    if not encrypted and not is_loopback(host):
        step(
            "note",
            "without --tls-cert and --tls-key, keys and page contents are sent "
            "unencrypted",
        )
    step("showing", address.url, "stop it with Ctrl-C")
    set_up_logs("text", "warning")
    watched = [address.certificate.watch] if address.certificate else []
    app = create_page_app(parts, rules, watched)
    run(make_server(app, address.certificate), sockets)
