"""Releases that are fetched by HTTPS: only what the pinned key has signed is ever used."""

from __future__ import annotations

import functools
import http.server
import shutil
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeway.common.base.errors import InputError, ReleaseError
from ridgeway.common.base.identity import create_identity
from ridgeway.common.routing.release import ROUTER, load_release
from ridgeway.coordinator.serve.routing.release_pull import PulledRelease
from tests.coordinator.serve.test_connections import make_certificate
from tests.support.in_process import Clock
from tests.support.making import fixed_identity
from tests.support.serving import release_of


class QuietFiles(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of the files in `site`, by TLS."""
    certificate, key = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("RIDGEWAY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "site").mkdir()
    handler = functools.partial(QuietFiles, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}/release/"
        server.shutdown()


def test_a_new_release_is_fetched_when_it_is_time(address: str, tmp_path: Path) -> None:
    """Not before; and what has not changed is not fetched again. One release before stays, others are dropped."""
    clock = Clock()
    key = fixed_identity().public
    site = tmp_path / "site" / "release"
    ids = [release_of(site, ["code", "law"])]
    pulled = PulledRelease(address, key, 60.0, clock)
    assert load_release(pulled.first(), key=key).id == ids[0]
    assert not pulled.pull()
    for domain in ("maths", "news", "sport"):
        ids.append(release_of(site, ["code", domain]))
        pulled.watch()
        assert load_release(pulled.folder).id == ids[-2]
        clock.now += 60.0
        pulled.watch()
        assert load_release(pulled.folder).id == ids[-1]
    kept = {path.name for path in pulled.folder.parent.iterdir() if path.is_dir() and not path.is_symlink()}
    assert kept == set(ids[-2:])


@pytest.mark.parametrize("harm", ["another signer", "a changed file", "nothing there"])
def test_what_the_key_has_not_signed_changes_nothing(
    address: str, tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start it is an error; later the old release goes on, also over a restart, and the log says why."""
    clock = Clock()
    key = fixed_identity().public
    site = tmp_path / "site" / "release"
    first = release_of(site, ["code", "law"])
    pulled = PulledRelease(address, key, 1.0, clock)
    pulled.first()
    identity = create_identity(tmp_path / "other.key") if harm == "another signer" else None
    shutil.rmtree(site)
    release_of(site, ["code", "maths"], identity)
    if harm == "a changed file":
        (site / ROUTER).write_bytes((site / ROUTER).read_bytes() + b" ")
    if harm == "nothing there":
        (site / "manifest.json").unlink()
    clock.now += 2.0
    pulled.watch()
    assert load_release(pulled.folder, key=key).id == first
    assert "the old one goes on" in caplog.text
    assert load_release(PulledRelease(address, key, 1.0, clock).first()).id == first
    with pytest.raises(ReleaseError, match=r"signed by another|is not the one|status 404"):
        PulledRelease(address.rstrip("/"), key, 1.0, clock).pull()


def test_a_key_must_be_pinned_and_the_server_be_known(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="give --key"):
        PulledRelease(address, None, 1.0)
    monkeypatch.delenv("SSL_CERT_FILE")
    release_of(tmp_path / "site" / "release", ["code", "law"])
    with pytest.raises(ReleaseError, match="certificate"):
        PulledRelease(address, fixed_identity().public, 1.0).first()
