"""Settings: where texts come from, how they are divided, and what their digest stands for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import InputError
from ridgeway.simulations.experiments.dataset import Dataset, folder_dataset, in_turn, split
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl

TRAIN = {domain: tuple(sentences(domain, 60)) for domain in ALPHABETS}
TEST = {domain: tuple(f"{text} again" for text in texts[:5]) for domain, texts in TRAIN.items()}
DATASET = Dataset("letters", "made up", TRAIN, TEST)


def a_folder(folder: Path, *, without: str = "") -> Path:
    for side in ("train", "test"):
        for domain, texts in getattr(DATASET, side).items():
            if f"{domain}.{side}" != without:
                write_jsonl(folder / f"{domain}.{side}.jsonl", texts)
    return folder


def test_a_folder_is_read_as_it_is(tmp_path: Path) -> None:
    """Every text in its order, under the folder's name; the digest is that of the texts."""
    found = folder_dataset(a_folder(tmp_path / "letters"))
    assert (found.name, found.train, found.test) == ("letters", DATASET.train, DATASET.test)
    assert found.digest == DATASET.digest


@pytest.mark.parametrize("without", ["law.test", "law.train"])
def test_a_folder_that_lacks_a_file_is_refused_or_read_without_it(tmp_path: Path, without: str) -> None:
    """A domain nobody could be tested on is an error; one without training text is no domain."""
    folder = a_folder(tmp_path / "letters", without=without)
    if without == "law.test":
        with pytest.raises(InputError, match=r"law\.test\.jsonl"):
            folder_dataset(folder)
    else:
        assert folder_dataset(folder).domains == ("code", "medicine")


def test_one_domain_is_no_setting(tmp_path: Path) -> None:
    """There would be nothing to choose between."""
    write_jsonl(tmp_path / "law.train.jsonl", ["a"])
    write_jsonl(tmp_path / "law.test.jsonl", ["b"])
    with pytest.raises(InputError, match="at least two"):
        folder_dataset(tmp_path)


def test_the_digest_stands_for_texts_and_nothing_else() -> None:
    """A new name leaves it; another text, another order or another side does not."""
    domain = DATASET.domains[0]
    turned = {**DATASET.train, domain: DATASET.train[domain][::-1]}
    longer = {**DATASET.test, domain: (*DATASET.test[domain], "")}
    others = [replace(DATASET, train=turned), replace(DATASET, test=longer)]
    others.append(replace(DATASET, train=DATASET.test, test=DATASET.train))
    assert replace(DATASET, name="other", source="elsewhere").digest == DATASET.digest
    assert len({DATASET.digest, *(other.digest for other in others)}) == 4


@given(share=st.floats(0, 0.9))
def test_a_split_loses_no_text_and_doubles_none(share: float) -> None:
    """Each training text is learnt from or held out, by the rule of a real holder; test texts are in neither."""
    divided = split(DATASET, share)
    for domain, texts in DATASET.train.items():
        fit, held = divided.fit[domain], divided.held[domain]
        assert sorted([*fit, *held]) == sorted(texts)
        assert all(is_held_out(text, share) for text in held)
        assert not set(DATASET.test[domain]) & {*fit, *held}


@given(seed=st.integers(0, 2**32 - 1), most=st.integers(0, 80))
def test_a_sample_keeps_the_order_and_the_seed(seed: int, most: int) -> None:
    """At most so many of a domain, in their old order, the same for the same seed; test texts stay if not asked for."""
    drawn = DATASET.sampled(seed, train=most)
    assert drawn == DATASET.sampled(seed, train=most)
    assert drawn.test == DATASET.test
    for domain, texts in DATASET.train.items():
        places = [texts.index(text) for text in drawn.train[domain]]
        assert len(places) == min(most, len(texts)) and places == sorted(set(places))


def test_another_seed_draws_others() -> None:
    """Otherwise a seed would decide nothing."""
    assert DATASET.sampled(1, train=10) != DATASET.sampled(2, train=10)


def test_texts_come_from_all_domains_in_turn() -> None:
    """So that a small sample is fair."""
    firsts = [own[0] for own in DATASET.test.values()]
    assert in_turn(DATASET.test, len(firsts) + 1) == [*firsts, DATASET.test[DATASET.domains[0]][1]]
    assert len(in_turn(DATASET.test, 10**6)) == sum(map(len, DATASET.test.values()))
