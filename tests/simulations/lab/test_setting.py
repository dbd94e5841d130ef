"""Settings: where texts come from, how they are divided, and what their digest stands for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.corpus import is_held_out
from common.errors import InputError
from simulations.lab.setting import folder_setting, split
from tests.corpora_on_disk import write_jsonl
from tests.findings_made_up import a_setting

SETTING = a_setting(count=60)


def a_folder(folder: Path, *, without: str = "") -> Path:
    for side in ("train", "test"):
        for domain, texts in getattr(SETTING, side).items():
            if f"{domain}.{side}" != without:
                write_jsonl(folder / f"{domain}.{side}.jsonl", texts)
    return folder


def test_a_folder_is_read_as_it_is(tmp_path: Path) -> None:
    """Every text in its order, under the folder's name; the digest is that of the texts."""
    found = folder_setting(a_folder(tmp_path / "letters"))
    assert (found.name, found.train, found.test) == ("letters", SETTING.train, SETTING.test)
    assert found.digest == SETTING.digest


@pytest.mark.parametrize("without", ["law.test", "law.train"])
def test_a_folder_that_lacks_a_file_is_refused_or_read_without_it(tmp_path: Path, without: str) -> None:
    """A domain nobody could be tested on is an error; one without training text is no domain."""
    folder = a_folder(tmp_path / "letters", without=without)
    if without == "law.test":
        with pytest.raises(InputError, match=r"law\.test\.jsonl"):
            folder_setting(folder)
    else:
        assert folder_setting(folder).domains == ("code", "medicine")


def test_one_domain_is_no_setting(tmp_path: Path) -> None:
    """There would be nothing to choose between."""
    write_jsonl(tmp_path / "law.train.jsonl", ["a"])
    write_jsonl(tmp_path / "law.test.jsonl", ["b"])
    with pytest.raises(InputError, match="at least two"):
        folder_setting(tmp_path)


def test_the_digest_stands_for_texts_and_nothing_else() -> None:
    """A new name leaves it; another text, another order or another side does not."""
    domain = SETTING.domains[0]
    turned = {**SETTING.train, domain: SETTING.train[domain][::-1]}
    longer = {**SETTING.test, domain: (*SETTING.test[domain], "")}
    others = [replace(SETTING, train=turned), replace(SETTING, test=longer)]
    others.append(replace(SETTING, train=SETTING.test, test=SETTING.train))
    assert replace(SETTING, name="other", source="elsewhere").digest == SETTING.digest
    assert len({SETTING.digest, *(other.digest for other in others)}) == 4


@given(share=st.floats(0, 0.9))
def test_a_split_loses_no_text_and_doubles_none(share: float) -> None:
    """Each training text is learnt from or held out, by the rule of a real holder; test texts are in neither."""
    divided = split(SETTING, share)
    for domain, texts in SETTING.train.items():
        fit, held = divided.fit[domain], divided.held[domain]
        assert sorted([*fit, *held]) == sorted(texts)
        assert all(is_held_out(text, share) for text in held)
        assert not set(SETTING.test[domain]) & {*fit, *held}


@given(seed=st.integers(0, 2**32 - 1), most=st.integers(0, 80))
def test_a_sample_keeps_the_order_and_the_seed(seed: int, most: int) -> None:
    """At most so many of a domain, in their old order, the same for the same seed; test texts stay if not asked for."""
    drawn = SETTING.sampled(seed, train=most)
    assert drawn == SETTING.sampled(seed, train=most)
    assert drawn.test == SETTING.test
    for domain, texts in SETTING.train.items():
        places = [texts.index(text) for text in drawn.train[domain]]
        assert len(places) == min(most, len(texts)) and places == sorted(set(places))


def test_another_seed_draws_others() -> None:
    """Otherwise a seed would decide nothing."""
    assert SETTING.sampled(1, train=10) != SETTING.sampled(2, train=10)
