"""A corpus in parts: a run that takes up what others have kept gives the file of one run, to the
byte.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ridgeway.client.sums import corpus as corpus_module
from ridgeway.client.sums.corpus import Counters, Position, find_sources
from ridgeway.client.sums.part_store import Stamp, part_numbers, pieces_of
from ridgeway.client.sums.prepare import PrepareJob, prepare, sum_part
from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.common.text.table_encoder import TableEncoder
from tests.support.corpora_on_disk import (
    content,
    job,
    must_agree,
    sentences,
    texts_of,
    write_jsonl,
)

LINES = st.lists(
    st.binary(max_size=12).map(lambda raw: raw.replace(b"\0", b"")), max_size=12
).map(b"\n".join)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files beyond 200 bytes have pieces."""
    monkeypatch.setattr(corpus_module, "PIECE_BYTES", 200)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Files of every kind, most of them of several pieces, with blanks, stray bytes and a file
    without text.
    """
    folder = tmp_path / "corpus"
    write_jsonl(folder / "a.jsonl", ["", *sentences("law", 23, size=30), " "])
    (folder / "b.txt").write_bytes(
        b"\xef\xbb\xbf" + "".join(sentences("code", 9)).encode() + b"stray \xff\n" * 70
    )
    parquet.write_table(
        pyarrow.table({"text": sentences("medicine", 60)}),
        folder / "c.parquet",
        row_group_size=7,
    )
    (folder / "d.csv").write_text('text\n"one\n\nrecord"\n' + "another\n" * 60)
    (folder / "e.txt").touch()
    return folder


def kept(
    work: PrepareJob,
    encoder: TableEncoder,
    folder: Path,
    of: int,
    there: Collection[int] = (),
) -> Path:
    """A cache into which those of many machines were copied; there: whose, if not all."""
    together = folder / "together"
    for number in there or range(1, of + 1):
        sum_part(work, encoder, folder / f"cache{number}", (number, of))
        shutil.copytree(folder / f"cache{number}", together, dirs_exist_ok=True)
    return together


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("of", [1, 3, 64])
@pytest.mark.usefixtures("small_pieces")
def test_parts_add_up_to_the_file_of_one_run(
    corpus: Path, encoder: TableEncoder, tmp_path: Path, window: int, of: int
) -> None:
    """Byte for byte, with every count, whatever the number of parts, also where some hold
    nothing.
    """
    work = job(corpus, window=window, holdout=0.2)
    whole = prepare(work, encoder, tmp_path / "whole")
    added = prepare(work, encoder, kept(work, encoder, tmp_path, of))
    assert added.files_read == 0
    must_agree(added, whole)


@pytest.mark.parametrize("there", [{2}, {3, 1}, {2, 3}])
@pytest.mark.usefixtures("small_pieces")
def test_what_no_part_holds_is_summed_then(
    corpus: Path, encoder: TableEncoder, tmp_path: Path, there: set[int]
) -> None:
    """A machine that was lost costs its part alone; the others, which took part in any order, are
    not read again.
    """
    work = job(corpus, holdout=0.2)
    together = kept(work, encoder, tmp_path, 3, there)
    whole = prepare(work, encoder, tmp_path / "whole")
    added = prepare(work, encoder, together)
    assert 0 < added.bytes_read < whole.bytes_read
    must_agree(added, whole)


@pytest.mark.usefixtures("small_pieces")
def test_runs_that_share_a_cache_take_up_what_each_other_summed(
    corpus: Path, encoder: TableEncoder, tmp_path: Path
) -> None:
    """No piece is summed twice: a part that was there is not read again, nor is the whole corpus
    after all parts.
    """
    cache = tmp_path / "cache"
    for number in (1, 2, 3):
        assert sum_part(job(corpus), encoder, cache, (number, 3)).bytes_read > 0
    assert sum_part(job(corpus), encoder, cache, (2, 3)).bytes_read == 0
    whole = prepare(job(corpus), encoder, cache)
    assert whole.files_read == 0
    assert content(whole) == content(prepare(job(corpus), encoder, tmp_path / "other"))


def test_broken_records_are_judged_over_the_whole_corpus(
    encoder: TableEncoder, tmp_path: Path
) -> None:
    """A part may have more of them than the whole may; the last run judges, and lists them all."""
    write_jsonl(tmp_path / "corpus" / "a.jsonl", ["word"] * 9)
    (tmp_path / "corpus" / "b.jsonl").write_bytes(
        b"{broken\n" * 2 + b'{"text": "word"}\n' * 2
    )
    work = replace(job(tmp_path / "corpus"), skip_broken=0.2)
    together = kept(work, encoder, tmp_path, 2)
    listed = tmp_path / "broken.txt"
    assert prepare(work, encoder, together, broken_list=listed).counters.broken == 2
    assert len(listed.read_text().splitlines()) == 2
    with pytest.raises(CorpusError, match="2 of 13 records cannot be read"):
        prepare(replace(work, skip_broken=0.1), encoder, together)


@pytest.mark.parametrize(
    "word", ["", "3", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1/4 ", "٣/٤"]
)
def test_a_word_that_names_no_part_is_refused(word: str) -> None:
    """Parts are counted from 1, in digits."""
    with pytest.raises(InputError, match="is not a part of a corpus"):
        part_numbers(word)


@given(sizes=st.lists(st.integers(0, 50), max_size=20), of=st.integers(1, 9))
def test_every_piece_is_in_one_part(sizes: list[int], of: int) -> None:
    """And a part has no more bytes than its share and a piece."""
    stamps = [Stamp(str(number), size, 0, 0, 0) for number, size in enumerate(sizes)]
    parts = [pieces_of(stamps, number, of) for number in range(1, of + 1)]
    assert [stamp for part in parts for stamp in part] == stamps
    assert all(
        sum(s.bytes for s in part) <= sum(sizes) / of + max(sizes, default=0)
        for part in parts
    )


# Pieces


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "PIECE_BYTES", 16)
        yield tmp_path_factory.mktemp("pieces")


@given(raw=LINES)
def test_the_pieces_of_a_text_hold_its_lines_once_each(
    scratch: Path, raw: bytes
) -> None:
    """Any bytes, wherever the cuts fall: in a line, between lines, in the middle of a character."""
    path = scratch / "a.txt"
    path.write_bytes(raw)
    text, counters = "", Counters()
    for piece in find_sources([path])[0]:
        texts = corpus_module._texts(piece, (), counters, Position(), None)  # type: ignore[arg-type]
        text += "".join(texts)
    assert text == raw.decode("utf-8-sig", "replace")
    assert counters.replaced == text.count("\ufffd") - raw.count("\ufffd".encode())


@given(texts=st.lists(st.text(max_size=9), max_size=9), blank=st.booleans())
def test_the_pieces_of_json_lines_hold_its_records_once_each(
    scratch: Path, texts: list[str], blank: bool
) -> None:
    """In their order, whatever the length of lines."""
    path = scratch / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"x{text}"}) + "\n" * (1 + blank) for text in texts)
    )
    assert list(texts_of(path)) == [
        f"x{text}".encode("utf-8", "replace").decode() for text in texts
    ]


@pytest.mark.usefixtures("small_pieces")
def test_a_broken_record_of_a_later_piece_says_where_it_is(tmp_path: Path) -> None:
    """Lines are counted from the beginning of the piece, which is named."""
    path = write_jsonl(tmp_path / "a.jsonl", ["word"] * 30)
    path.write_bytes(path.read_bytes() + b"{broken\n")
    with pytest.raises(
        Exception, match=r"a\.jsonl, after its first 400 bytes, line 7: not JSON"
    ):
        list(texts_of(path))
