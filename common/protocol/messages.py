"""The vocabulary of a round: every request and every reply as a typed record.

A coordinator asks, a holder answers (client/round/answers.py) or sends a Refusal:

    request     reply             handler         effect at the holder
    Hello       Here              _hello          none
    Announce    Offer             _announce       masked: makes and keeps the secrets of a session
    Collect     ClearStatistics   _collect        writes down that its sums leave, and their cost
                NoisyStatistics                   (private `columns`: with noise)
    Share       Envelopes         answer_share    checks the cohort and deals out shares
    Hold        Held              answer_hold     keeps the shares of others
    Seal        SealedSums        answer_seal     masks its sums or counts
    ConfirmSum  Confirmed         answer_confirm  signs one total of this epoch, ever; pays for it
    LockSum     Locked            answer_lock     signs who is in the total (large cohorts)
    OpenSum     Revealed          answer_open     gives out shares that unmask that total alone
    Evaluate    Counted           _evaluate       counts held-out documents for one router an epoch
    Deliver     Receipt           _deliver        verifies and keeps a release
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from ridgeway.common.base.identity import HandOver
from ridgeway.common.base.records import (
    Digest,
    DomainName,
    ExpertNames,
    PublicKey,
    Record,
    check_distinct,
)
from ridgeway.common.base.settings import MAX_EXPERTS, Selector, SelectorName
from ridgeway.common.masking.agreement import Advert, Agreement, Signature
from ridgeway.common.masking.shares import SHARE_BYTES
from ridgeway.common.protocol.cohort import MAX_HOLDERS, Cohort, Terms

MAX_BLOBS = 64
MAX_TEMPERATURES = 64
MAX_COUNTS = 1 << 26
CANNOT_ANSWER = 100
DISK_FULL = 101
"""Flower's code of an error where a holder cannot answer, or not write down what it would send."""

Count = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]
"""Of documents; under noise, which may leave fewer than none, in parts of 1/65536."""
_Counts = tuple[Count, ...]
_Words = Annotated[str, Field(max_length=500, pattern=r"^\P{C}*$")]
"""A sentence to be shown: nothing that could steer a terminal."""
Code = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
_Keys = Annotated[tuple[PublicKey, ...], Field(max_length=MAX_HOLDERS)]
Temperature = Annotated[float, Field(ge=1e-100, le=1e100)]
Temperatures = Annotated[tuple[Temperature, ...], Field(max_length=MAX_TEMPERATURES)]
RouterDomains = Annotated[
    tuple[DomainName, ...],
    Field(min_length=2, max_length=1 << 14),
    AfterValidator(check_distinct),
]
HandOverList = Annotated[tuple[HandOver, ...], Field(max_length=2 * MAX_HOLDERS)]
"""The hand-overs by which keys of holders took over from earlier ones."""
_Places = Annotated[
    tuple[Annotated[int, Field(ge=1, le=MAX_HOLDERS)], ...],
    Field(max_length=MAX_HOLDERS),
]

SumName = Literal["statistics", "counts"]
SUM_NAMES: tuple[SumName, ...] = ("statistics", "counts")
"""What a session under masks adds up: two vectors, each under masks of its own. Messages and files
call the name of a sum `lot`.
"""
ENVELOPE_BYTES = 2 * SHARE_BYTES * len(SUM_NAMES) + 16
"""The shares of a seed and a mask key for each sum, and the tag."""


KINDS: dict[str, type[Message]] = {}


class Message(Record):
    """A request or a reply.

    kind: its name on the wire. blob_count: how many blobs of bulk travel beside it, outside the
          JSON.
    """

    kind: ClassVar[str]
    blob_count: ClassVar[int]

    def __init_subclass__(cls, kind: str, blobs: int = 0) -> None:
        cls.kind = kind
        cls.blob_count = blobs
        KINDS[kind] = cls


# Requests


class HeardOutputs(Record):
    """Of how many epochs the coordinator has got a holder's sums, and its counts. A holder whose
    record knows fewer has an older one.
    """

    key: PublicKey
    sums: int = Field(ge=0, le=1 << 53)
    counts: int = Field(ge=0, le=1 << 53)


HeardList = Annotated[tuple[HeardOutputs, ...], Field(max_length=MAX_HOLDERS)]


class Hello(Message, kind="hello"):
    """Who is there, and which release do you hold?"""


class Announce(Message, kind="announce"):
    """A round begins under these terms: what can you offer?"""

    terms: Terms
    handovers: HandOverList = ()
    heard: HeardList = ()


class Collect(Message, kind="collect"):
    """This is the cohort: send your statistics, weighted to your share, or in private rounds under
    noise.
    """

    cohort: Cohort


class Share(Message, kind="share"):
    """These are the members of a session under masks: deal your secrets out to them."""

    cohort: Cohort
    agreement: Agreement


class Hold(Message, kind="hold", blobs=1):
    """Keep these shares. Blob: the envelopes that other members have dealt to you, by their
    places.
    """

    session: Digest
    shared: _Places


class Seal(Hold, kind="seal", blobs=1):
    """Keep these shares, and send your weighted statistics under masks."""


class ConfirmSum(Message, kind="confirm_sum"):
    """These members have sent: sign that this is the set you were shown."""

    session: Digest
    lot: SumName
    sent: _Places


class LockSum(ConfirmSum, kind="lock_sum"):
    """All members of this set have signed it: sign that you will open no other. Asked in large
    cohorts only.
    """


class OpenSum(ConfirmSum, kind="open_sum"):
    """Enough members have signed this set: reveal your shares of what takes the masks off its
    sum.
    """

    confirmations: tuple[tuple[int, Signature], ...] = Field(max_length=MAX_HOLDERS)
    locks: tuple[tuple[int, Signature], ...] = Field(default=(), max_length=MAX_HOLDERS)


class Evaluate(Message, kind="evaluate", blobs=1):
    """Count where the router that this round publishes routes your held-out documents.

    Blob: its F×C float64 weights. In private rounds instead: the noisy total, as int64; the holder
    solves it itself, and counts for its own result.

    session: where exact counts are to be sealed.
    holders: in private rounds, the domain of each holder in the total, which says how much noise is
             in it.
    last:    the release that the holder, if it has it, is to compare the router with.
    temperatures: those at which confidence is to be calibrated.
    experts: whose scores are to be added up in the same answer, where the holder has some and
             shares them.
    """

    terms: Terms
    domains: RouterDomains
    selector: SelectorName
    k: int = Field(ge=1, le=1 << 20)
    session: Digest | None = None
    holders: tuple[DomainName, ...] = Field(default=(), max_length=MAX_HOLDERS)
    last: Digest | None = None
    temperatures: Temperatures = ()
    experts: ExpertNames = ()

    @property
    def rule(self) -> Selector:
        return Selector(self.selector, self.k)


class Deliver(Message, kind="deliver", blobs=3):
    """A new release. Blobs: manifest.json, router.safetensors, tokenizer.json."""

    number: int = Field(ge=1)
    release: Digest


# Replies


class HeldRelease(Record):
    """A release that a holder has stored. Two of one number are two releases: the id says which it
    is.
    """

    number: int = Field(ge=1, le=1 << 53)
    release: Digest


class OpenEpoch(Record):
    """The epoch that a holder's owner has opened: the data that stands ready for rounds.

    name: random, so it tells nothing of the data.
    used: whether the holder has signed for a sum with it, so that it takes part in no other one.
    """

    name: Digest
    used: bool


class Here(Message, kind="here"):
    """Present; `release` is the newest that is held."""

    release: HeldRelease | None = None


class Offer(Message, kind="offer"):
    """Ready to take part with the data of an epoch.

    holdout: the share of documents that is kept out of the sums.
    advert:  the keys for a session under masks.
    """

    domain: DomainName
    epoch: OpenEpoch
    holdout: float = Field(ge=0, lt=1)
    release: HeldRelease | None = None
    advert: Advert | None = None


class ClearStatistics(Message, kind="clear_statistics", blobs=1):
    """One holder's exact sums, weighted to its share. Blob: the vector of its domain alone, as
    int64.

    source: the name of the epoch.
    """

    cohort: Digest
    source: Digest


class NoisyStatistics(Message, kind="noisy_statistics", blobs=1):
    """One holder's sums under all of the noise. Blob: the vector of its domain alone, as int64.

    source: the name of the epoch.
    """

    cohort: Digest
    source: Digest


class Counted(Message, kind="counted"):
    """To which domain how many of the held-out documents were routed.

    counts: by domain. In exact modes two more: how many the last release routed rightly and this
            router does not, and the other way round. In private rounds under noise, in parts of
            1/65536.
    quality: the sums of the experts' scores in fixed point, then their numbers, if they were asked
             for.
    reliability: what confidence is calibrated by, if it was asked for.
    """

    counts: _Counts = Field(max_length=(1 << 14) + 2)
    quality: _Counts = Field(default=(), max_length=2 * MAX_EXPERTS)
    reliability: _Counts = Field(default=(), max_length=1 << 22)


class Envelopes(Message, kind="envelopes", blobs=1):
    """Secrets dealt out. Blob: envelopes for the other members, or for some in a large cohort, by
    their places.
    """

    session: Digest


class Held(Message, kind="held"):
    """The shares were opened and are kept."""

    session: Digest


class SealedSums(Message, kind="sealed_sums", blobs=1):
    """A vector under masks. Blob: 64-bit numbers that are noise until the session opens their
    sum.
    """

    session: Digest
    lot: SumName


class Confirmed(Message, kind="confirmed"):
    """A signature over who has shared, who has sent and what was asked."""

    session: Digest
    lot: SumName
    signature: Signature


class Locked(Message, kind="locked"):
    """A signature over the one set that this member will open."""

    session: Digest
    lot: SumName
    signature: Signature


class Revealed(Message, kind="revealed", blobs=1):
    """Shares of what takes the masks off a sum. Blob: one for every member whose shares are held,
    by places.
    """

    session: Digest
    lot: SumName


class Receipt(Message, kind="receipt"):
    """The release was verified and stored."""

    release: Digest
    number: int = Field(ge=1)


class Refusal(Message, kind="refusal"):
    """No, with a code and a reason for the operator that holds nothing private, and the holders
    that it is about.
    """

    code: Code
    reason: _Words
    keys: _Keys = ()
