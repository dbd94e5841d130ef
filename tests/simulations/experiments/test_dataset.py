"""Settings: where texts come from, how they are divided, and what their digest stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import InputError
from ridgeway.simulations.experiments.dataset import Dataset, folder_dataset, split
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl

TRAIN = {domain: tuple(sentences(domain, 60)) for domain in ALPHABETS}
TEST = {
    domain: tuple(f"{text} again" for text in texts[:5])
    for domain, texts in TRAIN.items()
}
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
    assert (found.name, found.train, found.test) == (
        "letters",
        DATASET.train,
        DATASET.test,
    )
    assert found.digest == DATASET.digest


@pytest.mark.parametrize("without", ["law.test", "law.train"])
def test_a_folder_that_lacks_a_file_is_refused_or_read_without_it(
    tmp_path: Path, without: str
) -> None:
    """A domain nobody could be tested on is an error; one without training text is no domain."""
    folder = a_folder(tmp_path / "letters", without=without)
    if without == "law.test":
        with pytest.raises(InputError, match=r"law\.test\.jsonl"):
            folder_dataset(folder)
    else:
        assert folder_dataset(folder).domains == ("code", "medicine")


@given(share=st.floats(0, 0.9))
def test_a_split_loses_no_text_and_doubles_none(share: float) -> None:
    """Each training text is learnt from or held out, by the rule of a real holder; test texts are
    in neither.
    """
    divided = split(DATASET, share)
    for domain, texts in DATASET.train.items():
        fit, held = divided.fit[domain], divided.held[domain]
        assert sorted([*fit, *held]) == sorted(texts)
        assert all(is_held_out(text, share) for text in held)
        assert not set(DATASET.test[domain]) & {*fit, *held}


@given(seed=st.integers(0, 2**32 - 1), most=st.integers(0, 80))
def test_a_sample_keeps_the_order_and_the_seed(seed: int, most: int) -> None:
    """At most so many of a domain, in their old order, the same for the same seed; test texts stay
    if not asked for.
    """
    drawn = DATASET.sampled(seed, train=most)
    assert drawn == DATASET.sampled(seed, train=most)
    assert drawn.test == DATASET.test
    for domain, texts in DATASET.train.items():
        places = [texts.index(text) for text in drawn.train[domain]]
        assert len(places) == min(most, len(texts)) and places == sorted(set(places))
