"""JSON lines: records with a place, the text of a record, and folders of labelled test files.

Lines are those of the file, not Unicode's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import CorpusError, InputError

TEST_SUFFIX = ".test.jsonl"
LINE_ENDS = frozenset(("", "\n", "\r\n"))

value_of = json.JSONDecoder().raw_decode
"""The value that a text begins with, and where it ends; `json.loads` also looks at what stands
around it.
"""


def storable(text: str) -> str:
    """The text with characters that UTF-8 cannot hold (lone surrogates) replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def field_names(words: str) -> tuple[str, ...]:
    """`prompt,text` → the fields to look for, in that order."""
    names = tuple(name.strip() for name in words.split(",") if name.strip())
    if not names:
        raise InputError(
            "give at least one text field, such as --text-field prompt,text"
        )
    return names


def record_text(record: Mapping[str, Any], fields: Sequence[str], place: str) -> str:
    """The text of a record: that of the first field it has. A null is an empty text."""
    for name in fields:
        if name in record and record[name] is not None:
            if not isinstance(record[name], str):
                raise CorpusError(
                    f"{place}: field {name!r} holds {type(record[name]).__name__}, not "
                    "text"
                )
            return storable(record[name])
    if any(name in record for name in fields):
        return ""
    wanted = " or ".join(repr(name) for name in fields)
    raise CorpusError(
        f"{place}: no field {wanted}; its fields are "
        f"{', '.join(map(str, record)) or 'none'}"
    )


def parse_line(line: str, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise CorpusError(
            f"{place}: not JSON ({reason}); each line must be one record"
        ) from None
    if not isinstance(record, dict):
        raise CorpusError(
            f"{place}: a record must be a JSON object, not {type(record).__name__}"
        )
    return record


def jsonl_texts(
    lines: Iterable[str],
    fields: Sequence[str],
    name: str,
    tolerance: AbstractContextManager[object] | None = None,
) -> Iterator[str]:
    """The text of every record; blank lines are passed over.

    lines: as UTF-8 is decoded, so that other characters than its own come of escapes alone.
    tolerance: entered for every record that is no usual one; it may pass over what cannot be read.
    """
    tolerance = tolerance or nullcontext()
    for number, line in enumerate(lines, 1):
        text = _usual_text(line, fields)
        if text is not None:
            yield text
        elif line and not line.isspace():
            place = f"{name}, line {number}"
            with tolerance:
                yield record_text(parse_line(line, place), fields, place)


def _usual_text(line: str, fields: Sequence[str]) -> str | None:
    """What `record_text` and `parse_line` find in a line of one record that has a text; None in
    other lines.
    """
    try:
        record, end = value_of(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or line[end:] not in LINE_ENDS:
        return None
    for name in fields:
        text = record.get(name)
        if isinstance(text, str):
            return text if text.isascii() or "\\u" not in line else storable(text)
        if text is not None:
            return None
    return None


def labelled_texts(
    folder: Path, domains: Sequence[str], fields: Sequence[str]
) -> dict[str, list[str]]:
    """The test texts of each domain: DOMAIN.test.jsonl of a folder, for all the domains; others are
    left alone.
    """
    files = _test_files(folder)
    missing = [name for name in domains if name not in files]
    if missing:
        raise InputError(
            f"{folder} has no {missing[0]}{TEST_SUFFIX}; it has "
            f"{', '.join(files) or 'no test files'}"
        )
    texts = {
        name: [text for text in _read(files[name], fields) if text.strip()]
        for name in domains
    }
    for name, some in texts.items():
        if not some:
            raise InputError(f"{files[name]} holds no text")
    return texts


def other_domains(folder: Path, domains: Sequence[str]) -> list[str]:
    """The domains beside these that a folder has test texts of."""
    return [name for name in _test_files(folder) if name not in domains]


def _test_files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    return {
        path.name.removesuffix(TEST_SUFFIX): path
        for path in sorted(folder.glob(f"*{TEST_SUFFIX}"))
    }


def _read(path: Path, fields: Sequence[str]) -> list[str]:
    try:
        return list(
            jsonl_texts(
                path.read_bytes().decode("utf-8-sig").split("\n"), fields, str(path)
            )
        )
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}: not UTF-8 ({error.reason} at byte {error.start})"
        ) from None
