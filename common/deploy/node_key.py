"""The key with which a SuperNode proves who it is: ECDSA over P-384, in the form that OpenSSH and
Flower read.

A private key is never printed.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ridgeway.common.base.errors import IdentityError
from ridgeway.common.base.identity import write_key

_KIND = "ecdsa-sha2-nistp384"
MAX_LINE_CHARACTERS = 1000


def create_node_key(path: Path) -> str:
    """Make a new key file that only its owner can read, and return its public line; never
    overwrites.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    write_key(path, content)
    return _line(key.public_key())


def public_line(path: Path) -> str:
    """The public half of a key file, as the operator registers it."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise IdentityError(f"there is no key file {path}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError(
            f"{path} is not a private key in OpenSSH form; make one with the key"
            " command"
        ) from error
    return _line(key.public_key(), str(path))


def check_public_line(text: str) -> str:
    """The public line that a person gave, in its one spelling: without comment, options or further
    lines.
    """
    words = text.split()
    if (
        len(text) > MAX_LINE_CHARACTERS
        or len(text.strip().splitlines()) != 1
        or len(words) < 2
        or words[0] != _KIND
    ):
        raise IdentityError(
            "this is not the public line of a SuperNode's key; it has one line and"
            f" begins with {_KIND}"
        )
    try:
        key = serialization.load_ssh_public_key(" ".join(words[:2]).encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise IdentityError(
            "the public line is damaged; copy it again from the holder's machine"
        ) from error
    return _line(key)


def _line(key: object, source: str = "the public line") -> str:
    """A public key as a line; raises unless it is of a SuperNode's kind."""
    if not (
        isinstance(key, ec.EllipticCurvePublicKey)
        and isinstance(key.curve, ec.SECP384R1)
    ):
        raise IdentityError(
            f"{source} holds a key of another kind; a SuperNode's key is {_KIND}"
        )
    return key.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()
