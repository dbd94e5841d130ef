"""Every request and reply of a round as a typed record, and the signed envelope that they travel in.

A packet is a JSON header, a signature over it, and blobs of bulk numbers whose hashes the header holds. Requests are
signed by the coordinator, replies by the holder, each reply naming the very request it answers, so that none can be
forged, repeated or moved to another round. Knows nothing of Flower, files or text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, ValidationError

from common.cohort import MOST_HOLDERS, Cohort, Digest, DomainName, PublicKey, Record, Terms
from common.errors import Refused, RidgewayError
from common.identity import Identity, is_signed_by
from common.masking.agreement import Advert, Agreement, Signature
from common.settings import Selector, SelectorName
from common.statistics import Statistics, triangle_size, unpacked

VERSION: Literal[1] = 1
MOST_HEADER = 8 << 20
MOST_BLOBS = 64
MOST_BLOB = 1 << 31
MOST_COUNTS = 1 << 26

Blob = bytes | memoryview
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Counts = tuple[Count, ...]
Words = Annotated[str, Field(max_length=500, pattern=r"^\P{C}*$")]
"""A sentence to be shown: nothing that could steer a terminal."""
Code = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
Places = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_HOLDERS)], ...], Field(max_length=MOST_HOLDERS)]

Lot = Literal["statistics", "scores", "reliability"]
LOTS: tuple[Lot, ...] = ("statistics", "scores", "reliability")
"""What a masked round adds up: three vectors, each under masks of its own."""


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


class Message(Record):
    """A request or a reply; `blobs` holds its bulk, outside the JSON."""

    kind: ClassVar[str]
    blob_count: ClassVar[range] = range(1)


class Candidate(Record):
    """A way to make a router of the total that holders are asked to try.

    ridge: which of the request's weights it uses.
    """

    ridge: int = Field(ge=0, lt=MOST_BLOBS)
    normalise_columns: bool
    selector: SelectorName
    k: int = Field(ge=1, le=1 << 20)

    @property
    def rule(self) -> Selector:
        return Selector(self.selector, self.k)


# Requests


class Hello(Message):
    """Who is there, and which release do you hold?"""

    kind: ClassVar[str] = "hello"


class Announce(Message):
    """A round begins under these terms: what can you offer?"""

    kind: ClassVar[str] = "announce"
    terms: Terms


class Collect(Message):
    """This is the cohort: send your statistics, weighted to your share."""

    kind: ClassVar[str] = "collect"
    cohort: Cohort


class Share(Message):
    """These are the members of a masked session: deal your secrets out to them. Blob: what all know of earlier sums."""

    kind: ClassVar[str] = "share"
    blob_count: ClassVar[range] = range(1, 2)
    cohort: Cohort
    agreement: Agreement


class Hold(Message):
    """Keep these shares. Blob: what every other member that has shared sent to you, in the order of their places."""

    kind: ClassVar[str] = "hold"
    blob_count: ClassVar[range] = range(1, 2)
    session: Digest
    shared: Places


class Seal(Hold):
    """Keep these shares, and send your weighted statistics under masks."""

    kind: ClassVar[str] = "seal"


class ConfirmSum(Message):
    """These members have sent: sign that this is the set you were shown."""

    kind: ClassVar[str] = "confirm_sum"
    session: Digest
    lot: Lot
    sent: Places


class OpenSum(Message):
    """So many have signed this set: reveal your shares of what takes the masks off its sum."""

    kind: ClassVar[str] = "open_sum"
    session: Digest
    lot: Lot
    sent: Places
    confirmations: tuple[tuple[int, Signature], ...] = Field(max_length=MOST_HOLDERS)


class Evaluate(Message):
    """Score these candidates on your held-out documents. Blobs: one F×C float64 matrix of weights for each λ.

    session: where counts are to be sealed.
    """

    kind: ClassVar[str] = "evaluate"
    blob_count: ClassVar[range] = range(1, MOST_BLOBS + 1)
    terms: Terms
    domains: tuple[DomainName, ...] = Field(min_length=2, max_length=1 << 14)
    candidates: tuple[Candidate, ...] = Field(min_length=1, max_length=1024)
    session: Digest | None = None


class Calibrate(Message):
    """How often is the chosen candidate right when it is so sure? Blob: its weights."""

    kind: ClassVar[str] = "calibrate"
    blob_count: ClassVar[range] = range(1, 2)
    terms: Terms
    domains: tuple[DomainName, ...] = Field(min_length=2, max_length=1 << 14)
    candidate: Candidate
    temperatures: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1, max_length=256)
    growths: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(min_length=1, max_length=64)
    session: Digest | None = None


class Deliver(Message):
    """A new release. Blobs: manifest.json, router.safetensors, tokenizer.json."""

    kind: ClassVar[str] = "deliver"
    blob_count: ClassVar[range] = range(3, 4)
    number: int = Field(ge=1)
    release: Digest


# Replies


class Here(Message):
    """Present; `release` is the number of the newest release held, 0 for none."""

    kind: ClassVar[str] = "here"
    release: int = Field(ge=0)


class Offer(Message):
    """Ready to send: `source` stands for the raw sums, so that unchanged ones need not be sent again.

    advert: the keys for a masked round. Blob, in such a round: what this holder knows of sums that were opened before.
    """

    kind: ClassVar[str] = "offer"
    blob_count: ClassVar[range] = range(2)
    domain: DomainName
    source: Digest
    holdout: float = Field(ge=0, lt=1)
    release: int = Field(ge=0)
    advert: Advert | None = None


class ClearStatistics(Message):
    """One holder's weighted sums, in the clear. Blobs: the upper triangle of gram, and cross, as int64."""

    kind: ClassVar[str] = "clear_statistics"
    blob_count: ClassVar[range] = range(2, 3)
    cohort: Digest
    source: Digest


class Scores(Message):
    """For each candidate, to which domain how many of the held-out documents were routed."""

    kind: ClassVar[str] = "scores"
    counts: tuple[Counts, ...] = Field(max_length=1024)


class Reliability(Message):
    """For each temperature and growth, in each bin of confidence: how many beginnings fell there, how many rightly."""

    kind: ClassVar[str] = "reliability"
    counts: Counts = Field(max_length=1 << 22)


class Envelopes(Message):
    """Secrets dealt out. Blob: an envelope for every other member, in the order of their places."""

    kind: ClassVar[str] = "envelopes"
    blob_count: ClassVar[range] = range(1, 2)
    session: Digest


class Held(Message):
    """The shares were opened and are kept."""

    kind: ClassVar[str] = "held"
    session: Digest


class SealedSums(Message):
    """A vector under masks. Blob: 64-bit numbers that are noise until the session opens their sum."""

    kind: ClassVar[str] = "sealed_sums"
    blob_count: ClassVar[range] = range(1, 2)
    session: Digest
    lot: Lot


class Confirmed(Message):
    """A signature over who has shared, who has sent and what was asked."""

    kind: ClassVar[str] = "confirmed"
    session: Digest
    lot: Lot
    signature: Signature


class Revealed(Message):
    """Shares of what takes the masks off a sum. Blob: one for every member that has shared, in the order of places."""

    kind: ClassVar[str] = "revealed"
    blob_count: ClassVar[range] = range(1, 2)
    session: Digest
    lot: Lot


class Receipt(Message):
    """The release was verified and stored."""

    kind: ClassVar[str] = "receipt"
    release: Digest
    number: int = Field(ge=1)


class Refusal(Message):
    """No, with a code and a reason for the operator that holds nothing private."""

    kind: ClassVar[str] = "refusal"
    code: Code
    reason: Words


KINDS: dict[str, type[Message]] = {
    each.kind: each
    for each in (
        *(Hello, Announce, Collect, Share, Hold, Seal, ConfirmSum, OpenSum, Evaluate, Calibrate, Deliver),
        *(Here, Offer, ClearStatistics, Scores, Reliability, Receipt, Refusal),
        *(Envelopes, Held, SealedSums, Confirmed, Revealed),
    )
}


# The envelope


class Bulk(Record):
    """A blob's size and hash."""

    size: int = Field(ge=0, le=MOST_BLOB)
    sha256: Digest


class Header(Record):
    """What is signed.

    round:    the round's nonce, chosen by the coordinator.
    reply_to: the digest of the request that a reply answers; None in requests.
    """

    version: Literal[1]
    kind: Annotated[str, Field(max_length=40)]
    round: Nonce
    reply_to: Digest | None
    sender: PublicKey
    body: dict[str, Any]
    blobs: tuple[Bulk, ...] = Field(max_length=MOST_BLOBS)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Opened:
    """A message whose signature and hashes were verified."""

    message: Message
    blobs: tuple[Blob, ...]
    sender: str
    round: str
    reply_to: str | None
    digest: str


def seal_packet(
    message: Message, identity: Identity, *, round: str, reply_to: str | None = None, blobs: Sequence[Blob] = ()
) -> Packet:
    """Sign a message. The blobs are not copied."""
    header = Header(
        version=VERSION,
        kind=message.kind,
        round=round,
        reply_to=reply_to,
        sender=identity.public,
        body=message.model_dump(mode="json"),
        blobs=tuple(Bulk(size=memoryview(blob).nbytes, sha256=hashlib.sha256(blob).hexdigest()) for blob in blobs),
    )
    encoded = header.model_dump_json().encode()
    if len(encoded) > MOST_HEADER:
        raise Refused("too_large", f"a message of {len(encoded):,} bytes beside its bulk is larger than allowed")
    return Packet(encoded, identity.sign(encoded), tuple(blobs))


def open_packet(packet: Packet) -> Opened:
    """Verify and decode a packet; anything that is not a whole, signed message of this version raises Refused."""
    if len(packet.header) > MOST_HEADER or len(packet.blobs) > MOST_BLOBS:
        raise Refused("too_large", "a message is larger than any that this version of Ridgeway sends")
    _check_version(packet.header)
    try:
        header = Header.model_validate_json(packet.header)
    except ValidationError:
        raise Refused("malformed", "a message does not have the form of Ridgeway's messages") from None
    if not is_signed_by(header.sender, packet.signature, packet.header):
        raise Refused("bad_signature", "a message was changed on its way, or was not signed by its sender")
    _check_blobs(packet, header)
    message = _decode(header)
    return Opened(message, packet.blobs, header.sender, header.round, header.reply_to, packet.digest)


class _Version(Record):
    """The one field that every version has."""

    model_config = ConfigDict(extra="ignore", strict=True)
    version: int


def _check_version(header: bytes) -> None:
    try:
        version = _Version.model_validate_json(header).version
    except ValidationError:
        raise Refused("malformed", "a message does not have the form of Ridgeway's messages") from None
    if version != VERSION:
        raise Refused("version", f"a message is of version {version}, and this Ridgeway speaks version {VERSION}")


def _check_blobs(packet: Packet, header: Header) -> None:
    sizes = [memoryview(blob).nbytes for blob in packet.blobs]
    if sizes != [bulk.size for bulk in header.blobs]:
        raise Refused("malformed", "a message's bulk is not of the size it says")
    if any(
        hashlib.sha256(blob).hexdigest() != bulk.sha256 for blob, bulk in zip(packet.blobs, header.blobs, strict=True)
    ):
        raise Refused("malformed", "a message's bulk was changed on its way")


def _decode(header: Header) -> Message:
    kind = KINDS.get(header.kind)
    if kind is None:
        raise Refused("malformed", "a message is of a kind that this version of Ridgeway does not know")
    if len(header.blobs) not in kind.blob_count:
        raise Refused("malformed", f"a message of kind {header.kind} does not have {len(header.blobs)} blobs")
    try:
        return kind.model_validate_json(json.dumps(header.body))
    except (ValidationError, RidgewayError):
        raise Refused("malformed", f"a message of kind {header.kind} has fields that are missing or wrong") from None


# Bulk


def statistics_blobs(statistics: Statistics) -> tuple[Blob, Blob]:
    """What `ClearStatistics` carries."""
    triangle, cross = statistics.packed()
    return _bytes_of(triangle, "<i8"), _bytes_of(cross, "<i8")


def statistics_of(blobs: Sequence[Blob], features: int, domains: int) -> Statistics:
    """The inverse of `statistics_blobs`; blobs of another size are refused before anything is made of them."""
    wanted = [8 * triangle_size(features), 8 * features * domains]
    if [memoryview(blob).nbytes for blob in blobs] != wanted:
        raise Refused(
            "shape_mismatch",
            f"sums are not those of {features} features and {domains} domains; another encoder was used, or other code",
        )
    triangle = np.frombuffer(blobs[0], dtype="<i8").astype(np.int64, copy=False)
    cross = np.frombuffer(blobs[1], dtype="<i8").astype(np.int64, copy=False).reshape(features, domains)
    return unpacked(triangle, cross)


def weights_blob(weights: NDArray[np.float64]) -> Blob:
    return _bytes_of(weights, "<f8")


def weights_of(blob: Blob, features: int, domains: int) -> NDArray[np.float64]:
    """The inverse of `weights_blob`; refused unless of the right size and finite."""
    if memoryview(blob).nbytes != 8 * features * domains:
        raise Refused("shape_mismatch", f"weights are not those of {features} features and {domains} domains")
    weights = np.frombuffer(blob, dtype="<f8").reshape(features, domains)
    if not np.isfinite(weights).all():
        raise Refused("malformed", "weights hold a number that is not finite")
    return weights


def _bytes_of(array: NDArray[Any], kind: str) -> memoryview:
    return np.ascontiguousarray(array, dtype=kind).data.cast("B")
