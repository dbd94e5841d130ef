"""Keys: made once, kept from others, and strict about what counts as one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ridgeway.common.base.errors import IdentityError
from ridgeway.common.base.identity import (
    Identity,
    create_identity,
    is_signed_by,
    load_identity,
    public_key,
)
from tests.support.making import allowing, fixed_identity, trapped_pickle

PUBLIC = fixed_identity().public
SIGNATURE = fixed_identity().sign(b"text")


def test_signatures_are_those_of_the_standard() -> None:
    """The second vector of RFC 8032, section 7.1."""
    secret = bytes.fromhex(
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"
    )
    identity = Identity(Ed25519PrivateKey.from_private_bytes(secret))
    assert (
        identity.public
        == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    )
    assert identity.sign(b"\x72") == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )


def test_a_signature_holds_for_its_own_bytes_and_signer() -> None:
    """By the signer's public key, and no other."""
    assert is_signed_by(PUBLIC, SIGNATURE, b"text")
    assert not is_signed_by(fixed_identity(8).public, SIGNATURE, b"text")
    assert not any(
        is_signed_by(PUBLIC, SIGNATURE, changed)
        for changed in (b"", b"texts", b"Text", b"text\n")
    )


@pytest.mark.parametrize(
    ("public", "signature"),
    [
        (PUBLIC, ""),
        (PUBLIC, "zz"),
        (PUBLIC, SIGNATURE[:-2]),
        (PUBLIC, SIGNATURE + "00"),
        (PUBLIC, "é" * 128),
        ("", SIGNATURE),
        (PUBLIC[:-2], SIGNATURE),
        ("zz" * 32, SIGNATURE),
    ],
)
def test_keys_and_signatures_that_are_none_sign_nothing(
    public: str, signature: str
) -> None:
    """Malformed words are a no, not a crash."""
    assert is_signed_by(public, signature, b"text") is False


def test_a_key_that_everything_is_signed_by_signs_nothing() -> None:
    """The neutral point of the curve verifies one signature for every text; such a key is
    nobody's.
    """
    public = "01" + "00" * 31
    assert not is_signed_by(public, public + "00" * 32, b"text")
    assert not is_signed_by(public, public + "00" * 32, b"another text")


def test_a_key_file_is_read_as_it_was_made(tmp_path: Path) -> None:
    """The same public key, and signatures that it recognises; every new key is another."""
    made = create_identity(tmp_path / "new" / "coordinator.key")
    read = load_identity(tmp_path / "new" / "coordinator.key")
    assert read.public == made.public != create_identity(tmp_path / "other").public
    assert is_signed_by(made.public, read.sign(b"text"), b"text")


def test_only_its_owner_can_read_a_key_file(tmp_path: Path) -> None:
    """Whatever the process allows others by default."""
    with allowing(0):
        create_identity(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    """Losing a key is losing every release that others pinned to it."""
    create_identity(tmp_path / "key")
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(IdentityError, match="never overwritten"):
        create_identity(tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == before


def test_a_printed_identity_shows_no_secret(tmp_path: Path) -> None:
    """Its public key's first digits, and nothing else."""
    identity = fixed_identity()
    assert repr(identity) == f"<Identity {identity.public[:12]}>"
    assert "07" * 16 not in f"{identity} {identity!r} {vars(identity)}"


def test_a_key_file_that_is_none_is_refused(tmp_path: Path) -> None:
    """Missing, empty, text, a pickle, a public key: each refusal names the file."""
    path = tmp_path / "key"
    with pytest.raises(IdentityError, match=f"no key file {path}"):
        load_identity(path)
    public = Ed25519PrivateKey.generate().public_key()
    spki = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for content in (
        b"",
        b"text",
        PUBLIC.encode(),
        spki,
        trapped_pickle(tmp_path / "trap"),
    ):
        path.write_bytes(content)
        with pytest.raises(IdentityError, match=f"{path} is not a private key"):
            load_identity(path)
    assert not (tmp_path / "trap").exists()


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    """Elliptic curves of another make, and keys under a password."""
    form, nothing = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, form, nothing
    )
    (tmp_path / "key").write_bytes(other)
    with pytest.raises(IdentityError, match="unsupported key type"):
        load_identity(tmp_path / "key")
    locked = serialization.BestAvailableEncryption(b"word")
    protected = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, form, locked
    )
    (tmp_path / "key").write_bytes(protected)
    with pytest.raises(IdentityError, match="not a private key"):
        load_identity(tmp_path / "key")


def test_a_public_key_may_be_given_in_any_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digits in either case, with space around them, or a file that holds them, though its path
    happens to have 64 characters.
    """
    monkeypatch.chdir(tmp_path)
    long = "coordinator.pub".rjust(64, "k")
    for name in ("key.pub", long):
        Path(name).write_text(f"\n{PUBLIC.upper()} \n", encoding="utf-8")
    for words in (
        PUBLIC,
        PUBLIC.upper(),
        f"  {PUBLIC}\n",
        str(tmp_path / "key.pub"),
        f" {tmp_path / 'key.pub'}\n",
        long,
    ):
        assert public_key(words) == PUBLIC


@pytest.mark.parametrize(
    "words",
    [
        "",
        " ",
        "abc",
        PUBLIC[:-1],
        PUBLIC + "0",
        PUBLIC[:-1] + "g",
        "٣" * 64,
        ".",
        "/",
        "a\0b",
        "x" * 300,
    ],
    ids=lambda words: repr(words[:8]),
)
def test_words_that_are_no_public_key_are_refused(words: str) -> None:
    """Whatever was typed is named; a folder is no key, and nothing is too long to be refused."""
    with pytest.raises(IdentityError, match="is not a public key"):
        public_key(words)


def test_a_file_without_a_public_key_is_refused(tmp_path: Path) -> None:
    """Text, bytes that are none, or the private key by mistake."""
    path = tmp_path / "key"
    create_identity(path)
    for content in (path.read_bytes(), b"", b"\xff\xfe", PUBLIC.encode()[:-1]):
        path.write_bytes(content)
        with pytest.raises(IdentityError, match="is not a public key") as refusal:
            public_key(str(path))
        assert "PRIVATE" not in str(refusal.value)
