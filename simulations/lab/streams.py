"""Records of data sets on the Hugging Face hub, streamed, so that no corpus is fetched as a whole.

Knows the library `datasets`, once something is read. Knows nothing of presets or of what records mean.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from common.errors import CorpusError, InputError, first_line

BUFFER = 2_000
"""So many records are held to shuffle a stream."""
PIECE = 1_500
BLOCK = 50
"""Lines become pieces of at least so many characters, and so many neighbouring pieces are a block."""
PATIENCE_S = 5.0
RETRIES = 3
HUB = "hf://datasets"
OWN_TEXTS = "give texts of your own with --data DIR"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Some records of a data set.

    field: where the text is; a list of messages is joined.
    files: JSON files in the repository, or an archive of text files, instead of what its configuration says.
    by:    the field by which train and test are divided, where one split serves both; "" for the text itself.
    """

    repo: str
    config: str | None = None
    split: str = "train"
    field: str = "text"
    files: str = ""
    by: str = ""


def must_reach_hub(name: str) -> None:
    """Raise CorpusError at once, not after minutes of trying again, where there is no network."""
    hub = _imported("huggingface_hub")
    _imported("datasets")
    if hub.constants.HF_HUB_OFFLINE:
        raise _out_of_reach(name, "and HF_HUB_OFFLINE is set")
    try:
        _imported("huggingface_hub.utils").get_session().head(hub.constants.ENDPOINT, timeout=PATIENCE_S)
    except Exception as error:  # of whichever library the hub's own uses
        raise _out_of_reach(name, f"which does not answer ({first_line(error)})") from error


def _out_of_reach(name: str, reason: str) -> CorpusError:
    where = f"the preset {name!r} is on the Hugging Face hub, {reason}"
    return CorpusError(f"{where}; run this where there is a network, or {OWN_TEXTS}")


def stream(source: Source, seed: int, root: str = HUB) -> Iterator[Row]:
    """The records of a source, shuffled in a buffer. root: a folder that stands in for the hub."""
    datasets = _imported("datasets")
    datasets.disable_progress_bars()
    datasets.config.STREAMING_READ_MAX_RETRIES = datasets.config.STREAMING_OPEN_MAX_RETRIES = RETRIES
    address = f"{root}/{source.repo}"
    if source.files.endswith(".tar.gz"):
        whole = datasets.IterableDataset.from_generator(lambda: _pieces(f"{address}/{source.files}"))
    elif source.files:
        whole = datasets.load_dataset("json", data_files=f"{address}/{source.files}", split="train", streaming=True)
    else:
        repo = source.repo if root == HUB else address
        whole = datasets.load_dataset(repo, source.config, split=source.split, streaming=True)
    return iter(whole.shuffle(seed=seed, buffer_size=BUFFER))


def _pieces(address: str) -> Iterator[Row]:
    """The lines of the text files in an archive, in the order that they come in, put together to pieces."""
    lines: list[str] = []
    number = 0
    for line in _lines(address):
        lines.append(line)
        if sum(map(len, lines)) >= PIECE:
            yield {"text": "\n".join(lines), "block": number // BLOCK}
            number += 1
            lines = []


def _lines(address: str) -> Iterator[str]:
    fsspec = _imported("fsspec")
    with fsspec.open(address, "rb", block_size=0) as raw, tarfile.open(fileobj=raw, mode="r|gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".txt") else None
            if file is not None:
                yield from filter(None, (line.decode(errors="replace").strip() for line in file))


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f"presets need the package {error.name}; install ridgeway[hub]") from None
