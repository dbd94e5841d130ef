"""`python -m simulations.lab.experts.convert OUT_DIR`: SmolLM2 as a compact folder, for another machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from common.files import check_new_folder
from common.terminal import run, size, step
from simulations.lab.experts.base import packed_smollm2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def convert(out: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="A new folder.")]) -> None:
    """Write the model in files that are small enough to be carried one by one."""
    check_new_folder(out)
    for path in sorted(packed_smollm2(out).iterdir()):
        step("wrote", path.name, size(path.stat().st_size))


if __name__ == "__main__":
    sys.exit(run(typer.main.get_command(app)))
