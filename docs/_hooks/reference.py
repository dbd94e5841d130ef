"""Reference pages that the site generates from the code: commands, settings, HTTP, errors."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

from fastapi import FastAPI
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer import Context
from typer.core import TyperGroup, TyperOption

from ridgeway.__main__ import command
from ridgeway.client.deploy.holder_folder import settings_text as client_toml
from ridgeway.client.round.holder import HolderSettings
from ridgeway.client.round.policy import Policy
from ridgeway.common.base import errors
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.serve.gateway.gateway import gateway_api
from ridgeway.common.serve.routing.decision_api import decision_api
from ridgeway.common.serve.routing.routing_api import routing_api
from ridgeway.common.serve.routing.routing_service import RoutingService
from ridgeway.common.serve.serve_settings import write_template
from ridgeway.coordinator.deploy.coordinator_folder import (
    settings_text as coordinator_toml,
)
from ridgeway.coordinator.round.federation import FederationSettings
from ridgeway.coordinator.round.remedies import REMEDIES


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs: adds the generated pages."""
    pages = {
        "reference/cli.md": cli_page(),
        "reference/settings.md": settings_page(),
        "reference/http.md": http_page(),
        "reference/errors.md": errors_page(),
        "operator/troubleshooting.md": troubleshooting_page(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def cli_page() -> str:
    """Every command with its arguments and options."""
    lines = ["# Commands", "", "For everyone: generated from the code."]
    for name, found in _commands(command(), "ridgeway"):
        lines += ["", f"## `{name}`", "", inspect.cleandoc(found.help or "")]
        context = Context(found)
        rows = [row for each in found.params if (row := _row(each, context))]
        if rows:
            lines += ["", "| argument or option | meaning |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _commands(found: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(found, TyperGroup):
        yield name, found
        return
    for word in found.list_commands(Context(found)):
        yield from _commands(found.commands[word], f"{name} {word}")


def _row(parameter: Any, context: Context) -> str:
    if isinstance(parameter, TyperOption):
        names = " ".join(f"`{name}`" for name in parameter.opts)
    else:
        names = f"`{parameter.make_metavar(context)}`"
    said = " ".join((getattr(parameter, "help", None) or "").split())
    return f"| {names} | {said.replace('|', chr(92) + '|')} |"


def settings_page() -> str:
    """The settings files, as the commands write them."""
    holder = HolderSettings(
        domain="law",
        corpus=("/data/contracts",),
        address="router.example.org:9443",
        bundles=("0" * 64,),
        policy=Policy(
            coordinator="0" * 64, encoders=("0" * 64,), sampling=DEFAULT.sampling
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        write_template(Path(folder) / "serve.toml")
        serve_toml = (Path(folder) / "serve.toml").read_text()
    files = {
        "client.toml": ("`ridgeway client init` writes it.", client_toml(holder)),
        "coordinator.toml": (
            "`ridgeway coordinator init` writes it.",
            coordinator_toml(FederationSettings()),
        ),
        "serve.toml": ("`ridgeway serve --write-config` writes it.", serve_toml),
    }
    lines = [
        "# Settings",
        "",
        "For holders and operators: the settings files with their defaults, generated"
        " from the code. [experts.toml](../application/experts-toml.md) has a page of"
        " its own.",
    ]
    for name, (origin, text) in files.items():
        lines += ["", f"## {name}", "", origin, "", "```toml", text.strip(), "```"]
    return "\n".join(lines) + "\n"


def http_page() -> str:
    """Every endpoint of `ridgeway serve`."""
    service = create_autospec(RoutingService, instance=True)
    app = FastAPI()
    app.include_router(routing_api(service, None, dict, lambda: None))
    app.include_router(decision_api(service, None))
    app.include_router(gateway_api(service, None))
    described = app.openapi()
    lines = [
        "# HTTP endpoints",
        "",
        "For application developers: the endpoints of `ridgeway serve`, generated from"
        " the code; `/docs` of a running service has their fields.",
        "",
        "| endpoint | what it does |",
        "|---|---|",
    ]
    for path, methods in described["paths"].items():
        for method, facts in methods.items():
            said = facts.get("description") or facts["summary"]
            lines.append(f"| `{method.upper()} {path}` | {' '.join(said.split())} |")
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """The tree of exceptions."""
    lines = [
        "# Errors",
        "",
        "For application developers: every exception that Ridgeway raises on purpose,"
        " generated from the code. The message of each may be shown to users. Codes of"
        " holders' refusals are under"
        " [Troubleshooting](../operator/troubleshooting.md).",
        "",
    ]
    return "\n".join([*lines, *_tree(errors.RidgewayError, 0)]) + "\n"


def _tree(kind: type[Exception], depth: int) -> Iterator[str]:
    said = inspect.cleandoc(kind.__doc__ or "").replace("\n", " ")
    yield f"{'    ' * depth}- `{kind.__name__}`: {said}"
    for child in sorted(kind.__subclasses__(), key=lambda child: child.__name__):
        yield from _tree(child, depth + 1)


def troubleshooting_page() -> str:
    """What each refusal asks of the holder's owner."""
    lines = [
        "# Troubleshooting",
        "",
        "For operators: what keeps a holder from a round, by the code that `preflight`,"
        " `round` and the ledger show, and what its owner has to do. Generated from"
        " the code.",
        "",
        "| code | what to do |",
        "|---|---|",
    ]
    lines += [f"| `{code}` | {remedy} |" for code, remedy in sorted(REMEDIES.items())]
    return "\n".join(lines) + "\n"
