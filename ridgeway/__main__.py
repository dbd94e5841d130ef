"""The `ridgeway` command: every group of commands, ordered by who uses it.

The work, and what it needs, is imported when a command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

HOLDER = "a domain holder"
OPERATOR = "an operator"
APPLICATION = "anyone with a release"
RESEARCHER = "a researcher or newcomer"
COMMANDS = {
    "simulate": ("simulations.cli.simulate_command", "simulate", RESEARCHER),
    "audit": ("simulations.cli.cohort_audit_command", "audit", RESEARCHER),
    "client": ("client.cli.corpus_commands", "app", HOLDER),
    "coordinator": ("coordinator.cli.solve_commands", "app", OPERATOR),
    "plan": ("coordinator.cli.plan_command", "plan", OPERATOR),
    "prior": ("client.cli.prior_commands", "app", OPERATOR),
    "experts": ("coordinator.cli.expert_commands", "app", OPERATOR),
    "route": ("common.cli.route_commands", "route", APPLICATION),
    "evaluate": ("common.cli.route_commands", "evaluate", APPLICATION),
    "calibrate": ("common.cli.route_commands", "calibrate", APPLICATION),
    "serve": ("common.serve.serve_command", "serve", APPLICATION),
    "keys": ("common.cli.key_commands", "app", APPLICATION),
    "encoder": ("common.cli.route_commands", "encoder", APPLICATION),
}
"""Every command and group of commands: the module that holds it, its name there, and who uses it.
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the `ridgeway` command and exit with its code."""
    try:
        _main(arguments)
    except KeyboardInterrupt:  # so early that nothing was begun
        print("ridgeway: interrupted", file=sys.stderr)
        sys.exit(130)


def _main(arguments: list[str] | None) -> None:
    # commands have threads of their own; on a busy machine, those of BLAS make small products wait
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ridgeway.common.cli.terminal import run

    words = sys.argv[1:] if arguments is None else arguments
    # one is found sooner than all
    named = words[:1] if words and words[0] in COMMANDS else COMMANDS
    sys.exit(run(command(named), arguments))


def command(names: Iterable[str] = COMMANDS) -> click.Command:
    """The `ridgeway` command with these commands and groups."""
    import typer

    from ridgeway import __version__
    from ridgeway.common.cli.terminal import command_group

    app = command_group(
        "A router for domain-expert language models, built from corpora that never"
        " leave their owners."
    )

    @app.callback(invoke_without_command=True)
    def front(
        version: bool = typer.Option(False, "--version", help="Print the version."),
    ) -> None:
        if version:
            from ridgeway.common.base.native import why_not

            native = f"no ({why_not})" if why_not else "yes"
            print(f"ridgeway {__version__}, native {native}")
            raise typer.Exit

    for name in names:
        module, attribute, who = COMMANDS[name]
        found = getattr(import_module(f"ridgeway.{module}"), attribute)
        panel = f"For {who}"
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, rich_help_panel=panel)
        else:
            settings = (
                {"auto_envvar_prefix": "RIDGEWAY_SERVE"} if name == "serve" else None
            )
            app.command(name, rich_help_panel=panel, context_settings=settings)(found)
    return typer.main.get_command(app)


if __name__ == "__main__":
    main()
