"""The signed envelope that messages travel in, and the blobs of bulk numbers beside them.

A packet is a JSON header, a signature over it, and blobs whose hashes the header holds. Requests
are signed by the coordinator, replies by the holder, each reply naming the very request it answers,
so that none can be forged, repeated or moved to another round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ridgeway.common.base.errors import Refused, RidgewayError
from ridgeway.common.base.identity import HandOver, Identity, is_signed_by
from ridgeway.common.base.records import Digest, PublicKey, Record
from ridgeway.common.protocol.messages import KINDS, MAX_BLOBS, Message

_VERSION: Literal[1] = 1
MAX_HEADER_BYTES = 8 << 20
MAX_BLOB_BYTES = 1 << 31
MAX_HANDOVERS = 1000

Blob = bytes | memoryview
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Content = TypeVar("Content", bound=Message, covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Packet:
    """What travels. Nothing in it is believed before `open_packet` has returned."""

    header: bytes
    signature: str
    blobs: tuple[Blob, ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.header).hexdigest()

    def __repr__(self) -> str:
        return f"<Packet {self.digest[:12]} {len(self.blobs)} blobs>"


class Bulk(Record):
    """A blob's size and hash."""

    size: int = Field(ge=0, le=MAX_BLOB_BYTES)
    sha256: Digest


class Header(Record):
    """What is signed.

    round:    the round's nonce, chosen by the coordinator.
    number:   in requests, the round's number in the coordinator's ledger, to speak about it by; 0
              outside of rounds.
    reply_to: the digest of the request that a reply answers; None in requests.
    handovers: that lead to the sender's key, for who has pinned an earlier one.
    body:     the message; of a header that has arrived it is read later, when the signature was
              verified.
    """

    version: Literal[1]
    kind: Annotated[str, Field(max_length=40)]
    round: Nonce
    number: int = Field(default=0, ge=0, le=1 << 53)
    reply_to: Digest | None
    sender: PublicKey
    handovers: tuple[HandOver, ...] = Field(default=(), max_length=MAX_HANDOVERS)
    body: Any
    blobs: tuple[Bulk, ...] = Field(max_length=MAX_BLOBS)


class _Unread(BaseModel):
    """A JSON object, whatever it holds."""


class _ArrivedHeader(Header):
    body: _Unread


class _Body(BaseModel, Generic[Content]):
    """What a header says, of one kind."""

    model_config = ConfigDict(strict=True)
    body: Content


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Opened(Generic[Content]):
    """A message whose signature and hashes were verified."""

    message: Content
    blobs: tuple[Blob, ...]
    sender: str
    round: str
    reply_to: str | None
    digest: str
    number: int = 0
    handovers: tuple[HandOver, ...] = ()


def seal_packet(
    message: Message,
    identity: Identity,
    *,
    round: str,
    number: int = 0,
    reply_to: str | None = None,
    blobs: Sequence[Blob] = (),
) -> Packet:
    """Sign a message. The blobs are not copied."""
    header = Header(
        version=_VERSION,
        kind=message.kind,
        round=round,
        number=number,
        reply_to=reply_to,
        sender=identity.public,
        handovers=identity.handovers,
        body=message,
        blobs=tuple(
            Bulk(size=memoryview(blob).nbytes, sha256=_digest(blob)) for blob in blobs
        ),
    )
    encoded = header.model_dump_json().encode()
    if len(encoded) > MAX_HEADER_BYTES:
        raise Refused(
            "too_large",
            f"a message of {len(encoded):,} bytes beside its bulk is larger than"
            " allowed",
        )
    return Packet(encoded, identity.sign(encoded), tuple(blobs))


def open_packet(packet: Packet) -> Opened[Message]:
    """Verify and decode a packet; anything that is not a whole, signed message of this version
    raises Refused.
    """
    if len(packet.header) > MAX_HEADER_BYTES or len(packet.blobs) > MAX_BLOBS:
        raise Refused(
            "too_large",
            "a message is larger than any that this version of Ridgeway sends",
        )
    header = _header(packet.header)
    if not is_signed_by(header.sender, packet.signature, packet.header):
        raise Refused(
            "bad_signature",
            "a message was changed on its way, or was not signed by its sender",
        )
    _check_blobs(packet, header)
    message = _message(packet.header)
    origin = header.sender, header.round, header.reply_to
    return Opened(
        message, packet.blobs, *origin, packet.digest, header.number, header.handovers
    )


class _Version(Record):
    """The one field that every version has."""

    model_config = ConfigDict(extra="ignore", strict=True)
    version: int


def _header(content: bytes) -> Header:
    try:
        return _ArrivedHeader.model_validate_json(content)
    except ValidationError:
        _check_version(content)
        raise Refused(
            "malformed", "a message does not have the form of Ridgeway's messages"
        ) from None


def _check_version(header: bytes) -> None:
    try:
        version = _Version.model_validate_json(header).version
    except ValidationError:
        return
    if version != _VERSION:
        raise Refused(
            "version",
            f"a message is of version {version}, and this Ridgeway speaks version"
            f" {_VERSION}",
        )


def _check_blobs(packet: Packet, header: Header) -> None:
    sizes = [memoryview(blob).nbytes for blob in packet.blobs]
    if sizes != [bulk.size for bulk in header.blobs]:
        raise Refused("malformed", "a message's bulk is not of the size it says")
    if any(
        _digest(blob) != bulk.sha256
        for blob, bulk in zip(packet.blobs, header.blobs, strict=True)
    ):
        raise Refused("malformed", "a message's bulk was changed on its way")


def _digest(blob: Blob) -> str:
    return hashlib.sha256(blob).hexdigest()


def _message(content: bytes) -> Message:
    header = _header(content)
    kind = KINDS.get(header.kind)
    if kind is None:
        raise Refused(
            "malformed",
            "a message is of a kind that this version of Ridgeway does not know",
        )
    if len(header.blobs) != kind.blob_count:
        raise Refused(
            "malformed",
            f"a message of kind {header.kind} does not have {len(header.blobs)} blobs",
        )
    try:
        return _Body[kind].model_validate_json(content).body  # type: ignore[valid-type]
    except (ValidationError, RidgewayError):
        raise Refused(
            "malformed",
            f"a message of kind {header.kind} has fields that are missing or wrong",
        ) from None


# Bulk

LARGEST_WEIGHT = 1e100
"""What is computed of smaller ones is finite, whatever the text; no router has weights near it."""


def vector_blob(vector: NDArray[np.int64]) -> Blob:
    return _bytes_of(vector, "<i8")


def vector_of(blob: Blob, size: int) -> NDArray[np.int64]:
    """The inverse of `vector_blob`; another size is refused before anything is made of it."""
    if memoryview(blob).nbytes != 8 * size:
        raise Refused(
            "shape_mismatch",
            f"there are not {size:,} numbers; another encoder was used, or other code",
        )
    return np.frombuffer(blob, dtype="<i8").astype(np.int64, copy=False)


def weights_blob(weights: NDArray[np.float64]) -> Blob:
    return _bytes_of(weights, "<f8")


def weights_of(blob: Blob, features: int, domains: int) -> NDArray[np.float64]:
    """The inverse of `weights_blob`; refused unless of the right size and finite."""
    if memoryview(blob).nbytes != 8 * features * domains:
        raise Refused(
            "shape_mismatch",
            f"weights are not those of {features} features and {domains} domains",
        )
    weights = np.frombuffer(blob, dtype="<f8").reshape(features, domains)
    if not (np.abs(weights) < LARGEST_WEIGHT).all():
        raise Refused(
            "malformed",
            "weights hold a number that is not finite, or too large to be squared",
        )
    return weights


def _bytes_of(array: NDArray[Any], kind: str) -> memoryview:
    return np.ascontiguousarray(array, dtype=kind).data.cast("B")
