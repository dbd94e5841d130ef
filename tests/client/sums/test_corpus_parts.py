"""A corpus in parts: added up they are the file of one run, to the byte, and nothing else adds up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import ridgeway.client.sums.corpus
from ridgeway.client.sums.corpus import Counters, Position, documents, find_sources
from ridgeway.client.sums.corpus_parts import add_parts, part_numbers, pieces_of
from ridgeway.client.sums.part_store import Stamp
from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.errors import FormatError, InputError
from ridgeway.common.base.settings import Sampling
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.statistics.statistics_file import Prepared, load_prepared, save_prepared, to_bytes
from tests.support.corpora_on_disk import content, job, sentences, touch_later, write_jsonl
from tests.support.tiny import tiny_encoder

LINES = st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\0", b"")), max_size=12).map(b"\n".join)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files beyond 200 bytes have pieces."""
    monkeypatch.setattr(ridgeway.client.sums.corpus, "PIECE_BYTES", 200)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Files of every kind, most of them of several pieces, with blanks, stray bytes and a file without text."""
    folder = tmp_path / "corpus"
    write_jsonl(folder / "a.jsonl", ["", *sentences("law", 23, size=30), " "])
    (folder / "b.txt").write_bytes(b"\xef\xbb\xbf" + "".join(sentences("code", 9)).encode() + b"stray \xff\n" * 70)
    parquet.write_table(pyarrow.table({"text": sentences("medicine", 60)}), folder / "c.parquet", row_group_size=7)
    (folder / "d.csv").write_text('text\n"one\n\nrecord"\n' + "another\n" * 60)
    (folder / "e.txt").touch()
    return folder


def summed(work: PrepareJob, encoder: TableEncoder, folder: Path, of: int) -> dict[Path, Prepared]:
    """The parts of a corpus as their files hold them."""
    found: dict[Path, Prepared] = {}
    for number in range(1, of + 1):
        path = folder / f"{number}-{of}.stats"
        save_prepared(prepare(replace(work, part=(number, of)), encoder, folder / f"cache{number}").prepared, path)
        found[path] = load_prepared(path, parts=True)
    return found


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("of", [1, 3, 64])
@pytest.mark.usefixtures("small_pieces")
def test_parts_add_up_to_the_file_of_one_run(
    corpus: Path, encoder: TableEncoder, tmp_path: Path, window: int, of: int
) -> None:
    """Byte for byte, with every count, whatever the number of parts, also where some hold nothing."""
    work = job(corpus, window=window, holdout=0.2)
    whole = prepare(work, encoder, tmp_path / "whole")
    parts = summed(work, encoder, tmp_path, of)
    total, met, _ = add_parts(parts)
    assert to_bytes(total) == content(whole)
    assert Counters(**met) == whole.counters
    assert to_bytes(add_parts(dict(reversed(parts.items())))[0]) == content(whole)


@pytest.mark.usefixtures("small_pieces")
def test_runs_that_share_a_cache_take_up_what_each_other_summed(
    corpus: Path, encoder: TableEncoder, tmp_path: Path
) -> None:
    """After all parts a run over the whole corpus reads nothing, and after that so do other parts."""
    for number in (1, 2, 3):
        prepare(replace(job(corpus), part=(number, 3)), encoder, tmp_path / "cache")
    whole = prepare(job(corpus), encoder, tmp_path / "cache")
    assert whole.files_read == 0
    assert content(whole) == content(prepare(job(corpus), encoder, tmp_path / "other"))


# What does not add up


@pytest.fixture
def parts(corpus: Path, encoder: TableEncoder, tmp_path: Path) -> dict[Path, Prepared]:
    return summed(job(corpus), encoder, tmp_path, 3)


CHANGES: dict[str, Callable[[PrepareJob], PrepareJob]] = {
    "the domain": lambda work: replace(work, domain="code"),
    "sampling": lambda work: replace(work, sampling=Sampling(5)),
    "the held-out share": lambda work: replace(work, holdout=0.5),
    "text fields": lambda work: replace(work, text_fields=("text", "body")),
    "a division by": lambda work: replace(work, part=(2, 4)),
    "broken records": lambda work: replace(work, skip_broken=0.1),
}


@pytest.mark.parametrize("what", [*CHANGES, "the encoder"])
def test_parts_of_other_terms_are_refused(
    corpus: Path, encoder: TableEncoder, tmp_path: Path, parts: dict[Path, Prepared], what: str
) -> None:
    """The sentence names what differs and in which files."""
    [_, second, _] = parts
    work = CHANGES.get(what, replace)(replace(job(corpus), part=(2, 3)))
    made_with = tiny_encoder(seed=1) if what == "the encoder" else encoder
    other = prepare(work, made_with, tmp_path / "other").prepared
    with pytest.raises(InputError, match=rf"2-3\.stats is of .*{what}.*1-3\.stats of"):
        add_parts(parts | {second: other})


@pytest.mark.parametrize("change", ["changed", "added"])
def test_parts_of_files_that_changed_in_between_are_refused(
    corpus: Path, encoder: TableEncoder, tmp_path: Path, parts: dict[Path, Prepared], change: str
) -> None:
    """Also where the part itself holds none of the files that changed."""
    if change == "changed":
        touch_later(corpus / "a.jsonl")
    else:
        (corpus / "f.txt").write_text("a new file")
    other = prepare(replace(job(corpus), part=(3, 3)), encoder, tmp_path / "other").prepared
    with pytest.raises(InputError, match="they may have changed"):
        add_parts(parts | {list(parts)[2]: other})


def test_a_part_that_is_missing_or_there_twice_is_named(parts: dict[Path, Prepared]) -> None:
    """Nothing is left out and nothing counted twice."""
    [first, second, third] = parts
    with pytest.raises(InputError, match="of 3 parts, 2, 3 are missing"):
        add_parts({first: parts[first]})
    with pytest.raises(InputError, match=r"1-3\.stats and again\.stats both contain part 1 of 3"):
        add_parts(parts | {Path("again.stats"): parts[first]})
    whole = replace(parts[third], part=None)
    with pytest.raises(InputError, match="holds a whole corpus"):
        add_parts({first: parts[first], second: parts[second], third: whole})


def test_a_part_is_no_statistics_file_for_anyone_else(parts: dict[Path, Prepared]) -> None:
    """Who reads whole corpora refuses it, and its number cannot be changed."""
    [first, *_] = parts
    with pytest.raises(FormatError, match="it holds part 1 of 3; `ridgeway client add`"):
        load_prepared(first)
    raw = first.read_bytes()
    assert raw.count(b'\\"number\\": 1') == 1
    first.write_bytes(raw.replace(b'\\"number\\": 1', b'\\"number\\": 2'))
    with pytest.raises(FormatError, match="changed after it was written"):
        load_prepared(first, parts=True)


@pytest.mark.parametrize("word", ["", "3", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1/4 ", "٣/٤"])
def test_a_word_that_names_no_part_is_refused(word: str) -> None:
    """Parts are counted from 1, in digits."""
    with pytest.raises(InputError, match="is not a part of a corpus"):
        part_numbers(word)


@given(sizes=st.lists(st.integers(0, 50), max_size=20), of=st.integers(1, 9))
def test_every_piece_is_in_one_part(sizes: list[int], of: int) -> None:
    """And a part has no more bytes than its share and a piece."""
    stamps = [Stamp(str(place), size, 0, 0, 0) for place, size in enumerate(sizes)]
    parts = [pieces_of(stamps, number, of) for number in range(1, of + 1)]
    assert [stamp for part in parts for stamp in part] == stamps
    assert all(sum(s.bytes for s in part) <= sum(sizes) / of + max(sizes, default=0) for part in parts)


# Pieces


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ridgeway.client.sums.corpus, "PIECE_BYTES", 16)
        yield tmp_path_factory.mktemp("pieces")


@given(raw=LINES)
def test_the_pieces_of_a_text_hold_its_lines_once_each(scratch: Path, raw: bytes) -> None:
    """Any bytes, wherever the cuts fall: in a line, between lines, in the middle of a character."""
    path = scratch / "a.txt"
    path.write_bytes(raw)
    found, counters = "", Counters()
    for piece in find_sources([path])[0]:
        found += "".join(ridgeway.client.sums.corpus._texts(piece, (), counters, Position(), None))  # type: ignore[arg-type]
    assert found == raw.decode("utf-8-sig", "replace")
    assert counters.replaced == found.count("\ufffd") - raw.count("\ufffd".encode())


@given(texts=st.lists(st.text(max_size=9), max_size=9), blank=st.booleans())
def test_the_pieces_of_json_lines_hold_its_records_once_each(scratch: Path, texts: list[str], blank: bool) -> None:
    """In their order, whatever the length of lines."""
    path = scratch / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"x{text}"}) + "\n" * (1 + blank) for text in texts))
    pieces = find_sources([path])[0]
    assert [text for piece in pieces for text in documents(piece, ("text",), Counters(), Position())] == [
        f"x{text}".encode("utf-8", "replace").decode() for text in texts
    ]


@pytest.mark.usefixtures("small_pieces")
def test_a_broken_record_of_a_later_piece_says_where_it_is(tmp_path: Path) -> None:
    """Lines are counted from the beginning of the piece, which is named."""
    path = write_jsonl(tmp_path / "a.jsonl", ["word"] * 30)
    path.write_bytes(path.read_bytes() + b"{broken\n")
    with pytest.raises(Exception, match=r"a\.jsonl, after its first 400 bytes, line 7: not JSON"):
        [list(documents(piece, ("text",), Counters(), Position())) for piece in find_sources([path])[0]]
