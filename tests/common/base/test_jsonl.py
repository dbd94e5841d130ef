"""JSON lines: which field is read, where a line ends, and what an error says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.common.base.files import (
    field_names,
    jsonl_texts,
    labelled_texts,
    other_domains,
    parse_line,
    record_text,
)


def test_fields_are_named_in_order() -> None:
    """As they were given, without the spaces and empty names between them; there is no text in no
    field.
    """
    assert field_names("prompt, text ,,body") == ("prompt", "text", "body")
    for words in ("", " ", ",", " , "):
        with pytest.raises(InputError, match="at least one text field"):
            field_names(words)


@pytest.mark.parametrize(
    "line", ["{", "text", '{"a": 1} {"a": 2}', "[" * 100_000, '{"text": "secret']
)
def test_a_line_that_is_no_json_is_refused(line: str) -> None:
    """With its place and the reason, and without its text."""
    with pytest.raises(CorpusError, match=r"^here: not JSON") as refusal:
        parse_line(line, "here")
    assert "secret" not in str(refusal.value)


@given(texts=st.lists(st.text('ab "\\\n\r\t\0é\u2028\ufeff🙂'), max_size=5))
def test_every_text_comes_back_to_the_letter(texts: list[str]) -> None:
    """Whatever JSON holds, in order."""
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
    assert list(jsonl_texts(lines, ("text",), "file")) == texts


ODD_LINES = (
    '{"text": "a"}', '{"text": null, "prompt": "b"}', '{"text": 7}', '{"prompt": "\\ud83d\\ude42"}',
    '{"text": "\\ud800é"}', '{"text": "\\\\ud800"}', '{"text": "a", "text": "b"}',
    '{"text": NaN}', "{}", "[]", '"text"', "7", "", "null", "{", "[" * 100_000,
    '{"text": "é", "n": ' + "7" * 5000 + "}", '{"text": "a\tb"}', '{"text": "a"} {}',
    '{"text": "a"',
)  # fmt: skip


@given(
    before=st.text(" \t\r\n\f\ufeff", max_size=2),
    line=st.sampled_from(ODD_LINES),
    after=st.text(" \t\r\n\f\u2028", max_size=3),
)
def test_a_line_says_the_same_with_and_without_blanks_around_it(
    before: str, line: str, after: str
) -> None:
    """Usual lines are read a shorter way, and give the text, or the error, that the other way
    gives.
    """

    def outcome(read: Callable[[], str]) -> str:
        try:
            return read()
        except CorpusError as error:
            return f"error: {error}"

    whole = before + line + after
    if whole.strip():
        read = outcome(lambda: next(jsonl_texts([whole], ("text", "prompt"), "file")))
        source = "file, line 1"
        assert read == outcome(
            lambda: record_text(parse_line(whole, source), ("text", "prompt"), source)
        )


def test_blank_lines_are_passed_over_and_counted() -> None:
    """An error names the line of the file, not of the records."""
    lines = ['{"text": "one"}\n', "\n", "  \t\r\n", '{"text": "two"}\n', "\n", "{\n"]
    texts = jsonl_texts(lines, ("text",), "law.jsonl")
    assert [next(texts), next(texts)] == ["one", "two"]
    with pytest.raises(CorpusError, match=r"^law.jsonl, line 6: not JSON"):
        next(texts)


# Folders of labelled texts


def write(folder: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        raw = content if isinstance(content, bytes) else content.encode()
        (folder / f"{name}.test.jsonl").write_bytes(raw)


def line(text: str) -> str:
    return json.dumps({"text": text}, ensure_ascii=False) + "\n"


def test_labelled_texts_are_those_of_each_domain(tmp_path: Path) -> None:
    """In the order of the domains; other files of the folder do not matter."""
    write(tmp_path, law=line("one") + line("two"), code=line("three"))
    (tmp_path / "law.train.jsonl").write_text("not JSON", encoding="utf-8")
    texts = labelled_texts(tmp_path, ("law", "code"), ("text",))
    assert texts == {"law": ["one", "two"], "code": ["three"]}
    assert list(texts) == ["law", "code"]


@pytest.mark.parametrize(
    "mark",
    ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\ufeff"],
)
def test_unicode_line_ends_within_a_text_end_no_line(tmp_path: Path, mark: str) -> None:
    """Lines are those of the file: only a line feed ends one."""
    text = f"one{mark}two"
    raw = f'{{"text": "{text}"}}\n' if mark >= " " else line(text)
    write(tmp_path, law=raw + line("three"))
    assert labelled_texts(tmp_path, ("law",), ("text",)) == {"law": [text, "three"]}


def test_lines_may_end_as_on_windows_or_not_at_all(tmp_path: Path) -> None:
    """Also blank lines and a last line without an end; a carriage return alone is white space."""
    write(
        tmp_path,
        law='{"text": "one"}\r\n\r\n{"text": "two\\r"}\r\n\n{"id": 1,\r"text": "three"}',
    )
    assert labelled_texts(tmp_path, ("law",), ("text",)) == {
        "law": ["one", "two\r", "three"]
    }


def test_an_error_in_a_test_file_names_file_and_line(tmp_path: Path) -> None:
    """Blank lines are counted there, too."""
    write(tmp_path, law=line("one") + "\n" + '{"body": "two"}\n')
    words = re.escape(
        f"{tmp_path / 'law.test.jsonl'}, line 3: no field 'text'; its fields are body"
    )
    with pytest.raises(CorpusError, match=f"^{words}$"):
        labelled_texts(tmp_path, ("law",), ("text",))


@pytest.mark.parametrize("before", [0, 3, 300, 20_000])
def test_a_byte_that_is_no_utf8_is_named_with_its_place(
    tmp_path: Path, before: int
) -> None:
    """The place is that in the file, however far in it stands."""
    start = b'{"text": "'
    write(tmp_path, law=start + b"x" * before + b"\xff" + b'"}\n')
    with pytest.raises(
        CorpusError,
        match=rf"law\.test\.jsonl: not UTF-8 \(.*at byte {len(start) + before}\)",
    ):
        labelled_texts(tmp_path, ("law",), ("text",))


def test_a_folder_must_have_all_domains_and_others_are_named(tmp_path: Path) -> None:
    """A measure over half the domains is none; texts of a domain that the release cannot name are
    left out.
    """
    with pytest.raises(InputError, match="no folder"):
        labelled_texts(tmp_path / "nothing", ("law",), ("text",))
    with pytest.raises(InputError, match=r"no code\.test\.jsonl; it has no test files"):
        labelled_texts(tmp_path, ("code", "law"), ("text",))
    write(tmp_path, law=line("one"), physics=line("two"))
    with pytest.raises(InputError, match=r"no code\.test\.jsonl; it has law, physics"):
        labelled_texts(tmp_path, ("code", "law"), ("text",))
    assert labelled_texts(tmp_path, ("law",), ("text",)) == {"law": ["one"]}
    assert other_domains(tmp_path, ("law",)) == ["physics"]


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_test_file_without_text_is_refused(tmp_path: Path, content: str) -> None:
    """An accuracy over no texts is none."""
    write(tmp_path, law=line("one"), code=content)
    with pytest.raises(InputError, match=r"code\.test\.jsonl holds no text"):
        labelled_texts(tmp_path, ("law", "code"), ("text",))
