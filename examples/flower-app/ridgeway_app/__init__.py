"""One Ridgeway round as a Flower app."""

from importlib.util import find_spec
from pathlib import Path

from flwr.app import Context

if find_spec("ridgeway") is None:
    raise ImportError(
        "Ridgeway is not installed in the environment that runs this app, and is on no registry;"
        " in a checkout of Ridgeway run: pip install '.[simulation]'"
    )


def run_folder(context: Context) -> Path:
    """A new folder for each run, in the folder that `work` names; both apps must know it."""
    from ridgeway.common.base.errors import InputError

    named = str(context.run_config["work"])
    work = Path(named).expanduser()
    if not work.is_absolute():
        raise InputError(
            f"work is {named!r}; name a folder by its whole path, since keys and corpora are"
            " written there: --run-config 'work=\"/path/to/rounds\"'"
        )
    return work / str(context.run_id)
