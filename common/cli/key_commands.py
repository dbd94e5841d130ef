"""ridgeway keys: who may ask a service that listens to others than this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ridgeway.common.cli.options import Json
from ridgeway.common.cli.terminal import TextTable, command_group, show, step

if TYPE_CHECKING:
    from ridgeway.common.http.api_keys import KeyRecord

_KeyScope = Literal["all", "metrics"]

app = command_group("The API keys of `ridgeway serve`: a file of names and hashes.")

KeysPath = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="The file of keys, as given to `ridgeway serve --keys`."
    ),
]
KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")]


@app.command()
def add(
    file: KeysPath,
    name: KeyName,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests a second that this key may make. (default: serve's --rate)"
        ),
    ] = None,
    scope: Annotated[
        _KeyScope,
        typer.Option(help="What the key is for: all, or metrics (/metrics alone)."),
    ] = "all",
    window: Annotated[
        str | None,
        typer.Option(
            metavar="minute|hour|day|month", help="The window of the key's budget."
        ),
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Requests in each window.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of prompts and answers in each window."),
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="Cost in each window, by the experts' prices.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a key for NAME and print it, this once. The file, made if it is not there, keeps its
    hash alone.
    """
    from ridgeway.common.http.api_keys import add_key
    from ridgeway.common.http.key_budgets import make_budget

    budget = make_budget(window, max_requests, max_tokens, max_cost)
    key, entry = add_key(file, name, rate, scope=scope, budget=budget)
    show({"key": key, **_shown(entry)}, key, json=json)
    sys.stdout.flush()
    step(
        "added",
        name,
        f"to {file}; the key is shown this once; send it as Authorization: Bearer KEY",
    )


@app.command("list")
def listed(file: KeysPath, json: Json = False) -> None:
    """Show whose keys a file holds, their budgets, and what they have spent of them in the window
    that is now.
    """
    from ridgeway.common.http.api_keys import read_keys, usage_path
    from ridgeway.common.http.key_budgets import UsageBook

    entries = read_keys(file)
    book = UsageBook(usage_path(file)) if usage_path(file).exists() else None
    spent = {
        each.name: book.spent(each.name, each.window)
        for each in entries
        if book and each.window
    }
    told = {name: {"spent": asdict(usage)} for name, usage in spent.items()}
    rows = [
        (
            each.name,
            each.created,
            each.scope,
            "" if each.budget is None else each.budget.in_words(spent.get(each.name)),
            "" if each.rate is None else f"{each.rate:g}",
        )
        for each in entries
    ]
    show(
        [_shown(each) | told.get(each.name, {}) for each in entries],
        TextTable(("name", "created", "scope", "budget", "requests/s"), rows),
        json=json,
    )


def _shown(entry: KeyRecord) -> dict[str, Any]:
    """A key for programs; limits only where there are some."""
    shown = entry.model_dump(include={"name", "created", "rate", "scope"})
    return shown if entry.budget is None else shown | {"budget": asdict(entry.budget)}


@app.command()
def revoke(file: KeysPath, name: KeyName) -> None:
    """Forget the key of NAME; a running service stops taking it within a second."""
    from ridgeway.common.http.api_keys import revoke_key

    revoke_key(file, name)
    step("revoked", name)
