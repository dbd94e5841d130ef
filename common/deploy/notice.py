"""The notice: what a coordinator tells every holder between rounds, signed with the key that
holders have pinned.

The gate hands it to whoever asks, and it stands in the invitation's folder: it holds public things
only.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from ridgeway.common.base.identity import HandOver
from ridgeway.common.base.schema import Digest, PublicKey, Record
from ridgeway.common.protocol.invitation import SignedJson

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
