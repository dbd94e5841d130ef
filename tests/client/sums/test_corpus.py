"""Private files in, documents out: every kind of file, whole or damaged, large or empty."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import ridgeway.client.sums.corpus
from ridgeway.client.sums.corpus import (
    DOCUMENT_LIMIT,
    WHOLE_LIMIT,
    Counters,
    Position,
    cut,
    documents,
    find_sources,
)
from ridgeway.common.base.errors import CorpusError, InputError
from tests.support.corpora_on_disk import read, texts_of, write_jsonl

TEXTS = [
    "first record",
    "second, with a comma",
    "third\nwith a line end",
    'fourth "quoted"',
    "naïve \u2028 😀",
]
BLOCK = 1 << 20
"""Plain text is read in blocks of so many bytes."""

Packing = Callable[[bytes], bytes]
PACKINGS: dict[str, Packing] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def read_raw(path: Path, raw: bytes) -> tuple[list[str], Counters]:
    """The documents of a file with these bytes, and what was met in it."""
    path.write_bytes(raw)
    return read(path)


def as_jsonl(texts: list[str]) -> bytes:
    return "".join(
        json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts
    ).encode()


def as_csv(texts: list[str], delimiter: str = ",") -> bytes:
    quoted = ('"' + text.replace('"', '""') + '"' for text in texts)
    return "".join(
        f"{line}\r\n"
        for line in [f"id{delimiter}text", *(f"7{delimiter}{text}" for text in quoted)]
    ).encode()


def as_tsv(texts: list[str]) -> bytes:
    return as_csv(texts, "\t")


def write_parquet(path: Path, **columns: Sequence[str | int | None]) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


RECORDS = {".jsonl": as_jsonl, ".ndjson": as_jsonl, ".csv": as_csv, ".tsv": as_tsv}


# Every kind of file


@pytest.mark.parametrize(
    ("suffix", "packing"), list(zip(RECORDS, (*PACKINGS, ""), strict=True))
)
def test_every_kind_of_record_file_gives_the_same_documents(
    tmp_path: Path, suffix: str, packing: str
) -> None:
    """A record is a document, to the letter, whatever the file's kind and whether or not it is
    compressed.
    """
    assert read_raw(
        tmp_path / f"corpus{suffix}{packing}", PACKINGS[packing](RECORDS[suffix](TEXTS))
    ) == (TEXTS, Counters())


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        (
            "joined.jsonl.gz",
            b"".join(gzip.compress(as_jsonl([text]), mtime=0) for text in TEXTS),
        ),
        (
            "joined.jsonl.zst",
            b"".join(PACKINGS[".zst"](as_jsonl([text])) for text in TEXTS),
        ),
        ("CORPUS.JSONL", as_jsonl(TEXTS)),
        ("CORPUS.TSV.GZ", gzip.compress(as_tsv(TEXTS), mtime=0)),
        ("export.tsv.csv", as_csv(TEXTS)),
    ],
)
def test_the_last_endings_say_what_a_file_is(
    tmp_path: Path, name: str, raw: bytes
) -> None:
    """In capitals too, and where a compressed file has several frames."""
    assert read_raw(tmp_path / name, raw)[0] == TEXTS


@pytest.mark.parametrize(
    ("suffix", "packing"),
    [(".txt", ""), (".md", ".gz"), (".unheard-of", ".zst"), ("", "")],
)
def test_every_kind_of_text_file_is_one_document(
    tmp_path: Path, suffix: str, packing: str
) -> None:
    """Prose and source code are read as they stand; a file that was named is read whatever its
    ending.
    """
    text = "# Naïve 😀\r\n\n    indented\n"
    assert read_raw(
        tmp_path / f"corpus{suffix}{packing}", PACKINGS[packing](text.encode())
    ) == ([text], Counters())


def test_parquet_gives_the_same_documents(tmp_path: Path) -> None:
    """A row is a document; a null is an empty one."""
    path = write_parquet(
        tmp_path / "corpus.parquet", id=[1, 2, 3, 4, 5, 6], text=[*TEXTS, None]
    )
    assert read(path) == (TEXTS, Counters(empty=1))


# Folders


def test_a_folder_is_read_in_a_fixed_order_without_hidden_and_unknown_files(
    tmp_path: Path,
) -> None:
    """Known endings at any depth, sorted; hidden names are not looked at, other kinds are
    counted.
    """
    names = [
        "b.txt",
        "a/z.md",
        "a/b/c.jsonl.gz",
        "c.py",
        ".hidden.txt",
        ".git/config.txt",
        "image.png",
        "notes.gz",
        "d",
    ]
    for name in reversed(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    sources, skipped = find_sources([tmp_path])
    assert [str(source.path.relative_to(tmp_path)) for source in sources] == [
        "a/b/c.jsonl.gz",
        "a/z.md",
        "b.txt",
        "c.py",
    ]
    assert skipped == 3


def test_the_order_of_the_roots_changes_nothing_and_no_file_is_read_twice(
    tmp_path: Path,
) -> None:
    """A file that was named and lies in a named folder, or was named by two ways, is one file."""
    for name in ("one/a.txt", "two/b.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("text")
    roots = [
        tmp_path / "two",
        tmp_path / "one",
        tmp_path / "one/a.txt",
        tmp_path / "two/../one/a.txt",
    ]
    paths = [
        {source.path.resolve() for source in find_sources(order)[0]}
        for order in (roots, roots[::-1])
    ]
    assert paths[0] == paths[1] == {tmp_path / "one/a.txt", tmp_path / "two/b.txt"}
    assert [len(find_sources(order)[0]) for order in (roots, roots[::-1])] == [2, 2]


def test_a_binary_file_is_passed_over_in_a_folder_and_refused_by_name(
    tmp_path: Path,
) -> None:
    """What holds a NUL byte is no text, whatever its ending says."""
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\0\0")
    sources, skipped = find_sources([tmp_path])
    assert ([source.path.name for source in sources], skipped) == (["text.txt"], 1)
    with pytest.raises(CorpusError, match=r"picture\.txt is a binary file"):
        find_sources([tmp_path / "picture.txt"])


def test_a_name_without_a_file_is_an_error(tmp_path: Path) -> None:
    """A misspelt name never means an empty corpus."""
    with pytest.raises(InputError, match=r"there is no file or folder .*nowhere"):
        find_sources([tmp_path / "nowhere"])


# Characters


@pytest.mark.parametrize(
    ("suffix", "packing"), list(zip((".txt", ".jsonl", ".csv"), PACKINGS, strict=True))
)
def test_a_byte_order_mark_is_no_part_of_the_text(
    tmp_path: Path, suffix: str, packing: str
) -> None:
    """Files from editors that write a mark are read like any other."""
    raw = b"text" if suffix == ".txt" else RECORDS[suffix](["text"])
    if suffix == ".csv":
        raw = b"text\r\ntext\r\n"  # the mark stands before the name of the field
    assert read_raw(
        tmp_path / f"corpus{suffix}{packing}", PACKINGS[packing](b"\xef\xbb\xbf" + raw)
    ) == (["text"], Counters())


@pytest.mark.parametrize(
    ("name", "raw", "text", "replaced"),
    [
        ("a.txt", b"caf\xe9 and \xff!", "caf\ufffd and \ufffd!", 2),
        ("a.txt", b"cut short \xe2\x82", "cut short \ufffd", 1),
        ("a.txt", b"\xef\xbf\xbd and \xff", "\ufffd and \ufffd", 1),
        ("a.jsonl", b'{"text": "caf\xe9 and \xff!"}\n', "caf\ufffd and \ufffd!", 2),
        ("a.jsonl", b'{"text": "\xef\xbf\xbd and \xff"}\n', "\ufffd and \ufffd", 1),
        ("a.csv", b"text\ncaf\xe9 and \xff!\n", "caf\ufffd and \ufffd!", 2),
    ],
)
def test_bytes_that_are_not_utf8_are_replaced_and_counted(
    tmp_path: Path, name: str, raw: bytes, text: str, replaced: int
) -> None:
    """A stray byte costs one character, and the holder is told how many; what the author wrote is
    not counted.
    """
    assert read_raw(tmp_path / name, raw) == ([text], Counters(replaced=replaced))


def test_lone_surrogates_in_json_are_replaced(tmp_path: Path) -> None:
    """JSON can name half a character; what comes out can be stored and hashed."""
    assert read_raw(
        tmp_path / "a.jsonl", rb'{"text": "half \ud83d and whole \ud83d\ude00"}' + b"\n"
    )[0] == ["half ? and whole 😀"]


def test_a_line_of_a_file_is_not_a_line_of_unicode(tmp_path: Path) -> None:
    """Separators within a record do not end it, and blank lines are no records."""
    assert read_raw(
        tmp_path / "a.jsonl",
        '{"text": "one\u2028two\x85three"}\n\n  \n{"text": "four"}'.encode(),
    ) == (["one\u2028two\x85three", "four"], Counters())


def test_documents_without_text_are_passed_over_and_counted(tmp_path: Path) -> None:
    """Blanks, nulls and empty files are no documents."""
    raw = b'{"text": ""}\n{"text": " \\n\\t"}\n{"text": null}\n{"text": "text"}\n'
    assert read_raw(tmp_path / "a.jsonl", raw) == (["text"], Counters(empty=3))
    assert read_raw(tmp_path / "b.txt", b" \n \n") == ([], Counters(empty=1))
    assert read_raw(tmp_path / "c.txt", b"") == ([], Counters(empty=1))


# Long documents


@given(text=st.text("ab\n😀", max_size=80), limit=st.integers(1, 12))
def test_pieces_joined_are_the_text_and_none_is_too_long(text: str, limit: int) -> None:
    """Cutting loses nothing; a cut falls after a line end wherever the piece has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ridgeway.client.sums.corpus, "DOCUMENT_LIMIT", limit)
        pieces = list(cut(text))
    assert "".join(pieces) == text
    assert all(len(piece) <= limit for piece in pieces)
    assert all(
        piece.endswith("\n") or (len(piece) == limit and "\n" not in piece)
        for piece in pieces[:-1]
    )


@pytest.mark.parametrize(
    ("offset", "packing"), list(zip(range(4), (*PACKINGS, ""), strict=True))
)
def test_a_large_file_is_cut_as_the_whole_text_would_be(
    tmp_path: Path, offset: int, packing: str
) -> None:
    """Blocks leave no trace, though characters of four bytes lie across their borders."""
    text = "a" * offset + "".join(
        f"{'😀' * (number % 97)}\n" for number in range(12_000)
    )
    path = tmp_path / f"large.txt{packing}"
    path.write_bytes(PACKINGS[packing](text.encode()))
    assert len(text.encode()) > 2 * BLOCK
    assert read(path) == ([piece for piece in cut(text) if piece.strip()], Counters())


@given(
    offset=st.integers(-4, 4),
    stray=st.binary(min_size=1, max_size=6),
    packed=st.booleans(),
)
def test_stray_bytes_at_the_border_of_a_block_are_replaced_as_in_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory, offset: int, stray: bytes, packed: bool
) -> None:
    """Reading in blocks replaces and counts what reading at once would."""
    lines = (b"x" * 99 + b"\n") * (2 * BLOCK // 100)
    raw = (
        lines[: BLOCK + offset]
        + stray.replace(b"\0", b"\xff")
        + lines[BLOCK + offset :]
    )
    path = tmp_path_factory.mktemp("border") / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(raw, 1) if packed else raw)
    text = raw.decode("utf-8", "replace")
    texts, counters = read(path)
    assert texts == list(cut(text))
    assert counters == Counters(
        replaced=text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")
    )


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("large.jsonl.gz", b'{"text": "' + b"x" * 988 + b'"}\n'),
        ("large.txt", b"x" * 999 + b"\n"),
    ],
)
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, name: str, line: bytes
) -> None:
    """30 MB are read within a few."""
    path = tmp_path / name
    raw = line * 30_000
    path.write_bytes(gzip.compress(raw, 1) if name.endswith(".gz") else raw)
    del raw
    tracemalloc.start()
    try:
        size = sum(map(len, texts_of(path)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 29_000_000
    assert peak < 12_000_000


# Records


def test_of_several_fields_the_first_that_a_record_has_is_read(tmp_path: Path) -> None:
    """The order is the holder's, not that of the columns; a null gives way to the next field."""
    path = tmp_path / "a.jsonl"
    records = [
        {"text": "T", "prompt": "P"},
        {"text": "T"},
        {"prompt": None, "text": "T"},
        {"text": None, "prompt": "P"},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read(path, "prompt", "text")[0] == ["P", "T", "T", "P"]
    assert read(path, "text", "prompt")[0] == ["T", "T", "T", "P"]
    table = write_parquet(tmp_path / "a.parquet", text=["T", "T"], prompt=["P", None])
    sheet = tmp_path / "a.csv"
    sheet.write_text("text,prompt\nT,P\nT,\n")
    assert read(table, "prompt", "text")[0] == ["P", "T"]
    assert read(table, "text", "prompt")[0] == ["T", "T"]
    assert read(sheet, "prompt", "text") == (["P", "T"], Counters())


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        (
            "a.jsonl",
            b'{"text": "x"}\n{"body": "x", "id": 1}\n',
            "a.jsonl, line 2: no field 'text'; its fields are body, id",
        ),
        ("a.jsonl", b"{}\n", "a.jsonl, line 1: no field 'text'; its fields are none"),
        (
            "a.jsonl",
            b'{"text": "x"}\n\n{"text": 7}\n',
            "a.jsonl, line 3: field 'text' holds int, not text",
        ),
        (
            "a.jsonl",
            b'["x"]\n',
            "a.jsonl, line 1: a record must be a JSON object, not list",
        ),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "a.jsonl, line 1: not JSON"),
        (
            "a.csv",
            b"id,body\n1,x\n",
            "a.csv, line 2: no field 'text'; its fields are id, body",
        ),
        # it would swallow the rest of the file as one document
        ("a.csv", b'text\nfine\n"never ends\nlost\nlost too\n', "a.csv"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, raw: bytes, message: str
) -> None:
    """The file, the line, what was expected and what is there."""
    with pytest.raises(CorpusError) as caught:
        read_raw(tmp_path / name, raw)
    assert message in str(caught.value)


def test_a_column_that_parquet_lacks_is_named(tmp_path: Path) -> None:
    """With the columns that it has."""
    path = write_parquet(tmp_path / "a.parquet", body=["x"], id=[1])
    with pytest.raises(
        CorpusError, match=r"a\.parquet.*: no field 'text'; its fields are body, id"
    ):
        read(path)
    with pytest.raises(
        CorpusError, match=r"a\.parquet, row 1: field 'id' holds int, not text"
    ):
        read(path, "id")


def test_a_csv_cell_may_have_lines_and_a_row_too_few_or_too_many_cells(
    tmp_path: Path,
) -> None:
    """Quoted line ends belong to the text; a missing cell is an empty one, and one too many is not
    looked at.
    """
    assert read_raw(
        tmp_path / "a.csv",
        b'id,text\r\n1,"one\r\ntwo\n\nthree"\r\n2\r\n3,x,y,z\r\n4,"say ""hello"""\r\n',
    ) == (
        ["one\r\ntwo\n\nthree", "x", 'say "hello"'],
        Counters(empty=1),
    )


def test_a_csv_cell_may_be_as_long_as_a_book(tmp_path: Path) -> None:
    """The limit of Python's reader, 128 kB a cell, does not hold."""
    texts, _ = read_raw(tmp_path / "a.csv", as_csv(["x" * 300_000]))
    assert "".join(texts) == "x" * 300_000


# Damage


def damaged(name: str) -> bytes:
    """A corpus as a file of this name holds it, many records long."""
    texts = [f"{number * 7919 % 100_003} and {number}" for number in range(20_000)]
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    raw = (
        "\n".join(texts).encode()
        if ".txt" in name
        else RECORDS[f".{name.split('.')[1]}"](texts)
    )
    return gzip.compress(raw) if name.endswith(".gz") else compressor.compress(raw)


@pytest.mark.parametrize("damage", ["cut", "half", "nothing", "changed", "plain"])
@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.csv.zst", "a.txt.zst"])
def test_a_compressed_file_that_was_damaged_is_refused(
    tmp_path: Path, name: str, damage: str
) -> None:
    """A download that broke off never passes for a smaller corpus; an ending alone does not make a
    file.
    """
    raw = damaged(name)
    wrong = {
        "cut": raw[:-9],
        "half": raw[: len(raw) // 2],
        "nothing": raw[:20],
        "plain": b"this is plain text",
    }
    wrong["changed"] = raw[:-6] + bytes([raw[-6] ^ 0xFF]) + raw[-5:]
    with pytest.raises(CorpusError, match=rf"{name}.* cannot be read"):
        read_raw(tmp_path / name, wrong[damage])


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("a.parquet", b"", "cannot be read: [^\n]*$"),
        ("a.parquet", b"not parquet", "cannot be read: [^\n]*$"),
        ("a.parquet", b"PAR1" + b"\0" * 100 + b"PAR1", "cannot be read: [^\n]*$"),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), "unpack it, since"),
        (
            "a.txt.gz",
            gzip.compress(b"\x89PNG\0\0", mtime=0),
            r"a\.txt\.gz is binary data",
        ),
    ],
)
def test_a_file_that_is_something_else_is_refused(
    tmp_path: Path, name: str, raw: bytes, words: str
) -> None:
    """In one sentence, whatever its reader thinks of it."""
    with pytest.raises(CorpusError, match=words):
        read_raw(tmp_path / name, raw)


def test_the_limit_of_a_document_is_public() -> None:
    """A change of it changes every statistics file, so it is pinned."""
    assert DOCUMENT_LIMIT == 65_536


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_broken_record_of_any_kind_of_file_can_be_passed_over(
    tmp_path: Path, suffix: str
) -> None:
    """The others are read, and its place is told; without a list to tell it to, it is an error."""
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        parquet.write_table(
            pyarrow.table({"text": [b"one", b"two"], "id": [1, 2]}), path
        )
    else:
        lines = {
            ".jsonl": ['{"text": "one"}', "{}", '{"text": "two"}'],
            ".csv": ["id,body", "1,one"],
        }[suffix]
        path.write_text("\n".join(lines) + "\n")
    [source], _ = find_sources([path])
    counters, places = Counters(), list[str]()
    texts = list(documents(source, ("text",), counters, Position(), places))
    broken = {".jsonl": 1, ".csv": 1, ".parquet": 2}[suffix]
    assert (len(places), counters.broken) == (broken, broken)
    assert texts == (["one", "two"] if suffix == ".jsonl" else [])
    assert str(path) in places[0]
    with pytest.raises(CorpusError, match="skip_broken"):
        list(texts_of(path))


# Whole documents


def whole(*roots: Path) -> list[str]:
    """The documents of a corpus where each counts as one, however long it is."""
    return list(texts_of(*roots, whole=True))


def test_a_file_of_text_is_one_whole_document_in_however_many_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may read another piece: the first stands for the file, and the others count
    for nothing.
    """
    monkeypatch.setattr(ridgeway.client.sums.corpus, "PIECE_BYTES", 64)
    text = "".join(f"line {number}\n" for number in range(100))
    (tmp_path / "long.txt").write_text(text)
    write_jsonl(tmp_path / "records.jsonl", ["a" * 100, "b" * 100, " "])
    assert len(find_sources([tmp_path])[0]) > 4
    assert whole(tmp_path) == [text, "a" * 100, "b" * 100]


def test_of_a_whole_document_the_first_characters_count(tmp_path: Path) -> None:
    """As many of a record as of a file, at most: what follows them changes nothing."""
    long = "a word\n" * (WHOLE_LIMIT // 6)
    (tmp_path / "long.txt").write_text(long)
    write_jsonl(tmp_path / "records.jsonl", [long])
    from_file, from_record = whole(tmp_path)
    assert from_record == long[:WHOLE_LIMIT] and long.startswith(from_file)
    assert WHOLE_LIMIT - 20 * 16 < len(from_file) <= WHOLE_LIMIT
    (tmp_path / "long.txt").write_text(long + "and more")
    assert whole(tmp_path) == [from_file, from_record]
