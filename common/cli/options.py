"""Options and arguments that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import ENCODERS, SAMPLING, SentenceUse

if TYPE_CHECKING:
    from ridgeway.common.base.schema import Mode

Command = TypeVar("Command", bound=Callable[..., Any])

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="private, masked or clear: what leaves the holders.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        help=(
            "The coordinator's public key (64 digits, or a file): refuse any other"
            " signer."
        ),
    ),
]
Fields = Annotated[
    str,
    typer.Option(
        "--text-field",
        help="The field that holds the text; of several names, the first a record has.",
    ),
]
SkipBroken = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Pass over records that cannot be read, up to this share, and list them.",
    ),
]
EncoderSource = Annotated[str, typer.Argument(help=ENCODERS)]
Model = Annotated[
    Path | None,
    typer.Option(
        help="The folder of a contextual encoder's model, if it is not known here."
    ),
]
RunsOn = Annotated[
    str,
    typer.Option(
        "--device",
        help=(
            "Where a contextual encoder's model runs: auto, cpu, cuda, or one GPU:"
            " cuda:0."
        ),
    ),
]
Sentences = Annotated[
    SentenceUse,
    typer.Option(
        help=(
            "Which prompts a release's sentence encoder reads: those that its table is"
            " unsure of (auto), none, or all."
        ),
    ),
]
Host = Annotated[
    str, typer.Option(help="The address to listen on; any but loopback needs --keys.")
]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")]
Keys = Annotated[
    Path | None,
    typer.Option("--keys", metavar="FILE", help="The keys that let clients in."),
]
TlsCert = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The certificate to show, in PEM.")
]
TlsKey = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The certificate's private key.")
]
RequestRate = Annotated[
    float | None,
    typer.Option(
        "--rate", help="Requests a second of each key, or without keys of each address."
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A name by which the service may be called."),
]
ReleaseFolder = Annotated[
    Path, typer.Argument(metavar="RELEASE", help="The folder of a release.")
]


def check_mode(name: str) -> Mode:
    """The mode of this name; raises InputError, with what there is, if there is none."""
    from ridgeway.common.base.schema import MODE_SENTENCES

    for mode in MODE_SENTENCES:
        if name == mode:
            return mode
    raise InputError(f"there is no mode {name!r}; there are private, masked and clear")


def with_sampling_options(command: Command) -> Command:
    """The command with an option for every parameter of sampling; it takes them as keywords."""
    signature = inspect.signature(command, eval_str=True)
    *others, _ = signature.parameters.values()
    options = []
    for name, about in SAMPLING.items():
        words = f"{about['meaning'][:1].upper()}{about['meaning'][1:]}."
        option = typer.Option(help=f"{words} (default: the preset's)")
        options.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[int | None, option],
            )
        )
    signature = signature.replace(parameters=[*others, *options])
    vars(command)["__signature__"] = signature
    return command
