"""Private files → documents, one after another, so that memory does not grow with the corpus.

Reads .txt .md .jsonl .csv .parquet and source code, plain or as .gz and .zst, from files, folders
and URLs. Large files of lines and of row groups are read in pieces, which other threads, processes
or machines may read.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, cast

from ridgeway.client.sums.corpus_places import (
    entries,
    file_status,
    is_file,
    is_folder,
    is_url,
    open_file,
    place_name,
    real_place,
)
from ridgeway.common.base.errors import (
    CorpusError,
    InputError,
    RidgewayError,
    first_line,
)
from ridgeway.common.base.files import jsonl_texts, record_text

_Kind = Literal["text", "jsonl", "csv", "parquet"]

DOCUMENT_LIMIT = 1 << 16
"""A document longer than this many characters counts as several, cut at line ends."""

WHOLE_LIMIT = 1 << 20
"""Where a document counts as one, however long it is, its first characters stand for it: this many.
"""

PIECE_BYTES = 16 << 20
"""Larger files of lines, and of row groups, are read in pieces of about this size, which begin
where a line does.
"""

RECORD_KINDS: dict[str, _Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
TEXT_SUFFIXES = frozenset(
    """
    .txt .text .md .markdown .rst .tex .org .adoc .log .py .pyi .js .mjs .ts .tsx .jsx .java .kt
    .scala .c .h .cc .cpp .cxx .hpp .hh .cu .cuh .cs .go .rs .rb .php .pl .pm .swift .m .r .jl .lua
    .sh .bash .sql .hs .ml .ex .exs .erl .clj .lisp .el .f .f90 .f95 .ada .pas .d .nim .zig .v .vhd
    .html .htm .xml .css .scss .yaml .yml .toml .ini .cfg
    """.split()
)
MAX_PLACES = 10_000
"""The most broken records that are listed; beyond, they are counted."""
MAX_LINKED_PLACES = 100
"""Each expense of a corpus names its places."""
SKIP_WORDS = "--skip-broken, or skip_broken in client.toml"
COMPRESSIONS = frozenset((".gz", ".zst"))
READ_ERRORS = (OSError, EOFError, ValueError, csv.Error, zlib.error)
"""What readers raise on damaged files."""


@dataclass(frozen=True, slots=True, order=True)
class CorpusFile:
    """One file of a corpus, or a piece of one, and what its name says of its content.

    A piece has the lines, or the row groups, whose first byte lies at `begin` ≤ n < `end`; end −1:
    all that follow.
    """

    path: Path
    kind: _Kind
    compression: str
    begin: int = 0
    end: int = -1

    @property
    def bytes(self) -> int:
        """The size of the file or piece."""
        return (file_status(self.path).size if self.end < 0 else self.end) - self.begin


@dataclass(slots=True)
class Counters:
    """What was met while reading: for the holder's eyes only."""

    documents: int = 0
    held_out: int = 0
    empty: int = 0
    replaced: int = 0
    tokens: int = 0
    broken: int = 0

    def add(self, other: Counters, sign: int = 1) -> None:
        for name in (field.name for field in fields(Counters)):
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))


def find_sources(roots: Sequence[Path]) -> tuple[list[CorpusFile], int]:
    """The files of a corpus, large ones in pieces, in a fixed order, and how many others were
    passed over.

    A file named on its own is read whatever its ending; in folders, known endings are read and
    hidden names are not.
    """
    sources: dict[Path, CorpusFile] = {}
    skipped = 0
    for root in roots:
        if is_folder(root):
            for path in _files_below(root):
                known = _ending(path) in {*RECORD_KINDS, *TEXT_SUFFIXES}
                if known and not _is_binary(path):
                    sources[real_place(path)] = _source(path)
                else:
                    skipped += 1
        elif is_file(root):
            if _is_binary(root):
                raise CorpusError(
                    f"{root} is a binary file, not text; Ridgeway reads UTF-8 text,"
                    " records and source code"
                )
            sources[real_place(root)] = _source(root)
        else:
            raise InputError(f"there is no file or folder {place_name(root)}")
    return [
        piece for source in sorted(sources.values()) for piece in _in_pieces(source)
    ], skipped


def real_places(roots: Sequence[Path]) -> tuple[str, ...]:
    """Where a corpus's documents lie: each root, and files outside of them that links lead to. In
    place of many such files stand folders that hold them.
    """
    places = {real_place(root) for root in roots}
    linked = {
        source.path.resolve()
        for source in find_sources(roots)[0]
        if source.path.is_symlink()
    }
    outside = {path for path in linked if places.isdisjoint((path, *path.parents))}
    while len(outside) > MAX_LINKED_PLACES:
        deepest = max(len(path.parts) for path in outside)
        outside = {
            path.parent if len(path.parts) == deepest else path for path in outside
        }
    return tuple(map(place_name, sorted(places | outside)))


def _in_pieces(source: CorpusFile) -> list[CorpusFile]:
    size = file_status(source.path).size
    if source.compression or source.kind == "csv" or size <= PIECE_BYTES:
        return [source]
    return [
        replace(source, begin=begin, end=min(begin + PIECE_BYTES, size))
        for begin in range(0, size, PIECE_BYTES)
    ]


def documents(
    source: CorpusFile,
    text_fields: Sequence[str],
    counters: Counters,
    position: Position,
    skipped: list[str] | None = None,
    *,
    whole: bool = False,
) -> Iterator[str]:
    """The documents of one file, those without text passed over and counted.

    skipped: gets the places of records that cannot be read, which are passed over and counted;
             without it, the first
    such record raises. A file that is damaged as a whole always does.
    whole:   a record, and a file of plain text, is one document however long: its first WHOLE_LIMIT
             characters.

    Law: what is read of a whole document depends on nothing else in the corpus.
    """
    is_one = whole and source.kind == "text"
    if is_one and source.begin:
        return  # its first piece stands for the file
    try:
        source = replace(source, end=-1) if is_one else source
        texts = _texts(
            source, text_fields, counters, position, _BrokenRecords(counters, skipped)
        )
        if is_one:
            texts = iter(["".join(islice(texts, WHOLE_LIMIT // DOCUMENT_LIMIT))])
        for text in texts:
            for piece in [text[:WHOLE_LIMIT]] if whole else cut(text):
                if piece and not piece.isspace():
                    yield piece
                else:
                    counters.empty += 1
    except RidgewayError:
        raise
    except Exception as error:
        if is_url(source.path):  # stores raise what they like
            why = (
                "it is missing"
                if isinstance(error, FileNotFoundError)
                else first_line(error).rstrip(".")
            )
            next_move = (
                "check that its store is reachable and the file complete, then run "
                "the command again"
            )
            raise CorpusError(
                f"{place_name(source.path)} cannot be read: {why}; {next_move}"
            ) from error
        if not isinstance(error, READ_ERRORS) or getattr(error, "errno", None):
            raise
        raise CorpusError(
            f"{source.path} cannot be read: {first_line(error)}; it may be truncated "
            "or corrupt"
        ) from error


def is_held_out(text: str, share: float) -> bool:
    """Whether a document is kept for evaluation: by its own hash, so the answer never changes."""
    if not share:
        return False
    first = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return first < share * 2.0**64


def cut(text: str) -> Iterator[str]:
    """A text in pieces of at most DOCUMENT_LIMIT characters, at line ends where there are any."""
    start = 0
    while len(text) - start > DOCUMENT_LIMIT:
        end = (
            text.rfind("\n", start, start + DOCUMENT_LIMIT) + 1
            or start + DOCUMENT_LIMIT
        )
        yield text[start:end]
        start = end
    yield text[start:]


@dataclass(slots=True)
class Position:
    """How far into its file, or its piece, a reader has come, in bytes: for the progress bar."""

    bytes: int = 0


def _files_below(folder: Path) -> Iterator[Path]:
    for path in entries(folder):
        if path.name.startswith("."):
            continue
        if is_folder(path):
            yield from _files_below(path)
        elif is_file(path):
            yield path


def _compression(path: Path) -> str:
    ending = path.suffix.lower()
    return ending if ending in COMPRESSIONS else ""


def _ending(path: Path) -> str:
    """What says of what kind a file is: its last ending, or that before its compression."""
    return (path.with_suffix("") if _compression(path) else path).suffix.lower()


def _source(path: Path) -> CorpusFile:
    compression = _compression(path)
    kind = RECORD_KINDS.get(_ending(path), "text")
    if kind == "parquet" and compression:
        raise CorpusError(
            f"{path} is a compressed parquet file; unpack it, since parquet is "
            "compressed inside"
        )
    return CorpusFile(path, kind, compression)


def _is_binary(path: Path) -> bool:
    """A NUL byte near the beginning; what is compressed or parquet is judged by its reader."""
    if _compression(path) or _ending(path) == ".parquet":
        return False
    with open_file(path) as file:
        return b"\0" in file.read(8192)


class _BrokenRecords:
    """Entered for every record: passes over those that cannot be read if their places are
    wanted.
    """

    def __init__(self, counters: Counters, places: list[str] | None) -> None:
        self._counters = counters
        self._places = places

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> bool:
        if not isinstance(error, CorpusError):
            return False
        if self._places is None:
            raise CorpusError(
                f"{error}; fix it, or allow a small share of records to be skipped "
                f"({SKIP_WORDS})"
            )
        self._counters.broken += 1
        if len(self._places) < MAX_PLACES:
            self._places.append(str(error))
        return True


def _texts(
    source: CorpusFile,
    names: Sequence[str],
    counters: Counters,
    position: Position,
    broken: _BrokenRecords,
) -> Iterator[str]:
    if source.kind == "parquet":
        yield from _parquet_texts(source, names, position, broken)
        return
    with _opened(source, position) as stream:
        name = place_name(source.path) + (
            f", after its first {source.begin:,} bytes" if source.begin else ""
        )
        if source.kind == "jsonl":
            yield from jsonl_texts(
                _lines(stream, counters, source.begin), names, name, broken
            )
        elif source.kind == "csv":
            delimiter = "\t" if _ending(source.path) == ".tsv" else ","
            yield from _csv_texts(
                _lines(stream, counters, 0), names, name, delimiter, broken
            )
        else:
            yield from _pieces(stream, counters, source)


@contextmanager
def _opened(source: CorpusFile, position: Position) -> Iterator[IO[bytes]]:
    with open_file(source.path) as raw:
        end = -1 if source.end < 0 else _line_start(raw, source.end)
        raw.seek(_line_start(raw, source.begin))
        tracked = cast(
            IO[bytes], io.BufferedReader(_Tracked(raw, position, end), 1 << 20)
        )
        if source.compression == ".gz":
            with gzip.open(tracked, "rb") as stream:
                yield cast(IO[bytes], stream)
        elif source.compression == ".zst":
            # unlike zstandard's reader, it minds when the last frame is cut off
            unpacked = _imported("pyarrow", ".zst").input_stream(tracked, "zstd")
            yield cast(IO[bytes], io.BufferedReader(unpacked, 1 << 20))
        else:
            yield tracked


def _line_start(raw: IO[bytes], begin: int) -> int:
    """The first position from `begin` on where a line begins, or the end of the file."""
    if begin == 0:
        return 0
    raw.seek(begin - 1)
    while block := raw.read(1 << 16):
        position = block.find(b"\n")
        if position >= 0:
            return raw.tell() - len(block) + position + 1
    return raw.tell()


class _Tracked(io.RawIOBase):
    """A file that notes how far it was read, and ends at a place before its end if one is given."""

    def __init__(self, raw: IO[bytes], position: Position, end: int) -> None:
        self._raw = raw
        self._position = position
        self._left = end - raw.tell() if end >= 0 else sys.maxsize

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._raw.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        self._position.bytes += len(data)
        return len(data)


def _lines(stream: IO[bytes], counters: Counters, begin: int) -> Iterator[str]:
    """The lines of a UTF-8 file from a place on; bytes that are not UTF-8 are replaced and
    counted.
    """
    for number, line in enumerate(stream, begin):
        text = line.decode("utf-8", "replace")
        _count_replaced(counters, text, line)
        yield text.removeprefix("\ufeff") if number == 0 else text


def _count_replaced(counters: Counters, text: str, raw: bytes) -> None:
    """Count the replacements of a decoded text, less those that stood in it before."""
    if "\ufffd" in text:
        counters.replaced += text.count("\ufffd") - raw.count("\ufffd".encode())


def _pieces(stream: IO[bytes], counters: Counters, source: CorpusFile) -> Iterator[str]:
    """A plain text in pieces of about DOCUMENT_LIMIT, cut where `cut` would cut the whole text."""
    held = ""
    for block in _blocks(stream, counters, source):
        held += block
        *ready, held = cut(held)
        yield from ready
    yield held


def _blocks(stream: IO[bytes], counters: Counters, source: CorpusFile) -> Iterator[str]:
    encoding = "utf-8" if source.begin else "utf-8-sig"
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    raw = stream.read(1 << 20)
    if b"\0" in raw[:8192]:
        raise CorpusError(f"{place_name(source.path)} is binary data, not text")
    while raw:
        begun, _ = decoder.getstate()  # a character whose end is in this block
        text = decoder.decode(raw)
        _count_replaced(counters, text, begun + raw)
        yield text
        raw = stream.read(1 << 20)
    begun, _ = decoder.getstate()
    text = decoder.decode(b"", final=True)
    _count_replaced(counters, text, begun)
    yield text


def _csv_texts(
    lines: Iterable[str],
    names: Sequence[str],
    name: str,
    delimiter: str,
    broken: _BrokenRecords,
) -> Iterator[str]:
    csv.field_size_limit(1 << 30)
    # a quote that never ends is an error
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    for cells in reader:
        cells.pop(cast(str, None), None)  # cells beyond the header
        # an empty cell is no text
        record = {name: cell or None for name, cell in cells.items()}
        with broken:
            yield record_text(record, names, f"{name}, line {reader.line_num}")


def _parquet_texts(
    source: CorpusFile, names: Sequence[str], position: Position, broken: _BrokenRecords
) -> Iterator[str]:
    with (
        open_file(source.path) as raw,
        _imported("pyarrow.parquet", "parquet").ParquetFile(raw) as file,
    ):
        columns = [name for name in names if name in file.schema_arrow.names]
        if not columns:
            record_text(dict.fromkeys(file.schema_arrow.names), names, str(source.path))
        size = file_status(source.path).size
        groups = file.metadata.num_row_groups
        before = 0
        for group in range(groups):
            position_in_file = size * group // groups
            rows = file.metadata.row_group(group).num_rows
            seen = before
            before += rows
            if position_in_file < source.begin or 0 <= source.end <= position_in_file:
                continue
            for batch in file.iter_batches(
                batch_size=1024, row_groups=[group], columns=columns
            ):
                for record in batch.to_pylist():
                    seen += 1
                    with broken:
                        yield record_text(
                            record, columns, f"{place_name(source.path)}, row {seen}"
                        )
                position.bytes = (
                    position_in_file
                    - source.begin
                    + size * (seen - before + rows) // (groups * rows)
                )


def _imported(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise CorpusError(
            f"reading {what} needs the package {name.partition('.')[0]}; install"
            " ridgeway[client]"
        ) from None
