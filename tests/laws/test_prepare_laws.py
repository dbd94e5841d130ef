"""Dividing a corpus, over files, threads and runs, never changes what it adds up to; nor does
holding text out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgeway.client.sums.corpus
import ridgeway.client.sums.piece_readers
import ridgeway.client.sums.prepare
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.client.sums.prepare import held_out_documents, prepare
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.statistics import Statistics
from ridgeway.common.text.table_encoder import TableEncoder
from tests.support.corpora_on_disk import job, write_jsonl
from tests.support.seeds import few_examples
from tests.support.tiny import LETTERS

texts = st.text(LETTERS, min_size=1, max_size=40)
corpora = st.lists(texts, min_size=1, max_size=16)
shares = st.sampled_from([0.0, 0.2, 0.5, 0.8])


@contextmanager
def small_pieces(batch: int, limit: int) -> Iterator[Path]:
    """An empty folder, while batches and documents are small enough for little text to fill
    several.
    """
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ridgeway.client.sums.piece_readers, "BATCH_DOCUMENTS", batch)
        patch.setattr(ridgeway.client.sums.corpus, "DOCUMENT_LIMIT", limit)
        yield Path(folder)


class Summed:
    """Corpora written below a folder and prepared, each with a cache of its own."""

    def __init__(self, folder: Path, encoder: TableEncoder, window: int) -> None:
        self.folder, self.encoder, self.window = folder, encoder, window
        self._names = count()

    def write(self, pieces: list[list[str]]) -> list[Path]:
        folder = self.folder / f"corpus{next(self._names)}"
        return [
            write_jsonl(folder / f"{number}.jsonl", piece)
            for number, piece in enumerate(pieces)
        ]

    def prepare(
        self, roots: list[Path], holdout: float, threads: int = 1
    ) -> Statistics | None:
        """None for a corpus without anything to sum."""
        work = job(*roots, window=self.window, holdout=holdout, threads=threads)
        try:
            return prepare(
                work, self.encoder, self.folder / f"cache{next(self._names)}"
            ).prepared.statistics
        except CorpusError:
            return None


def added(parts: list[Statistics | None]) -> Statistics | None:
    filled = [part for part in parts if part is not None]
    return reduce(Statistics.__add__, filled) if filled else None


def same(one: Statistics | None, other: Statistics | None) -> bool:
    return one is other if one is None or other is None else one.equals(other)


@few_examples
@given(
    corpus=corpora,
    holdout=shares,
    threads=st.integers(1, 4),
    window=st.integers(1, 9),
    limit=st.sampled_from([8, 1000]),
    data=st.data(),
)
def test_dividing_a_corpus_leaves_its_statistics_unchanged(
    encoder: TableEncoder,
    corpus: list[str],
    holdout: float,
    threads: int,
    window: int,
    limit: int,
    data: st.DataObject,
) -> None:
    """Cut into files in any way, named in any order, on any number of threads: together, and added
    up one by one.
    """
    files = data.draw(
        st.lists(st.integers(0, 3), min_size=len(corpus), max_size=len(corpus))
    )
    pieces = [
        [text for text, file in zip(corpus, files, strict=True) if file == number]
        for number in range(4)
    ]
    with small_pieces(batch=3, limit=limit) as folder:
        summed = Summed(folder, encoder, window)
        whole = summed.prepare(summed.write([corpus]), holdout)
        paths = data.draw(st.permutations(summed.write(pieces)))
        assert same(summed.prepare(paths, holdout, threads), whole)
        assert same(
            added([summed.prepare([path], holdout, threads) for path in paths]), whole
        )


@few_examples
@given(
    corpus=corpora,
    holdout=shares,
    window=st.integers(1, 9),
    limit=st.sampled_from([8, 1000]),
)
def test_sums_and_held_out_documents_make_up_the_corpus(
    encoder: TableEncoder, corpus: list[str], holdout: float, window: int, limit: int
) -> None:
    """What is held out is no part of the sums, and nothing else is left out of them."""
    with small_pieces(batch=3, limit=limit) as folder:
        summed = Summed(folder, encoder, window)
        [path] = summed.write([corpus])
        held_out = list(held_out_documents(job(path, holdout=holdout)))
        rest = summed.prepare(summed.write([held_out]), 0.0)
        assert same(
            added([summed.prepare([path], holdout), rest]), summed.prepare([path], 0.0)
        )
        assert (rest is None) == (not held_out)


@few_examples
@given(corpus=corpora, more=corpora, holdout=shares, data=st.data())
def test_what_is_held_out_never_changes(
    corpus: list[str], more: list[str], holdout: float, data: st.DataObject
) -> None:
    """A document's own words decide, whatever stands beside it, in whatever file, in whatever
    order.
    """
    with small_pieces(batch=3, limit=1000) as folder:
        alone = write_jsonl(folder / "alone.jsonl", corpus)
        among = write_jsonl(
            folder / "among.jsonl", data.draw(st.permutations(corpus + more))
        )
        first = Counter(held_out_documents(job(alone, holdout=holdout)))
        second = Counter(held_out_documents(job(among, holdout=holdout)))
        assert first == Counter(
            text for text in corpus if text.strip() and is_held_out(text, holdout)
        )
        assert second == first + Counter(
            text for text in more if text.strip() and is_held_out(text, holdout)
        )


@given(
    text=texts,
    share=st.floats(0, 1, exclude_max=True),
    larger=st.floats(0, 1, exclude_max=True),
)
def test_a_larger_share_holds_out_the_same_documents_and_more(
    text: str, share: float, larger: float
) -> None:
    """Raising the share never returns a document to the sums; a share of nothing holds out
    nothing.
    """
    share, larger = sorted((share, larger))
    assert is_held_out(text, larger) or not is_held_out(text, share)
    assert not is_held_out(text, 0.0)


def test_the_held_out_share_is_about_what_was_asked_for() -> None:
    """Of many documents, as many are held out as the share says."""
    held_out = sum(is_held_out(f"document {number}", 0.2) for number in range(5_000))
    assert 900 < held_out < 1_100
