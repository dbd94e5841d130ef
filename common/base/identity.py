"""Ed25519 identities: a key file, signatures, verification.

Knows the cryptography package. A private key is never printed.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ridgeway.common.base.errors import IdentityError

DIGITS = re.compile("[0-9a-fA-F]{64}")
SMALL_DIGITS = re.compile("[0-9a-f]*")
WEAK_KEYS = frozenset(
    (
        "01" + 31 * "00",
        "ec" + 30 * "ff" + "7f",
        32 * "00",
        31 * "00" + "80",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    )
)
"""The curve's points of small order: under such a key one signature can fit many texts."""


class Identity:
    """Someone who signs. `public` is the key others pin, as 64 hexadecimal digits."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()

    def sign(self, content: bytes) -> str:
        return self._key.sign(content).hex()

    def derived(self, purpose: bytes) -> bytes:
        """A key of 32 bytes for one purpose, which nobody without this identity can compute."""
        return HKDF(SHA256(), 32, salt=None, info=b"ridgeway " + purpose).derive(self._key.private_bytes_raw())

    def __repr__(self) -> str:
        return f"<Identity {self.public[:12]}>"


def create_identity(path: Path) -> Identity:
    """Make a new key file that only its owner can read; an existing one is never overwritten."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_key(path, pem)
    return Identity(key)


def write_key(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; an existing one is never overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise IdentityError(f"{path} exists already; a key is never overwritten") from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def load_identity(path: Path) -> Identity:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise IdentityError(f"there is no key file {path}") from None
    except (ValueError, TypeError) as error:
        raise IdentityError(f"{path} is not a private key in PEM form") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(f"{path} holds a key of another kind; Ridgeway signs with Ed25519")
    return Identity(key)


def public_key(words: str) -> str:
    """The public key that a person gave: 64 hexadecimal digits, or the path of a file that holds them."""
    text = words.strip()
    if not DIGITS.fullmatch(text):
        with contextlib.suppress(OSError, ValueError):
            text = Path(text).read_text(encoding="utf-8", errors="replace").strip()
    if not DIGITS.fullmatch(text):
        raise IdentityError(f"{words!r} is not a public key; give its 64 hexadecimal digits or a file that holds them")
    return text.lower()


def is_signed_by(public: str, signature: str, content: bytes) -> bool:
    """Whether the signature holds. Key and signature have one spelling each, and weak keys sign nothing."""
    if not SMALL_DIGITS.fullmatch(public + signature) or public in WEAK_KEYS:
        return False
    return _verifies(public, signature, content)


@lru_cache(maxsize=4096)
def _verifies(public: str, signature: str, content: bytes) -> bool:
    """Pure, so that where many holders run in one process each signature is verified once for all of them."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True
