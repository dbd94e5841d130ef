"""Files and folders that are either whole or not there, canonical JSON, hashes, and the user's
folders.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeway.common.base import files
from ridgeway.common.base.files import (
    cache_folder,
    canonical_json,
    config_folder,
    sha256,
    whole_folder,
    without_folder,
    write_whole,
)
from ridgeway.common.base.records import record_json
from tests.support.making import allowing, contents


@pytest.fixture(autouse=True)
def _syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here files reach the disk, as in earnest."""
    monkeypatch.setattr(files, "_blocks_without_syncing", 0)


def names(folder: Path) -> list[str]:
    """Everything in a folder, hidden things too."""
    return sorted(path.name for path in folder.iterdir())


# Canonical JSON and hashes


def test_canonical_json_is_fixed() -> None:
    """Names in order, one space of indent, letters as they are, a line end: what is hashed and
    signed.
    """
    value = {"b": [1, 2.5, None], "a": {"é": True, "A": "\u2028"}, "c": []}
    assert canonical_json(value) == (
        b'{\n "a": {\n  "A": "\xe2\x80\xa8",\n  "\xc3\xa9": true\n },\n'
        b' "b": [\n  1,\n  2.5,\n  null\n ],\n "c": []\n}\n'
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.none(), inner)
    ),
)


@given(value=json_values)
@example(
    value={
        "a": [1e-6, 1e16],
        "\x7f\x1f\u2028": ['\x00\b\f/"\\', 1 << 80],
        "e": [[], {}, ()],
    }
)
def test_the_fast_encoder_writes_the_same_bytes(value: Any) -> None:
    """Of whatever JSON can hold; where names cannot be put in order, neither writes anything."""
    try:
        plain = canonical_json(value)
    except (TypeError, UnicodeEncodeError):
        with pytest.raises((TypeError, ValueError)):
            record_json(value)
    else:
        assert record_json(value) == plain


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("encode", [canonical_json, record_json])
def test_numbers_that_json_cannot_hold_are_refused(
    value: float, encode: Callable[[Any], bytes]
) -> None:
    """No reader has to guess what NaN means."""
    with pytest.raises(ValueError, match="JSON"):
        encode({"loss": value})


def test_a_hash_over_parts_is_fixed() -> None:
    """SHA-256 over each part with its length in eight bytes before it."""
    plain = hashlib.sha256(
        b"\2\0\0\0\0\0\0\0ab" + bytes(8) + b"\1\0\0\0\0\0\0\0c"
    ).hexdigest()
    assert sha256(b"ab", b"", b"c") == plain
    assert sha256(memoryview(b"ab"), b"", np.array([99], dtype=np.uint8).data) == plain


@given(content=st.binary(max_size=8), one=st.integers(0, 8), other=st.integers(0, 8))
def test_no_two_divisions_have_the_same_hash(
    content: bytes, one: int, other: int
) -> None:
    """Moving a byte from one part to the next is another value."""
    same = content[:one] == content[:other]
    assert (
        sha256(content[:one], content[one:]) == sha256(content[:other], content[other:])
    ) == same


# Whole files


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    """Folders on the way are made, what was there before is gone, and nothing else is there."""
    write_whole(tmp_path / "a" / "b" / "file", b"old and longer")
    write_whole(tmp_path / "a" / "b" / "file", b"new")
    assert contents(tmp_path / "a" / "b") == {"file": b"new"}


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()],
    ids=repr,
)
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    """On a full disk, or after Ctrl-C, the old content stays, and no temporary file does."""

    def failing(*_: object) -> None:
        raise error

    (tmp_path / "file").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os if step == "fsync" else Path, step, failing)
        with pytest.raises(type(error)):
            write_whole(tmp_path / "file", b"new")
    assert contents(tmp_path) == {"file": b"old"}


def test_a_write_over_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder is not replaced by a file, and no temporary file stays."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "folder", b"new")
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize(
    ("mask", "private", "mode"),
    [(0o022, False, 0o644), (0o077, False, 0o600), (0, True, 0o600)],
)
def test_a_file_has_the_mode_that_was_asked_for(
    tmp_path: Path, mask: int, private: bool, mode: int
) -> None:
    """What others may read is the process's rule; a private file is for its owner alone."""
    with allowing(mask):
        write_whole(tmp_path / "file", b"new", private=private)
        assert os.umask(mask) == mask, "the process's rule is as it was"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


# Whole folders


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder that holds something."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"old")
    (folder / "other").write_bytes(b"old")
    return folder


def test_a_folder_appears_when_it_is_full(tmp_path: Path) -> None:
    """Until the block ends, there is nothing at its place."""
    with whole_folder(tmp_path / "a" / "folder") as draft:
        (draft / "file").write_bytes(b"new")
        assert not (tmp_path / "a" / "folder").exists()
    assert contents(tmp_path / "a" / "folder") == {"file": b"new"}
    assert names(tmp_path / "a") == ["folder"]


def test_a_folder_takes_the_place_of_another(old: Path) -> None:
    """Wholly: nothing of the old one is left, neither in it nor beside it."""
    with whole_folder(old) as draft:
        (draft / "file").write_bytes(b"new")
        assert contents(old) == {"file": b"old", "other": b"old"}
    assert contents(old) == {"file": b"new"}
    assert names(old.parent) == ["folder"]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, SystemExit])
def test_a_folder_that_fails_leaves_the_old_one(
    old: Path, error: type[BaseException]
) -> None:
    """Whatever ended the block, the old folder stays and the draft vanishes; where there was none,
    there is none.
    """
    with pytest.raises(error), whole_folder(old.with_name("new")):
        raise error
    with pytest.raises(error), whole_folder(old) as draft:
        (draft / "file").write_bytes(b"new")
        raise error
    assert contents(old) == {"file": b"old", "other": b"old"}
    assert names(old.parent) == ["folder"]


def test_an_exchange_that_fails_puts_the_old_folder_back(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two renames the old folder is out of its place; an error then brings it back."""
    rename, calls = Path.replace, []

    def failing(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            raise OSError(errno.EIO, "broken")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing)
        with pytest.raises(OSError, match="broken"), whole_folder(old) as draft:
            (draft / "file").write_bytes(b"new")
    assert len(calls) == 3
    assert contents(old) == {"file": b"old", "other": b"old"}
    assert names(old.parent) == ["folder"]


def test_a_folder_does_not_take_the_place_of_a_file(tmp_path: Path) -> None:
    """It is refused, the file stays, and nothing is left beside it."""
    (tmp_path / "name").write_bytes(b"old")
    with (
        pytest.raises(OSError, match="directory"),
        whole_folder(tmp_path / "name") as draft,
    ):
        (draft / "file").write_bytes(b"new")
    assert contents(tmp_path) == {"name": b"old"}


def test_a_link_to_a_folder_can_be_written_through(old: Path) -> None:
    """`current` may be a link to a release; publishing there works as it does in the folder
    itself.
    """
    link = old.parent / "current"
    link.symlink_to(old)
    with whole_folder(link) as draft:
        (draft / "file").write_bytes(b"new")
    assert contents(link) == {"file": b"new"}
    assert names(old.parent) in (["current", "folder"], ["current"])


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o755), (0o077, 0o700)])
def test_a_folder_has_the_mode_of_any_other(
    tmp_path: Path, mask: int, mode: int
) -> None:
    """A release can be read by whoever may read new folders."""
    with allowing(mask), whole_folder(tmp_path / "folder"):
        pass
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == mode


# The user's folders


@pytest.mark.parametrize(
    ("variables", "cache", "config"),
    [
        (
            "RIDGEWAY_CACHE=/own/c RIDGEWAY_CONFIG=/own/k XDG_CACHE_HOME=/xdg",
            "/own/c",
            "/own/k",
        ),
        (
            "XDG_CACHE_HOME=/xdg/c XDG_CONFIG_HOME=/xdg/k",
            "/xdg/c/ridgeway",
            "/xdg/k/ridgeway",
        ),
        (
            "HOME=/home/me XDG_CACHE_HOME=",
            "/home/me/.cache/ridgeway",
            "/home/me/.config/ridgeway",
        ),
    ],
)
def test_folders_are_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, variables: str, cache: str, config: str
) -> None:
    """Ridgeway's own variable, then the desktop's, then the home folder."""
    for kind in ("CACHE", "CONFIG"):
        for name in (f"RIDGEWAY_{kind}", f"XDG_{kind}_HOME"):
            monkeypatch.delenv(name, raising=False)
    for variable in variables.split():
        name, _, value = variable.partition("=")
        monkeypatch.setenv(name, value)
    assert (cache_folder(), config_folder()) == (Path(cache), Path(config))


def test_files_reach_the_disk_unless_they_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file and its name are synced before work goes on; within `without_syncing` nothing is."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    with files.without_syncing():
        files.write_whole(tmp_path / "one", b"1")
    assert (synced, files.syncs()) == ([], True)
    files.write_whole(tmp_path / "two", b"2")
    assert len(synced) == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("/data/co/ledger.db is damaged", "ledger.db is damaged"),
        ("run `up /data/co` again", "run `up DIR` again"),
        ("restore /data/co.", "restore DIR."),
        2 * ("/data/co2, /data/co.bak and /mnt/data/co are down",),
    ],
)
def test_only_whole_paths_of_a_folder_are_taken_out_of_a_sentence(
    words: str, expected: str
) -> None:
    assert without_folder(words, Path("/data/co")) == expected
