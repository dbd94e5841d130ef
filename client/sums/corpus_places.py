"""Where a corpus lies: in files of this machine, or at a URL such as s3://bucket/folder, which
fsspec reads.

A URL is held as a path, in which `s3://bucket` is `s3:/bucket`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from ridgeway.common.base.errors import InputError, first_line
from ridgeway.common.base.files import sha256

URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL)
LOCAL_SCHEMES = ("file", "local")
HTTP_VERSIONS = ("ETag", "Content-MD5", "Digest", "Last-Modified")
"""What servers say of a file's version. fsspec takes what lies at an http URL for unchanging, and
leaves them out.
"""


class FileStatus(NamedTuple):
    """What changes when a file does; what else a store says of one, such as its ETag, stands hashed
    in `modified`.
    """

    size: int
    modified: int
    changed: int
    inode: int


def is_url(path: Path) -> bool:
    return URL.fullmatch(str(path)) is not None


def place_name(path: Path) -> str:
    """A path, or the URL that it stands for."""
    url = URL.fullmatch(str(path))
    return (
        f"{url[1]}:{'///' if url[1] in LOCAL_SCHEMES else '//'}{url[2]}"
        if url
        else str(path)
    )


def absolute(path: Path) -> Path:
    """The same place from any folder. The name says the kind, so a link is not what it points
    to.
    """
    return path if is_url(path) else path.parent.resolve() / path.name


def real_place(path: Path) -> Path:
    """The place itself, which links may lead to by other names."""
    return path if is_url(path) else path.resolve()


def is_folder(path: Path) -> bool:
    if not is_url(path):
        return path.is_dir()
    with _store(path) as (files, name):
        return bool(files.isdir(name))


def is_file(path: Path) -> bool:
    if not is_url(path):
        return path.is_file()
    with _store(path) as (files, name):
        return bool(files.isfile(name))


def entries(folder: Path) -> list[Path]:
    """What lies in a folder; of links, those to files alone."""
    if not is_url(folder):
        return sorted(
            path
            for path in folder.iterdir()
            if not (path.is_symlink() and path.is_dir())
        )
    with _store(folder) as (files, name):
        files.invalidate_cache(name)
        paths = [str(path).rstrip("/") for path in files.ls(name, detail=False)]
    return sorted(folder / path.rpartition("/")[2] for path in paths)


def open_file(path: Path) -> IO[bytes]:
    if not is_url(path):
        return path.open("rb")
    with _store(path) as (files, name):
        return cast(IO[bytes], files.open(name, "rb"))


def file_status(path: Path) -> FileStatus:
    if not is_url(path):
        status = path.stat()
        return FileStatus(
            status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
        )
    with _store(path) as (files, name):
        files.invalidate_cache(files._parent(name))  # or a change would not be seen
        info = files.info(name)
        # which would ask once more
        usual = type(files).ukey is import_module("fsspec").AbstractFileSystem.ukey
        key = (
            hashlib.sha256(str(info).encode()).hexdigest()
            if usual
            else files.ukey(name)
        )
    if info["size"] is None:
        raise InputError(
            f"{place_name(path)} cannot be read: its server does not report its size; "
            "copy it first"
        )
    version = sha256(str((key, *map(info.get, HTTP_VERSIONS))).encode())
    return FileStatus(int(info["size"]), int(version[:15], 16), 0, 0)


@contextmanager
def _store(path: Path) -> Iterator[tuple[Any, str]]:
    """The store of a URL, and the name that the place has there.

    Stores raise what they like, so all but what says that nothing lies there becomes one sentence.
    """
    url = place_name(path)
    try:
        files, name = import_module("fsspec.core").url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"{url} cannot be read ({first_line(error)}); URLs need fsspec and its "
            "package for the store, such as s3fs for s3: install them, or copy the "
            "corpus to this machine"
        ) from None
    try:
        yield files, name
    except (FileNotFoundError, NotADirectoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{url} cannot be read: {first_line(error).rstrip('.')}; check that the "
            "store is reachable and you have access"
        ) from error
