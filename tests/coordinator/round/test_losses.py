"""A round never loses a domain in silence: it stops with names, reasons and remedies, and the
release stands.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.records import Mode
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.membership import remove, retire, rollback
from tests.support.hostile import MEMBERS
from tests.support.simulated_federation import (
    DOMAINS,
    Direct,
    Parties,
    dry_run,
    found,
    own_texts,
    populate,
    round_fails,
    round_of,
)


@pytest.fixture(params=["masked", "clear"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return "masked" if request.param == "masked" else "clear"


@pytest.fixture
def parties(tmp_path: Path, haste_with_changes: None, mode: Mode) -> Parties:
    """Five holders of three domains, with a first release."""
    made = populate(found(tmp_path, mode=mode), MEMBERS)
    round_without(made)
    return made


def round_without(parties: Parties, *away: str, **wishes: Any) -> LedgerRelease:
    names = [name for name in parties.standing.active if name not in away]
    return round_of(parties, Direct(parties, names), accept_worse=DOMAINS, **wishes)


def latest(parties: Parties) -> str:
    return (parties.federation.folder / "releases" / "latest").readlink().name


@pytest.mark.parametrize("mode", ["masked"], indirect=True)
def test_a_round_stops_before_it_opens_a_total_without_a_domain(
    parties: Parties,
) -> None:
    """Because its holder is away, has no new epoch, or other terms: each is named with a remedy."""
    kept = parties.homes["medicine"] / "client.toml"
    for name in set(MEMBERS) - {"medicine"}:
        parties.ready(name)
    with round_fails(
        r"would lose medicine, which release 0001 has: medicine did not answer.*"
    ):
        round_without(parties, "medicine")
    with round_fails(r"medicine must open a new epoch; .*`ridgeway client ready DIR`"):
        round_without(parties)
    kept.write_text(kept.read_text().replace("window = 8", "window = 9"))
    with round_fails(
        r"medicine refused \(window_not_allowed: .*must allow these terms"
    ):
        round_without(parties)
    assert len(parties.entries("totalled")) == 1
    assert latest(parties) == "0001"


@pytest.mark.parametrize("mode", ["masked"], indirect=True)
def test_a_domain_goes_when_the_operator_lets_it(parties: Parties) -> None:
    """By the flag for one round; another holder of a domain is enough to keep it."""
    parties.new_epochs()
    with round_fails("would lose medicine"):
        round_without(parties, "medicine")
    made = round_without(parties, "medicine", allow_missing=("medicine",))
    assert made.domains == ("code", "law")
    parties.new_epochs()
    assert round_without(parties, "law-2").domains == DOMAINS


@pytest.mark.parametrize("mode", ["clear"], indirect=True)
def test_in_the_clear_sums_of_absent_holders_still_count(parties: Parties) -> None:
    """Nothing is lost by an absence, but that nobody of the domain counts; a domain whose only
    holder was removed was let go before.
    """
    parties.new_epochs()
    with round_fails("no holder of medicine evaluated the router"):
        round_without(parties, "medicine")
    accept = ("medicine",)
    made = round_without(parties, "medicine", accept_unevaluated=accept)
    assert made.domains == DOMAINS
    remove(parties.federation, "medicine")
    parties.new_epochs()
    assert round_without(parties).domains == ("code", "law")


def test_an_earlier_release_comes_back_under_a_new_number(parties: Parties) -> None:
    """The same router to the byte, signed anew, and delivered like any other."""
    for name in MEMBERS:
        parties.change_corpus(name)
    round_without(parties)
    federation = parties.federation
    rollback(federation, 1)
    again = parties.standing.releases[-1]
    assert (again.number, again.cause) == (3, "rolled back to 0001")
    assert parties.router(3) == parties.router(1) != parties.router(2)
    assert latest(parties) == "0003"
    federation.ledger.verify()
    parties.new_epochs()
    assert round_of(parties, end_rollback=True).number == 4
    assert parties.holder("law-1").newest == 4


def test_a_rollback_holds_until_its_operator_ends_it(parties: Parties) -> None:
    """No round publishes over it, whatever has changed, nor after a domain was retired meanwhile;
    nobody is asked.
    """
    for name in MEMBERS:
        parties.change_corpus(name)
    round_without(parties)
    rollback(parties.federation, 1)
    rounds = parties.standing.rounds
    for change in (
        lambda: None,
        lambda: parties.new_epochs(),
        lambda: retire(parties.federation, "medicine"),
    ):
        change()
        transport = Direct(parties)
        with round_fails(r"rolled back to release 0001; .* --end-rollback$"):
            round_of(parties, transport, even_unchanged=True)
        with round_fails("--end-rollback"):
            dry_run(parties, transport)
        assert not transport.replies
    assert parties.standing.rounds == rounds
    published = round_of(parties, end_rollback=True)
    assert published.cause == f"round {rounds + 1}"
    assert published.domains == ("code", "law")
    parties.new_epochs()
    assert round_without(parties).number == published.number + 1, "it was ended"


def test_what_was_removed_or_retired_does_not_come_back(parties: Parties) -> None:
    """Nor does a release that is not there, or that is the newest anyway."""
    with pytest.raises(InputError, match="release 1 is not an earlier release"):
        rollback(parties.federation, 1)
    retire(parties.federation, "medicine")
    with pytest.raises(InputError, match="removed or retired since"):
        rollback(parties.federation, 1)
    with pytest.raises(InputError, match="release 9 is not an earlier release"):
        rollback(parties.federation, 9)


@pytest.mark.parametrize("mode", ["clear"], indirect=True)
def test_sums_of_a_removed_holder_do_not_come_back_under_the_name_of_another(
    parties: Parties,
) -> None:
    """The name may be given again; the release that holds the erased sums stays out."""
    remove(parties.federation, "law-1")
    shutil.rmtree(parties.homes["law-1"])
    parties.settle("law-1", "law", own_texts("another", "law", 12))
    parties.admit("law-1")
    with pytest.raises(InputError, match=r"removed or retired since \(law-1\)"):
        rollback(parties.federation, 1)
