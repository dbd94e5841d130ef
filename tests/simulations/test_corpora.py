"""The built-in corpora: what they hold, how they are divided, and what happens where a source is
missing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import CorpusError
from ridgeway.common.base.settings import PAPER
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.simulations import corpora, harvested_text
from ridgeway.simulations.corpora import Corpus, in_pieces
from ridgeway.simulations.harvested_text import Document, TextFolders
from tests.simulations.test_demo import VISITORS
from tests.support.corpora_on_disk import measured

NOWHERE = TextFolders(
    library=Path("nowhere"),
    headers=Path("nowhere"),
    packages=(),
    licences=Path("nowhere"),
)

MODULE = '''
"""A module."""

import a_package_that_nobody_has

TABLE = "not a docstring"

def outer():
    "A function."
    def inner():
        "Hidden in a function."

class Thing:
    r"""A class with \\alpha."""

    async def method(self):
        """A method

        with a line
            that is indented.
        """

    def silent(self): ...
'''

PARAGRAPH = (
    "Permission is hereby granted to any person who holds a copy of this text "
    "to lend it to a neighbour. "
)


@pytest.fixture(scope="module")
def harvested() -> tuple[Corpus, ...]:
    return corpora.builtin()


def documents(count: int, size: int = 1_000) -> list[Document]:
    return [
        Document(f"file{index}", f"file {index} ".ljust(size + index, "x"))
        for index in range(count)
    ]


def test_a_machine_after_set_up_has_at_least_four_domains(
    harvested: tuple[Corpus, ...],
) -> None:
    """The demonstration always finds enough to route between, under names that can stand on a
    command line.
    """
    names = [corpus.name for corpus in harvested]
    assert len(names) >= 4
    assert all(name.isidentifier() and name == name.lower() for name in names)
    assert names == [name for name in corpora._DOMAINS if name in names]


def test_every_domain_has_enough_text_and_not_too_much(
    harvested: tuple[Corpus, ...],
) -> None:
    """A domain trains on 100 kB to 1.5 MB and keeps about a fifth of its text for the test."""
    for corpus in harvested:
        train, test = sum(map(len, corpus.train)), sum(map(len, corpus.test))
        assert train >= 100_000, corpus.name
        assert train + test <= 1_500_000, corpus.name
        assert len(corpus.test) >= 10, corpus.name
        assert 0.05 < test / (train + test) < 0.4, corpus.name


def test_the_preset_paper_routes_harvested_text_as_it_always_did(
    harvested: tuple[Corpus, ...], smollm2: TableEncoder, tmp_path: Path
) -> None:
    """The published method, on text that every machine has: a part of it, so that a change shows
    within seconds.
    """
    few = [
        Corpus(corpus.name, corpus.train[:200], corpus.test[:50])
        for corpus in harvested
    ]
    corpora.write(few, tmp_path / "data")
    found = measured(tmp_path / "data", PAPER, smollm2, tmp_path)
    assert found.accuracy == pytest.approx(
        89, abs=3
    )  # 88.7 with the packages of requirements.lock


def test_no_piece_stands_on_both_sides(harvested: tuple[Corpus, ...]) -> None:
    """What a router is measured on, it was not trained on; and nothing is counted twice."""
    for corpus in harvested:
        assert len({*corpus.train, *corpus.test}) == len(corpus.train) + len(
            corpus.test
        ), corpus.name


def test_the_words_of_the_test_are_new(harvested: tuple[Corpus, ...]) -> None:
    """Few runs of eight words of the test were trained on, not even in licences, which copy each
    other.
    """
    for corpus in harvested:
        trained = set().union(*map(corpora._runs, corpus.train))
        tested = set().union(*map(corpora._runs, corpus.test))
        assert len(tested & trained) < 0.2 * len(tested), corpus.name


@given(count=st.integers(0, 40))
def test_the_division_is_complete_and_ignores_the_order_of_files(count: int) -> None:
    """Every file goes to exactly one side, a fifth of them to the test, whichever comes first."""
    files = documents(count)
    train, test = corpora.split(files)
    assert sorted(document.key for document in train + test) == sorted(
        file.key for file in files
    )
    assert len(test) == count // 5
    assert {each.key for each in corpora.split(files[::-1])[1]} == {
        document.key for document in test
    }


def test_a_licence_under_another_name_is_read_once() -> None:
    """The same words with other years, names and line ends do not come again."""
    first = Document("a", f"Copyright 1999 Ann\n\n{PARAGRAPH * 3}")
    second = Document(
        "b", f"Copyright 2024 Bob\n\n{(PARAGRAPH * 3).upper().replace(' ', chr(10))}"
    )
    kept = list(corpora.unread([first, second]))
    assert kept == [first, Document("b", "Copyright 2024 Bob\n\n")]


@given(text=st.text(alphabet="ab \n"))
def test_paragraphs_joined_are_the_text(text: str) -> None:
    """Cutting at blank lines loses nothing."""
    assert "".join(harvested_text.paragraphs(text)) == text


@given(sizes=st.lists(st.integers(0, 5_000), max_size=12), blank=st.booleans())
def test_pieces_are_whole_lines_in_order(sizes: list[int], blank: bool) -> None:
    """A piece never begins or ends within a line, and never goes beyond its limits."""
    lines = [f"{index}".ljust(size, "x") for index, size in enumerate(sizes)]
    found = list(harvested_text.pieces(("\n\n" if blank else "\n").join(lines)))
    seen = [line for piece in found for line in piece.split("\n") if line]
    assert all(200 <= len(piece) <= 2_000 for piece in found)
    assert seen == [line for line in lines if line in seen]


def test_docstrings_are_read_without_importing(tmp_path: Path) -> None:
    """Modules, classes, methods and functions give their docstrings, cleaned and in order; code
    gives nothing.
    """
    module = tmp_path / "module.py"
    module.write_text(MODULE)
    expected = [
        "A module.",
        "A function.",
        "A class with \\alpha.",
        "A method\n\nwith a line\n    that is indented.",
    ]
    assert harvested_text.docstrings(module.read_text()) == "\n\n".join(expected)


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    """A file in another encoding, a broken module and a missing file leave the others as they
    are.
    """
    (tmp_path / "latin.py").write_bytes(b'"""\xe9"""')
    (tmp_path / "broken.py").write_text("def :")
    (tmp_path / "good.py").write_text('"""Good.  \n\n\\ud800Text."""')
    files = {
        name: tmp_path / f"{name}.py" for name in ("latin", "broken", "good", "missing")
    }
    assert list(harvested_text.read_documents(files, harvested_text.docstrings)) == [
        Document("good", "Good.\n\nText.")
    ]


def test_what_is_written_can_be_read_line_by_line(tmp_path: Path) -> None:
    """A line of DOMAIN.train.jsonl or DOMAIN.test.jsonl is one record, and its text is the piece,
    to the letter.
    """
    whole = Corpus(
        "law",
        train=("§ 1\nfirst line\r\n\tsecond", "naïve \u2028 \U0001f600"),
        test=('"quoted" \\',),
    )
    corpora.write([whole], tmp_path / "new")
    for side in ("train", "test"):
        content = (tmp_path / "new" / f"law.{side}.jsonl").read_bytes()
        records = [
            json.loads(line) for line in content.decode().removesuffix("\n").split("\n")
        ]
        assert records == [{"text": piece} for piece in getattr(whole, side)]
        assert b"\r" not in content
    assert "§" in (tmp_path / "new" / "law.train.jsonl").read_text()


def test_a_domain_with_little_text_is_left_out() -> None:
    """A few files do not make a domain."""
    assert not corpora._enough(
        Corpus("law", train=("x" * 2_000,) * 10, test=("y" * 2_000,) * 30)
    )
    assert not corpora._enough(
        Corpus("law", train=("x" * 2_000,) * 100, test=("y" * 2_000,) * 3)
    )
    assert corpora._enough(
        Corpus("law", train=("x" * 2_000,) * 100, test=("y" * 2_000,) * 30)
    )


def test_questions_are_of_their_domain_alone_and_never_those_of_the_judges() -> None:
    """Every domain has some of its files and a hundred questions or more, none twice, a tenth of
    them for the test.
    """
    mixed = corpora.with_questions()
    assert [corpus.name for corpus in mixed] == [*corpora._DOMAINS, corpora.EVERYDAY]
    texts = [text for corpus in mixed for text in (*corpus.train, *corpus.test)]
    assert len(set(texts)) == len(texts)
    judges = (json.loads(line)["text"] for line in VISITORS.read_text().splitlines())
    assert not set(judges) & set(texts)
    for corpus in mixed:
        asked = [
            text
            for text in corpus.test
            if len(text) < harvested_text.MIN_PIECE_CHARACTERS
        ]
        assert len(corpus.train) >= 100 and len(asked) >= 10, corpus.name


def test_fewer_than_four_domains_are_refused() -> None:
    """A machine without sources gets one sentence: what was found, why, and what to do."""
    with pytest.raises(
        CorpusError, match=r"needs 4 domains .* found 0 \(none\).* make setup"
    ):
        corpora.harvest(NOWHERE)


@given(
    texts=st.lists(st.text("ab \n", min_size=1, max_size=30), min_size=1, max_size=5),
    wanted=st.integers(0, 12),
)
def test_texts_are_cut_between_words_until_there_are_enough(
    texts: list[str], wanted: int
) -> None:
    """Not a letter is lost or moved, no piece is empty, and nothing is cut that need not be."""
    pieces = in_pieces(texts, wanted)
    assert all(pieces)
    assert len(texts) <= len(pieces) <= max(wanted, len(texts))
    assert "".join(pieces).replace(" ", "") == "".join(texts).replace(" ", "")
    if len(pieces) < wanted:
        assert not re.search(r"\S \S", max(pieces, key=len))
    if wanted <= len(texts):
        assert pieces == tuple(texts)
