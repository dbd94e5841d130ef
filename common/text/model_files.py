"""The files of Hugging Face models: where they are, in a folder or on the hub, which of them count,
and their hash.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import EncoderError, first_line
from ridgeway.common.base.files import (
    cache_folder,
    canonical_json,
    file_stamp,
    sha256,
    sha256_of_file,
    write_whole,
)

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PASSING = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")
"""What a config says of its own making, not of the model."""


Fetch = Callable[[str], Path | None]
"""A file of a model by its name; None if the model has no such file."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's config, its tokenizer and its weights in safetensors, all in one folder."""

    config: Path
    tokenizer: Path
    weights: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        return self.config.parent

    @property
    def all(self) -> list[Path]:
        return [self.config, self.tokenizer, *self.weights]

    def digest(self) -> str:
        """The hash that all parties compare: over the config and every file of weights. Taken once
        for each state.
        """
        stamps = [file_stamp(path) for path in self.all]
        note = cache_folder() / "hashes" / f"{sha256(canonical_json(stamps))}.json"
        noted = read_note(note, "digest")
        if noted:
            return noted
        config = {
            name: value
            for name, value in read_json(self.config).items()
            if name not in PASSING
        }
        parts = [canonical_json(config)]
        for path in self.weights:
            parts += [path.name.encode(), sha256_of_file(path).encode()]
        digest = sha256(*parts)
        write_whole(note, canonical_json({"digest": digest}))
        return digest


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise EncoderError(f"{path} is corrupt ({error}); download it again") from error
    if not isinstance(value, dict):
        raise EncoderError(
            f"{path} is corrupt: it is not a JSON object; download it again"
        )
    return value


def model_files(name: str) -> ModelFiles:
    """The files of a model, by its folder or its name on the hub."""
    fetch = fetcher(name)
    config = _must_have(
        name, fetch, "config.json", "is this the folder of a transformers model?"
    )
    tokenizer = _must_have(
        name,
        fetch,
        "tokenizer.json",
        "save one next to the weights "
        "(AutoTokenizer.from_pretrained(…).save_pretrained(DIR))",
    )
    if (config.parent / "adapter_config.json").exists():
        raise EncoderError(
            f"{name} contains an adapter, which the fingerprint would not cover; "
            "merge it into the model"
        )
    if "transformers_weights" in read_json(config):
        raise EncoderError(
            f"the config of {name} names other weights, which the fingerprint would "
            "not cover; save the model again"
        )
    return ModelFiles(config, tokenizer, _weights(name, fetch))


def _must_have(name: str, fetch: Fetch, file: str, hint: str) -> Path:
    path = fetch(file)
    if path is None:
        raise EncoderError(f"{name} has no {file}; {hint}")
    return path


def _weights(name: str, fetch: Fetch) -> tuple[Path, ...]:
    """The files that transformers would load, in the order of their names."""
    single = fetch(WEIGHTS)
    if single is not None:
        return (single,)
    index = fetch(INDEX)
    if index is None:
        raise EncoderError(
            f"{name} has no safetensors weights ({WEIGHTS}, single or sharded), and "
            "pickles are never read; save the model with safe_serialization"
        )
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise EncoderError(f"{index} lists no weights; download it again")
    shards = sorted({str(shard) for shard in weight_map.values()})
    paths = {shard: fetch(shard) for shard in shards if Path(shard).name == shard}
    missing = [shard for shard in shards if paths.get(shard) is None]
    if missing:
        raise EncoderError(
            f"{missing[0]} is missing in {name}; download the weights again"
        )
    return tuple(path for path in paths.values() if path is not None)


def read_note(path: Path, name: str) -> str | None:
    """What a note in the cache says; None if it is not there, or damaged."""
    try:
        return str(json.loads(path.read_bytes())[name])
    except (OSError, ValueError, KeyError, TypeError):
        return None


# Single files: out of a folder, or from the hub


def fetcher(name: str) -> Fetch:
    """The files of a model that is named by its folder or by its name on the hub."""
    folder = Path(name)
    if folder.is_dir():
        return lambda file: folder / file if (folder / file).is_file() else None
    if folder.is_absolute() or name.startswith("."):
        raise EncoderError(f"there is no folder {name}")

    def fetch(file: str) -> Path | None:
        errors = imported("huggingface_hub.errors", "client")
        try:
            return download(name, file)
        except errors.EntryNotFoundError:
            return None

    return fetch


def download(repo: str, file: str) -> Path:
    """One file of a model on the hub; the library keeps it, and finds it again without a
    network.
    """
    hub = imported("huggingface_hub", "client")
    errors = imported("huggingface_hub.errors", "client")
    # its retries are not the user's concern
    imported("huggingface_hub.utils.logging", "client").set_verbosity_error()
    try:
        return Path(hub.hf_hub_download(repo, file))
    except errors.LocalEntryNotFoundError as error:  # asked for offline, or no network
        raise EncoderError(
            f"{repo} is not on this machine, and the Hugging Face hub is unreachable"
        ) from error
    except errors.EntryNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise EncoderError(
            f"{repo} could not be downloaded from the Hugging Face hub: "
            f"{first_line(error)}"
        ) from error


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """What the library says while it loads is not the user's concern."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def imported(name: str, extra: str) -> Any:
    """A package that only some encoders need."""
    try:
        return import_module(name)
    except ImportError:
        raise EncoderError(
            f"this encoder needs the package {name}; install ridgeway[{extra}]"
        ) from None


def file_of_wheel(wheel: str, ending: str) -> Path | None:
    """The first file of an installed wheel whose path ends so; the wheel's own code is not
    imported.
    """
    try:
        files = metadata.files(wheel) or ()
    except metadata.PackageNotFoundError:
        return None
    fitting = (entry for entry in files if entry.as_posix().endswith(ending))
    return next((Path(str(entry.locate())) for entry in fitting), None)
