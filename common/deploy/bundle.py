"""The Flower app bundle (FAB) that holders approve: the ClientApp and every module it imports.

It has the bytes that `flwr run` makes of the same folder, without Flower, so that a holder can
compute the hash of an own installation and compare. The same code gives the same hash on every
machine. The coordinator's app is not in it: a coordinator keeps its own code beside each bundle.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path, PurePosixPath
from typing import Any

from ridgeway.common.base.errors import BundleError
from ridgeway.common.base.files import IMPORT_ROOT, write_whole

CLIENT_FILE = "client/client_app.py"
SERVER_FILE = "coordinator/server_app.py"

PACKAGE = "ridgeway"

MAX_FILES = 1000
MAX_FILE_BYTES = 1024**2
MAX_BUNDLE_BYTES = 10 * 1024**2
MAX_DEPTH = 10
UNSHIPPABLE = re.compile(r"test_.*\.py|.*_test\.py")
"""Flower leaves such files out of a bundle without a word."""

PROJECT = "pyproject.toml"
CONTENT = ".info/CONTENT"
_CLIENT_APP = "ridgeway.client.client_app:app"
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
"""No dependencies, so nothing is installed at run time. A run can set no values: what it is to do
stands in its order. The version is fixed: bundles are told apart by their hash, and a version read
from an installation may be stale.
"""


def forget_apps(flower_home: Path, kept: Iterable[str]) -> None:
    """Take away the bundles that Flower has unpacked and that may not run any more; it names a
    folder by the hash's first digits.
    """
    ends = tuple(digest[:8] for digest in kept)
    for path in (flower_home / "apps").glob("*"):
        if not path.name.endswith(ends):
            shutil.rmtree(path)


def write_app(
    folder: Path, client: str = _CLIENT_APP, also: Iterable[str] = ()
) -> None:
    """Write the app folder that `flwr run` takes; one that is there already is replaced.

    client: what the holders run; a simulation may put something around it.
    also:   further files, which come with what they import, as paths inside the package.
    """
    files = source_files((CLIENT_FILE, *also))
    write_files(folder, {PROJECT: _pyproject(client), **files})


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a bundle to a folder; one that holds a bundle already is replaced."""
    if folder.exists():
        pyproject = folder / PROJECT
        if not pyproject.is_file() or b"[tool.flwr.app]" not in pyproject.read_bytes():
            raise BundleError(
                f"{folder} exists and is not an app folder; name another place for"
                " the app"
            )
        shutil.rmtree(folder)
    for name, content in files.items():
        write_whole(folder / name, content)


def installed_bundle() -> bytes:
    """The bundle of this very Ridgeway: the very bytes that `flwr run` makes of the folder of
    `write_app`.
    """
    return _pack({PROJECT: _pyproject(_CLIENT_APP), **source_files()})


def installed_sha256() -> str:
    """The hash of the bundle of this very Ridgeway: what a holder compares and approves."""
    return bundle_sha256(installed_bundle())


def bundle_sha256(content: bytes) -> str:
    """The plain SHA-256 by which Flower and holders name a bundle."""
    return hashlib.sha256(content).hexdigest()


def source_files(
    start: Iterable[str] = (CLIENT_FILE,), package: Path = IMPORT_ROOT / PACKAGE
) -> dict[str, bytes]:
    """These files and all of Ridgeway that they import, by their names in a bundle.

    package: where the sources lie; this very Ridgeway unless another is named.
    """
    files: dict[str, bytes] = {}
    waiting = ["__init__.py", *start]
    while waiting:
        name = waiting.pop()
        if name in files:
            continue
        try:
            files[name] = (package / name).read_bytes()
        except FileNotFoundError as error:
            raise BundleError(
                f"{error.filename} is missing, so no bundle can be made; install"
                " Ridgeway again"
            ) from None
        packages = PurePosixPath(name).parents
        waiting += [str(folder / "__init__.py") for folder in packages]
        for module in _imported_modules(files[name]):
            waiting += _files_of(module, package)
    return {f"{PACKAGE}/{name}": files[name] for name in sorted(files)}


def _files_of(module: str, package: Path) -> list[str]:
    """The file of a module of Ridgeway; none for a name in a module, or for another's module."""
    first, *parts = module.split(".")
    if first != PACKAGE or not parts:
        return []
    stem = "/".join(parts)
    names = (f"{stem}.py", f"{stem}/__init__.py")
    return [name for name in names if (package / name).is_file()]


def _imported_modules(source: bytes) -> Iterator[str]:
    """What a source imports, and `a.b` for `from a import b`, which may be a module."""
    for node in ast.walk(_without_types(ast.parse(source))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _without_types(tree: ast.Module) -> ast.Module:
    """The module without its blocks for type checkers, which never run."""
    kept = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return ast.Module(kept, [])


def unpacked_bundle(content: bytes) -> dict[str, bytes]:
    """The files of a bundle, by name, to be read and not run. Raises unless they are all that there
    is in it: packed again, they must give these very bytes, so that nothing can run that was not
    shown.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            sizes = {file.filename: file.file_size for file in archive.infolist()}
            if len(sizes) > MAX_FILES or sum(sizes.values()) > MAX_BUNDLE_BYTES:
                raise BundleError(
                    "the bundle is larger than Flower takes; ask the operator what"
                    " it is"
                )
            files = {name: archive.read(name) for name in sizes if name != CONTENT}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OSError):
        raise BundleError(
            "the bundle cannot be read; fetch it again, or ask the operator what it is"
        ) from None
    if _pack(files) != content:
        raise BundleError(
            "the bundle holds something beside its files, so it cannot be shown; do not"
            " approve it"
        )
    return files


def listed_files(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """What a careful reader of a bundle goes by: each file's name, lines and hash."""
    return [
        {"name": name, "lines": content.count(b"\n"), "sha256": bundle_sha256(content)}
        for name, content in files.items()
    ]


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that two bundles do not share alike; `added` and `removed` count lines. sha256: of the
    newer one.
    """

    change: str
    name: str
    added: int
    removed: int
    sha256: str


def bundle_changes(
    old: Mapping[str, bytes], new: Mapping[str, bytes]
) -> list[FileChange]:
    """What changes from one bundle to another, file by file. Law: nothing does if and only if they
    are the same.
    """
    changes = []
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            continue
        change = "changed"
        if name not in old:
            change = "added"
        elif name not in new:
            change = "removed"
        before, after = (files.get(name, b"").splitlines() for files in (old, new))
        matcher = SequenceMatcher(None, before, after, autojunk=False)
        same = sum(block.size for block in matcher.get_matching_blocks())
        digest = bundle_sha256(new[name]) if name in new else ""
        added, removed = len(after) - same, len(before) - same
        changes.append(FileChange(change, name, added, removed, digest))
    return changes


def _pyproject(client: str) -> bytes:
    return PYPROJECT.format(client=client).encode()


def _pack(files: Mapping[str, bytes]) -> bytes:
    """The zip that Flower makes of these files: pyproject.toml first, the rest sorted, the list of
    contents last.
    """
    sources = {name: files[name] for name in sorted(files) if name != PROJECT}
    _check(sources)
    whole = {PROJECT: files.get(PROJECT, b""), **sources}
    lines = [
        f"{name},{bundle_sha256(content)},{len(content) * 8}"
        for name, content in whole.items()
    ]
    whole[CONTENT] = "\n".join(lines).encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in whole.items():
            archive.writestr(zipfile.ZipInfo(name, BUILT_AT), content)
    packed = target.getvalue()
    if len(packed) > MAX_BUNDLE_BYTES:
        raise BundleError(
            f"the bundle has {len(packed):_} bytes and Flower takes"
            f" {MAX_BUNDLE_BYTES:_}"
        )
    return packed


def _check(files: Mapping[str, bytes]) -> None:
    """Raise where Flower would refuse the files, or leave one out."""
    if len(files) > MAX_FILES:
        raise BundleError(
            f"a bundle may hold {MAX_FILES} files and this one has {len(files)}; merge"
            " some modules"
        )
    for name, content in files.items():
        path = PurePosixPath(name)
        if len(content) > MAX_FILE_BYTES:
            raise BundleError(
                f"{name} has {len(content):_} bytes and Flower takes"
                f" {MAX_FILE_BYTES:_}; divide it"
            )
        if len(path.parts) > MAX_DEPTH or UNSHIPPABLE.fullmatch(path.name):
            raise BundleError(
                f"Flower would leave {name} out of a bundle; rename it or move it"
            )
