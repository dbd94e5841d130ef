"""How good each expert is in each domain: sums of scores, which add up, and what is expected where
there are few.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import CorpusError, FormatError, InputError
from ridgeway.common.base.files import (
    canonical_json,
    parse_line,
    record_text,
    write_whole,
)
from ridgeway.common.base.settings import MAX_EXPERTS, check_expert_name

_FORMAT = "ridgeway.quality"
_VERSION = 1
SCORE_UNIT = 1 << 16
"""A score from 0 to 1 is summed as a whole number of these parts, so that sums are exact and can be
masked.
"""
MAX_SCORES = 1 << 40
"""Of one expert in one domain, of all holders together."""
MAX_HOLDER_SCORES = 1 << 24
"""Of one expert, of one holder."""
PRIOR_SCORES = 40
"""What is expected beforehand of an expert in a domain weighs as much as so many scores."""
_DIGITS = 12
"""Estimates are rounded to so many, so that equal ones are equal bits."""

_Integers = NDArray[np.int64]
_Matrix = NDArray[np.float64]


class DomainScore(NamedTuple):
    """How well an expert answered one prompt of a domain: 0 is worthless or wrong, 1 perfect or
    right.
    """

    domain: str
    expert: str
    score: float


def check_scores(sums: _Integers, counts: _Integers, most: int = MAX_SCORES) -> None:
    """Raise FormatError unless scores from 0 to 1, at most `most` of each cell, could have given
    these sums.
    """
    if counts.min(initial=0) < 0 or counts.max(initial=0) > most:
        raise FormatError(
            "an expert's number of scores in a domain is negative, or more than "
            f"{most:,}"
        )
    if sums.min(initial=0) < 0 or (sums > counts * SCORE_UNIT).any():
        raise FormatError(
            "an expert's scores in a domain add up to less than 0, or more than their "
            "number"
        )


@dataclass(frozen=True, eq=False, repr=False)
class QualityTable:
    """What was scored, domains × experts.

    sums:   of scores, in parts of 1 / SCORE_UNIT. counts: of scores; 0 where an expert was not
            scored.
    Law: the sums and counts of two sets of scores, added, are those of their union.
    """

    domains: tuple[str, ...]
    experts: tuple[str, ...]
    sums: _Integers
    counts: _Integers

    def __post_init__(self) -> None:
        shape = (len(self.domains), len(self.experts))
        if (
            not (self.sums.shape == self.counts.shape == shape)
            or 0 in shape
            or len(self.experts) > MAX_EXPERTS
        ):
            raise FormatError(
                "a quality table has a row per domain and a column per expert, at "
                f"most {MAX_EXPERTS}"
            )
        if len(set(self.domains)) < shape[0] or len(set(self.experts)) < shape[1]:
            raise FormatError("duplicate domain or expert in a quality table")
        for name in self.experts:
            check_expert_name(name)
        check_scores(self.sums, self.counts)

    @cached_property
    def expected(self) -> _Matrix:
        """The quality to expect of each expert in each domain, domains × experts.

        The mean score, drawn towards what domain and expert say apart from each other, with the
        weight of PRIOR_SCORES
        scores: the domain's level and what the expert has above the level of the domains where it
                was scored, fitted
        together by least squares over all scores, the latter drawn towards 0 with the same weight.
        So an expert that
        was scored on easy domains alone is not taken for a good one, and one that was not scored in
        a domain has there
        the level of the domain and its own lead.
        """
        rows, columns = self.counts.shape
        counts = self.counts.astype(np.float64)
        sums = self.sums / SCORE_UNIT
        level = sums.sum() / max(counts.sum(), 1.0)
        scored = np.maximum(
            counts.sum(axis=1), 1.0
        )  # a domain without scores has the level of all
        # Eliminate the domains' levels: each is the mean over its scores of what the experts leave.
        shares = counts / scored[:, None]
        above = sums - counts * level
        normal = np.diag(counts.sum(axis=0) + PRIOR_SCORES) - counts.T @ shares
        leads = np.linalg.solve(
            normal, above.sum(axis=0) - shares.T @ above.sum(axis=1)
        )
        levels = level + above.sum(axis=1) / scored - shares @ leads
        prior = np.broadcast_to(levels[:, None] + leads, (rows, columns))
        expected = (sums + PRIOR_SCORES * prior) / (counts + PRIOR_SCORES)
        rounded: _Matrix = np.clip(expected, 0.0, 1.0).round(_DIGITS)
        return rounded

    @property
    def overall(self) -> _Matrix:
        """The mean of each expert's expected quality over the domains, all of which weigh the
        same.
        """
        means: _Matrix = self.expected.mean(axis=0)
        return means

    def of_domains(self, domains: Sequence[str]) -> QualityTable:
        """The same for these domains; one that was not scored has no scores."""
        rows = {name: row for row, name in enumerate(self.domains)}
        chosen = [rows.get(name, -1) for name in domains]
        known = np.array([row >= 0 for row in chosen])[:, None]
        return QualityTable(
            tuple(domains),
            self.experts,
            self.sums[chosen] * known,
            self.counts[chosen] * known,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "domains": list(self.domains),
            "experts": list(self.experts),
            "unit": SCORE_UNIT,
            "sums": self.sums.tolist(),
            "counts": self.counts.tolist(),
        }


def quality_from_json(facts: Mapping[str, Any]) -> QualityTable:
    """A table as a manifest or a file holds it; raises FormatError where it cannot be one."""
    try:
        names = [facts["domains"], facts["experts"]]
        arrays = [np.array(facts["sums"]), np.array(facts["counts"])]
        if facts["unit"] != SCORE_UNIT or not all(
            isinstance(name, str) for row in names for name in row
        ):
            raise ValueError
        if any(array.dtype != np.int64 for array in arrays):
            raise ValueError
        return QualityTable(tuple(names[0]), tuple(names[1]), *arrays)
    except (KeyError, TypeError, ValueError, OverflowError, InputError):
        raise FormatError(
            "the quality table is corrupt, or has another version"
        ) from None


def quality_of(
    scores: Iterable[DomainScore], domains: Sequence[str], experts: Sequence[str] = ()
) -> QualityTable:
    """Add scores up. experts: whose; those that have any, if it is left out. Raises InputError for
    what cannot be.
    """
    rows = {name: number for number, name in enumerate(domains)}
    columns = {name: number for number, name in enumerate(experts)}
    cells: dict[tuple[int, int], tuple[int, int]] = {}
    for domain, expert, score in scores:
        if experts and expert not in columns:
            continue
        cell = rows[domain], columns.setdefault(check_expert_name(expert), len(columns))
        total, count = cells.get(cell, (0, 0))
        cells[cell] = total + round(score * SCORE_UNIT), count + 1
    if len(columns) > MAX_EXPERTS:
        raise InputError(
            f"scores of {len(columns):,} experts are too many; at most {MAX_EXPERTS} "
            "are supported"
        )
    if not columns:
        raise InputError("no scores found; give every expert a name and scores")
    sums, counts = (
        np.zeros((len(rows), len(columns)), dtype=np.int64) for _ in range(2)
    )
    for cell, (total, count) in cells.items():
        sums[cell], counts[cell] = total, count
    return QualityTable(tuple(domains), tuple(columns), sums, counts)


def save_quality(table: QualityTable, path: Path) -> None:
    write_whole(
        path,
        canonical_json({"format": _FORMAT, "version": _VERSION, **table.to_json()}),
    )


def load_quality(path: Path) -> QualityTable:
    try:
        facts = json.loads(path.read_bytes())
        if facts["format"] != _FORMAT or facts["version"] != _VERSION:
            raise ValueError
    except FileNotFoundError:
        raise InputError(
            f"there is no {path}; create it with `ridgeway experts measure`"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(
            f"{path} is not a quality table; create one with `ridgeway experts measure`"
        ) from None
    try:
        return quality_from_json(facts)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


# Score files: how well experts answered prompts, as lines of JSON or as CSV.
#
#     {"prompt": "May I sublet my flat?", "expert": "law-7b", "score": 0.8, "domain": "law"}
#     {"prompt": "May I sublet my flat?", "scores": {"law-7b": 0.8, "large": 1}}
#
# `domain` (or `category`) may be left out, and `prompt` (or `text`) where the domain is given. A
# score that is null or empty is missing.


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
