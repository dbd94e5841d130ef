"""Epochs in a holder's folder: put in place whole, private, and under names that tell nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ridgeway.client.round.epochs import (
    _DOCUMENTS,
    EPOCH,
    OPENED_EPOCH,
    Epoch,
    EpochData,
    EpochStore,
    sums_id,
)
from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.settings import Sampling
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import DocumentSums
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.text.tokens import Tokens
from ridgeway.common.text.word_sketch import Runs

SUMS = DocumentSums("columns", np.zeros((0, 0), np.int64), np.arange(4))
HELD_OUT = Tokens(
    np.arange(5, dtype=np.int32),
    np.array([2, 3]),
    Runs(np.arange(6, dtype=np.uint16), np.array([1, 2, 3, 5, 6])),
    np.arange(7, dtype=np.int32),
    np.array([0, 2, 4, 6, 7]),
)
DIGESTS = np.array([3, 9, 27], np.uint64)
DATA = EpochData(SUMS, HELD_OUT, DIGESTS)
PRIVACY = Privacy(mode="columns", epsilon=1.0, prior="1" * 64)
TERMS = Terms(
    mode="private",
    encoder="a" * 64,
    encoder_name="tiny",
    features=7,
    sampling=Sampling(window=8),
    weighting="tokens",
    mass=0,
    privacy=PRIVACY,
)


def epoch(byte: int) -> Epoch:
    return Epoch(name=f"{byte:064x}", sums="b" * 64, holdout=0.25, documents=3)


@pytest.fixture
def store(tmp_path: Path) -> EpochStore:
    return EpochStore(tmp_path, Journal(tmp_path / "journal.db"))


def test_what_was_put_in_is_read_back(store: EpochStore) -> None:
    """Sums, held-out documents and digests; nothing where nothing was put."""
    assert store.current() is None
    store.open(epoch(1), DATA, ())
    current = store.current()
    assert current == epoch(1)
    sums, held_out = store.document_sums(current), store.held_out(current)
    assert (sums.mode, sums.column.tolist()) == ("columns", SUMS.column.tolist())
    kept = {name: array.tolist() for name, array in held_out.arrays().items()}
    assert kept == {name: array.tolist() for name, array in HELD_OUT.arrays().items()}
    digests = store.digests_of(current.name)
    assert digests is not None and digests.tolist() == DIGESTS.tolist()
    assert store.digests_of(epoch(2).name) is None
    assert store.noisy(current, "statistics") is None


def test_the_epoch_opened_last_is_the_current_one_and_those_before_the_last_two_are_gone(
    store: EpochStore, tmp_path: Path
) -> None:
    """An answer under way may be reading the one before. The journal keeps that the others were
    there.
    """
    for number in (1, 2, 3):
        store.open(epoch(number), DATA, ())
    assert store.current() == epoch(3)
    assert {path.name for path in (tmp_path / "epochs").iterdir()} == {
        epoch(2).name,
        epoch(3).name,
    }
    opened = Journal(tmp_path / "journal.db").entries(OPENED_EPOCH)
    assert [entry.facts["epoch"] for entry in opened] == [
        epoch(number).name for number in (1, 2, 3)
    ]


def test_an_epoch_that_could_not_be_filled_is_none(
    store: EpochStore, tmp_path: Path
) -> None:
    """The one before stays, whole."""
    store.open(epoch(1), DATA, ())

    class Full(EpochData):
        def write(self, draft: Path) -> None:
            super().write(draft)
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        store.open(epoch(2), Full(SUMS, HELD_OUT, DIGESTS), ())
    assert store.current() == epoch(1)
    assert store.document_sums(epoch(1)).column.tolist() == SUMS.column.tolist()


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda path: path.write_bytes(b"{")],
    ids=["missing", "damaged"],
)
@pytest.mark.parametrize("name", [EPOCH, _DOCUMENTS])
def test_a_damaged_epoch_is_one_sentence_that_says_what_to_do(
    store: EpochStore, tmp_path: Path, damage: Callable[[Path], None], name: str
) -> None:
    """It is never taken for none, nor for another."""
    store.open(epoch(1), DATA, ())
    damage(tmp_path / "epochs" / epoch(1).name / name)
    with pytest.raises(
        FormatError, match="open a new epoch with `ridgeway client ready`"
    ):
        current = store.current()
        assert current is not None
        store.document_sums(current)


def test_a_noisy_vector_is_kept_with_what_it_was_made_for(store: EpochStore) -> None:
    """A second one takes its place."""
    store.open(epoch(1), DATA, ())
    for made_for in ("c" * 64, "d" * 64):
        store.keep_noisy(epoch(1), "counts", np.array([1, -2]), made_for)
        kept = store.noisy(epoch(1), "counts")
        assert kept is not None
        assert (kept[0].tolist(), kept[1]) == ([1, -2], made_for)
    assert store.noisy(epoch(1), "statistics") is None


def test_whatever_changes_the_sums_needs_another_epoch_and_nothing_else_does() -> None:
    """The encoder, how text is sampled, what bounds documents; not how much noise there is, nor the
    mode's name.
    """

    def changed(**changes: object) -> str:
        return sums_id(TERMS.model_copy(update=changes))

    def private(**changes: object) -> str:
        return changed(privacy=PRIVACY.model_copy(update=changes))

    same = sums_id(TERMS)
    others = {
        changed(encoder="c" * 64),
        changed(features=8),
        changed(sampling=Sampling(window=9)),
        changed(mode="clear", privacy=None),
        private(prior="2" * 64),
        private(mode="full"),
    }
    assert len(others) == 6 and same not in others
    assert private(epsilon=0.5) == private(delta=1e-9) == same
    exact = changed(mode="clear", privacy=None)
    assert changed(mode="masked", privacy=None) == exact
    assert changed(mode="clear", privacy=None, weighting="equal", mass=9) == exact
