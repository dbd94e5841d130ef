"""What a corpus has cost: the union of what a folder knows and of what all folders of a user
know.
"""

from __future__ import annotations

import json
import math
import shutil
import stat
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.round.spending import (
    FILE,
    SPENT,
    Account,
    Expense,
    overlap,
    shared_file,
    spent,
)
from ridgeway.common.base.errors import FormatError, Refused
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.records import Mode
from ridgeway.common.privacy.accountant import Privacy, epsilon_of

PRIVACY = Privacy(mode="columns", epsilon=1.0, prior="0" * 64)
CORPUS = "/data/law"
DELTA = 1e-8


def account(
    folder: Path, *corpus: str, journal: str = "journal.db", **changes: Any
) -> Account:
    """An account in a folder of its own, with the shared file of `folder`."""
    given = {"federation": "f" * 64, "max_epsilon": 4.0, "delta": DELTA, **changes}
    return Account(
        Journal(folder / journal), folder / "state" / FILE, corpus or (CORPUS,), **given
    )


def paid(folder: Path, *epochs: str, exact: bool = False, **changes: Any) -> Account:
    made = account(folder, **changes)
    for epoch in epochs:
        made.pay(expense(made, epoch, exact=exact))
    return made


def expense(
    made: Account, epoch: str, *, exact: bool = False, holdout: float = 0.25
) -> Expense:
    mode: Mode = "masked" if exact else "private"
    return made.expense(epoch, "statistics", mode, None if exact else PRIVACY, holdout)


# What it comes to


def test_two_rounds_cost_more_than_one_and_less_than_twice_as_much(
    tmp_path: Path,
) -> None:
    """By the accountant, at the holder's own δ."""
    one, two = (
        paid(tmp_path / "one", "a").epsilon(),
        paid(tmp_path / "two", "a", "b").epsilon(),
    )
    assert 0.99 < one <= 1.0
    assert two == epsilon_of(2 * PRIVACY.rho, DELTA)
    assert one < two < 2 * one


def test_a_document_pays_for_sums_or_for_counts_and_for_both_if_the_share_held_out_changed(
    tmp_path: Path,
) -> None:
    """It is either summed or held out, by its own hash; with another share it may have been
    both.
    """
    made = account(tmp_path)
    sums, counts = (
        made.expense("a", output, "private", PRIVACY, 0.25)
        for output in ("statistics", "counts")
    )
    assert spent([sums]) == spent([sums, counts]) == PRIVACY.rho
    moved = made.expense("b", "counts", "private", PRIVACY, 0.5)
    assert spent([sums, moved]) == 2 * PRIVACY.rho


def test_an_exact_output_costs_infinity_and_ends_private_rounds(tmp_path: Path) -> None:
    """Unless the owner allows anything."""
    made = paid(tmp_path, "a", exact=True)
    assert made.epsilon() == math.inf
    assert (made.to_json()["spent"], made.to_json()["exact"]) == (None, True)
    with pytest.raises(Refused, match="exact sums or counts") as refused:
        made.check_affordable([expense(made, "b")])
    assert refused.value.code == "budget_spent"
    careless = account(tmp_path, max_epsilon=math.inf)
    careless.check_affordable([expense(careless, "b")])
    assert careless.to_json()["allowed"] is None


def test_what_is_left_is_spent_and_not_more(tmp_path: Path) -> None:
    """The refusal names what was spent, what is allowed and what it would come to; what is paid for
    is free.
    """
    made = account(tmp_path, max_epsilon=1.3)
    made.check_affordable([expense(made, "a")])
    made.pay(expense(made, "a"))
    with pytest.raises(
        Refused, match=r"has spent ε 1 of 1\.3; with this round it would be 1\.4"
    ):
        made.check_affordable([expense(made, "b")])
    made.check_affordable([expense(made, "a")])


def test_an_output_is_paid_for_once(tmp_path: Path) -> None:
    """However often it is sent; in another mode it is another output."""
    made = account(tmp_path)
    for _ in range(3):
        made.pay(expense(made, "a"))
    assert len(made.expenses()) == 1
    made.pay(expense(made, "a", exact=True))
    assert made.is_paid("a", "statistics", "private") and made.is_paid(
        "a", "statistics", "masked"
    )
    assert not made.is_paid("a", "counts", "private")


# Where it is known


@pytest.mark.parametrize(
    "corpus",
    [(CORPUS,), ("/data",), ("/data/law/2024.jsonl",), ("/other", "/data/law/")],
    ids=str,
)
def test_a_new_folder_and_a_second_federation_know_what_the_first_has_spent(
    tmp_path: Path, corpus: tuple[str, ...]
) -> None:
    """On the same corpus, on a folder that contains it, on a part of it; whoever the coordinator
    is.
    """
    paid(tmp_path, "a", "b")
    other = account(tmp_path, *corpus, journal="other.db", federation="e" * 64)
    assert other.epsilon() == epsilon_of(2 * PRIVACY.rho, DELTA)
    other.pay(expense(other, "c"))
    assert account(tmp_path).epsilon() == epsilon_of(3 * PRIVACY.rho, DELTA)
    assert {expense.federation for expense in account(tmp_path).expenses()} == {
        "f" * 64,
        "e" * 64,
    }


@pytest.mark.parametrize(
    "corpus", ["/data/lawyers", "/data/medicine", "/dat", "data/law"]
)
def test_another_corpus_pays_for_itself(tmp_path: Path, corpus: str) -> None:
    """Though its name begins alike."""
    paid(tmp_path, "a")
    assert account(tmp_path, corpus, journal="other.db").epsilon() == 0


def test_an_older_copy_of_a_folder_does_not_start_afresh(tmp_path: Path) -> None:
    """Restored after two more rounds, it knows them from the shared file."""
    with Journal(tmp_path / "journal.db"):
        paid(tmp_path, "a")
    shutil.copytree(
        tmp_path, tmp_path / "backup", ignore=shutil.ignore_patterns("state", "backup")
    )
    now = paid(tmp_path, "b", "c").epsilon()
    for path in tmp_path.glob("journal.db*"):
        path.unlink()
    for path in (tmp_path / "backup").iterdir():
        shutil.copy(path, tmp_path / path.name)
    assert len(Journal(tmp_path / "journal.db").entries(SPENT)) == 1
    assert account(tmp_path).epsilon() == now


def test_a_lost_shared_file_is_made_again_of_the_journal(tmp_path: Path) -> None:
    """When the next epoch is opened; nothing stands there twice."""
    made = paid(tmp_path, "a", "b")
    before = made.epsilon()
    (tmp_path / "state" / FILE).unlink()
    assert (made.epsilon(), made.shared.exists()) == (before, False)
    for _ in range(2):
        made.carry()
    assert len((tmp_path / "state" / FILE).read_text().splitlines()) == 2
    assert account(tmp_path, journal="new.db").epsilon() == before


def test_a_damaged_shared_file_is_said_so_and_nothing_is_paid(tmp_path: Path) -> None:
    """What documents have cost is not known then, so it is not taken for nothing."""
    made = paid(tmp_path, "a")
    path = tmp_path / "state" / FILE
    path.write_text(path.read_text()[:-20])
    for work in (made.epsilon, made.expenses, lambda: made.pay(expense(made, "b"))):
        with pytest.raises(FormatError, match=r"spending\.jsonl is damaged"):
            work()
    assert len(Journal(tmp_path / "journal.db").entries(SPENT)) == 1


def test_the_shared_file_is_its_users_alone_and_lies_where_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names corpora, which is nobody else's business."""
    paid(tmp_path, "a")
    assert stat.S_IMODE((tmp_path / "state" / FILE).stat().st_mode) == 0o600
    monkeypatch.setenv("RIDGEWAY_STATE", str(tmp_path / "mine"))
    assert shared_file() == tmp_path / "mine" / FILE


def test_a_crash_between_the_journal_and_the_shared_file_costs_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal knows it, and the shared file is told before the output leaves at another try."""
    made = account(tmp_path)

    def crash(made: Account, record: dict[str, Any]) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(Account, "_share", crash)
        with pytest.raises(OSError):
            made.pay(expense(made, "a"))
    again = account(tmp_path)
    again.pay(expense(again, "a"))
    assert len(again.expenses()) == 1
    assert len(account(tmp_path, journal="new.db").expenses()) == 1


# Laws

names = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


@given(one=names, other=names)
def test_corpora_overlap_if_one_path_leads_to_the_other(one: str, other: str) -> None:
    """In either order."""
    leads = [*Path(one).parents, Path(one)], [*Path(other).parents, Path(other)]
    expected = Path(other) in leads[0] or Path(one) in leads[1]
    assert overlap([one], [other]) == overlap([other], [one]) == expected


SCHEMES = {
    "http": ("http", "https"),
    "s3": ("s3", "s3a"),
    "gs": ("gs", "gcs"),
    "memory": ("memory",),
}


@st.composite
def spellings(draw: st.DrawFn, scheme: str, steps: list[str]) -> str:
    """One of the many ways to write a URL."""
    path = ""
    for step in steps:
        path += "/" + draw(st.sampled_from(["", "/", "./", "b/../", "//b/.././"]))
        path += "".join(
            draw(st.sampled_from([letter, quote(letter), f"%{ord(letter):02X}"]))
            for letter in step
        )
    name = draw(st.sampled_from(SCHEMES[scheme]))
    host = "h.x"
    if scheme == "http":
        ports = {"http": ["", ":80"], "https": ["", ":443"]}[name]
        host = (
            draw(st.sampled_from(["", "me:key@"]))
            + host
            + draw(st.sampled_from(["", "."]))
        )
        host += draw(st.sampled_from(ports))
        path += draw(st.sampled_from(["", "?key=1", "#top"]))
    else:
        path += draw(st.sampled_from(["", "/", "//"]))
    return (
        draw(st.sampled_from([name, name.upper()]))
        + "://"
        + draw(st.sampled_from([host, host.upper()]))
        + path
    )


urls = st.tuples(
    st.sampled_from(sorted(SCHEMES)),
    st.lists(st.sampled_from(["a", "b c", "d"]), max_size=3),
)


@given(one=urls, other=urls, data=st.data())
def test_spellings_of_one_url_overlap(
    one: tuple[str, list[str]], other: tuple[str, list[str]], data: st.DataObject
) -> None:
    """And those of two only if one holds the other: slashes, dots, percent signs, ports, case make
    no other place.
    """
    shortest = min(len(one[1]), len(other[1]))
    expected = one[0] == other[0] and one[1][:shortest] == other[1][:shortest]
    assert overlap([data.draw(spellings(*one))], [data.draw(spellings(*one))])
    assert (
        overlap([data.draw(spellings(*one))], [data.draw(spellings(*other))])
        == expected
    )


raw = (
    names
    | st.text(max_size=8)
    | st.builds(
        "{}://{}".format, st.sampled_from(["s3", "file", "http"]), st.text(max_size=8)
    )
)


@given(folder=raw, rest=st.text(max_size=5))
def test_places_that_overlapped_as_they_were_written_overlap(
    folder: str, rest: str
) -> None:
    """Expenses of earlier versions go on to count, whatever stands in them."""
    assert overlap([folder], [folder]) and overlap(
        [folder], [f"{folder.rstrip('/')}/{rest}"]
    )


def test_links_and_local_urls_are_what_they_lead_to(tmp_path: Path) -> None:
    """Though the link was made after the expense, as when a corpus moves."""
    (tmp_path / "new").mkdir()
    (tmp_path / "old").symlink_to("new")
    (tmp_path / "loop").symlink_to("loop")
    text = str(tmp_path / "new" / "text")
    for path in ("old", "old/", "new/../old/./text", "new//text"):
        assert overlap([f"{tmp_path}/{path}"], [text]) and overlap(
            [text], [f"file://{tmp_path}/{path}"]
        )
    assert not overlap([f"{tmp_path}/loop"], [text]) and not overlap(
        [f"file://{tmp_path}/loop"], [text]
    )


@given(
    rho=st.fractions(Fraction(1, 1000), 10) | st.just(math.inf),
    holdout=st.floats(0, 1, exclude_max=True),
    corpus=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    epoch=st.text(max_size=5),
)
def test_an_expense_read_back_is_the_same(
    rho: Fraction | float, holdout: float, corpus: tuple[str, ...], epoch: str
) -> None:
    """Exactly: ρ is a fraction, and infinity a word."""
    made = Expense(epoch, "counts", "private", rho, holdout, corpus, "f" * 64, "now")
    assert Expense.of(json.loads(json.dumps(made.facts())), "now") == made
