"""The vocabulary of a round: every request and every reply as a typed record.

Knows cohorts and the agreement of a masked session. Knows nothing of signatures, Flower, files or text; packet.py signs
messages and carries their bulk.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ridgeway.common.base.identity import HandOver
from ridgeway.common.base.schema import Digest, DomainName, ExpertNames, PublicKey, Record
from ridgeway.common.base.settings import MAX_EXPERTS, Selector, SelectorName
from ridgeway.common.masking.agreement import Advert, Agreement, Signature
from ridgeway.common.masking.shares import SHARE_BYTES
from ridgeway.common.protocol.cohort import MAX_HOLDERS, Cohort, Terms

MAX_BLOBS = 64
MAX_CANDIDATES = 64
MAX_TEMPERATURES = 64
MAX_COUNTS = 1 << 26

Count = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]
"""Of documents; under noise, which may leave fewer than none, in parts of 1/65536."""
Counts = tuple[Count, ...]
Words = Annotated[str, Field(max_length=500, pattern=r"^\P{C}*$")]
"""A sentence to be shown: nothing that could steer a terminal."""
Code = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
Keys = Annotated[tuple[PublicKey, ...], Field(max_length=MAX_HOLDERS)]
Temperatures = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(max_length=MAX_TEMPERATURES)]
HandOverList = Annotated[tuple[HandOver, ...], Field(max_length=2 * MAX_HOLDERS)]
"""The hand-overs by which keys of holders took over from earlier ones."""
Places = Annotated[tuple[Annotated[int, Field(ge=1, le=MAX_HOLDERS)], ...], Field(max_length=MAX_HOLDERS)]

Lot = Literal["statistics", "scores", "reliability"]
LOTS: tuple[Lot, ...] = ("statistics", "scores", "reliability")
"""What a masked round adds up: three vectors, each under masks of its own."""
ENVELOPE_BYTES = 2 * SHARE_BYTES * len(LOTS) + 16
"""The shares of a seed and a mask key for each lot, and the tag."""


def data_of(advert: Advert, lot: Lot) -> str:
    """What stands for the data that a member puts into a sum: its sums, or the documents that it counts."""
    return advert.source if lot == "statistics" else advert.held_out


def lots_beside(lot: Lot) -> tuple[Lot, ...]:
    """The lots whose sums are judged together with those of this one: they are of the same data."""
    return (lot,) if lot == "statistics" else ("scores", "reliability")


KINDS: dict[str, type[Message]] = {}


class Message(Record):
    """A request or a reply.

    kind: its name on the wire. blob_count: how many blobs of bulk travel beside it, outside the JSON.
    """

    kind: ClassVar[str]
    blob_count: ClassVar[range]

    def __init_subclass__(cls, kind: str, blobs: range = range(1)) -> None:
        cls.kind, cls.blob_count = kind, blobs
        KINDS[kind] = cls


class Candidate(Record):
    """A way to make a router of the total that holders are asked to try.

    ridge: which of the request's weights it uses.
    """

    ridge: int = Field(ge=0, lt=MAX_BLOBS)
    normalise_columns: bool
    selector: SelectorName
    k: int = Field(ge=1, le=1 << 20)

    @property
    def rule(self) -> Selector:
        return Selector(self.selector, self.k)


# Requests


class Hello(Message, kind="hello"):
    """Who is there, and which release do you hold? And, with a cohort: what would keep you from a round with it?"""

    cohort: Cohort | None = None
    handovers: HandOverList = ()


class Announce(Message, kind="announce", blobs=range(2)):
    """A round begins under these terms: what can you offer? Blob, with private terms: the public prior they name."""

    terms: Terms
    handovers: HandOverList = ()


class Collect(Message, kind="collect"):
    """This is the cohort: send your statistics, weighted to your share."""

    cohort: Cohort


class Share(Message, kind="share", blobs=range(1, 2)):
    """These are the members of a masked session: deal your secrets out to them. Blob: what all know of earlier sums."""

    cohort: Cohort
    agreement: Agreement


class Hold(Message, kind="hold", blobs=range(1, 2)):
    """Keep these shares. Blob: the envelopes that other members have dealt to you, by their places."""

    session: Digest
    shared: Places


class Seal(Hold, kind="seal", blobs=range(1, 2)):
    """Keep these shares, and send your weighted statistics under masks."""


class ConfirmSum(Message, kind="confirm_sum"):
    """These members have sent: sign that this is the set you were shown."""

    session: Digest
    lot: Lot
    sent: Places


class LockSum(Message, kind="lock_sum"):
    """All members of this set have signed it: sign that you will open no other. Asked in large cohorts only."""

    session: Digest
    lot: Lot
    sent: Places


class OpenSum(Message, kind="open_sum"):
    """Enough members have signed this set: reveal your shares of what takes the masks off its sum."""

    session: Digest
    lot: Lot
    sent: Places
    confirmations: tuple[tuple[int, Signature], ...] = Field(max_length=MAX_HOLDERS)
    locks: tuple[tuple[int, Signature], ...] = Field(default=(), max_length=MAX_HOLDERS)


class Evaluate(Message, kind="evaluate", blobs=range(1, MAX_BLOBS + 1)):
    """Score these candidates on your held-out documents. Blobs: one F×C float64 matrix of weights for each λ.

    session: where counts are to be sealed. total: names the opened sum of statistics that the weights were solved from.
    last:    the release that the holder, if it has it, is to compare the candidates with.
    temperatures: if there are any, the first candidate, which mostly wins, is calibrated in the same answer.
    experts: whose scores are to be added up in the same answer, where the holder has some and shares them.
    """

    terms: Terms
    domains: tuple[DomainName, ...] = Field(min_length=2, max_length=1 << 14)
    candidates: tuple[Candidate, ...] = Field(min_length=1, max_length=MAX_CANDIDATES)
    session: Digest | None = None
    total: Digest | None = None
    last: Digest | None = None
    temperatures: Temperatures = ()
    experts: ExpertNames = ()

    @property
    def calibration(self) -> Calibrate | None:
        """What is asked about the first candidate, if it is."""
        if not self.temperatures:
            return None
        return Calibrate(
            terms=self.terms,
            domains=self.domains,
            candidate=self.candidates[0],
            temperatures=self.temperatures,
            session=self.session,
            total=self.total,
        )


class Calibrate(Message, kind="calibrate", blobs=range(1, 2)):
    """How often is the chosen candidate right at each level of confidence? Blob: its weights, as evaluated."""

    terms: Terms
    domains: tuple[DomainName, ...] = Field(min_length=2, max_length=1 << 14)
    candidate: Candidate
    temperatures: Temperatures = Field(min_length=1)
    session: Digest | None = None
    total: Digest | None = None


class Deliver(Message, kind="deliver", blobs=range(4, 5)):
    """A new release. Blobs: manifest.json, router.safetensors, tokenizer.json, and what is new in the log of sums."""

    number: int = Field(ge=1)
    release: Digest


# Replies


class HeldRelease(Record):
    """A release that a holder has stored. Two of one number are two releases: the id says which it is."""

    number: int = Field(ge=1, le=1 << 53)
    release: Digest


class Obstacle(Record):
    """Something that would keep a holder from a round: a code, and keys of the request that it is about."""

    code: Code
    keys: Keys = ()


class Here(Message, kind="here"):
    """Present; `release` is the newest that is held, `log` how many entries of the log of opened sums.

    obstacles: what would keep the holder from a round with the cohort that it was asked about.
    """

    release: HeldRelease | None = None
    obstacles: tuple[Obstacle, ...] = Field(default=(), max_length=16)
    log: int = Field(default=0, ge=0)


class Offer(Message, kind="offer", blobs=range(2)):
    """Ready to send: `source` stands for the raw sums, so that unchanged ones need not be sent again.

    log:    how many entries of the log of opened sums the holder has.
    advert: the keys for a masked round. Blob, in such a round: what this holder knows of sums that were opened before.
    """

    domain: DomainName
    source: Digest
    holdout: float = Field(ge=0, lt=1)
    release: HeldRelease | None = None
    log: int = Field(default=0, ge=0)
    advert: Advert | None = None


class ClearStatistics(Message, kind="clear_statistics", blobs=range(2, 3)):
    """One holder's weighted sums, in the clear. Blobs: the upper triangle of gram, and cross, as int64."""

    cohort: Digest
    source: Digest


class Scores(Message, kind="scores"):
    """For each candidate, to which domain how many of the held-out documents were routed.

    Two more numbers each: how many the last release routed rightly and the candidate does not, and the other way round.
    quality:     the sums of the experts' scores in fixed point, then their numbers, if they were asked for.
    reliability: of the first candidate, if it was asked for.
    """

    counts: tuple[Counts, ...] = Field(max_length=MAX_CANDIDATES)
    quality: Counts = Field(default=(), max_length=2 * MAX_EXPERTS)
    reliability: Counts = Field(default=(), max_length=1 << 22)


class Reliability(Message, kind="reliability"):
    """For each curve and temperature, in each bin of confidence: how many beginnings fell there, how many rightly."""

    counts: Counts = Field(max_length=1 << 22)


class Envelopes(Message, kind="envelopes", blobs=range(1, 2)):
    """Secrets dealt out. Blob: envelopes for the other members, or for some in a large cohort, by their places."""

    session: Digest


class Held(Message, kind="held"):
    """The shares were opened and are kept."""

    session: Digest


class SealedSums(Message, kind="sealed_sums", blobs=range(1, 2)):
    """A vector under masks. Blob: 64-bit numbers that are noise until the session opens their sum."""

    session: Digest
    lot: Lot


class Confirmed(Message, kind="confirmed"):
    """A signature over who has shared, who has sent and what was asked."""

    session: Digest
    lot: Lot
    signature: Signature


class Locked(Message, kind="locked"):
    """A signature over the one set that this member will open."""

    session: Digest
    lot: Lot
    signature: Signature


class Revealed(Message, kind="revealed", blobs=range(1, 2)):
    """Shares of what takes the masks off a sum. Blob: one for every member whose shares are held, by places."""

    session: Digest
    lot: Lot


class Receipt(Message, kind="receipt"):
    """The release was verified and stored."""

    release: Digest
    number: int = Field(ge=1)


class Refusal(Message, kind="refusal"):
    """No, with a code and a reason for the operator that holds nothing private, and the holders that it is about."""

    code: Code
    reason: Words
    keys: Keys = ()
