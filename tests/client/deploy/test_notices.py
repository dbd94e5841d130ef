"""What a coordinator tells between rounds: taken under the pinned key's signature alone, the newest
only.
"""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from ridgeway.client.cli import approval_commands
from ridgeway.client.deploy.holder_folder import approve_bundle, settings_text
from ridgeway.client.deploy.notices import Gate, take_notice, tell_unapproved
from ridgeway.client.round.holder import HolderSettings
from ridgeway.common.base.errors import (
    CertificateError,
    FormatError,
    InputError,
    NodeError,
)
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.records import read_settings
from ridgeway.common.deploy.bundle import installed_sha256
from ridgeway.common.protocol.cohort import NOTICE, AnnouncedBundle
from ridgeway.coordinator.deploy.authority import (
    create_authority,
    renew_authority,
    renew_server_certificate,
)
from ridgeway.coordinator.deploy.coordinator_folder import keep_installed
from ridgeway.coordinator.deploy.supervisor import announce, up, write_invite
from ridgeway.coordinator.round.federation import Federation
from tests.coordinator.deploy.test_authority import handshake
from tests.support.commands import Workshop
from tests.support.quiet_server import Quiet, serving, tls_of
from tests.support.simulated_federation import Parties, found, populate

NOW = datetime.now(UTC)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    made = found(tmp_path, address="router.example.org:9443").federation
    create_authority(made.link, ["router.example.org"])
    announce(made)
    return made


@pytest.fixture
def holder(federation: Federation, tmp_path: Path) -> Path:
    """A holder's folder, as far as notices are concerned."""
    folder = tmp_path / "law"
    folder.mkdir()
    (folder / "ca.crt").write_bytes((federation.link / "ca.crt").read_bytes())
    assert take(folder, federation) == []
    return folder


def notice_of(federation: Federation) -> bytes:
    return (federation.link / NOTICE).read_bytes()


def take(folder: Path, federation: Federation) -> list[str]:
    return take_notice(folder, notice_of(federation), federation.identity.public, NOW)


@pytest.fixture
def announced(tmp_path: Path) -> Parties:
    """A holder whose coordinator has announced the bundle that is installed."""
    parties = found(tmp_path, address="router.example.org:9443")
    populate(parties, {"law": "law"})
    federation = parties.federation
    create_authority(federation.link, ["router.example.org"])
    keep_installed(federation)
    announce(federation)
    take(parties.homes["law"], federation)
    return parties


def test_a_renewed_authority_is_taken_because_the_pinned_key_signs_it(
    federation: Federation, holder: Path
) -> None:
    """Also one with another key; the holder's journal has it, and its TLS accepts the coordinator
    again.
    """
    renew_authority(federation.link, new_key=True)
    renew_server_certificate(federation.link, ["router.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(federation.link, holder / "ca.crt", "router.example.org")
    announce(federation)
    [words] = take(holder, federation)
    assert "renewed its authority" in words
    handshake(federation.link, holder / "ca.crt", "router.example.org")
    assert len(Journal(holder / "journal.db").entries("authority")) == 1
    assert take(holder, federation) == []


def test_a_notice_is_taken_from_nobody_else(
    federation: Federation, holder: Path, tmp_path: Path
) -> None:
    """Neither one that another key signed, nor one that was changed; and nothing is written."""
    before = {path.name: path.read_bytes() for path in holder.iterdir()}
    stranger = found(tmp_path / "stranger").federation
    create_authority(stranger.link, [])
    announce(stranger)
    changed = json.loads(notice_of(stranger)) | {
        "coordinator": federation.identity.public
    }
    for content in (
        notice_of(stranger),
        json.dumps(changed).encode(),
        notice_of(federation)[:-9],
        b"",
        b"[]",
    ):
        with pytest.raises(FormatError):
            take_notice(holder, content, federation.identity.public, NOW)
    assert before == {path.name: path.read_bytes() for path in holder.iterdir()}


def test_an_earlier_notice_does_not_bring_an_earlier_authority_back(
    federation: Federation, holder: Path
) -> None:
    """Whoever has stolen the old authority's key cannot have it taken again with the notice of its
    time.
    """
    early = notice_of(federation)
    renew_authority(federation.link, new_key=True)
    announce(federation)
    take(holder, federation)
    assert take_notice(holder, early, federation.identity.public, NOW) == []
    assert (holder / "ca.crt").read_bytes() == (federation.link / "ca.crt").read_bytes()


def test_an_authority_that_has_ended_does_not_replace_one_that_holds(
    federation: Federation, holder: Path
) -> None:
    before = (holder / "ca.crt").read_bytes()
    renew_authority(federation.link)
    announce(federation)
    with pytest.raises(FormatError, match="ended on"):
        take_notice(
            holder,
            notice_of(federation),
            federation.identity.public,
            NOW + timedelta(days=3651),
        )
    assert (holder / "ca.crt").read_bytes() == before


def test_what_holds_still_is_not_announced_again(federation: Federation) -> None:
    before = notice_of(federation)
    announce(federation)
    assert notice_of(federation) == before


def test_a_host_that_the_certificate_does_not_name_is_refused_at_once(
    federation: Federation,
) -> None:
    """By `up` and by `invite`, before a process is started or a file written."""
    settings = federation.folder / "coordinator.toml"
    settings.write_text(
        settings.read_text().replace("router.example.org", "other.example.org")
    )
    changed = Federation(federation.folder)
    for refused in (
        lambda: up(changed, bool, lambda: None, print),
        lambda: write_invite(changed),
    ):
        with pytest.raises(
            CertificateError, match=r"does not cover other\.example\.org.*renew"
        ):
            refused()
    assert (
        not (federation.link / "logs").exists()
        and not (federation.folder / "invite").exists()
    )


def test_a_bundle_is_approved_by_the_holders_own_command_alone(
    announced: Parties,
) -> None:
    """A notice approves nothing; the command adds the hash to client.toml, and leaves every other
    word as it was.
    """
    law = announced.homes["law"]
    before = (law / "client.toml").read_text()
    approved = announced.law.settings.bundles
    [words] = tell_unapproved(announced.law)
    assert installed_sha256() in words and installed_sha256() not in approved
    approve_bundle(law, installed_sha256())
    assert announced.law.settings.bundles == (*approved, installed_sha256())
    assert tell_unapproved(announced.law) == []
    after = (law / "client.toml").read_text()
    assert [line for line in before.splitlines() if line not in after.splitlines()] == [
        f'bundles = ["{approved[0]}"]'
    ]
    assert Journal(law / "journal.db").entries("approved")[-1].facts == {
        "bundle": installed_sha256()
    }


def test_without_a_hash_only_what_was_shown_is_approved(
    announced: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing before anything was shown; and not the newer bundle that the coordinator has
    announced since.
    """
    law = announced.homes["law"]
    shop, before = Workshop(tmp_path), announced.law.settings.bundles
    refused = shop.call("client approve", law)
    assert (
        refused.code == 2
        and "look at it first with: ridgeway client bundle" in refused.stderr
    )
    assert announced.law.settings.bundles == before
    assert shop.call("client bundle", law).code == 2, "it is not approved"
    newer = AnnouncedBundle(sha256="ab" * 32)
    monkeypatch.setattr(
        approval_commands,
        "unapproved",
        lambda *_: [newer, AnnouncedBundle(sha256=installed_sha256())],
    )
    done = shop.do("client approve", law)
    assert "has announced another one that is not approved" in done.stderr
    assert announced.law.settings.bundles == (*before, installed_sha256())


def test_a_settings_file_that_cannot_be_changed_by_a_command_is_left_alone(
    tmp_path: Path,
) -> None:
    parties = found(tmp_path).with_law()
    path = parties.homes["law"] / "client.toml"
    path.write_text(path.read_text().replace("bundles = [", '"bundles" = ['))
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"add .* to `bundles`"):
        approve_bundle(parties.homes["law"], "ab" * 32)
    assert path.read_bytes() == before


class Tunnel(Quiet):
    """A proxy that knows CONNECT alone, and notes where it was asked to connect to."""

    asked: ClassVar[list[str]] = []

    def do_CONNECT(self) -> None:  # noqa: N802
        self.asked.append(self.path)
        with socket.create_connection(
            ("127.0.0.1", int(self.path.rpartition(":")[2]))
        ) as far:
            self.send_response(200)
            self.end_headers()
            while ready := select.select([self.connection, far], [], [], 10.0)[0]:
                for near in ready:
                    piece = near.recv(65536)
                    if not piece:
                        return
                    (far if near is self.connection else self.connection).sendall(piece)


class OneFile(Quiet):
    """A gate that hands out the same words under every path."""

    def do_GET(self) -> None:  # noqa: N802
        self.reply(b"notice")


def test_a_holder_behind_a_proxy_reaches_the_gate_through_it(
    federation: Federation, holder: Path
) -> None:
    """By name, which the proxy resolves; TLS goes through it whole. The SuperNode gets it by its
    environment.
    """
    with serving(OneFile, tls_of(federation.link)) as port, serving(Tunnel) as proxy:
        address = f"router.example.org:{port}"
        gate = Gate(holder, address, f"http://127.0.0.1:{proxy}")
        assert gate.fetch("/v1/ridgeway/notice", 10) == b"notice"
        assert Tunnel.asked == [address]
        with pytest.raises(NodeError, match="larger than 5 bytes"):
            gate.fetch("/v1/ridgeway/notice", 5)
    with pytest.raises(NodeError, match="through the proxy"):
        gate.fetch("/v1/ridgeway/notice", 10)


@pytest.mark.parametrize(
    "proxy",
    ["proxy.example.org:3128", "ftp://a:1", "http://a", "http://a:1/x", "http://a b:1"],
)
def test_what_is_no_proxy_is_refused_by_name(tmp_path: Path, proxy: str) -> None:
    parties = found(tmp_path).with_law()
    path = parties.homes["law"] / "client.toml"
    for line, good in (
        (f'proxy = "{proxy}"', False),
        ('proxy = "http://me:secret@proxy.example.org:3128"', True),
    ):
        text = re.sub(r"(?m)^(# )?proxy = .*$", line, path.read_text())
        path.write_text(text)
        if good:
            settings = parties.law.settings
            assert settings_text(settings) == settings_text(
                read_settings(path, HolderSettings)
            )
            assert line in settings_text(settings)
        else:
            with pytest.raises(InputError, match="proxy"):
                parties.holder("law")
