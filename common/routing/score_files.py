"""Score files: how well experts answered prompts, as lines of JSON or as CSV.

    {"prompt": "May I sublet my flat?", "expert": "law-7b", "score": 0.8, "domain": "law"}
    {"prompt": "May I sublet my flat?", "scores": {"law-7b": 0.8, "large": 1}}

`domain` (or `category`) may be left out, and `prompt` (or `text`) where the domain is given. A
score that is null or empty is missing.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.common.base.jsonl import parse_line, record_text

PROMPT = ("prompt", "text")
DOMAIN = ("domain", "category")
MAX_CELL_CHARACTERS = 1 << 24


class ScoredPrompt(NamedTuple):
    """A prompt and the scores of some experts. prompt, domain: empty where the file does not say;
    one of them does.
    """

    prompt: str
    domain: str
    scores: dict[str, float]


def read_scores(path: Path) -> Iterator[ScoredPrompt]:
    """What a file says, line by line; raises CorpusError, which names the line, for one that cannot
    be used.
    """
    if not path.is_file():
        raise InputError(
            f"there is no file {path}; give a .jsonl or .csv file of expert scores"
        )
    try:
        for line, record in _records(path):
            yield _scored(line, record)
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: not UTF-8 ({error.reason})") from None


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            before = csv.field_size_limit(MAX_CELL_CHARACTERS)
            try:
                lines = csv.DictReader(file, strict=True)
                yield from ((f"{path}, line {lines.line_num}", line) for line in lines)
            except csv.Error as error:
                raise CorpusError(
                    f"{path}: not CSV ({error}); give a header and one score per line"
                ) from None
            finally:
                csv.field_size_limit(before)
        return
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, parse_line(line, where)


def _scored(line: str, record: Mapping[str, Any]) -> ScoredPrompt:
    prompt, domain = (
        (
            record_text(record, names, line)
            if any(name in record for name in names)
            else ""
        )
        for names in (PROMPT, DOMAIN)
    )
    if not prompt and not domain:
        raise CorpusError(f"{line}: a score needs a prompt or a domain")
    given = (
        record["scores"]
        if "scores" in record
        else {record.get("expert"): record.get("score")}
    )
    if not isinstance(given, dict) or not all(
        isinstance(name, str) and name for name in given
    ):
        raise CorpusError(
            f"{line}: the expert is missing; give `expert` and `score`, or `scores` "
            "of several experts"
        )
    scores = {
        name: _score(line, value)
        for name, value in given.items()
        if value not in (None, "")
    }
    return ScoredPrompt(prompt, domain, scores)


def _score(line: str, value: object) -> float:
    try:
        score = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        score = math.nan
    if not 0 <= score <= 1:
        raise CorpusError(
            f"{line}: a score is a number from 0 to 1, not {str(value)[:40]!r}"
        )
    return score
