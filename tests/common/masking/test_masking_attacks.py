"""A hostile coordinator against the members of a masked session: every attempt ends in a refusal
with its own code.

What holders refuse in requests is in tests/client/round/test_masked_attacks.py; what is merely
changed on its way, in agreements, envelopes, sets and shares, in tests/vectors/test_masking.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from ridgeway.common.masking.agreement import Advert, check_agreement, envelope_key
from ridgeway.common.masking.member import (
    NONCE,
    advertise,
    confirm,
    open_envelope,
    seal,
)
from ridgeway.common.masking.opening import Opening
from ridgeway.common.masking.reference_session import (
    _TERMS,
    ROUND,
    Transcript,
    source_of,
)
from ridgeway.common.masking.shares import Sealed
from tests.support.making import refusing
from tests.support.masked_session import run_session, small_neighbourhoods

MEMBERS = 7
ALL = tuple(range(1, MEMBERS + 1))


@pytest.fixture(scope="module", params=["everybody", "neighbours"])
def session(request: pytest.FixtureRequest) -> Iterator[Transcript]:
    """All members, each of whom seals (0, 1, 2, 3); as in a small cohort, and as in a large one.

    In the large one everybody holds shares of all others, but none of its own, so that the attacks
    are the same.
    """
    with (
        small_neighbourhoods(MEMBERS - 1, 4)
        if request.param == "neighbours"
        else nullcontext()
    ):
        yield run_session(MEMBERS, "sums", [np.arange(4)] * MEMBERS)


def other_adverts(
    session: Transcript, member: int, advert: Advert
) -> tuple[Advert, ...]:
    adverts = list(session.agreement.adverts)
    adverts[member - 1] = advert
    return tuple(adverts)


def checked(session: Transcript, changes: dict[str, object]) -> None:
    """A member looks at an agreement that the coordinator has changed."""
    agreement = session.agreement.model_copy(update=changes)
    keys = [advert.key for advert in session.agreement.adverts]
    check_agreement(agreement, session.agreement.advert(1), keys)


# The agreement


@pytest.mark.parametrize("fewer", ["masks", "seeds"])
def test_a_member_without_keys_for_every_sum_is_refused(
    session: Transcript, fewer: str
) -> None:
    """Though it has signed what it shows."""
    known, member = session.secrets[2], session.members[2]
    made = replace(known, **{fewer: getattr(known, fewer)[:1]})
    shown = advertise(made, member, _TERMS, ROUND, source_of(member), "9" * 64)
    with refusing("malformed"):
        checked(session, {"adverts": other_adverts(session, 2, shown)})


# Envelopes


def test_shares_of_another_size_are_refused_though_their_sender_has_encrypted_them(
    session: Transcript,
) -> None:
    """A member that runs other code; what is cut out of them later would be somebody else's share,
    or none.
    """
    agreement, secrets = session.agreement, session.secrets
    key = envelope_key(agreement, secrets[2], 2, 1, sender=2)
    envelope = ChaCha20Poly1305(key).encrypt(NONCE, b"short", agreement.id)
    with refusing("bad_envelope"):
        open_envelope(agreement, secrets[1], 1, 2, envelope)


# Survivors


def test_never_both_kinds_of_share_for_one_member(session: Transcript) -> None:
    """What a member reveals holds one share for each, of the seed or of the mask key."""
    sent, held = ALL[:5], session.held[1]
    given = run_session(MEMBERS, fallen=dict.fromkeys(ALL[5:], "send")).reveals[1]
    assert set(given) == set(held)
    for member, part in given.items():
        seed, mask = held[member][:33], held[member][33:66]
        assert part == (seed if member in sent else mask)


@pytest.mark.parametrize(
    ("sent", "code"),
    [(ALL[:4], "too_few_survivors"), ((*ALL, 8), "impossible_survivors")],
)
def test_survivors_that_cannot_be_are_not_confirmed(
    session: Transcript, sent: tuple[int, ...], code: str
) -> None:
    """Too few, or somebody who has not shared; shares for such a set are refused in
    tests/vectors/test_masking.py.
    """
    with refusing(code):
        confirm(session.agreement, session.members[1], "sums", ALL, sent)


def test_nothing_is_sealed_for_a_set_without_the_member(session: Transcript) -> None:
    """Its vector would be counted under masks that nobody takes off, or under none."""
    vector = np.zeros(4, dtype=np.int64)
    for shared, code in ((ALL[1:], "not_in_cohort"), ((1,), "too_few_survivors")):
        with refusing(code):
            seal(session.agreement, session.secrets[1], 1, "sums", shared, ALL, vector)


# Uploads


def test_a_second_upload_and_one_of_another_size_are_refused(
    session: Transcript,
) -> None:
    """A vector counts once, whole."""
    opening = Opening(session.agreement, "sums", dict.fromkeys(ALL[:6], ALL), 4)
    vector = Sealed(np.zeros(4, dtype=np.uint64))
    opening.add(1, vector)
    for member in (1, 7):
        with refusing("duplicate"):
            opening.add(member, vector)
    with refusing("shape_mismatch"):
        opening.add(2, Sealed(np.zeros(3, dtype=np.uint64)))


def test_a_key_of_small_order_is_refused(session: Transcript) -> None:
    """Such a key would agree with everybody on the same secret."""
    weak = session.agreement.advert(2).model_copy(
        update={"masks": ("00" * 32, "00" * 32)}
    )
    agreement = session.agreement.model_copy(
        update={"adverts": other_adverts(session, 2, weak)}
    )
    with refusing("bad_key"):
        seal(agreement, session.secrets[1], 1, "sums", ALL, ALL, np.zeros(4, np.int64))
