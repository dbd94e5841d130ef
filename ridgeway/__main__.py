"""The `ridgeway` command: every group of commands, ordered by who uses it.

Knows which module holds which command. The work, and what it needs, is imported when a command runs.
"""

from __future__ import annotations

import sys


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
    from ridgeway.client.cli import corpus_commands
    from ridgeway.common.cli import route_commands
    from ridgeway.common.cli.terminal import command_group, run
    from ridgeway.coordinator.cli import expert_commands, key_commands, serve_command, solve_commands
    from ridgeway.simulations.cli import bench_commands, cohort_audit_command, experiment_commands, simulate_command

    app = command_group("A router for domain-expert language models, built from corpora that never leave their owners.")

    @app.callback(invoke_without_command=True)
    def front(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
        if version:
            print(f"ridgeway {__version__}")
            raise typer.Exit

    holder, operator, application, researcher = (
        f"For {who}" for who in ("a domain holder", "an operator", "anyone with a release", "a researcher or newcomer")
    )
    app.command(rich_help_panel=researcher)(simulate_command.simulate)
    app.command(rich_help_panel=researcher)(cohort_audit_command.audit)
    app.add_typer(experiment_commands.app, name="experiment", rich_help_panel=researcher)
    app.add_typer(bench_commands.app, name="bench", rich_help_panel=researcher)
    app.add_typer(corpus_commands.app, name="client", rich_help_panel=holder)
    app.add_typer(solve_commands.app, name="coordinator", rich_help_panel=operator)
    app.command(rich_help_panel=operator)(serve_command.serve)
    app.add_typer(expert_commands.app, name="experts", rich_help_panel=operator)
    app.add_typer(key_commands.app, name="keys", rich_help_panel=operator)
    app.command(rich_help_panel=application)(route_commands.route)
    app.command(rich_help_panel=application)(route_commands.evaluate)
    app.command(rich_help_panel=application)(route_commands.calibrate)
    app.add_typer(route_commands.encoder, name="encoder", rich_help_panel=application)
    sys.exit(run(typer.main.get_command(app), arguments))


if __name__ == "__main__":
    main()
