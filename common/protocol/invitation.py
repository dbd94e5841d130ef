"""The two papers that operator and holder hand each other: an invitation, and a holder's card.

Both are signed by their maker and hold public things only. Knows files and keys; knows nothing of Flower.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.files import canonical_json, write_whole
from ridgeway.common.base.identity import Identity, is_signed_by
from ridgeway.common.base.schema import Address, Digest, DomainName, HolderName, PublicKey, Record
from ridgeway.common.protocol.cohort import Terms

INVITE, AUTHORITY = "invite.json", "ca.crt"


class Place(Record):
    """A holder as the roster names it."""

    name: HolderName
    domain: DomainName
    key: PublicKey


class Invite(Record):
    """What a holder must know to join, and what it pins: from here on nothing else is believed.

    bundle: the SHA-256 of the app bundle that rounds run on the holder's machine.
    """

    format: Literal["ridgeway.invite"] = "ridgeway.invite"
    version: Literal[1] = 1
    coordinator: PublicKey
    address: Address
    terms: Terms
    bundle: Digest
    roster: tuple[Place, ...] = ()


class Card(Record):
    """A holder introduces itself: its domain, the key it signs with, and the key its SuperNode logs in with."""

    format: Literal["ridgeway.holder"] = "ridgeway.holder"
    version: Literal[1] = 1
    domain: DomainName
    key: PublicKey
    node: str = Field(max_length=400, pattern=r"^ecdsa-sha2-nistp384 [A-Za-z0-9+/=]+$")


Paper = TypeVar("Paper", Invite, Card)


def write_paper(paper: Invite | Card, identity: Identity, path: Path) -> None:
    body = paper.model_dump(mode="json")
    write_whole(path, canonical_json({**body, "signature": identity.sign(canonical_json(body))}))


def read_paper(path: Path, kind: type[Paper]) -> Paper:
    """Read and verify; the signature must be by the key that the paper itself names."""
    what = "an invitation" if kind is Invite else "a holder's card"
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        signature = str(content.pop("signature"))
        paper = kind.model_validate_json(json.dumps(content))
    except FileNotFoundError:
        raise FormatError(f"there is no file {path}; {what} was expected there") from None
    except (ValueError, ValidationError, KeyError, AttributeError, TypeError, RecursionError):
        raise FormatError(f"{path} is not {what}, is damaged, or is of another version; ask for it again") from None
    signer = paper.coordinator if isinstance(paper, Invite) else paper.key
    if not is_signed_by(signer, signature, canonical_json(content)):
        raise FormatError(f"{path} was changed after it was signed; ask for it again")
    return paper
