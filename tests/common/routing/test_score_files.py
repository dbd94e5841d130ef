"""Score files: what a line may say, and what is said of one that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.common.routing.quality import ScoredPrompt, read_scores

JSONL = (
    '{"prompt": "May I?", "expert": "law-7b", "score": 0.8, "domain": "law"}\n\n'
    '{"text": "May I?", "category": "law", "scores": {"law-7b": 1, "large": null, "small": 0}}\n'
    '{"prompt": "a\\u2028b", "expert": "large", "score": "0.25"}\n'
    '{"domain": "law", "expert": "large", "score": null}\n'
)
CSV = 'prompt,expert,score,domain\n"May\nI?",law-7b,0.8,law\nhm,large,,\nhm,small,1,\n'


def test_lines_of_json_hold_one_score_or_many(tmp_path: Path) -> None:
    """Prompts under either name, domains under either name or none; what is null was not scored."""
    path = tmp_path / "scores.jsonl"
    path.write_text(JSONL, encoding="utf-8")
    assert list(read_scores(path)) == [
        ScoredPrompt("May I?", "law", {"law-7b": 0.8}),
        ScoredPrompt("May I?", "law", {"law-7b": 1.0, "small": 0.0}),
        ScoredPrompt("a\u2028b", "", {"large": 0.25}),
        ScoredPrompt("", "law", {}),
    ]


def test_csv_holds_one_score_a_line(tmp_path: Path) -> None:
    """As spreadsheets write it: line breaks in cells, a mark at the beginning, empty cells for what
    is missing.
    """
    path = tmp_path / "scores.CSV"
    path.write_bytes(b"\xef\xbb\xbf" + CSV.encode())
    assert list(read_scores(path)) == [
        ScoredPrompt("May\nI?", "law", {"law-7b": 0.8}),
        ScoredPrompt("hm", "", {}),
        ScoredPrompt("hm", "", {"small": 1.0}),
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.jsonl",
            '{"prompt": "x", "expert": "e", "score": 1.5}',
            "line 1: a score is a number from 0 to 1",
        ),
        (
            "a.jsonl",
            '\n{"prompt": "x", "expert": "e", "score": -0.1}',
            "line 2: a score",
        ),
        (
            "a.jsonl",
            '{"prompt": "x", "expert": "e", "score": NaN}',
            "a score is a number",
        ),
        (
            "a.jsonl",
            '{"prompt": "x", "expert": "e", "score": [1]}',
            "a score is a number",
        ),
        (
            "a.jsonl",
            '{"prompt": "x", "expert": "e", "score": ' + "9" * 400 + "}",
            "a score is a number",
        ),
        ("a.jsonl", '{"prompt": "x", "score": 1}', "the expert is missing"),
        ("a.jsonl", '{"prompt": "x", "scores": [1]}', "the expert is missing"),
        (
            "a.jsonl",
            '{"expert": "e", "score": 1}',
            "a score needs a prompt or a domain",
        ),
        ("a.jsonl", '{"prompt": 3, "expert": "e", "score": 1}', "holds int, not text"),
        ("a.jsonl", "prompt,expert,score", "not JSON"),
        ("a.csv", "prompt,expert,score\nx,e,yes\n", "line 2: a score is a number"),
        (
            "a.csv",
            "question,expert,score\nx,e,1\n",
            "a score needs a prompt or a domain",
        ),
        ("a.csv", 'prompt,expert,score\n"x,e,1\n', "not CSV"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """In one sentence with its number."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(CorpusError, match=said):
        list(read_scores(path))


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    """A folder is no file either."""
    (tmp_path / "bad.jsonl").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(CorpusError, match="not UTF-8"):
        list(read_scores(tmp_path / "bad.jsonl"))
    with pytest.raises(InputError, match="there is no file"):
        list(read_scores(tmp_path))
