"""Masked rounds from end to end: the release of a clear one, members that fall away, one total an
epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.settings import Ridge
from ridgeway.common.protocol.cohort import form_cohort
from ridgeway.common.protocol.messages import Confirmed, Revealed, SealedSums
from ridgeway.common.protocol.packet import Packet, open_packet
from ridgeway.common.routing.release import load_release
from ridgeway.common.statistics import from_vector
from ridgeway.coordinator.round.clear_round import reference_round
from ridgeway.coordinator.round.federation import RoundSettings
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.progress import HoldersWaiting
from tests.support.faults import Crash, epoch_of, let_join
from tests.support.hostile import FEATURES, MEMBERS, plain_sum
from tests.support.making import contents
from tests.support.simulated_federation import (
    DOMAINS,
    ONE_EACH,
    Direct,
    Parties,
    dry_run,
    found,
    names_of,
    of_kind,
    populate,
    round_fails,
    round_of,
)


class Falling(Direct):
    """Holders of whom some fall silent for good after so many answers.

    reached: whether the request after the last answer still reaches them.
    """

    def __init__(
        self,
        parties: Parties,
        names: Sequence[str],
        after: Mapping[str, int],
        reached: bool = False,
    ) -> None:
        super().__init__(parties, names)
        self._left, self._reached = dict(after), reached

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        left = self._left.get(name, 99)
        self._left[name] = left - 1
        if left > 0:
            yield from super().answers(name, peer, packet)
        elif left == 0 and self._reached:
            list(super().answers(name, peer, packet))


def round_of_members(parties: Parties) -> LedgerRelease:
    return round_of(parties, Direct(parties, MEMBERS))


def nothing_was_opened(parties: Parties) -> None:
    assert parties.entries("totalled") == []
    assert not parties.sums_files()
    assert parties.federation.newest is None


# The same release


COHORTS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "three domains": (ONE_EACH, {}),
    "two of one domain": ({"code": "code", "law-1": "law", "law-2": "law"}, {}),
    "five of three domains": (MEMBERS, {}),
    "plain tokens": (MEMBERS, {"weighting": "tokens"}),
}


@pytest.mark.parametrize("name", COHORTS)
def test_a_masked_release_is_the_clear_one_byte_for_byte(
    name: str, tmp_path: Path, haste: None
) -> None:
    """Weights, evaluation, calibration, manifest: masks leave no trace."""
    domains, settings = COHORTS[name]
    masked = found(tmp_path / "masked", mode="masked", **settings)
    populate(masked, domains)
    for holder in domains:
        masked.rewrite(holder, 'modes = ["masked"]', 'modes = ["masked", "clear"]')
    clear = masked.copy(tmp_path / "clear")
    releases = [round_of(masked), round_of(clear, mode="clear")]
    assert releases[0].release == releases[1].release
    folders = [parties.release_folder(1) for parties in (masked, clear)]
    assert contents(folders[0]) == contents(folders[1])
    assert masked.entries("contributed") == []
    assert [len(masked.entries(kind)) for kind in ("totalled", "counted")] == [1, 1]


@pytest.mark.parametrize("under_masks", [True, False])
def test_the_weights_are_those_of_the_reference(
    later: Parties, under_masks: bool
) -> None:
    """A round comes to what one function computes of all holders' sums, with masks and without."""
    federation = later.federation
    holders = {
        later.holder(name).identity.public: later.holder(name) for name in MEMBERS
    }
    cohort = form_cohort(
        federation.terms, {key: holder.domain for key, holder in holders.items()}
    )
    sums = {
        key: holder.epochs.statistics(holder.epoch(federation.terms)).statistics
        for key, holder in holders.items()
    }
    identities = (
        {key: holder.identity for key, holder in holders.items()}
        if under_masks
        else None
    )
    expected = reference_round(cohort, sums, later.encoder.scale, Ridge(), identities)
    published = load(later.router(1))
    assert np.array_equal(published["weights"], expected)


# Falling away


def total_is_that_of(
    parties: Parties, offered: Collection[str], sent: Collection[str]
) -> None:
    """The stored total is exactly that of those who sent, under the shares of those who offered."""
    federation = parties.federation
    stored = federation.standing.totals[-1]
    assert [member.name for member in stored.members] == sorted(sent)
    active = federation.standing.active
    cohort = form_cohort(
        federation.terms, {active[name].key: active[name].domain for name in offered}
    )
    expected = from_vector(
        plain_sum(parties, cohort, sent), FEATURES, len(cohort.domains)
    )
    kept = [cohort.domains.index(domain) for domain in stored.domains]
    total = federation.ledger.total(stored)
    assert (total.gram == expected.gram).all()
    assert (total.cross == expected.cross[:, kept]).all()
    assert not np.delete(expected.cross, kept, axis=1).any()


STAGES = (
    "announce",
    "share",
    "seal",
    "confirm",
    "open",
    "evaluate",
    "confirm counts",
    "open counts",
)
"""The exchanges in their order, as far as somebody in them can be missed."""


@pytest.mark.parametrize(
    ("who", "reached"),
    [("law-1", True), ("medicine", False)],
    ids=["answer lost", "request lost"],
)
@pytest.mark.parametrize("stage", STAGES)
def test_one_that_falls_away_at_any_stage_is_made_up_for(
    parties: Parties, stage: str, who: str, reached: bool
) -> None:
    """Before it has signed, the total is that of the others; afterwards, it is in it. No domain is
    lost but its own; if that is in the total and nobody of it has counted, the operator must say
    that it may be published.
    """
    answered = STAGES.index(stage)
    transport = Falling(parties, list(MEMBERS), {who: answered}, reached)
    accept = ("medicine",) if who == "medicine" and 3 < answered < 7 else ()
    published = round_of(parties, transport, accept_unevaluated=accept)
    others = [name for name in MEMBERS if name != who]
    total_is_that_of(
        parties, MEMBERS if answered else others, MEMBERS if answered > 3 else others
    )
    lost = {"medicine"} if who == "medicine" and answered <= 3 else set()
    assert set(published.domains) == {*DOMAINS} - lost
    parties.ledger.verify()


@pytest.mark.parametrize("stage", STAGES[1:5])
def test_one_fewer_than_the_threshold_opens_nothing_and_the_next_round_goes_well(
    parties: Parties, stage: str
) -> None:
    """The operator is told how many were left and how many are needed."""
    answered = STAGES.index(stage)
    transport = Falling(
        parties, list(MEMBERS), {"law-1": answered, "medicine": answered}
    )
    with round_fails(r"3 of 5 members .*, but 4 are needed, so nothing was opened"):
        round_of(parties, transport)
    nothing_was_opened(parties)
    assert len(transport.senders(Revealed)) == (3 if stage == "open" else 0)
    assert round_of_members(parties).domains == DOMAINS
    total_is_that_of(parties, MEMBERS, MEMBERS)
    parties.ledger.verify()


@pytest.mark.parametrize("stage", ["evaluate", "confirm counts", "open counts"])
def test_counts_that_were_never_opened_are_asked_for_in_the_next_round(
    parties: Parties, stage: str
) -> None:
    """About the total that is kept, and of the same members; the round after that has nothing left
    to do.
    """
    answered = STAGES.index(stage)
    with pytest.raises(RoundFailed):
        fallen = {"law-1": answered, "medicine": answered}
        round_of(parties, Falling(parties, list(MEMBERS), fallen))
    transport = Direct(parties, MEMBERS)
    assert round_of(parties, transport).number == 1
    sealed = transport.senders(SealedSums)
    assert sealed and sealed == transport.senders(SealedSums, "counts")
    manifest = load_release(parties.release_folder(1)).manifest
    assert manifest["evaluation"] is not None
    assert manifest["confidence"]["calibrated"]
    assert round_of_members(parties).number == 1


def test_more_than_two_thirds_of_the_roster_must_be_there(parties: Parties) -> None:
    """With two of five away nobody is asked to share anything, and with three there is no sum at
    all.
    """
    for away, words in (
        (
            {"law-1", "code-1", "medicine"},
            "2 holders can take part, but a round under masks needs 3",
        ),
        (
            {"law-1", "code-1"},
            r"3 holders .* at least 4 holders \(more than two thirds of the roster\)",
        ),
    ):
        transport = Direct(parties, MEMBERS, away)
        with round_fails(words):
            round_of(parties, transport)
        assert not transport.senders(SealedSums)
        nothing_was_opened(parties)
    transport = Direct(parties, MEMBERS, {"law-1"})
    round_of(parties, transport)
    there = [name for name in MEMBERS if name != "law-1"]
    total_is_that_of(parties, there, there)


def test_too_few_for_the_settings_are_not_opened(tmp_path: Path, haste: None) -> None:
    """Though the threshold would allow it: who is asked for by the operator is counted before
    anything is opened.
    """
    parties = found(
        tmp_path,
        mode="masked",
        round=RoundSettings(min_holders=5, wait=0.0, deadline=1.0),
    )
    populate(parties, MEMBERS)
    transport = Falling(parties, list(MEMBERS), {"law-1": 2})
    with round_fails(
        r"4 holders of 3 domains .* at least 5 holders .* nothing was opened"
    ):
        round_of(parties, transport)
    assert not transport.senders(Revealed)
    nothing_was_opened(parties)
    fewer = Direct(parties, down={"law-1"})
    with round_fails(r"4 holders can take part, but `min_holders` in .* requires 5"):
        round_of(parties, transport=fewer)
    assert round_of_members(parties).number == 1


# One round after another


@pytest.mark.parametrize("away", [[], ["medicine"], ["medicine", "law-1"]])
def test_after_a_round_in_which_nothing_has_changed_the_release_stands(
    later: Parties, away: list[str]
) -> None:
    """Also if some are away. Nobody is asked to seal or open anything, and no second release is
    made.
    """
    transport = Direct(later, MEMBERS, away)
    seen: list[str] = []
    published = round_of(later, transport, lambda event: seen.append(event.kind))
    assert published == later.federation.newest
    assert published.number == 1
    assert seen[-1] == "stands"
    assert not transport.senders(SealedSums) + transport.senders(Revealed)
    assert [entry["reason"] for entry in later.entries("closed")] == [
        "",
        "nothing has changed",
    ]
    later.ledger.verify()


def test_other_settings_make_another_release_of_the_same_total_and_counts(
    later: Parties,
) -> None:
    """What was counted is used again, and nobody is asked twice; for another router nobody counts
    in this epoch.
    """
    later.change_settings("threshold = 0.0", 'threshold = 0.5\nfallback = "general"')
    transport = Direct(later, MEMBERS)
    second = round_of(later, transport)
    assert not transport.senders(SealedSums)
    assert (second.number, later.router(2)) == (2, later.router(1))
    manifests = [
        load_release(later.release_folder(number)).manifest for number in (1, 2)
    ]
    assert manifests[0]["evaluation"] == manifests[1]["evaluation"] is not None
    later.change_settings("ridge = 0.01", "ridge = 0.1")
    with round_fails("no holder of code, law, medicine evaluated the router"):
        round_of(later, transport)
    assert (
        "counted for another router of this total"
        in later.entries("not_counted")[0]["reason"]
    )
    third = round_of(later, transport, accept_unevaluated=DOMAINS)
    assert not transport.senders(SealedSums)
    assert (
        load_release(later.release_folder(third.number)).manifest["evaluation"] is None
    )


# One epoch, one total


def test_one_that_has_joined_waits_until_all_open_new_epochs(later: Parties) -> None:
    """The others' data is in a total: the round says who must open a new epoch, and nobody is asked
    to seal.
    """
    let_join(later, ["poetry"])
    transport = Direct(later, [*MEMBERS, "poetry"])
    with round_fails(
        r"would lose code, law, medicine.*law-2, medicine must open a new epoch"
    ):
        round_of(later, transport)
    assert not transport.senders(SealedSums)
    assert [release.number for release in later.standing.releases] == [1]
    later.new_epochs()
    names = [*MEMBERS, "poetry"]
    assert round_of(later, Direct(later, names)).domains == (*DOMAINS, "poetry")
    total_is_that_of(later, names, names)


def test_one_new_epoch_is_in_no_total_with_old_ones(later: Parties) -> None:
    """The others are named; with new epochs of two thirds there is a total of these, if no domain
    is lost.
    """
    later.change_corpus("law-1")
    transport = Direct(later, MEMBERS)
    with round_fails(r"code-1, code-2, medicine must open a new epoch"):
        round_of(later, transport)
    assert not transport.senders(SealedSums)
    later.new_epochs("code-1", "code-2", "medicine")
    seen: list[Any] = []
    published = round_of(later, Direct(later, MEMBERS), seen.append)
    assert names_of(published) == set(MEMBERS) - {"law-2"}
    assert [event.names for event in of_kind(HoldersWaiting, seen)] == [["law-2"]]


def test_some_that_have_signed_before_a_crash_sign_the_same_again(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator died after the first signature: it knows who was asked, so nobody has to open
    a new epoch.
    """

    class Dying(Direct):
        def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
            for reply in super().answers(name, peer, packet):
                if isinstance(open_packet(reply).message, Confirmed):
                    raise Crash
                yield reply

    with pytest.raises(Crash):
        round_of(parties, Dying(parties, list(MEMBERS)))
    used = [
        parties.holder(name).totals.has_signed(
            "statistics", epoch_of(parties.holder(name))
        )
        for name in MEMBERS
    ]
    assert sorted(used) == [False] * 4 + [True]
    events: list[Any] = []
    dry_run(parties, Direct(parties), events.append)
    assert not of_kind(HoldersWaiting, events)
    round_of_members(parties)
    total_is_that_of(parties, MEMBERS, MEMBERS)
