"""Corpora for simulations: those of a folder, or real text of six domains that is found on machines
after set-up, with questions as people type them.

    folders → documents of a domain → paragraphs not read before → pieces → split by file → Corpus

Reads files and parses them: imports nothing of what it reads, downloads nothing.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.common.base.files import jsonl_texts, write_whole
from ridgeway.common.base.settings import check_domain_name
from ridgeway.common.privacy.public_prior import PUBLIC_TEXT
from ridgeway.simulations.harvested_text import (
    MATHEMATICS,
    MIN_PIECE_CHARACTERS,
    Document,
    TextFolders,
    docstrings,
    files_below,
    headers,
    licences,
    paragraphs,
    pieces,
    read_documents,
    reference,
    sources,
    this_machine,
)

TRAIN = ".train.jsonl"
TEST = ".test.jsonl"

WORDS_PER_RUN = 8
FAMILIAR_SHARE = 1 / 4
"""A paragraph counts as read before when this share of its runs of words was."""

MIN_HOLDER_TEXTS = 10
BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")
TEST_EVERY = 5
"""Of this many files of like size, one is for the test."""

MAX_DOMAIN_CHARACTERS = 1_500_000
MIN_TRAIN_CHARACTERS = 100_000
MIN_TEST_PIECES = 10
MIN_DOMAINS = 4
"""A demonstration with fewer domains would show little."""

EVERYDAY = "everyday"
"""The questions that no expert is for."""
FILE_PIECES = 12
ENOUGH_CHARACTERS = 300_000
QUESTIONS_TEST_EVERY = 10
"""Of a domain with questions: how many pieces of files it has beside them, how much of its files is
read to find them, and of how many questions one is for the test.
"""

VISITORS_PROMPTS = (
    "May I sell this program if I keep the copyright notice and give no warranty?",
    (
        "Why does free() crash when I pass it a pointer into the middle of a malloc'd"
        " buffer?"
    ),
    "Show that every bounded sequence of real numbers has a convergent subsequence.",
    "How do I fine-tune a small language model on one GPU?",
    "What should I cook for six friends tonight?",
)
"""Prompts for the page of a release of these corpora."""

MACHINE_LEARNING = (
    "transformers/models/*/configuration_*.py",
    "transformers/generation/*.py",
    "torch/nn/**/*.py",
    "torch/optim/**/*.py",
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A domain's pieces of text. Law: no file gives text to both sides, and no piece stands on
    both.
    """

    name: str
    train: tuple[str, ...]
    test: tuple[str, ...]


def builtin() -> tuple[Corpus, ...]:
    """The corpora of this machine: the same on every call until something is installed."""
    return harvest(this_machine())


def with_questions() -> tuple[Corpus, ...]:
    """Corpora of the questions of every domain, with some of this machine's text where it has
    enough of it, and one of everyday questions.
    """
    files = {
        corpus.name: corpus
        for corpus in with_enough_text(this_machine(), ENOUGH_CHARACTERS)
    }
    names = (*_DOMAINS, EVERYDAY)
    return tuple(_mixed(files.get(name, Corpus(name, (), ()))) for name in names)


def _mixed(files: Corpus) -> Corpus:
    asked = (PUBLIC_TEXT / f"{files.name}.txt").read_text(encoding="utf-8").splitlines()
    test = asked[::QUESTIONS_TEST_EVERY]
    kept = files.test[: FILE_PIECES // TEST_EVERY]
    train = [question for question in asked if question not in test]
    return Corpus(files.name, (*files.train[:FILE_PIECES], *train), (*kept, *test))


def in_pieces(texts: Sequence[str], wanted: int) -> tuple[str, ...]:
    """At least so many texts, in their order: of those that there are, the longest is cut in two
    between words.
    """
    longest: list[tuple[int, tuple[int, ...], str]] = [
        (-len(text), (at,), text) for at, text in enumerate(texts)
    ]
    heapq.heapify(longest)
    while len(longest) < wanted and (
        spaces := [blank.start() for blank in BETWEEN_WORDS.finditer(longest[0][2])]
    ):
        _, place, text = heapq.heappop(longest)
        middle = min(spaces, key=lambda at: abs(2 * at - len(text)))
        for half, part in enumerate((text[:middle], text[middle + 1 :])):
            heapq.heappush(longest, (-len(part), (*place, half), part))
    return tuple(text for _, _, text in sorted(longest, key=lambda each: each[1]))


def read_corpora(data: Path | None, holders: int = 0) -> list[Corpus]:
    """The built-in corpora with questions, or those of a folder with DOMAIN.train.jsonl and
    DOMAIN.test.jsonl.

    holders: the built-in texts are cut so that so many can have MIN_HOLDER_TEXTS each, some of
             which are held out.
    """
    if data is None:
        mixed = with_questions()
        wanted = MIN_HOLDER_TEXTS * -(-holders // len(mixed))
        return [
            replace(corpus, train=in_pieces(corpus.train, wanted)) for corpus in mixed
        ]
    names = sorted(path.name.removesuffix(TRAIN) for path in data.glob(f"*{TRAIN}"))
    for name in names:
        check_domain_name(name)
    if len(names) < 2:
        raise InputError(
            f"{data} holds {len(names)} files named DOMAIN{TRAIN}; a simulation needs"
            " at least two"
        )
    return [
        Corpus(name, _texts(data / f"{name}{TRAIN}"), _texts(data / f"{name}{TEST}"))
        for name in names
    ]


def _texts(path: Path) -> tuple[str, ...]:
    if not path.exists():
        raise InputError(
            f"there is no {path.name} beside the training files; every domain needs one"
            " to be tested on"
        )
    with path.open(encoding="utf-8", errors="replace") as lines:
        texts = tuple(jsonl_texts(lines, ["text"], str(path)))
    if not texts:
        raise InputError(f"{path} holds no text")
    return texts


def harvest(folders: TextFolders) -> tuple[Corpus, ...]:
    """Every domain that has enough text in these folders, in the order of _DOMAINS, and no more of
    it than a domain may have.
    """
    enough = with_enough_text(folders, MAX_DOMAIN_CHARACTERS)
    if len(enough) < MIN_DOMAINS:
        names = ", ".join(corpus.name for corpus in enough) or "none"
        raise CorpusError(
            f"the built-in text needs {MIN_DOMAINS} domains with enough of it and found"
            f" {len(enough)} ({names}): the packages it reads are probably not"
            " installed; run make setup, or give your own corpora"
        )
    return enough


def with_enough_text(folders: TextFolders, limit: int) -> tuple[Corpus, ...]:
    """The domains that have enough text in these folders to learn and to test."""
    corpora = (
        corpus(name, documents(folders), limit) for name, documents in _DOMAINS.items()
    )
    return tuple(filter(_enough, corpora))


def write(corpora: Iterable[Corpus], folder: Path) -> None:
    """DOMAIN.train.jsonl and DOMAIN.test.jsonl for each, a record {"text": ...} per line."""
    for domain in corpora:
        write_texts(folder / f"{domain.name}{TRAIN}", domain.train)
        write_texts(folder / f"{domain.name}{TEST}", domain.test)


def write_texts(path: Path, texts: Iterable[str]) -> None:
    lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    write_whole(path, "".join(lines).encode(errors="replace"))


def _enough(each: Corpus) -> bool:
    return (
        sum(map(len, each.train)) >= MIN_TRAIN_CHARACTERS
        and len(each.test) >= MIN_TEST_PIECES
    )


# From documents to a corpus


def corpus(
    name: str, documents: Iterable[Document], limit: int = MAX_DOMAIN_CHARACTERS
) -> Corpus:
    """Cut documents to pieces and divide them by file; a piece that stands in the test is not
    trained on.
    """
    train, test = split(capped(unread(documents), limit))
    kept = dict.fromkeys(piece for document in test for piece in pieces(document.text))
    rest = dict.fromkeys(piece for document in train for piece in pieces(document.text))
    return Corpus(
        name, tuple(piece for piece in rest if piece not in kept), tuple(kept)
    )


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


def capped(documents: Iterable[Document], limit: int) -> Iterator[Document]:
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
    """Train and test: of every TEST_EVERY documents of like size, the one with the least digest is
    for the test.

    Few, unequal files would make a plain draw by digest lopsided.
    """
    given = list(documents)
    ranked = sorted(given, key=lambda each: (-len(each.text), each.digest))
    groups = (
        ranked[start : start + TEST_EVERY]
        for start in range(0, len(ranked) - TEST_EVERY + 1, TEST_EVERY)
    )
    test = {min(group, key=lambda each: each.digest).key for group in groups}
    return [document for document in given if document.key not in test], [
        document for document in given if document.key in test
    ]


# The domains


_DOMAINS: dict[str, Callable[[TextFolders], Iterator[Document]]] = {
    # The headers of Python, NumPy and PyTorch.
    "c": headers,
    "law": licences,
    # The docstrings of models, layers and optimisers in Transformers and PyTorch.
    "machine_learning": lambda folders: read_documents(
        files_below(folders.packages, MACHINE_LEARNING), docstrings
    ),
    # The docstrings of SymPy, SciPy and NumPy, where they treat of mathematics.
    "mathematics": lambda folders: read_documents(
        files_below(folders.packages, MATHEMATICS), docstrings
    ),
    # The source of the standard library's public modules.
    "python": sources,
    "reference": reference,
}
