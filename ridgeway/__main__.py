"""The `ridgeway` command: every group of commands, ordered by who uses it.

A command's module is imported when that command is asked for, its work and what that needs when it
runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from ridgeway import __version__


class CommandEntry(NamedTuple):
    """A command or a group of commands.

    module: where it is; it is called like here there, or `app`. user: who uses it.
    extra: the packages of all that it can do, where a plain install is not enough. summary: what
    the list of commands says of it.
    """

    module: str
    user: str
    extra: str
    summary: str


HOLDER = "a domain holder"
OPERATOR = "an operator"
APPLICATION = "anyone with a release"
RESEARCHER = "a researcher or newcomer"
COMMANDS = {
    "simulate": CommandEntry(
        "simulations.simulate",
        RESEARCHER,
        "simulation",
        "Run a whole federation on this machine.",
    ),
    "audit": CommandEntry(
        "simulations.audit_command",
        RESEARCHER,
        "client",
        "Attack the sums of a holder, as a coordinator could.",
    ),
    "client": CommandEntry(
        "client.cli.corpus_commands",
        HOLDER,
        "client",
        "Commands of a domain holder: private files to sums that may leave.",
    ),
    "coordinator": CommandEntry(
        "coordinator.cli.solve_commands",
        OPERATOR,
        "coordinator",
        "The operator's side: statistics to signed releases.",
    ),
    "plan": CommandEntry(
        "coordinator.cli.plan_command",
        OPERATOR,
        "coordinator",
        "Predict the accuracy of a private round.",
    ),
    "prior": CommandEntry(
        "client.cli.corpus_commands",
        OPERATOR,
        "client",
        "The public prior of private rounds.",
    ),
    "experts": CommandEntry(
        "coordinator.cli.solve_commands",
        OPERATOR,
        "coordinator",
        "Quality of each expert in each domain.",
    ),
    "route": CommandEntry(
        "common.cli.route_commands",
        APPLICATION,
        "serve",
        "Route PROMPT to the expert that it belongs to.",
    ),
    "evaluate": CommandEntry(
        "common.cli.route_commands",
        APPLICATION,
        "coordinator",
        "Measure the accuracy of a release on labelled text.",
    ),
    "serve": CommandEntry(
        "serving.serve_command",
        APPLICATION,
        "serve",
        "Serve a release: the routing API, an OpenAI-compatible gateway to experts,"
        " and a page that shows why.",
    ),
    "keys": CommandEntry(
        "common.cli.web_commands",
        APPLICATION,
        "serve",
        "The API keys of `ridgeway serve`: a file of names and hashes.",
    ),
    "encoder": CommandEntry(
        "common.cli.route_commands",
        APPLICATION,
        "client",
        "The tokenizer and integer table that all parties share.",
    ),
}
MORE_EXTRAS = {"client page": "client,serve", "coordinator page": "coordinator,serve"}
"""What a command of a group needs where the group's extra is not all."""


def main(arguments: list[str] | None = None) -> None:
    """Run the `ridgeway` command and exit with its code."""
    try:
        _main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # so early that nothing was begun
        print("ridgeway: interrupted", file=sys.stderr)
        sys.exit(130)


def _main(words: Sequence[str]) -> None:
    # commands have threads of their own; on a busy machine, those of BLAS make small products wait
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ridgeway.common.cli.terminal import BAD_INPUT, fail, run

    # the options of the front take no value
    asked = [word for word in words if not word.startswith("-")]
    try:
        code = run(command(COMMANDS.keys() & asked[:1]), words)
    except ImportError as error:
        code = fail(_install(asked, error), BAD_INPUT)
    sys.exit(code)


def _install(asked: Sequence[str], error: ImportError) -> str:
    """What to install for a command that has not found a package, or not what it needs of one; an
    error within Ridgeway is raised again.
    """
    package = (error.name or "ridgeway").partition(".")[0]
    if package == "ridgeway":
        raise error
    name = " ".join(asked[:2])
    if name not in MORE_EXTRAS:
        name = asked[0]
    extra = MORE_EXTRAS.get(name) or COMMANDS[name].extra
    install = f"install it in a checkout of Ridgeway: pip install '.[{extra}]'"
    if find_spec(package) is None:
        return f"`ridgeway {name}` needs {package} of the extra `{extra}`: {install}"
    version = getattr(import_module(package), "__version__", "that is installed")
    return f"`ridgeway {name}` cannot use {package} {version} ({error}): {install}"


def command(loaded: Iterable[str] = COMMANDS) -> Any:
    """The `ridgeway` command; those of these names can be run, the others are listed alone."""
    import typer

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
            from ridgeway.common.base.machine import sentence_kernel, why_not

            native = f"no ({why_not})" if why_not else f"yes ({sentence_kernel()})"
            print(f"ridgeway {__version__}, native {native}")
            raise typer.Exit

    for name, entry in COMMANDS.items():
        panel = f"For {entry.user}"
        run: Any = lambda: None  # noqa: E731
        if name in loaded:
            module = import_module(f"ridgeway.{entry.module}")
            run = getattr(module, name, None) or module.app
        if isinstance(run, typer.Typer):
            app.add_typer(run, name=name, help=entry.summary, rich_help_panel=panel)
            continue
        settings = {"auto_envvar_prefix": "RIDGEWAY_SERVE"} if name == "serve" else None
        app.command(
            name,
            short_help=entry.summary,
            rich_help_panel=panel,
            context_settings=settings,
        )(run)
    return typer.main.get_command(app)


if __name__ == "__main__":
    main()
