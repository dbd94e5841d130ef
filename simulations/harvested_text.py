"""Text that every machine with Ridgeway holds and anybody may read: sources, headers,
documentation, licences.

Reads files and parses them: imports nothing of what it reads, downloads nothing, writes nothing.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

MIN_PIECE_CHARACTERS = 200
_MAX_PIECE_CHARACTERS = 2_000

OMITTED_FOLDERS = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "encodings",
    "pydoc_data",
}
"""Folders that hold no text of their domain: tests, tables, other packages."""

COMMON_LICENCES = Path("/usr/share/common-licenses")
LICENCE = re.compile("licen[cs]e|copying|copyright|notice", re.IGNORECASE)
HEADERS = ("numpy/_core/include/**/*.h", "torch/include/c10/**/*.h")
SUBJECTS = {
    "numpy": "fft linalg polynomial",
    "scipy": "fft integrate interpolate linalg optimize signal spatial special stats",
    "sympy": (
        "calculus combinatorics concrete diffgeom functions geometry holonomic"
        " integrals logic matrices ntheory polys series sets simplify solvers stats"
        " tensor vector"
    ),
}
MATHEMATICS = tuple(
    f"{package}/{name}/**/*.py"
    for package, names in SUBJECTS.items()
    for name in names.split()
)


@dataclass(frozen=True, slots=True)
class TextFolders:
    """Where this machine keeps what is harvested; a folder that is missing is an empty one.

    library:  Python's standard library.
    headers:  the C headers of Python.
    packages: the folders that packages are installed in.
    licences: the folder of common licences, where the system has one.
    """

    library: Path
    headers: Path
    packages: tuple[Path, ...]
    licences: Path


@dataclass(frozen=True, slots=True)
class Document:
    """A file's text under its path below its place, or a topic's under its name."""

    key: str
    text: str

    @property
    def digest(self) -> str:
        return _digest(self.key)


def this_machine() -> TextFolders:
    """The places that the running Python knows of."""
    installed = (
        Path(entry)
        for entry in sys.path
        if Path(entry).name in ("site-packages", "dist-packages")
    )
    return TextFolders(
        library=Path(sysconfig.get_path("stdlib")),
        headers=Path(sysconfig.get_path("include")),
        packages=tuple(dict.fromkeys(installed)),
        licences=COMMON_LICENCES,
    )


def headers(folders: TextFolders) -> Iterator[Document]:
    """The C headers of Python and NumPy, of PyTorch where it is."""
    return read_documents(
        {
            **files_below([folders.headers], ["**/*.h"]),
            **files_below(folders.packages, HEADERS),
        }
    )


def sources(folders: TextFolders) -> Iterator[Document]:
    """The source of the standard library's public modules."""
    return read_documents(files_below([folders.library], ["**/[!_]*.py"]))


def licences(folders: TextFolders) -> Iterator[Document]:
    """The licences of Python, of installed packages and of the system."""
    packaged = files_below(
        folders.packages, ["*.dist-info/**/*", "setuptools/_vendor/*.dist-info/**/*"]
    )
    licences = {key: path for key, path in packaged.items() if LICENCE.match(path.name)}
    return read_documents(
        {
            **files_below([folders.library], ["LICENSE.txt"]),
            **licences,
            **files_below([folders.licences], ["*"]),
        }
    )


def reference(folders: TextFolders) -> Iterator[Document]:
    """The topics of Python's language reference, as its own help shows them."""
    for source in read_documents(
        {"topics": folders.library / "pydoc_data" / "topics.py"}
    ):
        texts = topics(source.text)
        for name in sorted(texts, key=_digest):
            yield Document(name, _tidy(texts[name]))


# From files to documents


def files_below(folders: Iterable[Path], patterns: Iterable[str]) -> dict[str, Path]:
    """The files of these patterns by their paths below a folder, without OMITTED_FOLDERS; the first
    folder wins.
    """
    files: dict[str, Path] = {}
    for folder, pattern in product(folders, patterns):
        paths = {path.relative_to(folder): path for path in folder.glob(pattern)}
        kept = {
            key.as_posix(): path
            for key, path in paths.items()
            if OMITTED_FOLDERS.isdisjoint(key.parts)
        }
        files = {**kept, **files}
    return files


def read_documents(
    files: dict[str, Path], meaning: Callable[[str], str] = str
) -> Iterator[Document]:
    """What the files mean, in the order of their digests, so that any first part is a fair
    sample.
    """
    for key in sorted(files, key=_digest):
        try:
            text = meaning(files[key].read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        yield Document(key, _tidy(text))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _tidy(text: str) -> str:
    """The text without blanks at line ends, so that an empty line is empty, and without what UTF-8
    cannot carry.
    """
    return (
        re.sub(r"[^\S\n]+$", "", text, flags=re.MULTILINE)
        .encode(errors="ignore")
        .decode()
    )


def docstrings(source: str) -> str:
    """The docstrings of a module, its classes and its functions, in their order, without importing
    it.
    """
    return "\n\n".join(_docstrings(_parsed(source)))


def _docstrings(node: ast.Module | ast.stmt) -> Iterator[str]:
    if isinstance(
        node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ):
        yield from filter(None, [ast.get_docstring(node)])
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            yield from _docstrings(child)


def topics(source: str) -> dict[str, str]:
    """The texts of pydoc's topics: the one dictionary that its module assigns."""
    values = (
        node.value for node in _parsed(source).body if isinstance(node, ast.Assign)
    )
    texts: dict[str, str] = next(
        (ast.literal_eval(value) for value in values if isinstance(value, ast.Dict)), {}
    )
    return texts


def _parsed(source: str) -> ast.Module:
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source)


# From documents to pieces


def paragraphs(text: str) -> list[str]:
    """The text cut after its blank lines. Law: joined, they are the text."""
    return re.split(r"(?<=\n\n)(?!\n)", text)


def pieces(text: str) -> Iterator[str]:
    """The text cut at paragraphs, or where one is too long at lines, to MIN … MAX_PIECE_CHARACTERS
    each.
    """
    piece = ""
    for part in _parts(text):
        if len(piece) + len(part) > _MAX_PIECE_CHARACTERS:
            yield from _whole(piece)
            piece = ""
        piece += part
    yield from _whole(piece)


def _parts(text: str) -> Iterator[str]:
    for paragraph in paragraphs(text):
        lines = (
            [paragraph]
            if len(paragraph) <= _MAX_PIECE_CHARACTERS
            else paragraph.splitlines(keepends=True)
        )
        yield from (line for line in lines if len(line) <= _MAX_PIECE_CHARACTERS)


def _whole(piece: str) -> Iterator[str]:
    text = piece.strip("\n")
    if len(text) >= MIN_PIECE_CHARACTERS:
        yield text
