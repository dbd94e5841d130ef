"""The operator's authority: what it makes is accepted by TLS as it is used, private, and never
overwritten.
"""

from __future__ import annotations

import shutil
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from ridgeway.common.base.errors import CertificateError
from ridgeway.coordinator.deploy.authority import (
    certificate_ends,
    check_certificates,
    create_authority,
    ending_certificates,
    renew_authority,
    renew_server_certificate,
)
from tests.support.making import contents

FILES = ("ca.crt", "ca.key", "server.crt", "server.key")


def handshake(folder: Path, authority: Path, name: str) -> None:
    """A TLS handshake in memory, with every check on: the authority, the name, the time, the strict
    rules.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=str(authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=name)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (near, far, near, far):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


@pytest.mark.parametrize(
    "name",
    ["coordinator.example.org", "10.1.2.3", "2001:db8::1", "localhost", "127.0.0.1"],
)
def test_a_client_with_the_authority_accepts_every_name(
    tmp_path: Path, name: str
) -> None:
    """The names that were asked for, and always those of the machine itself, hold under strict
    verification.
    """
    create_authority(tmp_path, ["Coordinator.Example.org", "10.1.2.3", "[2001:db8::1]"])
    handshake(tmp_path, tmp_path / "ca.crt", name)


def test_another_name_and_another_authority_are_refused(tmp_path: Path) -> None:
    create_authority(tmp_path / "a", ["coordinator.example.org"])
    create_authority(tmp_path / "b", ["coordinator.example.org"])
    for authority, name in (("a", "other"), ("b", "coordinator")):
        with pytest.raises(ssl.SSLCertVerificationError):
            trusted = tmp_path / authority / "ca.crt"
            handshake(tmp_path / "a", trusted, f"{name}.example.org")


def test_keys_are_private_and_nothing_is_overwritten(tmp_path: Path) -> None:
    create_authority(tmp_path, [])
    before = contents(tmp_path)
    for path in tmp_path.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(CertificateError, match="never overwritten"):
        create_authority(tmp_path, ["new.example.org"])
    assert contents(tmp_path) == before and set(before) == set(FILES)


@pytest.mark.parametrize("left", FILES)
def test_one_file_that_is_there_stops_the_making_of_all(
    tmp_path: Path, left: str
) -> None:
    (tmp_path / left).write_text("mine", encoding="utf-8")
    with pytest.raises(CertificateError, match=left):
        create_authority(tmp_path, [])
    assert [path.name for path in tmp_path.iterdir()] == [left]


def test_a_renewed_certificate_needs_no_new_authority(tmp_path: Path) -> None:
    """Holders keep their ca.crt; the server has a new key and the new names."""
    create_authority(tmp_path, ["old.example.org"])
    before = contents(tmp_path)
    renew_server_certificate(tmp_path, ["new.example.org"])
    changed = {name for name, _ in contents(tmp_path).items() ^ before.items()}
    assert changed == {"server.crt", "server.key"}
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    handshake(tmp_path, tmp_path / "ca.crt", "new.example.org")


def test_a_certificate_says_names_and_end(tmp_path: Path) -> None:
    create_authority(tmp_path, ["a.example.org", "10.0.0.7"])
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    named = certificate.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    ).value
    assert set(named.get_values_for_type(x509.DNSName)) == {
        "a.example.org",
        "localhost",
    }
    assert set(map(str, named.get_values_for_type(x509.IPAddress))) == {
        "10.0.0.7",
        "127.0.0.1",
    }
    ends = certificate_ends(tmp_path)
    for name, most in (("server", 730), ("authority", 3650)):
        assert most - 10 <= (ends[name] - datetime.now(UTC)).days <= most


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a b",
        "https://a.example.org",
        "a.example.org:8443",
        "*.example.org",
        "-a",
        "a/b",
    ],
)
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(CertificateError, match="host name"):
        create_authority(tmp_path, [host])
    assert list(tmp_path.iterdir()) == []


def test_renewal_without_its_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"certificate .* not found"):
        renew_server_certificate(tmp_path, [])
    create_authority(tmp_path / "a", [])
    create_authority(tmp_path / "b", [])
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    with pytest.raises(CertificateError, match="do not match"):
        renew_server_certificate(tmp_path / "a", [])


def test_a_damaged_certificate_is_named(tmp_path: Path) -> None:
    create_authority(tmp_path, [])
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n", encoding="utf-8")
    with pytest.raises(CertificateError, match="not a certificate"):
        certificate_ends(tmp_path)


def test_a_renewed_authority_of_the_same_key_is_one_with_the_old(
    tmp_path: Path,
) -> None:
    """Whoever has the old ca.crt accepts certificates made after the renewal, and the other way
    round.
    """
    create_authority(tmp_path, ["a.example.org"])
    old = tmp_path / "old.crt"
    old.write_bytes((tmp_path / "ca.crt").read_bytes())
    renew_authority(tmp_path)
    assert old.read_bytes() != (tmp_path / "ca.crt").read_bytes()
    handshake(tmp_path, tmp_path / "ca.crt", "a.example.org")
    renew_server_certificate(tmp_path, ["a.example.org"])
    handshake(tmp_path, old, "a.example.org")


def test_an_authority_with_another_key_breaks_with_the_old(tmp_path: Path) -> None:
    """After a theft, nothing that the old key signed is accepted by whoever has taken the new
    ca.crt.
    """
    create_authority(tmp_path / "a", ["a.example.org"])
    shutil.copytree(tmp_path / "a", tmp_path / "stolen")
    renew_authority(tmp_path / "a", new_key=True)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "stolen", tmp_path / "a" / "ca.crt", "a.example.org")
    renew_server_certificate(tmp_path / "a", ["a.example.org"])
    handshake(tmp_path / "a", tmp_path / "a" / "ca.crt", "a.example.org")
    assert stat.S_IMODE((tmp_path / "a" / "ca.key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (0, []),
        (668, []),
        (670, ["expires in 59 days"]),
        (729.5, ["within a day"]),
        (731, ["expired on"]),
    ],
)
def test_an_end_is_spoken_of_from_sixty_days_before(
    tmp_path: Path, days: float, expected: list[str]
) -> None:
    """And not earlier; with the date, and the command that renews it."""
    create_authority(tmp_path / "link", [])
    now = datetime.now(UTC) + timedelta(days=days)
    sentences = ending_certificates(tmp_path / "link", now)
    for words, sentence in zip(expected, sentences, strict=True):
        assert words in sentence
        assert sentence.endswith(f"run: ridgeway coordinator renew {tmp_path}")


def test_a_certificate_that_cannot_serve_is_refused_with_its_reason(
    tmp_path: Path,
) -> None:
    """One that has ended, one that does not hold yet, one for another host; and one that serves is
    not.
    """
    create_authority(tmp_path / "link", ["a.example.org", "::1"])
    now = datetime.now(UTC)
    for address in ("a.example.org:1", "A.Example.org:1", "[::1]:1", "127.0.0.1:1"):
        check_certificates(tmp_path / "link", address, now)
    for host, days, words in (
        ("a", 731, r"server expired on .*renew"),
        ("a", -1, r"set the clock"),
        ("b", 0, r"does not cover b\.example\.org.*renew"),
    ):
        with pytest.raises(CertificateError, match=words):
            then = now + timedelta(days=days)
            check_certificates(tmp_path / "link", f"{host}.example.org:1", then)
