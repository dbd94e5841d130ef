"""Attacks that once got a single holder's sums out of honest holders, each by the name it has in docs/privacy.md.

Each is played whole against real holders by a coordinator with the right key. Beside it stands the honest use of the
same steps, which must work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.masking.agreement import threshold_for
from ridgeway.common.protocol.messages import Announce, Confirmed, Envelopes, Locked, Offer, Revealed
from ridgeway.common.statistics.sums import from_vector
from tests.support.attackers import own_sums, settled
from tests.support.faults import make_haste
from tests.support.hostile import FEATURES, LOCK, Hostile, code_of
from tests.support.simulated_federation import Parties, found, populate

LAW = [f"law-{number}" for number in range(1, 8)]


@pytest.fixture
def haste(dealing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_haste(monkeypatch)


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


@pytest.mark.usefixtures("haste")
def test_mass_of_its_own(tmp_path: Path) -> None:
    """The mass of a domain is the holder's to agree to: with another, shares could be made of any size."""
    names = [*LAW[:2], "code-1"]
    parties = found(tmp_path, mode="masked")
    populate(parties, dict.fromkeys(LAW[:2], "law") | {"code-1": "code"})
    coordinator = Hostile(parties, names)
    coordinator.announce()
    for mass in (7, EQUAL_MASS + 1, 1 << 37):
        terms = coordinator.terms.model_copy(update={"mass": mass})
        assert code_of(coordinator.ask("law-1", Announce(terms=terms))) == "mass_not_allowed"
        lie = coordinator.share_request(coordinator.cohort(terms=terms))
        assert {code_of(coordinator.ask(name, lie)) for name in names} == {"mass_not_allowed"}
    assert coordinator.gave(Envelopes) == []
    assert isinstance(coordinator.ask("law-1", Announce(terms=parties.federation().terms)).message, Offer)


@pytest.mark.usefixtures("haste")
def test_share_of_another_cohort(tmp_path: Path) -> None:
    """One sum in which law-2 fell away, one of a cohort without it: law-1 has half of the mass, then all of it.

    Their difference would be law-1's own sums, although both are of the same members and the same epochs.
    """
    names = ["code-1", "code-2", "law-1", "medicine"]
    parties = settled(tmp_path, {**{name: name.split("-")[0] for name in names}, "law-2": "law"})
    first = Hostile(parties, [*names, "law-2"], "01" * 16)
    first.begin()
    first.seal()
    half = from_vector(first.finish("statistics", names), FEATURES, 3).gram
    with pytest.raises(Refusing, match="epoch_used"):
        whole = opened_gram(parties, names, "02" * 16)
        difference = 2 * (whole - half) - own_sums(parties, "law-1").gram
        assert np.abs(difference).max() > 2, "law-1's own gram, but for rounding"


# Several sums


@pytest.mark.usefixtures("haste")
def test_one_member_left_out(tmp_path: Path) -> None:
    """Two sums, the second without one member, by a coordinator that chooses cohorts: the difference is its own."""
    people = {**dict.fromkeys("ABCD", "code"), "F": "law", "V": "medicine"}
    parties = settled(tmp_path, people)
    first = opened_gram(parties, [*"ABCDFV"], "01" * 16)
    with pytest.raises(Refusing, match="epoch_used"):
        second = opened_gram(parties, [*"ABCDF"], "02" * 16)
        assert not (first - second == own_sums(parties, "V").gram).all(), "V's own gram, bit for bit"


@pytest.mark.usefixtures("haste")
@pytest.mark.parametrize(("sign", "code"), [(True, "epoch_used"), (False, "not_confirmed")])
def test_left_out_of_opening(tmp_path: Path, sign: bool, code: str) -> None:
    """Two sums, each opened by a bare threshold: those left out would not remember the first, and G lies open.

    sign: whether those left out are at least asked to sign.
    """
    parties = settled(tmp_path, {**dict.fromkeys("ABCDE", "code"), "F": "law", "G": "medicine"})
    with pytest.raises(Refusing, match=code):
        first = opened_gram(parties, [*"ABCDEFG"], "01" * 16, [*"ABCDE"], sign)
        second = opened_gram(parties, [*"ABCDEF"], "02" * 16, [*"BCDEF"], sign)
        assert not (first - second == own_sums(parties, "G").gram).all(), "G's own gram, bit for bit"


@pytest.mark.usefixtures("haste")
def test_small_sums_beside_each_other(tmp_path: Path) -> None:
    """Sums of three of eight members each, no two of which share enough members that anybody knows both."""
    people = {"V": "law", "Z": "medicine", **dict.fromkeys("ABE", "code"), **dict.fromkeys("CDH", "poetry")}
    parties = settled(tmp_path, people)
    for number, names in enumerate(("VZA", "VZABE", "CDHBE")):
        with pytest.raises(Refusing, match="too_few_of_roster"):
            opened_gram(parties, [*names], f"{number:032x}")


@pytest.mark.usefixtures("haste")
def test_made_up_member(tmp_path: Path) -> None:
    """A friend's key counts as one member: whatever it says of earlier sums, nobody listens to it."""
    people = {**dict.fromkeys("ABC", "code"), "F": "law", "V": "medicine"}
    parties = settled(tmp_path, people)
    first = opened_gram(parties, [*"ABCFV"], "01" * 16)
    parties.ready("F")
    with pytest.raises(Refusing, match="epoch_used"):
        second = opened_gram(parties, [*"ABCF"], "02" * 16)
        got = first - second
        assert not (got == own_sums(parties, "V").gram).all(), "V's own gram, bit for bit"


@pytest.mark.usefixtures("haste")
def test_lock_of_another_set(tmp_path: Path) -> None:
    """V signs a sum, then locks a smaller one; the others open the larger, which V would forget: V lies open."""
    others = {**dict.fromkeys("ABCD", "code"), "E": "poetry", "F": "physics"}
    parties = settled(tmp_path, {"V": "law", **others})
    session = Hostile(parties, [*"VABCDEF"], "02" * 16)
    session.until(LOCK)
    fewer = [*"VABCD"]
    session.confirm("statistics", "V", fewer)
    assert isinstance(session.ask("V", session.lock_request("statistics", fewer)).message, Locked)
    assert session.open("statistics", list(others), session.names, session.signatures)
    with pytest.raises(Refusing, match="epoch_used"):
        opened_gram(parties, [*"VABCD"], "03" * 16)


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
