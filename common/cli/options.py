"""Options and arguments that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import config_folder
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
