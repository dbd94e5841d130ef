"""Files of Hugging Face models: out of a folder, or from the model hub.

Knows the hub's library, once it is needed. Knows nothing of what the files hold.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from common.errors import EncoderError, first_line

Fetch = Callable[[str], Path | None]
"""A file of a model by its name; None if the model has no such file."""


def fetcher(name: str) -> Fetch:
    """The files of a model that is named by its folder or by its name on the hub."""
    folder = Path(name)
    if folder.is_dir():
        return file_of(folder)
    if folder.is_absolute() or name.startswith("."):
        raise EncoderError(f"there is no folder {name}")
    return file_on_hub(name)


def file_of(folder: Path) -> Fetch:
    return lambda file: folder / file if (folder / file).is_file() else None


def file_on_hub(repo: str) -> Fetch:
    def fetch(file: str) -> Path | None:
        errors = imported("huggingface_hub.errors", "client")
        try:
            return download(repo, file)
        except errors.EntryNotFoundError:
            return None

    return fetch


def download(repo: str, file: str) -> Path:
    """One file of a model on the hub; the library keeps it, and finds it again without a network."""
    hub, errors = imported("huggingface_hub", "client"), imported("huggingface_hub.errors", "client")
    imported("huggingface_hub.utils.logging", "client").set_verbosity_error()  # its retries are not the user's concern
    try:
        return Path(hub.hf_hub_download(repo, file))
    except errors.LocalEntryNotFoundError as error:  # asked for offline, or no network
        raise EncoderError(f"{repo} is not on this machine and the model hub cannot be reached") from error
    except errors.EntryNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise EncoderError(f"{repo} cannot be had from the model hub: {reason}") from error


def imported(name: str, extra: str) -> Any:
    """A package that only some encoders need."""
    try:
        return import_module(name)
    except ImportError:
        raise EncoderError(f"this encoder needs the package {name}; install ridgeway[{extra}]") from None
