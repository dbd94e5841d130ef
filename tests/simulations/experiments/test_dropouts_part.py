"""Masked rounds under drop-out: refused where they must be, exact where they are not, and told as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.client.round.holder import Holder
from ridgeway.simulations.dropouts import STAGES, choose_dropouts
from ridgeway.simulations.experiments import dropouts_part as dropouts
from ridgeway.simulations.experiments.dropouts_part import DropoutRound, holders_for, measure, run, stages
from ridgeway.simulations.experiments.experiment_rounds import copied, own_sums, settled, watched_round
from ridgeway.simulations.experiments.report.report_tables import ReportPart, Table, part_from_json
from ridgeway.simulations.simulated_federation import SimulatedFederation
from tests.support.experiment_settings import LETTERS, tiny_dataset, tiny_plan

DOMAINS = ("code", "law", "medicine")
BEFORE_SHARING, AFTER_SHARING, AFTER_SENDING, BEFORE_OPENING = STAGES
SIGNATURE = 128


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Six holders, of whom five must be left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dropouts, "RATES", (0.0, 0.2, 0.4))
        patch.setattr(dropouts, "SHORT_HOLDERS", (6,))
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dropouts")


@pytest.fixture(scope="module")
def part(place: Path) -> ReportPart:
    return run(tiny_plan(place, tiny_dataset(DOMAINS)))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> SimulatedFederation:
    folder = tmp_path_factory.mktemp("base")
    return settled(tiny_plan(folder), tiny_dataset(DOMAINS), folder / "federation", "masked", 6)


def table(part: ReportPart, key: str) -> Table:
    return next(each for each in part.tables if each.key == key)


def never(*_: object) -> SimulatedFederation:
    """What must not be called."""
    raise AssertionError


# Who falls


@given(
    names=st.lists(st.text("abc123", min_size=1), unique=True, max_size=40),
    rates=st.tuples(*[st.floats(0, 0.99)] * 2),
    seed=st.integers(0, 9),
)
def test_with_any_seed_greater_rates_only_add_to_those_who_fall(
    names: list[str], rates: tuple[float, float], seed: int
) -> None:
    """As many as the rate says, at the same stages; the usual choice is that of seed 0."""
    fewer, more = (choose_dropouts(names, rate, seed) for rate in sorted(rates))
    assert fewer.items() <= more.items()
    assert len(more) == round(max(rates) * len(names))
    assert choose_dropouts(names, rates[0], 0) == choose_dropouts(names, rates[0])


def test_other_seeds_choose_others() -> None:
    """Of twelve holders, several first ones to fall, and every stage as the first."""
    falls = [choose_dropouts([f"h{place}" for place in range(12)], 0.1, seed) for seed in range(8)]
    assert len({name for each in falls for name in each}) > 2
    assert {stage for each in falls for stage in each.values()} == set(STAGES)


@given(domains=st.integers(2, 30), least=st.integers(1, 100))
def test_every_domain_has_the_same_power_of_two_of_holders(domains: int, least: int) -> None:
    """As few as reach the number asked for; so shares are equal whatever the keys are."""
    holders = holders_for(domains, least)
    each, rest = divmod(holders, domains)
    assert rest == 0
    assert each.bit_count() == 1
    assert holders >= least
    assert each == 1 or holders // 2 < least


# One round


@pytest.mark.parametrize(
    ("stage", "counted", "mass"),
    [(BEFORE_SHARING, 5, 50.0), (AFTER_SHARING, 5, 50.0), (AFTER_SENDING, 5, 50.0), (BEFORE_OPENING, 6, 100.0)],
)
def test_a_domain_is_lighter_where_its_holder_fell_before_signing(
    base: SimulatedFederation, tmp_path: Path, stage: int, counted: int, mass: float
) -> None:
    """The total is that of those counted, byte for byte, whoever fell."""
    simulated = copied(base, tmp_path / "copy")
    found = measure(simulated, watched_round(simulated, {"law-2": stage}))
    assert found["counted"] == counted
    assert found["masses"] == {"code": 100.0, "law": mass, "medicine": 100.0}
    assert found["equal"]


def test_texts_of_a_missing_domain_are_routed_wrongly(tmp_path: Path) -> None:
    """Its only holder fell: the accuracy over all domains counts it with nothing."""
    dataset = tiny_dataset()
    simulated = settled(tiny_plan(tmp_path, dataset), dataset, tmp_path / "federation", "masked")
    found = measure(simulated, watched_round(simulated, {"poetry": AFTER_SHARING}))
    assert found["domains"]["poetry"] == found["masses"]["poetry"] == 0.0
    assert found["accuracy"] == pytest.approx(sum(found["domains"].values()) / len(LETTERS))
    assert found["equal"]


def test_a_total_of_other_sums_is_noticed(
    base: SimulatedFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were one of the holders' sums another's, the comparison would say no."""
    simulated = copied(base, tmp_path / "copy")
    watched = watched_round(simulated)
    monkeypatch.setattr(dropouts, "own_sums", lambda simulated, name: own_sums(simulated, name.replace("-2", "-1")))
    found = measure(simulated, watched)
    assert found["equal"] is False


def test_bytes_are_those_that_holders_note_themselves(base: SimulatedFederation, tmp_path: Path) -> None:
    """What was counted on the way up is what each holder's journal says it sent, and a signature a message."""
    simulated = copied(base, tmp_path / "copy")
    watched = watched_round(simulated, {"law-2": AFTER_SHARING})
    for name, home in simulated.nodes.items():
        sent = [entry.facts["bytes"] for entry in Holder(home).journal.entries() if entry.kind == "sent"]
        assert watched.up[name] == sum(sent) + SIGNATURE * len(sent)
        assert watched.down[name] > 0
    assert watched.up["law-2"] < watched.up["law-1"]


def test_copies_do_not_touch_the_federation_they_came_from(base: SimulatedFederation, tmp_path: Path) -> None:
    """A round in a copy leaves no release and no entry in the original."""
    before = len(base.federation.ledger.journal.entries())
    simulated = copied(base, tmp_path / "copy")
    watched_round(simulated)
    assert simulated.federation.newest is not None
    assert base.federation.newest is None
    assert len(base.federation.ledger.journal.entries()) == before


# The part


def test_rounds_are_released_as_long_as_enough_are_left(part: ReportPart) -> None:
    """One of six may fall; with two, every round is refused with a sentence and no figures."""
    rates = table(part, "dropouts-tiny")
    assert rates.column("must be left") == (5, 5, 5)
    assert rates.column("fell") == (0, 1, 2)
    assert rates.column("rounds") == (1, 2, 2)
    assert rates.column("opened") == rates.column("released") == rates.column("exact") == (1, 2, 0)
    assert rates.column("accuracy")[2] is None
    said = table(part, "dropouts-rounds-tiny").column("what came of it")
    assert said[:3] == ("released",) * 3
    assert all("and 5 are needed, so nothing was opened" in str(words) for words in said[3:])


def test_plots_have_a_gap_where_nothing_was_released(part: ReportPart) -> None:
    """Not a zero; times are those of all rounds."""
    right, long = part.plots
    assert right.series[0].y[2] is None
    assert None not in long.series[0].y


def test_another_run_finds_the_same(part: ReportPart, tmp_path: Path) -> None:
    """Times apart: other folders and other keys give the same totals, byte for byte."""
    again = run(tiny_plan(tmp_path, tiny_dataset(DOMAINS)))
    for name in ("accuracy", "least", "released", "exact", "lightest domain"):
        assert table(again, "dropouts-tiny").column(name) == table(part, "dropouts-tiny").column(name)
    assert table(again, "dropouts-rounds-tiny") == table(part, "dropouts-rounds-tiny")


def test_what_lies_in_the_cache_is_not_done_again(
    part: ReportPart, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is settled a second time, and what comes from the cache is the same part, also after JSON."""
    monkeypatch.setattr(dropouts, "settled", never)
    again = run(tiny_plan(place, tiny_dataset(DOMAINS)))
    assert again == part == part_from_json(json.loads(json.dumps(part.to_json())))


def test_too_few_texts_for_the_holders_are_told(tmp_path: Path) -> None:
    """A dataset that cannot be dealt out is left out with the reason, and the part is made without it."""
    part = run(tiny_plan(tmp_path, tiny_dataset(DOMAINS, train=1)))
    assert part.left_out == ("tiny with 6 holders: a domain has fewer texts than holders",)


# Words


def a_round(**changes: Any) -> DropoutRound:
    facts: dict[str, Any] = {
        "holders": 6,
        "rate": 0.0,
        "draw": 0,
        "falls": {},
        "counted": 6,
        "refused": "",
        "opened": True,
        "seconds": 1.0,
        "work": 1.0,
        "up": 1.0,
        "down": 1.0,
        "accuracy": 90.0,
        "domains": {"code": 90.0, "law": 90.0},
        "masses": {"code": 100.0, "law": 100.0},
        "equal": True,
    }
    return DropoutRound(**facts | changes)


def test_stages_are_told_in_their_order() -> None:
    """However the fallen are ordered."""
    assert stages({"b": "after sending", "a": "before sharing", "c": "after sending"}) == (
        "before sharing 1, after sending 2"
    )
    assert stages({}) == "nobody"
