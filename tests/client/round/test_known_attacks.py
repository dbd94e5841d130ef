"""Attacks that once got a single holder's sums out of honest holders, each by the name it has in docs/privacy.md.

Each is played whole against real holders by a coordinator with the right key. Beside it stands the honest use of the
same steps, which must work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.masking.agreement import threshold_for
from ridgeway.common.masking.differencing import set_apart
from ridgeway.common.masking.history import MAX_TOLD, PastSum
from ridgeway.common.protocol.messages import Announce, Confirmed, Envelopes, Locked, Offer, Revealed
from ridgeway.common.statistics.sums import from_vector
from tests.support.faults import make_haste
from tests.support.hostile import FEATURES, LOCK, Hostile, code_of, nothing_revealed
from tests.support.simulated_federation import Parties, found, own_texts, populate

LAW = [f"law-{number}" for number in range(1, 8)]


@pytest.fixture
def haste(dealing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_haste(monkeypatch)


def settled(folder: Path, domains: Mapping[str, str], **policy: int) -> Parties:
    """A federation of these holders, each with texts of its own."""
    parties = found(folder, mode="masked")
    for number, (name, domain) in enumerate(domains.items()):
        parties.settle(
            name,
            domain,
            own_texts(name, domain if domain in ("code", "law", "medicine") else "law", 12 + number),
            **policy,
        )
        parties.admit(name)
    parties.pin_all()
    return parties


def own_gram(parties: Parties, name: str) -> NDArray[np.int64]:
    return parties.holder(name).current(parties.federation().terms).statistics.weighted(EQUAL_MASS).gram


class Refusing(Exception):
    """A holder did not go along."""


def opened_gram(
    parties: Parties, names: Sequence[str], round_: str, openers: Collection[str] | None = None, sign: bool = True
) -> NDArray[np.int64]:
    """The gram of a sum over these members, opened with the help of some; raises if they do not help.

    sign: whether those who are not asked to open are asked to sign.
    """
    coordinator = Hostile(parties, names, round_)
    coordinator.begin()
    coordinator.seal()
    helping = list(openers or names)
    signatures = {}
    for name in names if sign else helping:
        reply = coordinator.ask(name, coordinator.confirm_request("statistics", names)).message
        if not isinstance(reply, Confirmed):
            raise Refusing(reply.code)
        signatures[coordinator.place(name)] = reply.signature
    assert len(helping) >= threshold_for(len(names))
    locks = coordinator.lock("statistics", helping, names)
    for name in helping:
        reply = coordinator.ask(name, coordinator.open_request("statistics", names, signatures, locks)).message
        if not isinstance(reply, Revealed):
            raise Refusing(reply.code)
    total = coordinator.total("statistics", names, coordinator.open("statistics", helping, names, signatures))
    return from_vector(total, FEATURES, len(coordinator.cohort().domains)).gram


# Weights


def shown_with(coordinator: Hostile, shares: Mapping[str, int], mass: int = EQUAL_MASS) -> list[str]:
    """How members answer a cohort with these shares: codes of refusals, none where they deal out their secrets."""
    coordinator.terms = coordinator.terms.model_copy(update={"mass": mass})
    lie = coordinator.share_request(coordinator.lopsided(shares))
    answers = [coordinator.ask(name, lie) for name in coordinator.names]
    return [code_of(each) for each in answers if not isinstance(each.message, Envelopes)]


@pytest.mark.usefixtures("haste")
def test_heavy_victim(tmp_path: Path) -> None:
    """One of seven holders of a domain gets all of its mass but six units, beside one friend: its gram lies open."""
    parties = found(tmp_path, mode="masked")
    populate(parties, {**dict.fromkeys(LAW, "law"), "friend": "medicine"})
    coordinator = Hostile(parties, [*LAW, "friend"])
    coordinator.announce()
    heavy = {**dict.fromkeys(LAW, 1), "law-1": EQUAL_MASS - 6}
    assert shown_with(coordinator, heavy) == ["lopsided_shares"] * 8
    nothing_revealed(coordinator)
    honest = Hostile(parties, coordinator.names, "ef" * 16)
    honest.begin()
    honest.seal()
    honest.finish("statistics")


@pytest.mark.usefixtures("haste")
def test_mass_of_its_own(tmp_path: Path) -> None:
    """The mass of a domain is the holder's to agree to: with another, shares could be made of any size."""
    parties = found(tmp_path, mode="masked")
    populate(parties, dict.fromkeys(LAW[:2], "law") | {"code-1": "code"})
    coordinator = Hostile(parties, [*LAW[:2], "code-1"])
    for mass in (7, EQUAL_MASS + 1, 1 << 37):
        terms = coordinator.terms.model_copy(update={"mass": mass})
        assert code_of(coordinator.ask("law-1", Announce(terms=terms))) == "mass_not_allowed"
    coordinator.announce()
    assert shown_with(coordinator, {}, mass=7) == ["mass_not_allowed"] * 3
    assert isinstance(coordinator.ask("law-1", Announce(terms=parties.federation().terms)).message, Offer)


@pytest.mark.usefixtures("haste")
def test_light_companion(tmp_path: Path) -> None:
    """Two sums that differ in two members, one of which weighs next to nothing: the difference is the other's own."""
    domains = {"code-1": "code", "code-2": "code", "friend": "medicine", "law-3": "law", "law-4": "law"}
    parties = found(tmp_path, mode="masked")
    populate(parties, domains)
    first = ["code-1", "code-2", "friend"]
    opened_gram(parties, first, "01" * 16)
    second = Hostile(parties, list(domains), "02" * 16)
    second.announce()
    assert shown_with(second, {"law-3": EQUAL_MASS - 1, "law-4": 1}) == ["lopsided_shares"] * 5
    even = Hostile(parties, list(domains), "03" * 16)
    even.begin()
    even.seal()
    even.finish("statistics")


def test_small_weights_in_place_of_none() -> None:
    """Shares within what policies allow, chosen so that a combination of four sums is nearly one member's own."""
    half = EQUAL_MASS // 2
    before = [
        {key: (key, half) for key in ("v", "u", "w1", "w2", "x1", "x2")},
        {key: (key, half) for key in ("u", "y1", "w1", "w2", "x1", "x2")},
        {"y1": ("y1", half), "z": ("z", half), "w1": ("w1", half), "w2": ("w2", half)},
    ]
    nearly = {"z": ("z", half), "w1": ("w1", half + 3), "w2": ("w2", half - 3)}
    assert set_apart(before, nearly, 2) == ("v",)


# Memory


@pytest.mark.usefixtures("haste")
@pytest.mark.parametrize(("sign", "code"), [(True, "sets_apart"), (False, "not_confirmed")])
def test_left_out_of_opening(tmp_path: Path, sign: bool, code: str) -> None:
    """Four sums, of which two are opened by a bare threshold: those left out would not remember them, and G lies open.

    sign: whether those left out are at least asked to sign.
    """
    people = {**dict.fromkeys("ABCDE", "code"), "F": "law", "G": "medicine", "P": "law", "Q": "medicine"}
    parties = settled(tmp_path, {**people, "R1": "poetry", "R2": "poetry"})
    with pytest.raises(Refusing, match=code):
        first = opened_gram(parties, [*"ABCDEFG"], "01" * 16, [*"ABCDE"], sign)
        second = opened_gram(parties, [*"ABCDEPQ"], "02" * 16, [*"ABCDE"], sign)
        third = opened_gram(parties, ["P", "Q", "R1", "R2"], "03" * 16)
        fourth = opened_gram(parties, ["F", "R1", "R2"], "04" * 16)
        got = first - second + third - fourth
        assert not (got == own_gram(parties, "G")).all(), "G's own gram, bit for bit"


@pytest.mark.usefixtures("haste")
def test_friend_in_a_pair(tmp_path: Path) -> None:
    """With one friend Z, three sums that leave V and Z alone show V; whoever fears one friend asks for three."""
    people = {"V": "law", "Z": "medicine", **dict.fromkeys("ABE", "code"), **dict.fromkeys("CDH", "poetry")}
    parties = settled(tmp_path, people, min_difference=3)
    first = opened_gram(parties, [*"VZABE"], "01" * 16)
    second = opened_gram(parties, [*"VZCDH"], "02" * 16)
    with pytest.raises(Refusing, match="sets_apart"):
        third = opened_gram(parties, list(people), "03" * 16)
        got = first + second - third - own_gram(parties, "Z")
        assert not (got == own_gram(parties, "V")).all(), "V's own gram, bit for bit"


@pytest.mark.usefixtures("haste")
def test_lock_of_another_set(tmp_path: Path) -> None:
    """V signs a sum, then locks a smaller one; the others open the larger, which V would forget: V lies open twice."""
    others = {**dict.fromkeys("ABCD", "code"), "E": "poetry", "F": "physics"}
    parties = settled(tmp_path, {"V": "law", **others, **dict.fromkeys("PQ", "medicine")})
    first = opened_gram(parties, [*"ABCDEFPQ"], "01" * 16)
    session = Hostile(parties, [*"VABCDEF"], "02" * 16)
    session.until(LOCK)
    fewer = [*"VABCD"]
    session.confirm("statistics", "V", fewer)
    assert isinstance(session.ask("V", session.lock_request("statistics", fewer)).message, Locked)
    reveals = session.open("statistics", list(others), session.names, session.signatures)
    total = session.total("statistics", session.names, reveals)
    second = from_vector(total, FEATURES, len(session.cohort().domains)).gram
    with pytest.raises(Refusing, match="sets_apart"):
        third = opened_gram(parties, [*"VPQ"], "03" * 16)
        assert not (second + third - first == 2 * own_gram(parties, "V")).all(), "V's own gram, bit for bit"


@pytest.mark.usefixtures("haste")
def test_sets_played_against_each_other(tmp_path: Path) -> None:
    """Some members are told that one fell away, others that another did: no two sums of one session open."""
    names = ["code-1", "code-2", "law-1", "law-2", "medicine"]
    parties = found(tmp_path, mode="masked")
    populate(parties, {name: name.split("-")[0] for name in names})
    coordinator = Hostile(parties, names)
    coordinator.begin()
    coordinator.seal()
    whole = coordinator.confirm("statistics", names)
    fewer = [name for name in names if name != "medicine"]
    smaller = coordinator.confirm("statistics", fewer)
    for name in fewer:
        larger = coordinator.open_request("statistics", names, whole)
        assert code_of(coordinator.ask(name, larger)) == "two_survivor_sets"
    locks = coordinator.lock("statistics", ["medicine"], names)
    reply = coordinator.ask("medicine", coordinator.open_request("statistics", names, whole, locks)).message
    if locks:
        assert reply.code == "not_locked"
    else:
        assert isinstance(reply, Revealed), "it was told of no other set, and four shares are needed"
    assert coordinator.open("statistics", fewer, fewer, smaller)
    other = [name for name in names if name != "code-1"]
    for name in other:
        assert code_of(coordinator.ask(name, coordinator.confirm_request("statistics", other))) == "already_answered"


# History


@pytest.mark.usefixtures("haste")
def test_made_up_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A friend tells of sums without number, so that everybody else computes for minutes: one refusal, at once."""
    names = ["code-1", "law-1", "law-2", "medicine"]
    parties = found(tmp_path, mode="masked")
    populate(parties, {name: name.split("-")[0] for name in names})
    coordinator = Hostile(parties, names)
    victim = coordinator.key_of["law-1"]
    friend = parties.holder("medicine")
    for number in range(MAX_TOLD + 1):
        made_up = PastSum.of("statistics", {victim: (f"{number:064x}", 1)})
        friend.journal.append(("learned", {**made_up.model_dump(mode="json"), "from": [victim]}))
    with monkeypatch.context() as patch:
        patch.setattr("ridgeway.common.masking.history.MAX_TOLD", 1 << 20)
        coordinator.announce()
    for name in names:
        assert code_of(coordinator.ask(name, coordinator.share_request())) == "history_too_long"
    assert coordinator.gave(Envelopes) == []
