"""Options and arguments that several commands share.

Knows typer. Knows nothing of what the commands do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeway.common.base.settings import ENCODERS

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Masked = Annotated[
    bool | None,
    typer.Option(
        "--masked/--clear", help="Under masks, so that only totals are seen, or in the clear. (default: masked)"
    ),
]
Key = Annotated[
    str | None,
    typer.Option("--key", help="The coordinator's public key (64 digits, or a file): refuse any other signer."),
]
Fields = Annotated[
    str, typer.Option("--text-field", help="The field that holds the text; of several names, the first a record has.")
]
EncoderSource = Annotated[str, typer.Argument(help=ENCODERS)]
Model = Annotated[
    Path | None, typer.Option(help="The folder of a contextual encoder's model, if it is not known on this machine.")
]
RunsOn = Annotated[
    str, typer.Option("--device", help="Where a contextual encoder's model runs: auto, cpu, cuda, or one card: cuda:0.")
]
ReleaseFolder = Annotated[Path, typer.Argument(metavar="RELEASE", help="The folder of a release.")]
