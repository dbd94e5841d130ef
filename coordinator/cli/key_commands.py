"""ridgeway keys: who may ask a service that listens to others than this machine.

Knows options and how results are shown.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ridgeway.common.cli.options import Json
from ridgeway.common.cli.terminal import command_group, emit_json, step, table

KeyScope = Literal["all", "metrics"]

app = command_group("The API keys of `ridgeway serve`: a file of names and hashes.")

KeysPath = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file of keys, as given to `ridgeway serve --keys`.")
]
KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")]


@app.command()
def add(
    file: KeysPath,
    name: KeyName,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second that this key may make. (default: serve's --rate)")
    ] = None,
    scope: Annotated[KeyScope, typer.Option(help="What the key is for: all, or metrics (/metrics alone).")] = "all",
    json: Json = False,
) -> None:
    """Make a key for NAME and print it, this once. The file, made if it is not there, keeps its hash alone."""
    from ridgeway.common.http.api_keys import add_key

    key, entry = add_key(file, name, rate, scope=scope)
    if json:
        emit_json({"name": name, "key": key, "created": entry.created, "rate": entry.rate, "scope": entry.scope})
    else:
        print(key)
    sys.stdout.flush()
    step("added", name, f"to {file}; the key is shown this once; send it as Authorization: Bearer KEY")


@app.command("list")
def listed(file: KeysPath, json: Json = False) -> None:
    """Show whose keys a file holds."""
    from ridgeway.common.http.api_keys import read_keys

    entries = read_keys(file)
    if json:
        emit_json([each.model_dump(exclude={"sha256"}) for each in entries])
        return
    rows = [(each.name, each.created, each.scope, "" if each.rate is None else f"{each.rate:g}") for each in entries]
    table(("name", "created", "scope", "requests/s"), rows, numbers_from=3)


@app.command()
def revoke(file: KeysPath, name: KeyName) -> None:
    """Forget the key of NAME; a running service stops taking it within a second."""
    from ridgeway.common.http.api_keys import revoke_key

    revoke_key(file, name)
    step("revoked", name)
