"""Ed25519 identities: a key file, signatures, verification, and how one key takes over from
another.

A private key is never printed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from ridgeway.common.base.errors import IdentityError, Refused
from ridgeway.common.base.files import canonical_json, sha256

_DIGITS = re.compile("[0-9a-fA-F]{64}")
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
MAX_ISSUED = 1 << 53


class Identity:
    """Someone who signs. `public` is the key others pin, as 64 hexadecimal digits.

    handovers: those that lead to this key from the first that its owner had.
    """

    def __init__(
        self, key: Ed25519PrivateKey, handovers: Iterable[HandOver] = ()
    ) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()
        self.handovers = tuple(handovers)

    @classmethod
    def generate(cls) -> Identity:
        """Someone new, whose key is in no file."""
        return cls(Ed25519PrivateKey.generate())

    def with_handovers(self, handovers: Iterable[HandOver]) -> Identity:
        return Identity(self._key, handovers)

    def sign(self, content: bytes) -> str:
        return self._key.sign(content).hex()

    def derived(self, purpose: bytes) -> bytes:
        """A key of 32 bytes for one purpose, which nobody without this identity can compute."""
        return HKDF(SHA256(), 32, salt=None, info=b"ridgeway " + purpose).derive(
            self._key.private_bytes_raw()
        )

    def __repr__(self) -> str:
        return f"<Identity {self.public[:12]}>"


def create_identity(path: Path) -> Identity:
    """Make a new key file that only its owner can read; an existing one is never overwritten."""
    key = Ed25519PrivateKey.generate()
    write_key(path, private_pem(key))
    return Identity(key)


def private_pem(
    key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey,
    form: PrivateFormat = PrivateFormat.PKCS8,
) -> bytes:
    """A private key as its file holds it."""
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def write_key(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; an existing one is never overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise IdentityError(
            f"{path} already exists; keys are never overwritten"
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def load_identity(path: Path) -> Identity:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise IdentityError(f"there is no key file {path}") from None
    except (ValueError, TypeError) as error:
        raise IdentityError(f"{path} is not a private key in PEM format") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(
            f"{path} contains an unsupported key type; Ridgeway signs with Ed25519"
        )
    return Identity(key)


def public_key(words: str) -> str:
    """The public key that a person gave: 64 hexadecimal digits, or the path of a file that holds
    them.
    """
    text = words.strip()
    if not _DIGITS.fullmatch(text):
        with contextlib.suppress(OSError, ValueError):
            text = Path(text).read_text(encoding="utf-8", errors="replace").strip()
    if not _DIGITS.fullmatch(text):
        raise IdentityError(
            f"{words!r} is not a public key; give its 64 hexadecimal digits, or a "
            "file with them"
        )
    return text.lower()


def is_signed_by(public: str, signature: str, content: bytes) -> bool:
    """Whether the signature holds. Key and signature have one spelling each, and weak keys sign
    nothing.
    """
    if not SMALL_DIGITS.fullmatch(public + signature) or public in WEAK_KEYS:
        return False
    return _verifies(public, signature, content)


def _verifies(public: str, signature: str, content: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(
            bytes.fromhex(signature), content
        )
    except (InvalidSignature, ValueError):
        return False
    return True


# One key takes over from another


@dataclass(frozen=True, slots=True)
class HandOver:
    """Its owner's word that one key takes over from another, signed with both.

    issued: in milliseconds since 1970. signatures: with the key before, and with the one after.
    """

    before: str
    after: str
    issued: int
    signatures: tuple[str, str]

    def __post_init__(self) -> None:
        words = (self.before, self.after, *self.signatures)
        known = all(
            isinstance(word, str) and SMALL_DIGITS.fullmatch(word) for word in words
        )
        if (
            not known
            or [*map(len, words)] != [64, 64, 128, 128]
            or not 0 <= self.issued <= MAX_ISSUED
        ):
            raise ValueError(
                "a key hand-over needs two keys, a time and two signatures"
            )

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> HandOver:
        """As JSON keeps it; raises ValueError, KeyError or TypeError for anything else."""
        return cls(**{**facts, "signatures": tuple(facts["signatures"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def id(self) -> str:
        return sha256(canonical_json(self.to_json()))

    @property
    def holds(self) -> bool:
        """Whether both keys have signed it."""
        words = _handover_words(self.before, self.after, self.issued)
        keys = (self.before, self.after)
        signed = all(
            is_signed_by(*pair, words)
            for pair in zip(keys, self.signatures, strict=True)
        )
        return self.before != self.after and signed


def _handover_words(before: str, after: str, issued: int) -> bytes:
    return canonical_json(
        {
            "ridgeway": "key hand-over 1",
            "before": before,
            "after": after,
            "issued": issued,
        }
    )


def hand_over(before: Identity, after: Identity, issued: int) -> HandOver:
    words = _handover_words(before.public, after.public, issued)
    return HandOver(
        before.public, after.public, issued, (before.sign(words), after.sign(words))
    )


@dataclass(frozen=True)
class HandOvers:
    """The hand-overs that somebody knows. The first one met of a key holds; another one of the same
    key is a fork.

    Law: a key leads to the same later key whatever links are merged, until the owner of that one
    hands it over. Law: keys that a hand-over connects have one owner, whoever sends it; a fork's
    keys too.
    """

    links: tuple[HandOver, ...] = ()
    forks: tuple[HandOver, ...] = ()

    @cached_property
    def _next(self) -> dict[str, str]:
        return {link.before: link.after for link in self.links}

    @cached_property
    def _previous(self) -> dict[str, str]:
        return {link.after: link.before for link in (*self.links, *self.forks)}

    def merged_with(
        self, links: Iterable[HandOver], *, own_record: bool = False
    ) -> HandOvers:
        """These, and what is new in the links; raises Refused for one that its keys have not
        signed.

        own_record: whether the links are from a record of one's own, where they were verified
                    before they came in.
        """
        known = HandOvers(self.links, self.forks)
        new = list[HandOver]()
        forks = list[HandOver]()
        seen = {*self.links, *self.forks}
        forked = {fork.before for fork in self.forks}
        for link in links:
            if link in seen:
                continue
            if not own_record and not link.holds:
                raise Refused(
                    "bad_hand_over",
                    "a key hand-over is not signed with the old key",
                )
            if (
                link.after in known._previous
                or known.owner(link.before) == link.after
                or link.before in forked
            ):
                continue  # a key has one past, and one fork of it is proof enough
            known._previous[link.after] = link.before
            if link.before in known._next:
                forks.append(link)
                forked.add(link.before)
            else:
                new.append(link)
                known._next[link.before] = link.after
        return HandOvers((*self.links, *new), (*self.forks, *forks))

    def owner(self, key: str) -> str:
        """The first key of whoever has this one: what stands for the owner, under whichever key it
        signs.
        """
        while (before := self._previous.get(key)) is not None:
            key = before
        return key

    def newest(self, key: str) -> str:
        """The key that this one has led to."""
        while (after := self._next.get(key)) is not None:
            key = after
        return key

    def leading_to(self, key: str) -> tuple[HandOver, ...]:
        """The hand-overs from its owner's first key to this one, in their order."""
        made_by = {link.after: link for link in self.links}
        path = list[HandOver]()
        while (link := made_by.get(key)) is not None:
            path.append(link)
            key = link.before
        return tuple(reversed(path))

    def keys(self, key: str) -> tuple[str, ...]:
        """Every key that the owner of this one has had, the newest last; those of a fork are not
        its own.
        """
        path = self.leading_to(self.newest(key))
        return (path[0].before, *(link.after for link in path)) if path else (key,)


def next_key(path: Path) -> Path:
    """Where the key that takes over from that of a file lies until its hand-over was noted."""
    return path.with_name(f"{path.name}.next")


def make_next_key(path: Path) -> Identity:
    # of a renewal that was cut off before anybody noted it
    next_key(path).unlink(missing_ok=True)
    return create_identity(next_key(path))


def owned_identity(path: Path, handovers: HandOvers) -> Identity:
    """The identity of a key file, with the hand-overs that lead to it.

    handovers: all that their owner has noted. A renewal that was cut off after that is brought to
               its end.
    """
    identity = load_identity(path)
    newest = handovers.newest(identity.public)
    if newest != identity.public:
        identity = load_identity(next_key(path))
        if identity.public != newest:
            raise IdentityError(
                f"{path} was replaced by {newest[:12]}…, and that key is missing; "
                "restore a backup"
            )
        next_key(path).replace(path)
    return identity.with_handovers(handovers.leading_to(newest))


# The key with which a SuperNode proves who it is: ECDSA over P-384, in the form that OpenSSH and
# Flower read.
#
# A private key is never printed.


_KIND = "ecdsa-sha2-nistp384"
MAX_LINE_CHARACTERS = 1000


def create_node_key(path: Path) -> str:
    """Make a new key file that only its owner can read, and return its public line; never
    overwrites.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    write_key(path, private_pem(key, PrivateFormat.OpenSSH))
    return _line(key.public_key())


def public_line(path: Path) -> str:
    """The public half of a key file, as the operator registers it."""
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
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
        key = load_ssh_public_key(" ".join(words[:2]).encode())
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
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
