"""What the commands share: steps and progress on stderr, results alone on stdout, errors as one
sentence.
"""

from __future__ import annotations

import inspect
import io
import json as codec
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperGroup

from ridgeway.common.base.errors import (
    InputError,
    RidgewayError,
    first_line,
    is_disk_full,
)
from ridgeway.common.base.files import config_folder
from ridgeway.common.base.settings import ENCODERS, SAMPLING, SentenceUse

BAD_INPUT = 2
INTERRUPTED = 130
MAX_WORD_WIDTH = 20
MAX_TABLE_WIDTH = 10_000
_NUMBER = re.compile(r"[–?]?|[+-]?[\d,.]+( ?%| s| [kM]B)?( \([\d,]+\))?")
"""How a cell looks that holds a number, perhaps with its unit and a count, or none."""


class _CommandGroup(TyperGroup):
    """Its help screen leaves out that there is --help, so that the commands fit on it."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.hidden = True
        return option


def command_group(words: str | None = None) -> typer.Typer:
    """A group of commands whose help is plain text; what it says of itself may stand in COMMANDS of
    `ridgeway/__main__.py`.
    """
    return typer.Typer(
        cls=_CommandGroup,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help=words,
    )


_stamped: ContextVar[bool] = ContextVar("stamped", default=False)


def step(verb: str, subject: str, *figures: str) -> None:
    """One aligned line about something that was done."""
    columns = "".join(f"{figure:<22}  " for figure in figures)
    time = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}  " if _stamped.get() else ""
    print(f"{time}{verb:<10}{subject:<26}  {columns}".rstrip(), file=sys.stderr)


@contextmanager
def stamped_steps(on: bool = True) -> Iterator[None]:
    """Within this block every step begins with its time, in UTC."""
    before = _stamped.set(on)
    try:
        yield
    finally:
        _stamped.reset(before)


def count(number: int, noun: str) -> str:
    """`1 file`, `1,204 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number: int) -> str:
    """A number of bytes, in kB or MB."""
    return f"{number / 1e6:.1f} MB" if number >= 1_000_000 else f"{number / 1e3:.1f} kB"


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of a result for people; numbers are written with commas and stand to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


def show(
    facts: Any, *lines: str | TextTable | tuple[str, ...] | None, json: bool
) -> None:
    """Print a result: its facts as JSON, or what says them to people.

    lines: a sentence or a table for stdout; or a step: its verb, its subject and figures; or None.
    """
    if json:
        emit_json(facts)
        return
    for line in lines:
        if isinstance(line, TextTable):
            _print_table(line)
        elif isinstance(line, str):
            print(line)
        elif line:
            step(*line)


def emit_json(value: Any) -> None:
    print(codec.dumps(value, ensure_ascii=False, indent=2))


def _print_table(table: TextTable) -> None:
    """Words to the left; to the right the columns whose cells all look like numbers."""
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [
        [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row]
        for row in table.rows
    ]
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, heading in enumerate(table.headings):
        cells = [row[column] for row in shown if column < len(row)]
        number = all(map(_NUMBER.fullmatch, cells))
        widths = [cell_len(cell) for cell in (heading, *cells)]
        word = max(cell_len(word) for word in " ".join((heading, *cells)).split(" "))
        grid.add_column(
            heading,
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
            # figures are never cut; words may be folded
            min_width=max(widths) if number else min(word, MAX_WORD_WIDTH),
        )
    for row in shown:
        grid.add_row(*map(Text, row))
    if table.title:
        print(table.title)
    console = Console(file=sys.stdout, highlight=False)
    needed = console.measure(
        grid, options=console.options.update(max_width=MAX_TABLE_WIDTH)
    ).minimum
    console.width = max(console.width, needed, 200 if not sys.stdout.isatty() else 0)
    console.print(grid, no_wrap=True, crop=False)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over bytes on stderr; silent where stderr is not a terminal."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _bar(label, DownloadColumn(), TransferSpeedColumn()) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _bar(label: str, *figures: Any) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn(f"{label:<10}"),
        BarColumn(),
        *figures,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class CountingBar:
    """A bar over things of one kind on stderr, begun with the first and ended with the last or by
    `close`.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._label = ""

    def advance(self, label: str, total: int) -> None:
        """One more of these; silent where stderr is not a terminal."""
        from rich.progress import MofNCompleteColumn

        if label != self._label:
            self.close()
            self._label = label
            self._bar = _bar(label, MofNCompleteColumn())
            self._bar.start()
            self._bar.add_task(label, total=total)
        self._bar.advance(0)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = None
        self._label = ""


@contextmanager
def ticking(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar over `total` pieces of work, each of them told by a call; silent where stderr is not a
    terminal.
    """
    with closing(CountingBar()) as bar:
        yield lambda: bar.advance(label, total)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a flag that long work looks at; a second one stops at
    once.
    """
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        os.write(
            2,
            b"\nstopping (Ctrl-C again stops at once)\n",
        )

    before = {
        number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(application: Any, arguments: Sequence[str] | None = None) -> int:
    """Run a command; whatever goes wrong becomes one sentence on stderr and an exit code, but for
    packages that are missing.
    """
    # of typer, which from 0.26 on holds what it took from click before
    click = import_module(typer.BadParameter.__module__)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that lacks a character shows its number
            stream.reconfigure(errors="backslashreplace")
    _flow(application)
    try:
        # Not application.main(): it would turn an interrupt and a closed pipe into exit codes of
        # its own.
        with application.make_context(
            "ridgeway", list(sys.argv[1:] if arguments is None else arguments)
        ) as context:
            application.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as done:
        return done.exit_code
    except RidgewayError as error:
        return fail(str(error), BAD_INPUT)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return BAD_INPUT
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "ridgeway"
        return fail(
            f"{error.format_message().rstrip('.')}; see {command} --help", BAD_INPUT
        )
    except (KeyboardInterrupt, typer.Abort) as error:
        return fail(str(error) or "interrupted", INTERRUPTED)
    except BrokenPipeError:
        # the reader has gone; nothing is lost
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return fail(_system(error), BAD_INPUT)
    except (OverflowError, UnicodeError, ValueError) as error:
        return fail(f"invalid value: {first_line(error)}", BAD_INPUT)
    except MemoryError:
        return fail(
            "out of memory; use fewer --threads or a smaller encoder", BAD_INPUT
        )


def _flow(command: Any) -> None:
    """Let the help of a command, and of those below it, fill the lines of any terminal."""
    if command.help:
        parts = re.split(r"\n\s*\n", command.help)
        command.help = "\n\n".join(" ".join(part.split()) for part in parts)
    for below in getattr(command, "commands", {}).values():
        _flow(below)


def fail(sentence: str, code: int) -> int:
    """Say why a command failed; the exit code."""
    print(f"ridgeway: {sentence}", file=sys.stderr)
    return code


def _system(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    if is_disk_full(error):
        return (
            f"the disk is full{where}; nothing was changed, so make room and run the"
            " same command again"
        )
    return f"{(error.strerror or str(error)).lower()}{where}"


# Options and arguments that several commands share.


Command = TypeVar("Command", bound=Callable[..., Any])


def option(words: str, *names: str, **more: Any) -> Any:
    """An option and its help; `names` where it is not called like its parameter."""
    return typer.Option(*names, help=words, **more)


def argument(words: str, metavar: str | None = None, **more: Any) -> Any:
    """An argument, its help, and how it is written there."""
    return typer.Argument(metavar=metavar, help=words, **more)


AnyMode = Literal["private", "masked", "clear"]
Json = Annotated[bool, option("Print JSON for programs.", "--json")]
ModeOption = Annotated[AnyMode | None, option("What leaves the holders.", "--mode")]
Key = Annotated[
    str | None,
    option(
        "The coordinator's public key (64 digits, or a file): refuse any other signer.",
        "--key",
    ),
]
KeyFile = Annotated[
    Path | None,
    option(
        "The coordinator's private key. (default: in your configuration folder,"
        " created on first use)",
        "--key-file",
    ),
]
Threshold = Annotated[float | None, option("Abstain below this confidence; 0: never.")]
Fallback = Annotated[str | None, option("Where prompts go when the router abstains.")]
Fields = Annotated[
    str,
    option(
        "Text field; of several names, the first that a record has.",
        "--text-field",
    ),
]
SkipBroken = Annotated[
    float,
    option(
        "Skip unreadable records, up to this share, and list them.",
        metavar="SHARE",
    ),
]
PartOfCorpus = Annotated[
    str,
    option(
        "Sum the K-th of N parts of the corpus alone, and keep the sums for a run without "
        "--part.",
        "--part",
        metavar="K/N",
    ),
]
EncoderSource = Annotated[str, argument(ENCODERS)]
Sentences = Annotated[
    SentenceUse,
    option(
        "Which prompts the sentence encoder reads: those that the table is unsure of "
        "(auto), none, or all."
    ),
]
Host = Annotated[str, option("Address to listen on; all but loopback need --keys.")]
Port = Annotated[int, option("Port to listen on.", min=1, max=65535)]
Keys = Annotated[
    Path | None,
    option("API keys file.", "--keys", metavar="FILE"),
]
TlsCert = Annotated[Path | None, option("TLS certificate, in PEM.", metavar="FILE")]
TlsKey = Annotated[
    Path | None, option("Private key of the TLS certificate.", metavar="FILE")
]
RequestRate = Annotated[
    float | None,
    option(
        "Requests per second of each key, or of each address without keys.", "--rate"
    ),
]
AllowHost = Annotated[
    list[str] | None,
    option("Allowed Host header.", metavar="NAME"),
]
ReleaseFolder = Annotated[Path, argument("The folder of a release.", "RELEASE")]
DataFolder = Annotated[
    Path, argument("Held-out text: DOMAIN.test.jsonl for every domain.", "DATA_DIR")
]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given a value."""
    return {name: value for name, value in options.items() if value is not None}


def refuse_without(flag: str, options: Mapping[str, Any]) -> None:
    """Raise if one of these options was given, which mean nothing without a flag."""
    for name in given(**options):
        raise InputError(f"--{name.replace('_', '-')} needs {flag}; add it")


def signing_key(key_file: Path | None) -> Path:
    """The file of the key that releases are signed with: the one given, or that in the
    configuration folder.
    """
    return key_file or config_folder() / "coordinator.key"


def with_sampling_options(command: Command) -> Command:
    """The command with an option for every parameter of sampling; it takes them as keywords."""
    signature = inspect.signature(command, eval_str=True)
    *others, _ = signature.parameters.values()
    options = []
    for name, about in SAMPLING.items():
        words = f"{about['meaning'][:1].upper()}{about['meaning'][1:]}."
        meant = option(f"{words} (default: the preset's)")
        options.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[int | None, meant],
            )
        )
    signature = signature.replace(parameters=[*others, *options])
    vars(command)["__signature__"] = signature
    return command
