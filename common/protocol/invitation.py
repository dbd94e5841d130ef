"""The signed files that operator and holder exchange: an invitation, a holder's card, and that a
holder leaves.

They hold public things only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field

from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.files import canonical_json, sha256, write_whole
from ridgeway.common.base.identity import HandOver, Identity, is_signed_by
from ridgeway.common.base.records import (
    Address,
    Digest,
    DomainName,
    HolderName,
    PublicKey,
    Record,
)
from ridgeway.common.protocol.cohort import MAX_HOLDERS, Terms

INVITE = "invite.json"
AUTHORITY = "ca.crt"
NodeLine = Annotated[
    str, Field(max_length=400, pattern=r"^ecdsa-sha2-nistp384 [A-Za-z0-9+/=]+$")
]


class RosterMember(Record):
    """A holder as the roster names it."""

    name: HolderName
    domain: DomainName
    key: PublicKey


def in_order(members: Iterable[RosterMember]) -> tuple[RosterMember, ...]:
    """The one order in which members are written."""
    return tuple(
        sorted(members, key=lambda member: (member.domain, member.name, member.key))
    )


class Roster(Record):
    """Everybody whom rounds count on, as the coordinator names them. Its notice holds the hash of
    this file.

    handovers: by which the members have the keys that they have.
    """

    format: Literal["ridgeway.roster"] = "ridgeway.roster"
    version: Literal[1] = 1
    members: Annotated[tuple[RosterMember, ...], Field(max_length=MAX_HOLDERS)]
    handovers: Annotated[tuple[HandOver, ...], Field(max_length=2 * MAX_HOLDERS)] = ()


class SignedJson(Record):
    """A file that its maker signs. what: how to call it in a sentence. signer: the field that holds
    the key which must have signed it.
    """

    what: ClassVar[str]
    signer: ClassVar[str]


class Invite(SignedJson):
    """What a holder must know to join, and what it pins: from here on nothing else is believed.

    bundle:    the SHA-256 of the app bundle that rounds run on the holder's machine.
    authority: the SHA-256 of the file ca.crt that comes with it, by which the coordinator's machine
               is known.
    handovers: by which the coordinator has the key that it has.
    """

    what: ClassVar[str] = "an invitation"
    signer: ClassVar[str] = "coordinator"
    format: Literal["ridgeway.invite"] = "ridgeway.invite"
    version: Literal[1] = 1
    coordinator: PublicKey
    address: Address
    terms: Terms
    bundle: Digest
    authority: Digest
    handovers: tuple[HandOver, ...] = ()


class Card(SignedJson):
    """A holder introduces itself: its domain, the key it signs with, and the key its SuperNode logs
    in with.

    handovers: that lead to its key from the first that it had.
    """

    what: ClassVar[str] = "a holder's card"
    signer: ClassVar[str] = "key"
    format: Literal["ridgeway.holder"] = "ridgeway.holder"
    version: Literal[1] = 1
    domain: DomainName
    key: PublicKey
    node: NodeLine
    handovers: tuple[HandOver, ...] = ()


class Leaving(SignedJson):
    """A holder leaves the federation of a coordinator.

    node: the key its SuperNode has logged in with. Whoever comes back has another one, so this
          counts once.
    """

    what: ClassVar[str] = "a holder's word that it leaves"
    signer: ClassVar[str] = "key"
    format: Literal["ridgeway.leaving"] = "ridgeway.leaving"
    version: Literal[1] = 1
    coordinator: PublicKey
    key: PublicKey
    node: NodeLine


Signed = TypeVar("Signed", bound=SignedJson)


def write_signed_json(signed: SignedJson, identity: Identity, path: Path) -> None:
    write_whole(path, signed_json(signed, identity))


def signed_json(signed: SignedJson, identity: Identity) -> bytes:
    body = signed.model_dump(mode="json")
    return canonical_json({**body, "signature": identity.sign(canonical_json(body))})


def read_signed_json(path: Path, kind: type[Signed]) -> Signed:
    """Read and verify; the signature must be by the key that the file itself names."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FormatError(
            f"there is no file {path}; {kind.what} was expected there"
        ) from None
    return check_signed_json(content, kind, str(path))


def check_signed_json(content: bytes, kind: type[Signed], source: str) -> Signed:
    """What these bytes hold, if the key that they name has signed it; `source` says where they are
    from.
    """
    try:
        body: dict[str, Any] = json.loads(content)
        signature = str(body.pop("signature"))
        signed = kind.model_validate_json(json.dumps(body))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise FormatError(
            f"{source} is not {kind.what}, is damaged, or is of another version; ask"
            " for it again"
        ) from None
    signer = getattr(signed, kind.signer)
    if not is_signed_by(signer, signature, canonical_json(body)):
        raise FormatError(f"{source} was changed after it was signed; ask for it again")
    return signed


def read_invitation(folder: Path) -> Invite:
    """The invitation that an operator handed over, whole: its certificate authority is the one that
    it names.
    """
    signed = read_signed_json(folder / INVITE, Invite)
    path = folder / AUTHORITY
    if not path.exists() or sha256(path.read_bytes()) != signed.authority:
        raise FormatError(
            f"{path} is not the one that the invitation was signed with; ask the"
            " operator for both again"
        )
    return signed


# The code by which holders compare the rosters that they were shown, by telephone for example.
#
# Whoever makes rosters may try many until two have one code, and show one to each of two holders.
# 120 bits put that at 2⁶⁰ tries, and each try is a scrypt with 32 MiB of memory.


ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32: no I, L, O and U, which are heard or read as others."""
CODE_BYTES = 15
LETTERS_PER_GROUP = 4
SCRYPT_ROUNDS = 1 << 15
SCRYPT_BLOCK = 8
"""128 times both is the memory of one try in bytes."""
_HEARD_AS = str.maketrans("OIL", "011", " -")


def roster_code(members: Iterable[RosterMember]) -> str:
    """24 letters in groups of four. Law: it depends on names, domains and keys, in no order."""
    content = canonical_json(
        [[member.name, member.domain, member.key] for member in in_order(members)]
    )
    digest = hashlib.scrypt(
        content,
        salt=b"ridgeway roster 1",
        n=SCRYPT_ROUNDS,
        r=SCRYPT_BLOCK,
        p=1,
        maxmem=256 * SCRYPT_ROUNDS * SCRYPT_BLOCK,
        dklen=CODE_BYTES,
    )
    number = int.from_bytes(digest)
    letters = "".join(
        ALPHABET[number >> shift & 31] for shift in range(8 * CODE_BYTES - 5, -1, -5)
    )
    return "-".join(
        letters[start : start + LETTERS_PER_GROUP]
        for start in range(0, len(letters), LETTERS_PER_GROUP)
    )


def is_same_code(one: str, other: str) -> bool:
    """Whether two codes are the same, as people write them."""
    return _plain(one) == _plain(other)


def _plain(code: str) -> str:
    return code.upper().translate(_HEARD_AS)


# The notice: what a coordinator tells every holder between rounds, signed with the key that holders
# have pinned.
#
# The gate hands it to whoever asks, and it stands in the invitation's folder: it holds public
# things only.


NOTICE = "notice.json"
NOTICE_PATH = "/v1/ridgeway/notice"
BUNDLE_PATH = "/v1/ridgeway/bundle/"
ROSTER_PATH = "/v1/ridgeway/roster"
LEAVE_PATH = "/v1/ridgeway/leave"
ANNOUNCED_ROSTER = "announced-roster.json"
MAX_NOTICE_BYTES = 1 << 20
MAX_ROSTER_BYTES = 16 << 20
MAX_LEAVE_BYTES = 4096


class AnnouncedBundle(Record):
    """A bundle that rounds may run. changes: what the operator says of it."""

    model_config = ConfigDict(extra="ignore")
    sha256: Digest
    changes: Annotated[
        tuple[Annotated[str, Field(max_length=300, pattern=r"^\P{C}*$")], ...],
        Field(max_length=50),
    ] = ()


class Notice(SignedJson):
    """What holds now; of two notices the one that was issued later.

    issued:    in milliseconds since 1970.
    authority: the certificate by which holders know the coordinator's gate, in PEM form.
    bundles:   the newest first; the gate hands each out under its hash.
    roster:    the SHA-256 of the list of members, which the gate hands out.
    handovers: that lead to the coordinator's key from the first that it had.
    """

    # a later version may tell more, under the same signature
    model_config = ConfigDict(extra="ignore")
    what: ClassVar[str] = "a coordinator's notice"
    signer: ClassVar[str] = "coordinator"
    format: Literal["ridgeway.notice"] = "ridgeway.notice"
    version: Literal[1] = 1
    coordinator: PublicKey
    issued: Annotated[int, Field(ge=0, le=1 << 53)]
    authority: Annotated[str, Field(max_length=20_000)]
    bundles: Annotated[tuple[AnnouncedBundle, ...], Field(max_length=8)] = ()
    roster: Digest | None = None
    handovers: Annotated[tuple[HandOver, ...], Field(max_length=1000)] = ()
