"""Corpora for simulations: those of a folder, or real text of six domains that is found on any machine after set-up.

    places → documents of a domain → paragraphs not read before → pieces → split by file → Corpus

Reads files and parses them: imports nothing of what it reads, downloads nothing, writes no text of its own.
Knows nothing of tokens, encoders, sums, routing, holders or federations.
"""

from __future__ import annotations

import ast
import hashlib
import heapq
import json
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.jsonl import jsonl_texts

TRAIN, TEST = ".train.jsonl", ".test.jsonl"

MIN_PIECE_CHARACTERS, MAX_PIECE_CHARACTERS = 200, 2_000

WORDS_PER_RUN = 8
FAMILIAR_SHARE = 1 / 4
"""A paragraph counts as read before when this share of its runs of words was."""

MIN_HOLDER_TEXTS = 4
BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")
TEST_EVERY = 5
"""Of this many files of like size, one is for the test."""

MAX_DOMAIN_CHARACTERS = 1_500_000
MIN_TRAIN_CHARACTERS = 100_000
MIN_TEST_PIECES = 10
MIN_DOMAINS = 4
"""A demonstration with fewer domains would show little."""

OMITTED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data"}
"""Folders that hold no text of their domain: tests, tables, other packages."""

COMMON_LICENCES = Path("/usr/share/common-licenses")
LICENCE = re.compile("licen[cs]e|copying|copyright|notice", re.IGNORECASE)
HEADERS = ("numpy/_core/include/**/*.h", "torch/include/c10/**/*.h")
SUBJECTS = {
    "numpy": "fft linalg polynomial",
    "scipy": "fft integrate interpolate linalg optimize signal spatial special stats",
    "sympy": "calculus combinatorics concrete diffgeom functions geometry holonomic integrals logic matrices ntheory "
    "polys series sets simplify solvers stats tensor vector",
}
MATHEMATICS = tuple(f"{package}/{name}/**/*.py" for package, names in SUBJECTS.items() for name in names.split())
MACHINE_LEARNING = (
    "transformers/models/*/configuration_*.py",
    "transformers/generation/*.py",
    "torch/nn/**/*.py",
    "torch/optim/**/*.py",
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A domain's pieces of text. Law: no file gives text to both sides, and no piece stands on both."""

    name: str
    train: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Places:
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


def builtin() -> tuple[Corpus, ...]:
    """The corpora of this machine: the same on every call until something is installed."""
    return harvest(this_machine())


def in_pieces(texts: Sequence[str], wanted: int) -> tuple[str, ...]:
    """At least so many texts, in their order: of those that there are, the longest is cut in two between words."""
    longest: list[tuple[int, tuple[int, ...], str]] = [(-len(text), (at,), text) for at, text in enumerate(texts)]
    heapq.heapify(longest)
    while len(longest) < wanted and (spaces := [each.start() for each in BETWEEN_WORDS.finditer(longest[0][2])]):
        _, place, text = heapq.heappop(longest)
        middle = min(spaces, key=lambda at: abs(2 * at - len(text)))
        for half, part in enumerate((text[:middle], text[middle + 1 :])):
            heapq.heappush(longest, (-len(part), (*place, half), part))
    return tuple(text for _, _, text in sorted(longest, key=lambda each: each[1]))


def read_corpora(data: Path | None, holders: int = 0) -> list[Corpus]:
    """The built-in corpora, or those of a folder with DOMAIN.train.jsonl and DOMAIN.test.jsonl.

    holders: the built-in texts are cut so that so many can have MIN_HOLDER_TEXTS each, some of which are held out.
    """
    from ridgeway.common.base.settings import check_domain_name

    if data is None:
        found = builtin()
        wanted = MIN_HOLDER_TEXTS * -(-holders // len(found))
        return [replace(each, train=in_pieces(each.train, wanted)) for each in found]
    names = sorted(path.name.removesuffix(TRAIN) for path in data.glob(f"*{TRAIN}"))
    for name in names:
        check_domain_name(name)
    if len(names) < 2:
        raise InputError(f"{data} holds {len(names)} files named DOMAIN{TRAIN}; a simulation needs at least two")
    return [Corpus(name, _texts(data / f"{name}{TRAIN}"), _texts(data / f"{name}{TEST}")) for name in names]


def _texts(path: Path) -> tuple[str, ...]:
    if not path.exists():
        raise InputError(f"there is no {path.name} beside the training files; every domain needs one to be tested on")
    with path.open(encoding="utf-8", errors="replace") as lines:
        texts = tuple(jsonl_texts(lines, ["text"], str(path)))
    if not texts:
        raise InputError(f"{path} holds no text")
    return texts


def harvest(places: Places) -> tuple[Corpus, ...]:
    """Every domain that has enough text in these places, in the order of DOMAINS."""
    corpora = tuple(corpus(name, documents(places)) for name, documents in DOMAINS.items())
    enough = tuple(filter(_enough, corpora))
    if len(enough) < MIN_DOMAINS:
        found = ", ".join(each.name for each in enough) or "none"
        raise CorpusError(
            f"the demonstration needs {MIN_DOMAINS} domains with enough text and found {len(enough)} ({found}): the "
            "packages it reads are probably not installed; run make setup, or give your own corpora"
        )
    return enough


def this_machine() -> Places:
    """The places that the running Python knows of."""
    installed = (Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages"))
    return Places(
        library=Path(sysconfig.get_path("stdlib")),
        headers=Path(sysconfig.get_path("include")),
        packages=tuple(dict.fromkeys(installed)),
        licences=COMMON_LICENCES,
    )


def write(corpora: Iterable[Corpus], folder: Path) -> None:
    """DOMAIN.train.jsonl and DOMAIN.test.jsonl for each, a record {"text": ...} per line."""
    for each in corpora:
        write_texts(folder / f"{each.name}{TRAIN}", each.train)
        write_texts(folder / f"{each.name}{TEST}", each.test)


def write_texts(path: Path, texts: Iterable[str]) -> None:
    lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    write_whole(path, "".join(lines).encode(errors="replace"))


def _enough(each: Corpus) -> bool:
    return sum(map(len, each.train)) >= MIN_TRAIN_CHARACTERS and len(each.test) >= MIN_TEST_PIECES


# From documents to a corpus


def corpus(name: str, documents: Iterable[Document]) -> Corpus:
    """Cut documents to pieces and divide them by file; a piece that stands in the test is not trained on."""
    train, test = split(capped(unread(documents)))
    kept = dict.fromkeys(piece for each in test for piece in pieces(each.text))
    rest = dict.fromkeys(piece for each in train for piece in pieces(each.text))
    return Corpus(name, tuple(piece for piece in rest if piece not in kept), tuple(kept))


def unread(documents: Iterable[Document]) -> Iterator[Document]:
    """The documents without the paragraphs that were read before, in the same words or nearly so.

    Licences, above all, are copied from file to file under other names, years and line ends.
    """
    read: set[tuple[str, ...]] = set()
    for document in documents:
        fresh = []
        for paragraph in paragraphs(document.text):
            runs = _runs(paragraph)
            if not runs or len(runs & read) < FAMILIAR_SHARE * len(runs):
                fresh.append(paragraph)
            read |= runs
        yield Document(document.key, "".join(fresh))


def _runs(paragraph: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[^\W\d_]+", paragraph.lower())
    return set(zip(*(words[start:] for start in range(WORDS_PER_RUN)), strict=False))


def capped(documents: Iterable[Document], limit: int = MAX_DOMAIN_CHARACTERS) -> Iterator[Document]:
    """The first documents long enough for a piece, until they have `limit` characters."""
    total = 0
    for document in documents:
        if len(document.text) < MIN_PIECE_CHARACTERS:
            continue
        total += len(document.text)
        if total > limit:
            return
        yield document


def split(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """Train and test: of every TEST_EVERY documents of like size, the one with the least digest is for the test.

    Few, unequal files would make a plain draw by digest lopsided.
    """
    given = list(documents)
    ranked = sorted(given, key=lambda each: (-len(each.text), each.digest))
    groups = (ranked[start : start + TEST_EVERY] for start in range(0, len(ranked) - TEST_EVERY + 1, TEST_EVERY))
    test = {min(group, key=lambda each: each.digest).key for group in groups}
    return [each for each in given if each.key not in test], [each for each in given if each.key in test]


def paragraphs(text: str) -> list[str]:
    """The text cut after its blank lines. Law: joined, they are the text."""
    return re.split(r"(?<=\n\n)(?!\n)", text)


def pieces(text: str) -> Iterator[str]:
    """The text cut at paragraphs, or where one is too long at lines, to MIN … MAX_PIECE_CHARACTERS each."""
    piece = ""
    for part in _parts(text):
        if len(piece) + len(part) > MAX_PIECE_CHARACTERS:
            yield from _whole(piece)
            piece = ""
        piece += part
    yield from _whole(piece)


def _parts(text: str) -> Iterator[str]:
    for paragraph in paragraphs(text):
        lines = [paragraph] if len(paragraph) <= MAX_PIECE_CHARACTERS else paragraph.splitlines(keepends=True)
        yield from (line for line in lines if len(line) <= MAX_PIECE_CHARACTERS)


def _whole(piece: str) -> Iterator[str]:
    text = piece.strip("\n")
    if len(text) >= MIN_PIECE_CHARACTERS:
        yield text


# The domains


def _law(places: Places) -> Iterator[Document]:
    """The licences of Python, of installed packages and of the system."""
    packaged = _files(places.packages, ["*.dist-info/**/*", "setuptools/_vendor/*.dist-info/**/*"])
    licences = {key: path for key, path in packaged.items() if LICENCE.match(path.name)}
    return _read({**_files([places.library], ["LICENSE.txt"]), **licences, **_files([places.licences], ["*"])})


def _reference(places: Places) -> Iterator[Document]:
    """The topics of Python's language reference, as its own help shows them."""
    for source in _read({"topics": places.library / "pydoc_data" / "topics.py"}):
        found = topics(source.text)
        yield from (Document(name, _tidy(found[name])) for name in sorted(found, key=_digest))


DOMAINS: dict[str, Callable[[Places], Iterator[Document]]] = {
    # The headers of Python, NumPy and PyTorch.
    "c": lambda places: _read({**_files([places.headers], ["**/*.h"]), **_files(places.packages, HEADERS)}),
    "law": _law,
    # The docstrings of models, layers and optimisers in Transformers and PyTorch.
    "machine_learning": lambda places: _read(_files(places.packages, MACHINE_LEARNING), docstrings),
    # The docstrings of SymPy, SciPy and NumPy, where they treat of mathematics.
    "mathematics": lambda places: _read(_files(places.packages, MATHEMATICS), docstrings),
    # The source of the standard library's public modules.
    "python": lambda places: _read(_files([places.library], ["**/[!_]*.py"])),
    "reference": _reference,
}


# From files to documents


def _files(folders: Iterable[Path], patterns: Iterable[str]) -> dict[str, Path]:
    """The files of these patterns by their paths below a folder, without OMITTED_FOLDERS; the first folder wins."""
    files: dict[str, Path] = {}
    for folder, pattern in product(folders, patterns):
        paths = {path.relative_to(folder): path for path in folder.glob(pattern)}
        kept = {key.as_posix(): path for key, path in paths.items() if OMITTED_FOLDERS.isdisjoint(key.parts)}
        files = {**kept, **files}
    return files


def _read(files: dict[str, Path], meaning: Callable[[str], str] = str) -> Iterator[Document]:
    """What the files mean, in the order of their digests, so that any first part is a fair sample."""
    for key in sorted(files, key=_digest):
        try:
            text = meaning(files[key].read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        yield Document(key, _tidy(text))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _tidy(text: str) -> str:
    """The text without blanks at line ends, so that an empty line is empty, and without what UTF-8 cannot carry."""
    return re.sub(r"[^\S\n]+$", "", text, flags=re.MULTILINE).encode(errors="ignore").decode()


def docstrings(source: str) -> str:
    """The docstrings of a module, its classes and its functions, in their order, without importing it."""
    return "\n\n".join(_docstrings(_parsed(source)))


def _docstrings(node: ast.Module | ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield from filter(None, [ast.get_docstring(node)])
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            yield from _docstrings(child)


def topics(source: str) -> dict[str, str]:
    """The texts of pydoc's topics: the one dictionary that its module assigns."""
    values = (node.value for node in _parsed(source).body if isinstance(node, ast.Assign))
    found: dict[str, str] = next((ast.literal_eval(value) for value in values if isinstance(value, ast.Dict)), {})
    return found


def _parsed(source: str) -> ast.Module:
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source)
