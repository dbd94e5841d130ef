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
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from common.errors import BundleError
from common.files import write_whole

PACKAGES = ("client", "common", "coordinator")
NAME = "ridgeway"
VERSION = "1.0.0"
"""Fixed: bundles are told apart by their hash, and a version read from an installation may be stale."""

MAX_FILES = 1000
MAX_FILE_BYTES = 1024**2
MAX_BUNDLE_BYTES = 10 * 1024**2
MAX_DEPTH = 10
UNSHIPPABLE = re.compile(r"test_.*\.py|.*_test\.py")
"""Flower leaves such files out of a bundle without a word."""

CLIENT_APP = "client.app:app"
BUILT_AT = (2024, 10, 1, 0, 0, 0)
PYPROJECT = """\
[project]
name = "{name}"
version = "{version}"
description = "The code of a Ridgeway round"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "ridgeway"
fab-include = [
    "client/**/*.py",
    "common/**/*.py",
    "coordinator/**/*.py",
]

[tool.flwr.app.components]
serverapp = "coordinator.app:app"
clientapp = "{client}"

[tool.flwr.app.config]
work = ""
name = ""
mode = ""
"""
"""No dependencies, so nothing is installed at run time. A run may set only the values listed under `config`."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on disk, and the hash under which a SuperNode sees it."""

    path: Path
    sha256: str


def write_app(folder: Path, client: str = CLIENT_APP) -> None:
    """Write the app folder that `flwr run` takes; one that is there already is replaced.

    client: what the holders run; a simulation may put something around it.
    """
    files = _installed_files()
    if folder.exists():
        _check_replaceable(folder)
        shutil.rmtree(folder)
    for name, content in {"pyproject.toml": _pyproject(client), **files}.items():
        write_whole(folder / name, content)


def build(folder: Path) -> Bundle:
    """Make the bundle of an app folder, and put it beside the folder as NAME.fab."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in (folder / package).rglob("*.py")
        if path.is_file() and not path.is_symlink()
    }
    content = _pack((folder / "pyproject.toml").read_bytes(), files)
    path = folder.with_name(f"{folder.name}.fab")
    write_whole(path, content)
    return Bundle(path, hashlib.sha256(content).hexdigest())


def installed_sha256() -> str:
    """The hash of the bundle of this very Ridgeway: what a holder compares and approves."""
    return hashlib.sha256(_pack(_pyproject(CLIENT_APP), _installed_files())).hexdigest()


def _pyproject(client: str) -> bytes:
    return PYPROJECT.format(name=NAME, version=VERSION, client=client).encode()


def _installed_files() -> dict[str, bytes]:
    """Every source file of the three packages, where Python finds them: in a checkout or in site-packages."""
    files: dict[str, bytes] = {}
    for package in PACKAGES:
        root = _home_of(package)
        for path in root.rglob("*.py"):
            if path.is_file():
                files[f"{package}/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    return files


def _home_of(package: str) -> Path:
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    if len(places) != 1:
        raise BundleError(
            f"the package {package} is not installed as one folder, so no bundle can be made of it; install Ridgeway"
        )
    return Path(places[0])


def _check_replaceable(folder: Path) -> None:
    """Raise unless the folder is an app folder that was written here before."""
    pyproject = folder / "pyproject.toml"
    if not pyproject.is_file() or b"[tool.flwr.app]" not in pyproject.read_bytes():
        raise BundleError(f"{folder} exists and is not an app folder; name another place for the app")


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
