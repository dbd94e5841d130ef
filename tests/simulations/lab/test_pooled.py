"""Federated equals centralised, and where it would not, the table would say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulations.lab import pooled
from simulations.lab.pooled import EQUAL, PLAIN, Prints, compare, deals, references
from tests.lab_settings import tiny_plan, tiny_setting

DOMAINS = ("code", "law", "medicine")


def test_the_same_text_gives_the_same_bytes_with_few_holders_and_with_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pooled, added from files, in the clear and masked: under the same terms all bytes are the same."""
    monkeypatch.setattr(pooled, "EACH", 2)
    monkeypatch.setattr(pooled, "MANY", 3)
    plan = replace(tiny_plan(tmp_path, tiny_setting(DOMAINS, train=70)), full=True)
    found = compare(plan, plan.settings[0])
    verdicts = found.table.column("same bytes")
    assert set(verdicts) == {"reference", "yes"}
    assert verdicts.count("reference") == 3
    assert set(found.table.column("holders")) == {1, 3, 6}
    assert set(found.table.column("made by")) >= {"a round in the clear", "a masked round", "files of sums, added"}
    totals = dict(zip(found.table.column("sums"), found.table.column("total"), strict=True))
    assert len(set(totals.values())) == len(totals) == 3  # other terms, other totals: the comparison can fail
    assert "all are the same" in found.words


def test_a_byte_that_differs_is_told(tmp_path: Path) -> None:
    """In the table and in the words."""
    like = Prints(PLAIN, 3, "all text on one machine", "a" * 64, "b" * 64, "c" * 64)
    unlike = replace(like, way="a masked round", total="a" * 63 + "d")
    setting = tiny_setting(DOMAINS)
    table = pooled._table(setting, setting, [like, unlike])
    assert table.column("same bytes") == ("reference", "NO")
    assert "1 are NOT the same bytes" in pooled._words(setting, [like, unlike])


def test_the_reference_is_the_first_of_its_kind() -> None:
    """Each kind of sums has its own."""
    rows = [Prints(group, 3, way, "", "", "") for group in (PLAIN, EQUAL) for way in ("first", "second")]
    assert {group: each.way for group, each in references(rows).items()} == {PLAIN: "first", EQUAL: "first"}


def test_text_is_dealt_to_no_more_holders_than_have_some() -> None:
    """Ten texts a domain are enough for four holders of each, and not for fifty in all."""
    assert deals(tiny_setting(DOMAINS, train=10), "tokens", full=True) == [3, 12]
    assert deals(tiny_setting(DOMAINS, train=70), "tokens", full=False) == [3, 12, 50]
    assert deals(tiny_setting(DOMAINS, train=70), "equal", full=False) == [3, 12]
