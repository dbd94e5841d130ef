"""A holder's state in a masked session, on disk between two messages: encrypted, locked, and rid of
what was used.

Every message is answered by a process of its own, so what a member must remember lies in one file,
under a key that only the holder's identity gives. One session at a time: a new one takes the place
of the old.
"""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from pydantic import Field, ValidationError

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import locked, sha256, write_whole
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.records import Digest, Record
from ridgeway.common.masking.agreement import (
    AGREEMENT_VERSION,
    Advert,
    Agreement,
    MemberIndex,
    Secrets,
    member_index,
)
from ridgeway.common.masking.shares import SHARE_BYTES, Neighbourhood, neighbourhood_for
from ridgeway.common.protocol.cohort import Cohort, Member, Terms

NONCE_BYTES = 12
ERASED = ""
"""What is left of a secret that was used."""


class Answered(Record):
    """A step that was taken: the request it answered, and what stands for the answer."""

    request: Digest
    reply: str = ""


class Agreed(Record):
    """What secrets are shared for: public, the same for all members, and the same to the end of the
    session.

    It was checked before it was written, and each step reads it again, so it is as short as can be:
    of the agreement its digest, the session's id, and what later steps need of the members, in the
    order of their places.
    """

    digest: Digest
    terms: Terms
    lots: tuple[str, ...]
    threshold: int
    keys: tuple[str, ...]
    domains: tuple[str, ...]
    sources: tuple[str, ...]
    ciphers: tuple[str, ...]
    masks: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, cohort: Cohort, agreement: Agreement) -> Agreed:
        members = sorted(cohort.members, key=lambda member: member.key)
        return cls(
            digest=agreement.id.hex(),
            terms=cohort.terms,
            lots=agreement.lots,
            threshold=agreement.threshold,
            keys=agreement.keys,
            domains=tuple(member.domain for member in members),
            sources=tuple(advert.source for advert in agreement.adverts),
            ciphers=agreement.ciphers,
            masks=agreement.masks,
        )

    @property
    def id(self) -> bytes:
        return bytes.fromhex(self.digest)

    @property
    def neighbourhood(self) -> Neighbourhood | None:
        return neighbourhood_for(len(self.keys))

    @cached_property
    def cohort(self) -> Cohort:
        columns = sorted(zip(self.domains, self.keys, strict=True))
        members = tuple(Member(key=key, domain=domain) for domain, key in columns)
        return Cohort(terms=self.terms, members=members)


class SessionState(Record):
    """What a member knows of its session. Secrets are in hexadecimal digits, and empty once they
    were used.

    advert:   what was shown of the secrets. announced: the request it was shown for.
    agreed:   what secrets were shared for; it lies in a file of its own. agreed_digest: that
              file's, once it is there.
    dealt:    the members that hold shares of this one's secrets, by place.
    shared:   the members that have shared. holding: those of them whose shares are held here. held:
              those shares.
    question: what members were asked to count, once they were.
    answered: the steps that were taken, by name.
    """

    round: str
    announced: Digest
    advert: Advert
    nonce: str
    cipher: str
    masks: tuple[str, ...]
    seeds: tuple[str, ...]
    agreed: Agreed | None = Field(default=None, exclude=True)
    agreed_digest: str = ""
    kept: str = ""
    dealt: tuple[MemberIndex, ...] = ()
    shared: tuple[MemberIndex, ...] = ()
    holding: tuple[MemberIndex, ...] = ()
    held: tuple[str, ...] = ()
    question: str = ""
    answered: dict[str, Answered] = Field(default_factory=dict)

    def __repr_args__(self) -> list[tuple[str, str]]:
        """What repr, str, rich and others that lay values out may show."""
        return [("round", self.round[:8])]

    @property
    def secrets(self) -> Secrets:
        return Secrets(
            bytes.fromhex(self.nonce),
            bytes.fromhex(self.cipher),
            tuple(map(bytes.fromhex, self.masks)),
            tuple(map(bytes.fromhex, self.seeds)),
        )

    @property
    def session(self) -> Agreed:
        if self.agreed is None:
            raise Refused(
                "no_session", "this holder has not shared its secrets in this session"
            )
        return self.agreed

    @property
    def index(self) -> MemberIndex:
        return member_index(self.session, self.advert.key)

    def shares(self) -> dict[MemberIndex, bytes]:
        """The shares that this member holds, by whose they are."""
        held = map(bytes.fromhex, self.held)
        return dict(zip(self.holding, held, strict=True))

    def taken(self, step: str, request: str) -> Answered | None:
        """How a step was answered, if this very request asked for it before; any other is
        refused.
        """
        before = self.answered.get(step)
        if before is not None and before.request != request:
            raise Refused(
                "already_answered",
                f"this holder has already taken the step {step} of this session",
            )
        return before

    def with_answer(
        self, step: str, request: str, reply: str = "", **changes: object
    ) -> SessionState:
        answered = {**self.answered, step: Answered(request=request, reply=reply)}
        return self.model_copy(update={"answered": answered, **changes})

    def without_sum(self, index: int) -> SessionState:
        """The same without the secrets of one sum, its own and those held for others."""
        masks = list(self.masks)
        seeds = list(self.seeds)
        masks[index] = ERASED
        seeds[index] = ERASED
        # in digits: a seed's share and a mask key's
        size = 4 * SHARE_BYTES
        start = size * index
        held = (
            share[:start] + "0" * size + share[start + size :] for share in self.held
        )
        changes = {
            "masks": tuple(masks),
            "seeds": tuple(seeds),
            "kept": ERASED,
            "held": tuple(held),
        }
        return self.model_copy(update=changes)


class SessionFile:
    """The state on disk. Use it within `alone`: two processes must not answer from one state."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self._path = folder / "session"
        self._lock = folder / "session.lock"
        self._agreed = folder / "session.agreed"
        self._identity = identity

    @cached_property
    def _key(self) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self._identity.derived(b"masked session at rest"))

    def exclusive_lock(self) -> AbstractContextManager[None]:
        return locked(self._lock)

    def load(self) -> SessionState | None:
        """The state, if there is one of this version; one that was tampered with is as good as
        none.
        """
        try:
            content = self._path.read_bytes()
            nonce = content[:NONCE_BYTES]
            sealed = content[NONCE_BYTES:]
            plain = self._key.decrypt(nonce, sealed, self._identity.public.encode())
            state = SessionState.model_validate_json(plain)
            if state.advert.version != AGREEMENT_VERSION:
                return None
            if not state.agreed_digest:
                return state
            digest, agreed = _agreed(self._agreed.read_bytes())
            if digest != state.agreed_digest:
                return None
            return state.model_copy(update={"agreed": agreed})
        except (FileNotFoundError, InvalidTag, ValidationError, ValueError):
            return None

    def of_round(self, round_: str) -> SessionState:
        state = self.load()
        if state is None or state.round != round_:
            raise Refused(
                "no_session", "this holder has no masked session of this round"
            )
        return state

    def save(self, state: SessionState) -> None:
        """Keep the state; what was agreed on is written once, before the first state that names
        it.
        """
        if state.agreed is not None and not state.agreed_digest:
            agreed = state.agreed.model_dump_json().encode()
            write_whole(self._agreed, agreed, private=True)
            state = state.model_copy(update={"agreed_digest": sha256(agreed)})
        nonce = secrets.token_bytes(NONCE_BYTES)
        plain = state.model_dump_json().encode()
        sealed = self._key.encrypt(nonce, plain, self._identity.public.encode())
        write_whole(self._path, nonce + sealed, private=True)

    def erase(self) -> None:
        self._path.unlink(missing_ok=True)
        self._agreed.unlink(missing_ok=True)


def _agreed(content: bytes) -> tuple[str, Agreed]:
    """Its digest, and what it says."""
    return sha256(content), Agreed.model_validate_json(content)
