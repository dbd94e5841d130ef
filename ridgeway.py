"""Ridgeway: a router for domain-expert language models, built from corpora that never leave their owners.

What users import, and the `ridgeway` command. Importing this, and routing a prompt, imports neither torch nor Flower.

    from ridgeway import Router
    router = Router.load("release/")
    router.route("Is a verbal contract binding?").domain
"""

from __future__ import annotations

import sys

from common.conversation import Turn, weighted_turns
from common.errors import RidgewayError
from common.router import Decision, Explanation, Router, TokenWeight

__all__ = [
    "Decision",
    "Explanation",
    "RidgewayError",
    "Router",
    "TokenWeight",
    "Turn",
    "__version__",
    "main",
    "weighted_turns",
]

__version__ = "0.1.0"


def main(arguments: list[str] | None = None) -> None:
    """The `ridgeway` command."""
    try:
        _main(arguments)
    except KeyboardInterrupt:  # so early that nothing was begun
        print("ridgeway: interrupted", file=sys.stderr)
        sys.exit(130)


def _main(arguments: list[str] | None) -> None:
    import typer

    import client.cli
    import common.calibrate_cli
    import common.cli
    import coordinator.cli
    import coordinator.serve.cli
    import coordinator.serve.keys_cli
    import simulations.audit_cli
    import simulations.bench_cli
    import simulations.cli
    import simulations.experiment_cli
    from common.terminal import command_group, run

    app = command_group("A router for domain-expert language models, built from corpora that never leave their owners.")

    @app.callback(invoke_without_command=True)
    def front(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
        if version:
            print(f"ridgeway {__version__}")
            raise typer.Exit

    app.add_typer(client.cli.app, name="client")
    app.add_typer(coordinator.cli.app, name="coordinator")
    app.add_typer(common.cli.encoder, name="encoder")
    app.command()(common.cli.route)
    app.command()(common.cli.evaluate)
    app.command()(common.calibrate_cli.calibrate)
    app.command()(coordinator.serve.cli.serve)
    app.add_typer(coordinator.serve.keys_cli.app, name="keys")
    app.command()(simulations.cli.simulate)
    app.command()(simulations.audit_cli.audit)
    app.add_typer(simulations.bench_cli.app, name="bench")
    app.add_typer(simulations.experiment_cli.app, name="experiment")
    sys.exit(run(typer.main.get_command(app), arguments))
