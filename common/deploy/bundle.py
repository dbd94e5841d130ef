"""The Flower app bundle (FAB), made from the installed packages: the code a round runs, with one hash for all.

Knows the layout of Flower's bundles: a zip of stored files with fixed dates, and a list of contents. It makes the very
bytes that `flwr run` makes from the same folder, without Flower, so that a holder can compute the hash of his own
Ridgeway and compare. The same code gives the same hash on every machine, whatever mtimes, umask or order.
Knows nothing of what the code does.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from ridgeway.common.base.errors import BundleError
from ridgeway.common.base.files import IMPORT_ROOT, write_whole

ROOMS = (
    "common/base",
    "common/encoding",
    "common/statistics",
    "common/routing",
    "common/masking",
    "common/protocol",
    "client/sums",
    "client/round",
    "coordinator/solving",
    "coordinator/round",
)
"""The folders of which a bundle holds every source file: what a round needs, and nothing else."""

FILES = (
    "__init__.py",
    "common/__init__.py",
    "client/__init__.py",
    "client/client_app.py",
    "coordinator/__init__.py",
    "coordinator/server_app.py",
)
"""What a bundle holds beside the rooms: both Flower apps, and the packages that the rooms lie in."""

PACKAGE = "ridgeway"

MAX_FILES = 1000
MAX_FILE_BYTES = 1024**2
MAX_BUNDLE_BYTES = 10 * 1024**2
MAX_DEPTH = 10
UNSHIPPABLE = re.compile(r"test_.*\.py|.*_test\.py")
"""Flower leaves such files out of a bundle without a word."""

CLIENT_APP = "ridgeway.client.client_app:app"
BUILT_AT = (2024, 10, 1, 0, 0, 0)
PYPROJECT = """\
[project]
name = "ridgeway"
version = "1.0.0"
description = "The code of a Ridgeway round"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "ridgeway"
fab-include = [
    "ridgeway/**/*.py",
]

[tool.flwr.app.components]
serverapp = "ridgeway.coordinator.server_app:app"
clientapp = "{client}"
"""
"""No dependencies, so nothing is installed at run time. A run can set no values: what it is to do stands in its order.
The version is fixed: bundles are told apart by their hash, and a version read from an installation may be stale."""


def write_app(folder: Path, client: str = CLIENT_APP, also: Iterable[str] = ()) -> None:
    """Write the app folder that `flwr run` takes; one that is there already is replaced.

    client: what the holders run; a simulation may put something around it.
    also:   source files that this needs beside the rooms of a round, as paths inside the package.
    """
    files = bundle_files(also)
    if folder.exists():
        pyproject = folder / "pyproject.toml"
        if not pyproject.is_file() or b"[tool.flwr.app]" not in pyproject.read_bytes():
            raise BundleError(f"{folder} exists and is not an app folder; name another place for the app")
        shutil.rmtree(folder)
    for name, content in {"pyproject.toml": _pyproject(client), **files}.items():
        write_whole(folder / name, content)


def installed_bundle() -> bytes:
    """The bundle of this very Ridgeway: the very bytes that `flwr run` makes of the folder of `write_app`."""
    return _pack(_pyproject(CLIENT_APP), bundle_files())


def installed_sha256() -> str:
    """The hash of the bundle of this very Ridgeway: what a holder compares and approves."""
    return hashlib.sha256(installed_bundle()).hexdigest()


def bundle_files(also: Iterable[str] = (), package: Path = IMPORT_ROOT / PACKAGE) -> dict[str, bytes]:
    """The source files of a bundle, by their names in it.

    package: where the sources lie; this very Ridgeway unless another is named.
    """
    rooms = (path for room in ROOMS for path in (package / room).rglob("*.py"))
    paths = sorted({*rooms, *(package / name for name in (*FILES, *also))})
    try:
        return {f"{PACKAGE}/{path.relative_to(package).as_posix()}": path.read_bytes() for path in paths}
    except FileNotFoundError as error:
        raise BundleError(f"{error.filename} is missing, so no bundle can be made; install Ridgeway again") from None


def _pyproject(client: str) -> bytes:
    return PYPROJECT.format(client=client).encode()


def _pack(pyproject: bytes, files: Mapping[str, bytes]) -> bytes:
    """The zip that Flower makes of these files: pyproject.toml first, the rest sorted, the list of contents last."""
    _check(files)
    whole = {"pyproject.toml": pyproject, **{name: files[name] for name in sorted(files)}}
    lines = [f"{name},{hashlib.sha256(each).hexdigest()},{len(each) * 8}" for name, each in whole.items()]
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, each in {**whole, ".info/CONTENT": "\n".join(lines).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, BUILT_AT), each)
    if len(target.getvalue()) > MAX_BUNDLE_BYTES:
        raise BundleError(f"the bundle has {len(target.getvalue()):_} bytes and Flower takes {MAX_BUNDLE_BYTES:_}")
    return target.getvalue()


def _check(files: Mapping[str, bytes]) -> None:
    """Raise where Flower would refuse the files, or leave one out."""
    if len(files) > MAX_FILES:
        raise BundleError(f"a bundle may hold {MAX_FILES} files and this one has {len(files)}; merge some modules")
    for name, content in files.items():
        if len(content) > MAX_FILE_BYTES:
            raise BundleError(f"{name} has {len(content):_} bytes and Flower takes {MAX_FILE_BYTES:_}; divide it")
        if len(PurePosixPath(name).parts) > MAX_DEPTH or UNSHIPPABLE.fullmatch(PurePosixPath(name).name):
            raise BundleError(f"Flower would leave {name} out of a bundle; rename it or move it")
