"""Options and arguments that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from ridgeway.common.base.settings import ENCODERS, SAMPLING, SentenceUse

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
Fields = Annotated[
    str,
    option(
        "The field that holds the text; of several names, the first a record has.",
        "--text-field",
    ),
]
SkipBroken = Annotated[
    float,
    option(
        "Pass over records that cannot be read, up to this share, and list them.",
        metavar="SHARE",
    ),
]
EncoderSource = Annotated[str, argument(ENCODERS)]
Sentences = Annotated[
    SentenceUse,
    option(
        "Which prompts a release's sentence encoder reads: those that its table is"
        " unsure of (auto), none, or all."
    ),
]
Host = Annotated[
    str, option("The address to listen on; any but loopback needs --keys.")
]
Port = Annotated[int, option("The port to listen on.", min=1, max=65535)]
Keys = Annotated[
    Path | None,
    option("The keys that let clients in.", "--keys", metavar="FILE"),
]
TlsCert = Annotated[
    Path | None, option("The certificate to show, in PEM.", metavar="FILE")
]
TlsKey = Annotated[
    Path | None, option("The certificate's private key.", metavar="FILE")
]
RequestRate = Annotated[
    float | None,
    option("Requests a second of each key, or without keys of each address.", "--rate"),
]
AllowHost = Annotated[
    list[str] | None,
    option("A name by which the service may be called.", metavar="NAME"),
]
ReleaseFolder = Annotated[Path, argument("The folder of a release.", "RELEASE")]
DataFolder = Annotated[
    Path, argument("Held-out text: DOMAIN.test.jsonl for every domain.", "DATA_DIR")
]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given a value."""
    return {name: value for name, value in options.items() if value is not None}


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
