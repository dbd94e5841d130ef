"""Corpora at a URL: read as files of this machine are, and whatever cannot be read is one
sentence.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import ridgeway.client.sums.corpus
from ridgeway.client.sums.corpus import Counters, Position, documents, find_sources
from ridgeway.client.sums.corpus_places import file_status, place_name
from ridgeway.client.sums.prepare import Interrupted, prepare
from ridgeway.common.base.errors import CorpusError, InputError
from tests.support.corpora_on_disk import (
    Stopper,
    content,
    job,
    sentences,
    touch_later,
    write_jsonl,
)
from tests.support.tiny import tiny_encoder

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records in pieces, a text, a compressed file, one that is hidden, and one of another kind."""
    monkeypatch.setattr(ridgeway.client.sums.corpus, "PIECE_BYTES", 2_000)
    folder = tmp_path / "corpus"
    write_jsonl(folder / "law.jsonl", sentences("law", 60))
    write_jsonl(folder / ".hidden.jsonl", sentences("code", 2))
    (folder / "deep").mkdir()
    (folder / "deep" / "code.txt").write_text("\n".join(sentences("code", 60)))
    (folder / "deep" / "image.png").write_bytes(b"\0")
    write_jsonl(folder / "more.jsonl", sentences("medicine", 9))
    fsspec.open(
        f"file://{folder / 'packed.jsonl.gz'}", "wb", compression="gzip"
    ).open().close()
    return folder


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, corpus: Path) -> Iterator[str]:
    """The same at a URL."""
    if request.param == "file":
        yield f"file://{corpus}"
        return
    store = fsspec.filesystem("memory")
    store.put(f"{corpus}/", "/bucket/corpus/", recursive=True)
    yield "memory://bucket/corpus"
    store.rm("/bucket", recursive=True)


def test_a_corpus_at_a_url_gives_the_bytes_of_its_files(
    url: str, corpus: Path, tmp_path: Path
) -> None:
    """Also where a run is stopped and taken up; what lies unchanged is not read again, what changed
    is.
    """
    encoder, here, there = (
        tiny_encoder(),
        job(corpus, holdout=0.1),
        job(Path(url), holdout=0.1),
    )
    alone = prepare(here, encoder, tmp_path / "alone")
    with pytest.raises(Interrupted):
        prepare(there, encoder, tmp_path / "cache", Stopper(3).watch)
    resumed = prepare(there, encoder, tmp_path / "cache")
    again = prepare(there, encoder, tmp_path / "cache")
    for outcome in (resumed, again):
        assert content(outcome) == content(alone)
        assert (outcome.counters, outcome.files, outcome.files_skipped) == (
            alone.counters,
            4,
            1,
        )
    assert (again.files_read, again.bytes_read) == (0, 0)
    with fsspec.open(f"{url}/more.jsonl", "ab") as file:
        file.write(b'{"text": "one more"}\n')
    changed = prepare(there, encoder, tmp_path / "cache")
    assert changed.counters.documents == alone.counters.documents + 1


def test_a_url_is_itself_again() -> None:
    """However a path wrote it, and whatever else has a colon in it."""
    for name in ("s3://bucket/a b/c.jsonl", "memory://x", "file:///a/b", "gs://b"):
        assert place_name(Path(name)) == name
    for name in ("a/b:/c", "/s3:/x", "C:/x", "notes: first.txt"):
        assert place_name(Path(name)) == str(Path(name))


@pytest.mark.parametrize("url", ["nosuch://bucket/x", "memory://nothing/here"])
def test_what_cannot_be_read_at_a_url_is_one_sentence(url: str) -> None:
    """A store that nothing here knows, and a place where nothing lies."""
    with pytest.raises(InputError, match=url) as raised:
        find_sources([Path(url)])
    assert "\n" not in str(raised.value)


def test_what_a_store_raises_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is read as while it is: its errors are of classes that nothing here knows."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/law.txt", b"text")
    [source], _ = find_sources([Path("memory://bucket")])
    monkeypatch.setattr(type(memory), "_open", lambda *_, **__: _Refusing())
    with pytest.raises(CorpusError, match="no token was found"):
        list(documents(source, ("text",), Counters(), Position()))
    monkeypatch.setattr(type(memory), "info", _Refusing.read)
    with pytest.raises(
        InputError,
        match=r"memory://bucket cannot be read: no token was found; check that the store",
    ):
        find_sources([Path("memory://bucket")])
    memory.store.clear()


class _Refusing(io.BytesIO):
    def read(self, *_: object, **__: object) -> bytes:
        raise RuntimeError("no token was found")


def test_what_changes_behind_an_http_url_is_seen(tmp_path: Path) -> None:
    """By what its server says of it, though its name and its size are the same."""
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    path = tmp_path / "law.txt"
    path.write_text("one")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(server.serve_forever)
        url = Path(f"http://127.0.0.1:{server.server_port}/law.txt")
        try:
            before, again = file_status(url), file_status(url)
            path.write_text("two")
            touch_later(path)
            after = file_status(url)
        finally:
            server.shutdown()
    assert before == again != after
    assert before.size == after.size


def test_without_fsspec_a_url_is_one_sentence(
    url: str, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of this machine need nothing of it, even where sums over files at a URL were kept
    before.
    """
    prepare(job(Path(url)), tiny_encoder(), corpus.parent / "cache")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(InputError, match=r"s3://bucket/x cannot be read .*need fsspec"):
        find_sources([Path("s3://bucket/x")])
    assert prepare(job(corpus), tiny_encoder(), corpus.parent / "cache").files_read == 4
