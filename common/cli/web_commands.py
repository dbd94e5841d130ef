"""ridgeway keys: who may ask a service; and how a command shows a page."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from ridgeway.common.cli.terminal import (
    Json,
    TextTable,
    argument,
    command_group,
    option,
    show,
    step,
)
from ridgeway.common.web.api_keys import (
    KeyRecord,
    add_key,
    is_loopback,
    make_rules,
    read_keys,
    revoke_key,
    usage_path,
)
from ridgeway.common.web.key_budgets import UsageBook
from ridgeway.common.web.request_context import set_up_logs
from ridgeway.common.web.server import (
    Address,
    bind_sockets,
    find_certificate,
    make_server,
    run,
)
from ridgeway.common.web.site import PageParts, create_page_app

# Showing a page that is only read: where it listens, whom it lets in, and that it runs.


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


# ridgeway keys: who may ask a service that listens to others than this machine.


app = command_group()

KeysPath = Annotated[
    Path,
    argument("The file of keys, as given to `ridgeway serve --keys`.", "FILE"),
]
KeyName = Annotated[str, argument("Name of the key's owner.", "NAME")]


@app.command()
def add(
    file: KeysPath,
    name: KeyName,
    rate: Annotated[
        float | None,
        option("Requests per second of this key. (default: serve's --rate)"),
    ] = None,
    scope: Annotated[
        Literal["all", "metrics"],
        option("Scope of the key: all, or metrics (/metrics only)."),
    ] = "all",
    window: Annotated[
        Literal["minute", "hour", "day", "month"] | None,
        option("Budget window."),
    ] = None,
    max_requests: Annotated[int | None, option("Requests per window.", min=1)] = None,
    max_tokens: Annotated[
        int | None,
        option("Prompt and answer tokens per window.", min=1),
    ] = None,
    max_cost: Annotated[
        float | None, option("Cost per window, at the experts' prices.")
    ] = None,
    max_parallel: Annotated[int | None, option("Concurrent requests.", min=1)] = None,
    json: Json = False,
) -> None:
    """Make a key for NAME and print it, this once. The file, made if it is not there, keeps its
    hash alone.
    """
    key, entry = add_key(
        file,
        name,
        rate=rate,
        scope=scope,
        window=window,
        max_requests=max_requests,
        max_tokens=max_tokens,
        max_cost=max_cost,
        max_parallel=max_parallel,
    )
    show({"key": key, **_shown(entry)}, key, json=json)
    sys.stdout.flush()
    step(
        "added",
        name,
        f"to {file}; the key is shown only now; send it as Authorization: Bearer KEY",
    )


@app.command("list")
def listed(
    file: KeysPath,
    usage: Annotated[
        Path | None,
        option("`usage` of serve.toml. (default: KEYS.usage)", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Show whose keys a file holds, their budgets, and what they have spent of them in the window
    that is now.
    """
    written = usage or usage_path(file)
    book = UsageBook(written) if written.exists() else None
    facts = []
    rows = []
    for entry in read_keys(file):
        fact = _shown(entry)
        spent = book.spent(entry.name, entry.window) if book and entry.window else None
        if spent:
            fact["spent"] = asdict(spent)
        budget = entry.budget.in_words(spent) if entry.budget else ""
        rate = f"{entry.rate:g}" if entry.rate else ""
        facts.append(fact)
        parallel = f"{entry.max_parallel}" if entry.max_parallel else ""
        rows.append([entry.name, entry.created, entry.scope, budget, rate, parallel])
    show(
        facts,
        TextTable(
            ("name", "created", "scope", "budget", "requests/s", "at a time"), rows
        ),
        json=json,
    )


def _shown(entry: KeyRecord) -> dict[str, Any]:
    """A key for programs; limits only where there are some."""
    shown = entry.model_dump(include={"name", "created", "rate", "scope"})
    if entry.max_parallel is not None:
        shown["max_parallel"] = entry.max_parallel
    return shown if entry.budget is None else shown | {"budget": asdict(entry.budget)}


@app.command()
def revoke(file: KeysPath, name: KeyName) -> None:
    """Forget the key of NAME; a running service stops taking it within a second."""
    revoke_key(file, name)
    step("revoked", name)
