"""Masked rounds from end to end: the release of a clear one, members that fall away, totals that may not follow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.protocol.messages import Candidate, Confirmed, OpenSum, Refusal, Revealed, Seal, SealedSums
from ridgeway.common.protocol.packet import Packet, open_packet
from ridgeway.common.routing.release import load_release
from ridgeway.common.statistics.sums import from_vector
from ridgeway.coordinator.round.ask import PeerAnswer
from ridgeway.coordinator.round.federation import RoundSettings
from ridgeway.coordinator.round.gathering import cohort_of
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.solving.candidates import CandidateChoice, Counts, Grid, choose
from tests.support.faults import make_haste, router_bytes
from tests.support.hostile import FEATURES, MEMBERS, plain_sum
from tests.support.making import contents
from tests.support.simulated_federation import Direct, Parties, found, no_watch, populate


class Falling(Direct):
    """Holders of whom some fall silent for good after so many answers.

    heard: whether the request after the last answer still reaches them.
    """

    def __init__(self, parties: Parties, names: Sequence[str], after: Mapping[str, int], heard: bool = False) -> None:
        super().__init__(parties, names)
        self._left, self._heard = dict(after), heard

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        left = self._left.get(name, 99)
        self._left[name] = left - 1
        if left > 0:
            yield from super().answers(name, peer, packet)
        elif left == 0 and self._heard:
            list(super().answers(name, peer, packet))


def round_of(
    parties: Parties, names: Collection[str] = MEMBERS, transport: Direct | None = None, **options: Any
) -> LedgerRelease:
    return run_round(parties.federation(), transport or Direct(parties, list(names)), no_watch, **options)


def kinds(transport: Direct, kind: type[Any], lot: str | None = None) -> list[str]:
    """Who has answered with a message of this kind."""
    given = [(name, open_packet(reply).message) for name, reply in transport.replies]
    return [name for name, each in given if isinstance(each, kind) and lot in (None, getattr(each, "lot", None))]


def entries(parties: Parties, kind: str) -> list[Mapping[str, Any]]:
    return [entry.facts for entry in parties.federation().ledger.journal.entries() if entry.kind == kind]


def totals(parties: Parties) -> list[Path]:
    return list((parties.federation().folder / "contributions").iterdir())


def nothing_was_opened(parties: Parties) -> None:
    assert entries(parties, "opened_sum") == []
    assert entries(parties, "totalled") == []
    assert totals(parties) == []
    assert parties.federation().newest is None


def router(parties: Parties, published: LedgerRelease) -> bytes:
    return (parties.federation().release_folder(published.number) / "router.safetensors").read_bytes()


# The same release


COHORTS: dict[str, tuple[dict[str, str], dict[str, int], dict[str, Any]]] = {
    "three domains": ({"code": "code", "law": "law", "medicine": "medicine"}, {}, {}),
    "two of one domain": ({"code": "code", "law-1": "law", "law-2": "law"}, {}, {}),
    "weights": (MEMBERS, {"law-1": 7, "law-2": 4, "code-2": 2}, {}),
    "plain tokens": (MEMBERS, {}, {"weighting": "tokens"}),
}


@pytest.mark.parametrize("name", COHORTS)
def test_a_masked_release_is_the_clear_one_byte_for_byte(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, evaluation, calibration, manifest: masks leave no trace."""
    make_haste(monkeypatch)
    domains, weights, settings = COHORTS[name]
    masked = found(tmp_path / "masked", mode="masked", **settings)
    populate(masked, domains, weights=weights)
    for each in domains:
        masked.rewrite(each, "require_masking = true", "require_masking = false")
    clear = masked.copy(tmp_path / "clear")
    releases = [round_of(masked, domains), round_of(clear, domains, mode="clear")]
    assert releases[0].release == releases[1].release
    folders = [parties.federation().release_folder(1) for parties in (masked, clear)]
    assert contents(folders[0]) == contents(folders[1])
    assert entries(masked, "contributed") == []
    assert len(entries(masked, "opened_sum")) == 2


def test_the_release_is_that_of_the_definition(later: Parties) -> None:
    """Bit for bit what the holders' raw sums give, added by somebody who may see them."""
    federation = later.federation()
    terms = federation.terms
    own = {name: later.holder(name).current(terms).statistics for name in MEMBERS}
    expected = router_bytes(own, federation.ledger.standing(), later.encoder, 1e-3)
    assert router(later, federation.ledger.standing().releases[0]) == expected


# Falling away


def total_is_that_of(parties: Parties, offered: Collection[str], sent: Collection[str]) -> None:
    """The stored total is exactly that of those who sent, under the shares of those who offered."""
    federation = parties.federation()
    stored = federation.ledger.standing().total
    assert stored is not None
    assert [member.name for member in stored.members] == sorted(sent)
    cohort = cohort_of(federation.terms, federation.ledger.standing().active, set(offered))
    expected = from_vector(plain_sum(parties, cohort, sent), FEATURES, len(cohort.domains))
    kept = [at for at, domain in enumerate(cohort.domains) if domain in stored.domains]
    total = federation.ledger.total(stored)
    assert (total.gram == expected.gram).all()
    assert (total.cross == expected.cross[:, kept]).all()
    assert not np.delete(expected.cross, kept, axis=1).any()


STAGES = ("announce", "share", "seal", "confirm", "open", "evaluate", "confirm scores", "open scores", "calibrate")
"""The exchanges in their order, as far as somebody in them can be missed; if the usual candidate wins, the last is not
asked for and a release is delivered there."""


@pytest.fixture
def another_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    """A federation in which another candidate wins than the usual one, whose confidence comes with the evaluation."""
    make_haste(monkeypatch)

    def last(candidates: Sequence[Candidate], domains: Sequence[str], counts: Mapping[str, Counts]) -> CandidateChoice:
        order = [*reversed(range(len(candidates)))]
        return choose([candidates[at] for at in order], domains, {name: rows[order] for name, rows in counts.items()})

    monkeypatch.setattr("ridgeway.coordinator.round.round.choose", last)
    grid = Grid(ridges=(1e-3, 1e-1), normalise_columns=(False,), selectors=("average",))
    parties = found(tmp_path / "two", mode="masked", candidates=grid)
    populate(parties, MEMBERS)
    return parties


@pytest.mark.parametrize(("who", "heard"), [("law-1", True), ("medicine", False)], ids=["answer lost", "request lost"])
@pytest.mark.parametrize("stage", STAGES)
def test_one_that_falls_away_at_any_stage_is_made_up_for(parties: Parties, stage: str, who: str, heard: bool) -> None:
    """Before it has signed, the total is that of the others; afterwards, it is in it. No domain is lost but its own."""
    answered = STAGES.index(stage)
    transport = Falling(parties, list(MEMBERS), {who: answered}, heard)
    published = round_of(parties, transport=transport)
    others = [name for name in MEMBERS if name != who]
    total_is_that_of(parties, MEMBERS if answered else others, MEMBERS if answered > 3 else others)
    lost = {"medicine"} if who == "medicine" and answered <= 3 else set()
    assert set(published.domains) == {"code", "law", "medicine"} - lost
    parties.federation().ledger.verify()


@pytest.mark.parametrize("stage", STAGES[1:5])
def test_one_fewer_than_the_threshold_opens_nothing_and_the_next_round_goes_well(parties: Parties, stage: str) -> None:
    """The operator is told how many were left and how many are needed."""
    answered = STAGES.index(stage)
    transport = Falling(parties, list(MEMBERS), {"law-1": answered, "medicine": answered})
    with pytest.raises(RoundFailed, match=r"3 of 5 members .*, and 4 are needed, so nothing was opened"):
        round_of(parties, transport=transport)
    nothing_was_opened(parties)
    assert len(kinds(transport, Revealed)) == (3 if stage == "open" else 0)
    assert set(round_of(parties).domains) == {"code", "law", "medicine"}
    total_is_that_of(parties, MEMBERS, MEMBERS)
    parties.federation().ledger.verify()


@pytest.mark.parametrize(("stage", "lots"), [("evaluate", 1), ("calibrate", 2)])
def test_counts_that_cannot_be_opened_cost_the_evaluation_and_not_the_release(
    another_wins: Parties, stage: str, lots: int
) -> None:
    """The total was opened before; what is missing is noted."""
    parties = another_wins
    answered = STAGES.index(stage)
    transport = Falling(parties, list(MEMBERS), {"law-1": answered, "medicine": answered})
    assert set(round_of(parties, transport=transport).domains) == {"code", "law", "medicine"}
    total_is_that_of(parties, MEMBERS, MEMBERS)
    assert len(entries(parties, "opened_sum")) == lots
    [missing] = entries(parties, "not_counted")
    assert "3 of 5 members" in missing["reason"]


def test_two_that_were_never_there_leave_a_cohort_of_three(parties: Parties) -> None:
    """With one more away there is no masked round at all, and nobody is asked to share anything."""
    transport = Direct(parties, list(MEMBERS))
    transport.down = {"law-1", "code-1", "medicine"}
    with pytest.raises(RoundFailed, match="2 holders can take part, and a masked round needs 3"):
        round_of(parties, transport=transport)
    assert not kinds(transport, SealedSums)
    nothing_was_opened(parties)
    transport = Direct(parties, list(MEMBERS))
    transport.down = {"law-1", "code-1"}
    round_of(parties, transport=transport)
    total_is_that_of(parties, ["law-2", "code-2", "medicine"], ["law-2", "code-2", "medicine"])


def test_too_few_for_the_settings_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the threshold would allow it: who is asked for by the operator is counted before anything is opened."""
    make_haste(monkeypatch)
    parties = found(tmp_path, mode="masked", round=RoundSettings(min_holders=5, wait=0.0, deadline=1.0))
    populate(parties, MEMBERS)
    transport = Falling(parties, list(MEMBERS), {"law-1": 2})
    with pytest.raises(RoundFailed, match=r"4 holders and 3 domains .* at least 5 holders .* nothing was opened"):
        round_of(parties, transport=transport)
    assert not kinds(transport, Revealed)
    nothing_was_opened(parties)
    fewer = Direct(parties)
    fewer.down = {"law-1"}
    with pytest.raises(
        RoundFailed,
        match=r"4 holders can take part, and `min_holders` in .* asks for 5",
    ):
        round_of(parties, transport=fewer)
    assert round_of(parties).number == 1


# One round after another


@pytest.mark.parametrize("away", [[], ["medicine"], ["medicine", "law-1"]])
def test_after_a_round_in_which_nothing_has_changed_the_release_stands(later: Parties, away: list[str]) -> None:
    """Also if some are away. Nobody is asked to seal or open anything, and no second release is made."""
    transport = Direct(later, list(MEMBERS))
    transport.down = set(away)
    seen: list[str] = []
    published = run_round(later.federation(), transport, lambda event: seen.append(event.kind))
    assert published == later.federation().newest
    assert published.number == 1
    assert seen[-1] == "stands"
    assert not kinds(transport, SealedSums) + kinds(transport, Revealed)
    assert [entry["reason"] for entry in entries(later, "closed")] == ["", "nothing has changed"]
    later.federation().ledger.verify()


def change_settings(parties: Parties, old: str, new: str) -> None:
    path = parties.federation().folder / "coordinator.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_other_settings_make_another_release_of_the_same_total_and_counts(later: Parties) -> None:
    """What was counted is used again; only what nobody has counted is missing, and nobody is asked twice."""
    change_settings(later, "threshold = 0.0", 'threshold = 0.5\nfallback = "general"')
    transport = Direct(later, list(MEMBERS))
    second = round_of(later, transport=transport)
    assert not kinds(transport, SealedSums)
    first = later.federation().ledger.standing().releases[0]
    assert (second.number, router(later, second)) == (2, router(later, first))
    manifests = [load_release(later.federation().release_folder(number)).manifest for number in (1, 2)]
    assert manifests[0]["evaluation"] == manifests[1]["evaluation"] is not None
    change_settings(later, "ridges = [0.001]", "ridges = [0.01]")
    third = round_of(later, transport=transport)
    assert not kinds(transport, SealedSums)
    assert load_release(later.federation().release_folder(third.number)).manifest["evaluation"] is None
    assert "counted before, for other settings" in entries(later, "not_counted")[0]["reason"]


@pytest.mark.parametrize(
    ("stage", "missing"), [("evaluate", ["scores", "reliability"]), ("calibrate", ["reliability"])]
)
def test_counts_that_were_never_opened_are_asked_for_in_the_next_round(
    another_wins: Parties, stage: str, missing: list[str]
) -> None:
    """About the total that is kept; the round after that has nothing left to do."""
    parties = another_wins
    answered = STAGES.index(stage)
    round_of(parties, transport=Falling(parties, list(MEMBERS), {"law-1": answered, "medicine": answered}))
    transport = Direct(parties, list(MEMBERS))
    second = round_of(parties, transport=transport)
    assert second.number == 2
    assert sorted(set(lots(transport))) == sorted(missing)
    manifest = load_release(parties.federation().release_folder(2)).manifest
    assert manifest["evaluation"] is not None
    assert manifest["confidence"]["calibrated"]
    assert round_of(parties).number == 2


def lots(transport: Direct) -> list[str]:
    messages = [open_packet(reply).message for _, reply in transport.replies]
    return [each.lot for each in messages if isinstance(each, SealedSums)]


WHAT_TO_DO = r"Run the round again when another holder has joined, left or changed too"


def test_one_that_has_joined_is_named_and_two_are_taken_in(later: Parties) -> None:
    """One alone would be seen in the difference; two hide each other."""
    later.admit("poetry")
    transport = Direct(later, [*MEMBERS, "poetry"])
    with pytest.raises(RoundFailed, match=f"only poetry has joined: .*{WHAT_TO_DO}"):
        round_of(later, transport=transport)
    assert not kinds(transport, SealedSums)
    later.admit("law-3")
    names = [*MEMBERS, "poetry", "law-3"]
    assert round_of(later, names).domains == ("code", "law", "medicine", "poetry")
    total_is_that_of(later, names, names)


def test_one_changed_corpus_is_named_and_two_are_taken_in(later: Parties) -> None:
    """A changed corpus is one member that left and one that joined."""
    later.change_corpus("law-1")
    transport = Direct(later, list(MEMBERS))
    with pytest.raises(RoundFailed, match=f"only law-1 has changed: .*{WHAT_TO_DO}"):
        round_of(later, transport=transport)
    assert not kinds(transport, SealedSums)
    later.change_corpus("medicine")
    round_of(later)
    total_is_that_of(later, MEMBERS, MEMBERS)


def test_one_away_beside_one_changed_are_two(later: Parties) -> None:
    """Of the difference of the totals neither can be told alone."""
    later.change_corpus("code-2")
    transport = Direct(later, list(MEMBERS))
    transport.down = {"law-2"}
    there = [name for name in MEMBERS if name != "law-2"]
    round_of(later, transport=transport)
    total_is_that_of(later, there, there)


def test_one_that_falls_away_in_the_middle_and_leaves_another_alone_ends_the_round(later: Parties) -> None:
    """One has joined and one has changed; as the first does not send, the other would be seen, so nobody confirms."""
    later.admit("poetry")
    later.change_corpus("medicine")
    names = [*MEMBERS, "poetry"]
    transport = Falling(later, names, {"poetry": 2})
    with pytest.raises(RoundFailed, match=r"only medicine has changed: .*again when poetry is there too, or another"):
        round_of(later, transport=transport)
    assert len(kinds(transport, SealedSums)) == 5
    assert not kinds(transport, Confirmed)
    assert len(entries(later, "opened_sum")) == 2
    round_of(later, names)
    total_is_that_of(later, names, names)


def test_three_totals_that_would_leave_one_alone_are_foreseen(parties: Parties) -> None:
    """No two of them differ in one; the words name who would be seen, and nobody is asked to seal anything."""
    round_of(parties, ["law-1", "code-1", "code-2"])
    round_of(parties, ["law-1", "law-2", "medicine"], allow_missing=["code"])
    transport = Direct(parties, list(MEMBERS))
    with pytest.raises(RoundFailed, match=r"all the masked totals so far .* of law-1 .* so holders refuse it"):
        round_of(parties, transport=transport)
    assert not kinds(transport, SealedSums)
    assert len(entries(parties, "totalled")) == 2


def test_holders_refuse_what_a_coordinator_does_not_foresee(later: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their own list; the round ends with their words, and nothing is opened."""
    monkeypatch.setattr("ridgeway.coordinator.round.masked_round.set_apart", lambda *_: ())
    later.change_corpus("law-1")
    transport = Direct(later, list(MEMBERS))
    with pytest.raises(RoundFailed, match=r"0 of 5 members signed the sum of statistics.*at least 2 must join"):
        round_of(later, transport=transport)
    assert not kinds(transport, Revealed)
    assert len(entries(later, "opened_sum")) == 2


def test_a_round_in_the_clear_is_refused_by_everybody_who_agreed_upon_masks(parties: Parties) -> None:
    """The operator asks for it, each holder says no, and nobody has sent anything but that."""
    transport = Direct(parties, list(MEMBERS))
    with pytest.raises(RoundFailed):
        round_of(parties, transport=transport, mode="clear")
    answers = [(name, open_packet(reply).message) for name, reply in transport.replies]
    refused = [name for name, each in answers if isinstance(each, Refusal) and each.code == "masking_required"]
    assert sorted(refused) == sorted(name for name, _ in answers) == sorted(MEMBERS)
    nothing_was_opened(parties)


def test_only_requests_of_a_session_reach_holders_between_offer_and_evaluation(parties: Parties) -> None:
    """Share, seal, confirm, open: five exchanges for a total."""
    asked: list[str] = []

    class Listening(Direct):
        def exchange(self, packets: Mapping[int, Packet], seconds: float) -> Iterator[tuple[int, PeerAnswer]]:
            asked.append(open_packet(next(iter(packets.values()))).message.kind)
            yield from super().exchange(packets, seconds)

    round_of(parties, transport=Listening(parties, list(MEMBERS)))
    once = ["confirm_sum", OpenSum.kind]
    assert asked == ["announce", "share", Seal.kind, *once, "evaluate", *once, "deliver"]
    assert entries(parties, "opened_sum")[-1]["lot"] == "scores"
    [counts] = parties.federation().ledger.standing().counts.values()
    assert set(counts) == {"scores", "reliability"}


def test_another_winner_is_calibrated_by_itself_and_the_release_is_the_clear_one(
    another_wins: Parties, tmp_path: Path
) -> None:
    """Its counts are asked for once more; the usual candidate's, which came with the evaluation, are not used."""
    masked = another_wins
    for name in MEMBERS:
        masked.rewrite(name, "require_masking = true", "require_masking = false")
    clear = masked.copy(tmp_path / "clear")
    releases = [round_of(masked), round_of(clear, mode="clear")]
    assert releases[0].release == releases[1].release
    assert [each["lot"] for each in entries(masked, "opened_sum")] == ["statistics", "scores", "reliability"]
    counted = masked.holder("law-1").journal.entries("counted")
    assert [each.facts["lot"] for each in counted] == ["scores", "reliability"]
