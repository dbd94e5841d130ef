"""A corpus in S3, of a real server on this machine: the bytes of its files, and one sentence for what goes wrong.

Needs s3fs and moto's server, which are not among the packages for developers; CONTRIBUTING.md says how to have them.
"""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ridgeway.client.cluster.ray_engine
import ridgeway.client.sums.corpus
from ridgeway.client.cluster.ray_engine import cluster, ray_engine
from ridgeway.client.sums.part_store import StoredPart
from ridgeway.client.sums.prepare import Engine, Interrupted, PrepareOutcome, Unread, Watch, prepare
from ridgeway.common.base.errors import CorpusError, InputError, RidgewayError
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.common.encoding.encoder_sources import find_encoder
from tests.support.corpora_on_disk import Stopper, content, job, sentences, write_jsonl
from tests.support.tiny import tiny_encoder

s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: CONTRIBUTING.md says how to test with S3")
pytest.importorskip("moto.server", reason="moto's server is not installed: CONTRIBUTING.md says how to test with S3")

pytestmark = [  # Ray and s3fs leave files and processes to the garbage collector
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
START_TIMEOUT_S = 60.0
URL = Path("s3://bucket/corpus")


class Store:
    """A server of S3 in a process of its own."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", self.address.rpartition(":")[2]]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, "moto's server does not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/moto-api/", timeout=5):
                return True
        except OSError:
            return False

    def let_in(self, everybody: bool) -> None:
        """Whether keys are looked at."""
        body = b"inf" if everybody else b"0"
        plain = {"Content-Type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.address}/moto-api/reset-auth", body, plain)):
            pass

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """Keys, and no settings or keys of the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_CONFIG_FILE": str(tmp_path_factory.mktemp("aws") / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path_factory.mktemp("aws") / "credentials"),
        }.items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        yield patch


@pytest.fixture(scope="module")
def store(environment: pytest.MonkeyPatch) -> Iterator[Store]:
    server = Store()
    environment.setenv("AWS_ENDPOINT_URL", server.address)  # before Ray's processes begin, which ask it too
    yield server
    server.end()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def local_cluster(store: Store) -> Iterator[None]:
    with cluster("", 2):
        yield


@pytest.fixture
def corpus(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in pieces, a compressed one, a text, one that is hidden and one of another kind; the same in S3."""
    monkeypatch.setattr(ridgeway.client.sums.corpus, "PIECE_BYTES", 2_000)
    monkeypatch.setattr(ridgeway.client.cluster.ray_engine, "MIN_TASK_BYTES", 1)
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    folder = tmp_path / "corpus"
    write_jsonl(folder / "law.jsonl", sentences("law", 60))
    (folder / "deep").mkdir()
    records = [json.dumps({"text": text}) + "\n" for text in sentences("medicine", 9)]
    (folder / "deep" / "packed.jsonl.gz").write_bytes(gzip.compress("".join(records).encode()))
    (folder / "deep" / "code.txt").write_text("\n".join(sentences("code", 9)))
    (folder / ".hidden.txt").write_text("hidden")
    (folder / "image.png").write_bytes(b"\0")
    files().put(f"{folder}/", "bucket/corpus/", recursive=True)
    return folder


def files() -> Any:
    return s3fs.S3FileSystem()


def in_s3(tmp_path: Path, engine: Engine | None = None, watch: Watch | None = None) -> PrepareOutcome:
    encoder = find_encoder(f"dir:{tmp_path / 'encoder'}")
    return prepare(job(URL, holdout=0.1), encoder, tmp_path / "cache", watch, engine=engine)


def by_ray(tmp_path: Path) -> Engine:
    word = f"dir:{tmp_path / 'encoder'}"
    return ray_engine(job(URL, holdout=0.1), find_encoder(word), word, gpus=False, threads=1)


def test_a_corpus_in_s3_gives_the_bytes_of_its_files(corpus: Path, tmp_path: Path) -> None:
    """Also where a run is stopped and taken up; nothing is read twice, but what has changed."""
    alone = prepare(job(corpus, holdout=0.1), tiny_encoder(), tmp_path / "alone")
    with pytest.raises(Interrupted):
        in_s3(tmp_path, watch=Stopper(3).watch)
    resumed, again = in_s3(tmp_path), in_s3(tmp_path)
    for outcome in (resumed, again):
        assert content(outcome) == content(alone)
        assert (outcome.counters, outcome.files, outcome.files_skipped) == (alone.counters, 3, 1)
    assert 0 < resumed.bytes_read < alone.bytes_read
    assert again.bytes_read == 0
    files().pipe("bucket/corpus/deep/code.txt", b"other")
    changed = in_s3(tmp_path)
    assert 0 < changed.bytes_read < alone.bytes_read
    assert content(changed) != content(alone)


@pytest.mark.usefixtures("corpus")
def test_keys_that_s3_does_not_know_are_one_sentence(store: Store, tmp_path: Path) -> None:
    """Before anything is read, as on machines of a cluster that have other keys than this one."""
    store.let_in(everybody=False)
    try:
        with pytest.raises(
            InputError, match=r"^s3://bucket/corpus cannot be read: .*Key Id.*; check that .*"
        ) as raised:
            in_s3(tmp_path)
    finally:
        store.let_in(everybody=True)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("local_cluster", "corpus")
def test_a_store_that_is_lost_is_one_sentence_and_nothing_that_was_kept_is_lost(store: Store, tmp_path: Path) -> None:
    """While this machine reads; or closed while a cluster does. Sums over other corpora go on without it."""
    local = write_jsonl(tmp_path / "more.jsonl", sentences("code", 3))
    with pytest.raises(Interrupted):
        in_s3(tmp_path, watch=Stopper(3).watch)
    kept = sorted((tmp_path / "cache").rglob("*.part"))
    assert kept

    def closed(todo: Sequence[Unread]) -> Iterator[StoredPart | None]:
        store.let_in(everybody=False)
        yield from by_ray(tmp_path)(todo)

    with pytest.raises(CorpusError, match=r"^s3://bucket/corpus/.* cannot be read: .*; check that ") as refused:
        in_s3(tmp_path, closed)
    store.let_in(everybody=True)
    with pytest.raises(RidgewayError, match=r"^s3://bucket/corpus/.* cannot be read: .*connect.*; check that ") as lost:
        in_s3(tmp_path, watch=Watch(lambda done, total: store.end()))
    with pytest.raises(InputError, match=r"^s3://bucket/corpus cannot be read: .*connect") as gone:
        in_s3(tmp_path)
    assert not any("\n" in str(raised.value) for raised in (refused, lost, gone))
    prepare(job(local, holdout=0.1), tiny_encoder(), tmp_path / "cache")
    assert set(kept) <= set((tmp_path / "cache").rglob("*.part"))
