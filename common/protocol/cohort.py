"""Cohort: who takes part in a round and under which terms; and the signed files by which holders
come to take part, and leave. Everything in it is public.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field, model_validator

from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.files import canonical_json, sha256, write_whole
from ridgeway.common.base.identity import HandOver, Identity, is_signed_by
from ridgeway.common.base.records import (
    Address,
    Digest,
    DomainName,
    EncoderName,
    HolderName,
    Mode,
    PublicKey,
    Record,
    SamplingNumbers,
    record_json,
)
from ridgeway.common.base.settings import Weighting
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.statistics import (
    Integers,
    Statistics,
    from_vector,
    of_columns,
    vector_size,
)

# Cohort: who takes part in a round and under which terms. Everything in it is public.


MAX_HOLDERS = 10_000


class Terms(Record):
    """What every holder must agree to before it sums or sends anything.

    mode:    private, masked or clear: what leaves a holder, and what everybody may learn from it.
    mass:    the sample mass of every domain under `equal` weighting; 0 under `tokens`.
    privacy: in private rounds, how documents are bounded and what noise is added; else None.
    """

    mode: Mode
    encoder: Digest
    encoder_name: EncoderName
    features: int = Field(ge=2, le=1 << 16)
    sampling: SamplingNumbers
    weighting: Weighting
    mass: int = Field(ge=0, le=1 << 37)
    privacy: Privacy | None = None

    @cached_property
    def id(self) -> str:
        """Sums made under other terms than these cannot be added to them."""
        return sha256(record_json(self.model_dump(mode="json")))

    @model_validator(mode="after")
    def _belong_together(self) -> Terms:
        if (self.mass > 0) != (self.weighting == "equal"):
            raise ValueError("a mass belongs to equal weighting, and to nothing else")
        if (self.mode == "private") != (self.privacy is not None):
            raise ValueError("noise belongs to private rounds, and to no others")
        if self.privacy and self.mass:
            raise ValueError(
                "bounded documents weigh the same, so there is no mass to divide"
            )
        return self

    @property
    def uses_masks(self) -> bool:
        """Whether sums are opened by the members of a session: exact ones, and noise drawn in
        shares.
        """
        return self.mode == "masked" or (
            self.privacy is not None and self.privacy.mode == "full"
        )

    # What is added up

    def vector_size(self, domains: int) -> int:
        return (
            self.features * domains
            if self._sends_columns
            else vector_size(self.features, domains)
        )

    def vector_of(self, statistics: Statistics) -> Integers:
        return (
            statistics.cross.ravel() if self._sends_columns else statistics.as_vector()
        )

    def statistics_of(self, vector: Integers, domains: int) -> Statistics:
        """The inverse of `vector_of`."""
        if self._sends_columns:
            return of_columns(vector.reshape(self.features, domains))
        return from_vector(vector, self.features, domains)

    @property
    def _sends_columns(self) -> bool:
        return self.privacy is not None and self.privacy.mode == "columns"


class Member(Record):
    """A holder's place in a cohort. key: its Ed25519 public key."""

    key: PublicKey
    domain: DomainName


class Cohort(Record):
    """The members of one collection, in the order of their domains and keys."""

    terms: Terms
    members: tuple[Member, ...] = Field(min_length=1, max_length=MAX_HOLDERS)

    @model_validator(mode="after")
    def _one_order(self) -> Cohort:
        keys = [member.key for member in self.members]
        if len(set(keys)) != len(keys):
            raise ValueError("duplicate holder in the cohort")
        if self.members != _sorted_members(self.members):
            raise ValueError("the members are not in their order")
        return self

    @cached_property
    def domains(self) -> tuple[str, ...]:
        return tuple(sorted({member.domain for member in self.members}))

    @cached_property
    def shares(self) -> dict[str, int]:
        """Each holder's share of its domain's mass, by key: equal parts; 0 where nothing is
        weighted.

        Law: the shares of a domain add up to the mass. What is left over goes to the first keys.
        """
        mass = self.terms.mass
        shares: dict[str, int] = {}
        for domain in self.domains:
            keys = sorted(
                member.key for member in self.members if member.domain == domain
            )
            part, left = divmod(mass, len(keys))
            shares |= {key: part + (index < left) for index, key in enumerate(keys)}
        return shares

    @cached_property
    def id(self) -> str:
        return sha256(record_json(self.model_dump(mode="json")))

    def member(self, key: str) -> Member | None:
        return next((member for member in self.members if member.key == key), None)


def form_cohort(terms: Terms, domains: Mapping[str, str]) -> Cohort:
    """The cohort of these holders. domains: each holder's domain, by its key."""
    members = (Member(key=key, domain=domain) for key, domain in domains.items())
    return Cohort(terms=terms, members=_sorted_members(members))


def _sorted_members(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda member: (member.domain, member.key)))


# The signed files that operator and holder exchange: an invitation, a holder's card, and that a
# holder leaves.
#
# They hold public things only.


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
