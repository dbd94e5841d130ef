"""Reference pages that the site generates from the code: commands, settings, refusals."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from ridgeway.__main__ import command
from ridgeway.client.deploy.holder_folder import settings_text as client_toml
from ridgeway.client.round.holder import HolderSettings
from ridgeway.client.round.policy import Policy
from ridgeway.common.base.settings import DEFAULT
from ridgeway.coordinator.deploy.coordinator_folder import (
    settings_text as coordinator_toml,
)
from ridgeway.coordinator.round.federation import FederationSettings
from ridgeway.coordinator.round.progress import REMEDIES
from ridgeway.serving.serve_command import write_template

SETTINGS = """# Settings

For holders and operators: the settings files with their defaults, generated from the code.
[experts.toml](../application/experts-toml.md) has a page of its own."""

TROUBLESHOOTING = """# Troubleshooting

For operators: what keeps a holder from a round, by the code that `round` and the
ledger show, and what its owner has to do. Generated from the code.

| code | what to do |
|---|---|
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs: adds the generated pages."""
    pages = {
        "reference/cli.md": cli_page(),
        "reference/settings.md": settings_page(),
        "operator/troubleshooting.md": troubleshooting_page(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def cli_page() -> str:
    """Every command, as `typer utils docs` describes it."""
    root = command()
    return get_docs_for_click(
        obj=root, ctx=typer.Context(root), name="ridgeway", title="Commands"
    )


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
        serve_toml = Path(folder) / "serve.toml"
        write_template(serve_toml)
        texts = {
            "ridgeway client init": client_toml(holder),
            "ridgeway coordinator init": coordinator_toml(FederationSettings()),
            "ridgeway serve --write-config": serve_toml.read_text(),
        }
    files = (f"## `{by}`\n\n```toml\n{text}\n```" for by, text in texts.items())
    return "\n\n".join([SETTINGS, *files])


def troubleshooting_page() -> str:
    """What each refusal asks of the holder's owner."""
    rows = (f"| `{code}` | {remedy} |" for code, remedy in sorted(REMEDIES.items()))
    return TROUBLESHOOTING + "\n".join(rows)
