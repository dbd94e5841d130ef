"""Where a corpus lies: in files of this machine, or at a URL such as s3://bucket/folder, which fsspec reads.

A URL is held as a path, in which `s3://bucket` is `s3:/bucket`. Knows files. Knows nothing of what is in them.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from ridgeway.common.base.errors import InputError, first_line
from ridgeway.common.base.files import sha256

URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL)
LOCAL_SCHEMES = ("file", "local")


class FileStatus(NamedTuple):
    """What changes when a file does; what else a store says of one, such as its ETag, stands hashed in `modified`."""

    size: int
    modified: int
    changed: int
    inode: int


def is_url(path: Path) -> bool:
    return URL.fullmatch(str(path)) is not None


def place_name(path: Path) -> str:
    """A path, or the URL that it stands for."""
    found = URL.fullmatch(str(path))
    return f"{found[1]}:{'///' if found[1] in LOCAL_SCHEMES else '//'}{found[2]}" if found else str(path)


def absolute(path: Path) -> Path:
    """The same place from any folder. The name says the kind, so a link is not what it points to."""
    return path if is_url(path) else path.parent.resolve() / path.name


def real_place(path: Path) -> Path:
    """The place itself, which links may lead to by other names."""
    return path if is_url(path) else path.resolve()


def is_folder(path: Path) -> bool:
    store = _store(path)
    return bool(store[0].isdir(store[1])) if store else path.is_dir()


def is_file(path: Path) -> bool:
    store = _store(path)
    return bool(store[0].isfile(store[1])) if store else path.is_file()


def entries(folder: Path) -> list[Path]:
    """What lies in a folder; of links, those to files alone."""
    store = _store(folder)
    if store is None:
        return sorted(path for path in folder.iterdir() if not (path.is_symlink() and path.is_dir()))
    store[0].invalidate_cache(store[1])
    return sorted(folder / name.rstrip("/").rpartition("/")[2] for name in store[0].ls(store[1], detail=False))


def open_file(path: Path) -> IO[bytes]:
    store = _store(path)
    return cast(IO[bytes], store[0].open(store[1], "rb")) if store else path.open("rb")


def file_status(path: Path) -> FileStatus:
    store = _store(path)
    if store is None:
        status = path.stat()
        return FileStatus(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    files, name = store
    files.invalidate_cache(files._parent(name))  # or a change would not be seen
    version = int(sha256(str(files.ukey(name)).encode())[:15], 16)
    return FileStatus(int(files.info(name)["size"]), version, 0, 0)


def _store(path: Path) -> tuple[Any, str] | None:
    """Where fsspec finds a URL, and its name there; None for a file of this machine."""
    if not is_url(path):
        return None
    url = place_name(path)
    try:
        found: tuple[Any, str] = import_module("fsspec.core").url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"{url} cannot be read ({first_line(error)}); corpora at a URL are read with fsspec and its package for "
            "the store, as s3fs is for s3: install them, or copy the corpus to this machine"
        ) from None
    return found
