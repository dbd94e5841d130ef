"""A release that is replaced while requests come without a pause, and releases that must not take
its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from ridgeway.common.routing.release import ROUTER
from tests.support.fake_expert import wait_for
from tests.support.in_process import Local
from tests.support.in_process import served as service_of
from tests.support.serving import SECRET, release_of

DOMAINS = ["code", "law", "medicine"]
ASKING = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replacing")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Local]:
    release_of(folder / "release", DOMAINS)
    with service_of(folder / "release", None) as local:
        yield local


@pytest.fixture
def served(service: Local, caplog: pytest.LogCaptureFixture) -> Iterator[Local]:
    """Neither a prompt nor a traceback is in its log."""
    yield service
    assert SECRET not in caplog.text and "Traceback" not in caplog.text


class Load:
    """Threads that ask without a pause; use it in a `with`, at whose end every answer must have
    been a good one.
    """

    def __init__(self, served: Local) -> None:
        self._served = served
        self._stop = Event()
        self._pool = ThreadPoolExecutor(ASKING)
        self.releases: list[str] = []

    def __enter__(self) -> Load:
        self._asking: list[Future[None]] = [
            self._pool.submit(self._ask) for _ in range(ASKING)
        ]
        return self

    def _ask(self) -> None:
        while not self._stop.is_set():
            response = self._served.post("/v1/route", {"prompt": f"{SECRET} where to?"})
            assert response.status_code == 200, response.text
            self.releases.append(response.json()["release"])

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for asking in self._asking:
            asking.result()
        self._pool.shutdown()


def in_use(served: Local) -> str:
    return str(served.http.get("/v1/releases/current").json()["release"])


def refused(served: Local) -> str | None:
    words: str | None = served.http.get("/v1/releases/current").json()["refused"]
    return words


def replace(folder: Path, made: Path) -> None:
    """Put a release in the place of another, file by file, as a plain copy does."""
    for path in sorted(made.iterdir(), reverse=True):
        (folder / path.name).write_bytes(path.read_bytes())


def test_a_release_is_replaced_under_load_and_no_request_fails(
    served: Local, folder: Path
) -> None:
    """Every request is answered, by the old release or by the new one, and after the swap by the
    new one alone.
    """
    before = in_use(served)
    with Load(served) as load:
        wait_for(lambda: len(load.releases) > 20, "the load has begun")
        after = release_of(folder / "release", DOMAINS, strength=103)
        wait_for(lambda: after in load.releases, "the new release is in use")
        seen = len(load.releases)
        wait_for(lambda: len(load.releases) > seen + 20, "the load goes on")
    assert set(load.releases) == {before, after}
    assert set(load.releases[-10:]) == {after}
    assert in_use(served) == after
    assert f'ridgeway_release_info{{id="{after}"' in served.http.get("/metrics").text


def test_a_release_that_is_copied_over_file_by_file_is_taken_when_it_is_whole(
    served: Local, folder: Path, tmp_path: Path
) -> None:
    """In the midst of a plain copy the files do not fit each other; the service waits for those
    that do.
    """
    after = release_of(tmp_path / "next", DOMAINS, strength=105)
    with Load(served) as load:
        replace(folder / "release", tmp_path / "next")
        wait_for(lambda: after in load.releases, "the new release is in use")
    assert refused(served) is None


def test_a_tampered_release_is_refused_and_the_old_one_goes_on(
    served: Local, folder: Path, tmp_path: Path
) -> None:
    """One changed byte is enough; the reason is told, without a path; a good release is then taken
    again.
    """
    before = in_use(served)
    release_of(tmp_path / "next", DOMAINS, strength=107)
    router = tmp_path / "next" / ROUTER
    content = bytearray(router.read_bytes())
    content[-1] ^= 1
    router.write_bytes(content)
    with Load(served) as load:
        replace(folder / "release", tmp_path / "next")
        wait_for(lambda: refused(served) is not None, "the release is refused")
    assert set(load.releases) == {before} == {in_use(served)}
    assert str(folder) not in str(refused(served))
    assert served.counted("refused_releases_total") >= 1.0
    after = release_of(folder / "release", DOMAINS, strength=109)
    wait_for(
        lambda: in_use(served) == after and refused(served) is None,
        "the good release is in use",
    )
