"""The `ridgeway` command: every group of commands, ordered by who uses it.

The work, and what it needs, is imported when a command runs.
"""

from __future__ import annotations

import sys
from importlib import import_module

HOLDER = "a domain holder"
OPERATOR = "an operator"
APPLICATION = "anyone with a release"
RESEARCHER = "a researcher or newcomer"
COMMANDS = {
    "simulate": ("simulations.cli.simulate_command", "simulate", RESEARCHER),
    "audit": ("simulations.cli.cohort_audit_command", "audit", RESEARCHER),
    "bench": ("simulations.cli.bench_commands", "app", RESEARCHER),
    "client": ("client.cli.corpus_commands", "app", HOLDER),
    "coordinator": ("coordinator.cli.solve_commands", "app", OPERATOR),
    "plan": ("coordinator.cli.plan_command", "plan", OPERATOR),
    "prior": ("client.cli.prior_commands", "app", OPERATOR),
    "serve": ("coordinator.cli.serve_command", "serve", OPERATOR),
    "experts": ("coordinator.cli.expert_commands", "app", OPERATOR),
    "keys": ("coordinator.cli.key_commands", "app", OPERATOR),
    "route": ("common.cli.route_commands", "route", APPLICATION),
    "evaluate": ("common.cli.route_commands", "evaluate", APPLICATION),
    "calibrate": ("common.cli.route_commands", "calibrate", APPLICATION),
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
    import typer

    from ridgeway import __version__
    from ridgeway.common.cli.terminal import command_group, run

    app = command_group(
        "A router for domain-expert language models, built from corpora that never"
        " leave their owners."
    )

    @app.callback(invoke_without_command=True)
    def front(
        version: bool = typer.Option(False, "--version", help="Print the version."),
    ) -> None:
        if version:
            print(f"ridgeway {__version__}")
            raise typer.Exit

    words = sys.argv[1:] if arguments is None else arguments
    # one is found sooner than all
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
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
    sys.exit(run(typer.main.get_command(app), arguments))


if __name__ == "__main__":
    main()
