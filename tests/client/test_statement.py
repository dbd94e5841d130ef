"""The statement for a privacy officer: what it says is what the records say, also from an archived
copy.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ridgeway.client.evidence import HolderRecord
from ridgeway.client.statement import (
    Statement,
    as_html,
    as_text,
    further_rounds,
    statement,
)
from ridgeway.common.privacy.accountant import epsilon_of
from tests.support.commands import Workshop
from tests.support.simulated_federation import (
    ONE_EACH,
    Parties,
    found,
    found_private,
    populate,
    round_of,
)

pytestmark = pytest.mark.usefixtures("private_sentences")

NOW = "2026-01-02T03:04:05+00:00"
SECRETS = ("identity.key", "node.key", "epochs", "cache", "logs", "session*")


def played(parties: Parties) -> Parties:
    populate(parties, ONE_EACH)
    round_of(parties)
    return parties


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return played(found_private(tmp_path_factory.mktemp("private")))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return played(found(tmp_path_factory.mktemp("masked"), mode="masked"))


def stated(parties: Parties) -> Statement:
    return statement(HolderRecord(parties.homes["law"]), NOW)


def text_of(parties: Parties) -> str:
    """Without line breaks, so that sentences can be looked for."""
    return " ".join(as_text(stated(parties)).split())


def test_a_private_statement_says_what_was_spent_and_what_is_left(
    private: Parties,
) -> None:
    """Unit, neighbours, ε and δ so far, the limits, and each output with its cost."""
    figures = stated(private).figures
    assert (figures["unit"], figures["neighbours"]) == (
        "one document",
        "add or remove one document",
    )
    assert 0.99 < figures["epsilon"] <= 1 and figures["delta"] == 1e-8
    assert (figures["max_round_epsilon"], figures["max_epsilon"]) == (1.0, 4.0)
    assert figures["left"] == 4.0 - figures["epsilon"]
    assert [(output["output"], output["mode"]) for output in figures["outputs"]] == [
        ("statistics", "private"),
        ("counts", "private"),
    ]
    text = text_of(private)
    for words in (
        "ε so far 1",
        "at a δ of 1e-08",
        "ε that all together may cost 4",
        "private: accepted, used",
    ):
        assert words in text
    assert "Nobody, but this machine" in text and "exact (∞)" not in text


def test_a_masked_statement_says_that_no_bound_holds_and_whom_one_trusts(
    masked: Parties,
) -> None:
    """Exact outputs are infinity, whatever the budget says."""
    figures = stated(masked).figures
    assert (figures["epsilon"], figures["left"], figures["exact_outputs"]) == (
        None,
        None,
        2,
    )
    text = text_of(masked)
    for words in (
        "ε so far ∞",
        "2 exact outputs have left",
        "masked: accepted, used",
        "if a third of them or more collude",
    ):
        assert words in text
    assert text.count("exact (∞)") == 2


def test_a_holder_that_sent_nothing_says_so(tmp_path: Path) -> None:
    """And what it may cost one day."""
    parties = found_private(tmp_path).with_law()
    assert "Nothing that was made of this corpus has left." in text_of(parties)
    assert stated(parties).figures["epsilon"] == 0


def spend_elsewhere(parties: Parties, **changes: str) -> None:
    """Add an expense of another federation to the file that all folders share."""
    path = Path(str(parties.law.settings.spending))
    lines = path.read_text()
    facts = json.loads(lines.splitlines()[0]) | changes
    path.write_text(lines + json.dumps(facts) + "\n")


def test_what_left_through_another_federation_is_in_it(
    private: Parties, tmp_path: Path
) -> None:
    """From the file that all folders share."""
    parties = private.copy(tmp_path / "parties")
    spend_elsewhere(parties, epoch="e" * 64, federation="f" * 64)
    assert "another, ffffffffffff" in text_of(parties)
    figures = stated(parties).figures
    privacy = parties.terms.privacy
    assert privacy is not None
    assert figures["epsilon"] == epsilon_of(2 * privacy.rho, 1e-8)


@pytest.mark.parametrize(
    ("allowed", "expected"), [(4.0, 12), (1.0, 0), (1.5, 1), (math.inf, None)]
)
def test_further_rounds_are_as_many_as_the_account_would_let_through(
    private: Parties, tmp_path: Path, allowed: float, expected: int | None
) -> None:
    """One more would be refused."""
    parties = private.copy(tmp_path / "parties")
    parties.rewrite("law", "max_epsilon = 4.0", f"max_epsilon = {allowed}")
    record = HolderRecord(parties.homes["law"])
    privacy = parties.terms.privacy
    assert privacy is not None
    assert further_rounds(record, privacy) == expected
    if expected is not None:
        account = record.account
        rounds = [
            account.expense(str(number), "statistics", "private", privacy, 0.25)
            for number in range(expected + 1)
        ]
        assert account.epsilon(rounds[:-1]) <= allowed < account.epsilon(rounds)


# Copies, and the page


def files_of(folder: Path) -> set[Path]:
    """All but what SQLite puts beside a journal."""
    return {*folder.rglob("*")} - {*folder.glob("journal.db-*")}


def test_an_archived_copy_without_keys_says_the_same(
    private: Parties, tmp_path: Path
) -> None:
    """But for the shared file, which it says to be missing where it is; nothing is written."""
    home = private.homes["law"]
    copy = tmp_path / "copy"
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns(*SECRETS))
    before = files_of(copy)
    assert as_text(statement(HolderRecord(copy), NOW)) == as_text(
        statement(HolderRecord(home), NOW)
    )
    settings = copy / "client.toml"
    settings.write_text(
        settings.read_text().replace("spending/law.jsonl", "elsewhere/law.jsonl")
    )
    moved = statement(HolderRecord(copy), NOW)
    assert "what left through other folders is missing" in " ".join(
        as_text(moved).split()
    )
    assert len(moved.figures["outputs"]) == 2
    assert files_of(copy) == before


class Tags(HTMLParser):
    """Every tag with its attributes, and the words between."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(content)

    def handle_starttag(
        self, tag: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_stands_by_itself_and_prints_on_a4(masked: Parties) -> None:
    """No scripts, nothing from elsewhere, and the same sentences as the text."""
    content = as_html(stated(masked))
    page = Tags(content)
    assert not {tag for tag, _ in page.tags} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "a",
        "form",
    }
    used = {name for _, attributes in page.tags for name in attributes}
    assert not used & {"src", "href", "srcset", "style"}
    assert not re.search(r"url\(|@import|https?:|\bon\w+=", content)
    assert "@page { size: A4" in content and "default-src 'none'" in content
    words = " ".join(" ".join(page.words).split())
    for section in stated(masked).sections:
        cells = [cell for row in section.rows for cell in row]
        for sentence in (section.title, *section.paragraphs, *section.points, *cells):
            assert sentence in words


def test_what_others_wrote_cannot_become_markup(
    private: Parties, tmp_path: Path
) -> None:
    """An expense of another folder is a line of a file."""
    parties = private.copy(tmp_path / "parties")
    spend_elsewhere(parties, epoch="<b>x</b>", federation="<script>")
    content = as_html(stated(parties))
    assert "<script" not in content and "&lt;b&gt;x" in content


def test_the_command_prints_text_or_json_and_writes_the_page(
    private: Parties, tmp_path: Path
) -> None:
    """The page beside either; a folder that is none is one sentence."""
    home, page = private.homes["law"], tmp_path / "statement.html"
    shop = Workshop(tmp_path)
    text = shop.do("client statement", home, "--html", page).stdout
    assert text.startswith("What one document of law has cost")
    assert page.read_text().startswith("<!doctype html>")
    figures = shop.do("client statement", home, "--json").json
    assert figures["epsilon"] == HolderRecord(home).account.epsilon()
    assert figures["sections"][0]["title"] == "Whose statement this is"
    failed = shop.call("client statement", tmp_path)
    assert failed.code == 2 and "is not a holder's folder" in failed.stderr
    failed = shop.call("client statement", home, "--html", tmp_path)
    assert "is a folder; give a file to write" in failed.stderr
