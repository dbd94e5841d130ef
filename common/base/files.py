"""Files that are either whole or not there, canonical JSON, and the user's own folders."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.common.base.operating_system import flush

IMPORT_ROOT = Path(__file__).parents[3]
"""The folder from which Python imports this very `ridgeway`: a checkout, or site-packages."""


def canonical_json(value: Any) -> bytes:
    """The one way a value is written when it is hashed or signed."""
    text = json.dumps(
        value,
        ensure_ascii=False,
        sort_keys=True,
        indent=1,
        separators=(",", ": "),
        allow_nan=False,
    )
    return text.encode() + b"\n"


def sha256(*parts: bytes | memoryview) -> str:
    """SHA-256 over the parts, each with its length in front, so that no two divisions collide."""
    digest = hashlib.sha256()
    for part in parts:
        view = memoryview(part).cast("B")
        digest.update(view.nbytes.to_bytes(8, "little"))
        digest.update(view)
    return digest.hexdigest()


def file_stamp(path: Path) -> list[str | int]:
    """What changes when a file's content does, short of reading it: a copy that keeps size and time
    is another file.
    """
    about = path.stat()
    return [
        str(path.resolve()),
        about.st_size,
        about.st_mtime_ns,
        about.st_ctime_ns,
        about.st_ino,
    ]


def stamp_if_there(path: Path) -> list[str | int] | None:
    """The stamp of a file that may be there or not, and may be replaced at any moment."""
    try:
        return file_stamp(path) if path.is_file() else None
    except OSError:
        return None


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_folder(words: object, folder: Path) -> str:
    """What an error or a sentence says, without the folder's path.

    folder: as an absolute path, since the name of a relative one may be a word of the sentence.
    """
    whole = rf"(?<![\w./-]){re.escape(str(folder))}(/|(?![\w-]|\.\w))"
    return re.sub(whole, lambda match: "" if match[1] else "DIR", str(words))


def check_output(path: Path) -> None:
    """Raise unless a file may be written here: over nothing or over an ordinary file."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a file to write")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path} is not a regular file; write to another path")
    if path.parent.exists() and not path.parent.is_dir():
        raise InputError(
            f"{path.parent} is a file, not a folder; write to another path"
        )


def write_whole(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file so that readers see the old one or the new one, never a part of it."""
    with whole_file(path, private=private) as file:
        file.write(content)


@contextlib.contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Fill the yielded file; it takes the place of `path` in one step if the block ends well, else
    it vanishes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if syncs():
                flush(file.fileno())
        temporary.chmod(0o600 if private else 0o666 & ~_umask())
        temporary.replace(path)
        _sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_folder(path: Path, *, new: bool = False) -> Iterator[Path]:
    """Fill the yielded folder; it takes the place of `path` whole if the block ends well, else it
    vanishes.

    new: refuse if there is anything at `path` by then but an empty folder.

    An older folder there is moved aside just before, and stands beside as `.NAME.old.*` if power
    fails in between.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        if new:
            try:
                temporary.replace(path)
            except OSError:
                raise InputError(
                    f"{path} already exists and is not empty; use a new folder"
                ) from None
        else:
            _exchange(temporary, path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def check_new_folder(path: Path) -> None:
    """Raise unless a folder may be made here: where there is nothing, or an empty folder that
    nobody stands in.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} already exists and is not empty; use a new folder")
    if path.resolve() == Path.cwd():
        raise InputError(
            "the current folder cannot be used; use a new folder inside it"
        )


def _exchange(new: Path, path: Path) -> None:
    if not path.exists():
        new.replace(path)
        return
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
    try:
        path.replace(old)
    except BaseException:
        old.rmdir()
        raise
    try:
        new.replace(path)
    except BaseException:
        old.replace(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


_blocks_without_syncing = 0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock, which one process has at a time; the file is made if it is not there."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process holds a file's lock. Writes nothing."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextlib.contextmanager
def without_syncing() -> Iterator[None]:
    """Within this block nothing waits for the disk: files survive this process, as ever, but not a
    power cut.

    For folders that can be made again, such as those of simulations; holds for all threads.
    """
    global _blocks_without_syncing
    _blocks_without_syncing += 1
    try:
        yield
    finally:
        _blocks_without_syncing -= 1


def syncs() -> bool:
    """Whether what is written must reach the disk before work goes on."""
    return not _blocks_without_syncing


def _sync(folder: Path) -> None:
    """Let a name that was just given survive a power cut."""
    if not syncs():
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        flush(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cache_folder() -> Path:
    """Where converted encoders and unfinished work are kept: RIDGEWAY_CACHE, else the user's cache
    folder.
    """
    return _user_folder("RIDGEWAY_CACHE", "XDG_CACHE_HOME", ".cache")


def config_folder() -> Path:
    """Where keys are kept: RIDGEWAY_CONFIG, else the user's configuration folder."""
    return _user_folder("RIDGEWAY_CONFIG", "XDG_CONFIG_HOME", ".config")


def state_folder() -> Path:
    """Where what corpora have cost is kept: RIDGEWAY_STATE, else the user's state folder."""
    return _user_folder("RIDGEWAY_STATE", "XDG_STATE_HOME", ".local/state")


def _user_folder(name: str, general: str, usual: str) -> Path:
    named = os.environ.get(name)
    return (
        Path(named)
        if named
        else Path(os.environ.get(general) or Path.home() / usual) / "ridgeway"
    )


# JSON lines: records with a place, the text of a record, and folders of labelled test files.
#
# Lines are those of the file, not Unicode's.


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
