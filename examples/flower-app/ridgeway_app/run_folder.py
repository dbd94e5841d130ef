"""Where a simulated run lies, which both apps must know."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context

from ridgeway.common.base.errors import InputError


def run_folder(context: Context) -> Path:
    """A new folder for each run, in the folder that `work` names."""
    named = str(context.run_config["work"])
    work = Path(named).expanduser()
    if not work.is_absolute():
        raise InputError(
            f"work is {named!r}; name a folder by its whole path, since keys and corpora are"
            " written there: --run-config 'work=\"/path/to/rounds\"'"
        )
    return work / str(context.run_id)
