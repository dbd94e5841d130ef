"""The key of a SuperNode: made once, private, and of the one kind that Flower takes."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ridgeway.common.base.errors import IdentityError
from ridgeway.common.base.identity import (
    _KIND,
    check_public_line,
    create_node_key,
    public_line,
)

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def openssh(key: Key) -> bytes:
    none = serialization.NoEncryption()
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, none
    )


def openssh_line(key: Key) -> str:
    openssh_form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*openssh_form).decode()


def test_a_new_key_is_private_and_has_one_public_line(tmp_path: Path) -> None:
    """Only its owner can read the file; the line is the same whenever it is asked for, and holds no
    comment.
    """
    path = tmp_path / "deep" / "node.key"
    line = create_node_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert public_line(path) == line == check_public_line(line)
    assert line.split()[0] == _KIND and len(line.split()) == 2
    assert line != create_node_key(tmp_path / "other")


@pytest.mark.parametrize(
    "key",
    [ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()],
    ids=["p256", "ed25519"],
)
def test_a_key_of_another_kind_is_refused(tmp_path: Path, key: Key) -> None:
    (tmp_path / "node.key").write_bytes(openssh(key))
    with pytest.raises(IdentityError, match="another kind"):
        public_line(tmp_path / "node.key")
    with pytest.raises(IdentityError):
        check_public_line(openssh_line(key))


@pytest.mark.parametrize(
    "content", [b"", b"not a key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"]
)
def test_a_file_that_is_no_key_is_refused_with_a_sentence(
    tmp_path: Path, content: bytes
) -> None:
    with pytest.raises(IdentityError, match="there is no key file"):
        public_line(tmp_path / "node.key")
    (tmp_path / "node.key").write_bytes(content)
    with pytest.raises(IdentityError, match="not a private key"):
        public_line(tmp_path / "node.key")


def test_a_line_has_one_spelling(tmp_path: Path) -> None:
    """A comment, blanks and a last newline are dropped, so that the same key is known as the
    same.
    """
    line = create_node_key(tmp_path / "node.key")
    assert check_public_line(f"  {line} holder@machine\n") == line


@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: "",
        lambda line: line.split()[1],
        lambda line: line[:-8],
        lambda line: line.replace("AAAA", "AAAB", 1),
        lambda line: f"{line}\n{line}",
        lambda line: f'command="x" {line}',
        lambda line: line + " " + "x" * 1000,
    ],
    ids=["empty", "no kind", "cut", "altered", "two lines", "options", "endless"],
)
def test_a_damaged_line_is_refused(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    line = create_node_key(tmp_path / "node.key")
    with pytest.raises(IdentityError):
        check_public_line(spoil(line))
