"""Rounds at fixed times: each time once, none missed silently, and no end because of one that could not be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ridgeway.common.base.errors import InputError, RoundFailed
from ridgeway.coordinator.deploy.schedule import keep_schedule, next_time
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.round.run_order import RoundWishes
from tests.support.simulated_federation import Direct, found, no_watch, populate

pytest.importorskip("cronsim", reason="a dependency of ridgeway[coordinator]")
SUNDAY = datetime(2027, 3, 28, 2, 59, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0 3 * * 0", datetime(2027, 3, 28, 3, tzinfo=UTC)),
        ("*/15 * * * *", datetime(2027, 3, 28, 3, tzinfo=UTC)),
        ("0 3 1 * *", datetime(2027, 4, 1, 3, tzinfo=UTC)),
        ("59 2 28 3 *", datetime(2028, 3, 28, 2, 59, tzinfo=UTC)),
    ],
)
def test_the_next_time_is_the_first_after_now(line: str, expected: datetime) -> None:
    assert next_time(line, SUNDAY) == expected


@pytest.mark.parametrize("line", ["", "0 3 * *", "61 * * * *", "soon", "0 3 30 2 *"])
def test_what_is_no_time_is_refused_in_one_sentence(line: str) -> None:
    with pytest.raises(InputError, match=repr(line)[1:-1] or "cron expression"):
        next_time(line, SUNDAY)


def test_a_round_that_cannot_be_is_told_and_the_next_time_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that pass while a round runs are left out, not made up for; a stop ends the wait."""
    now, begun, said = [SUNDAY], list[datetime](), list[str]()

    def pass_time(seconds: float) -> None:
        now[0] += timedelta(seconds=30)

    def work() -> None:
        begun.append(now[0])
        now[0] += timedelta(minutes=90)
        if len(begun) == 2:
            raise RoundFailed("law is away; see that it runs")

    monkeypatch.setattr("ridgeway.coordinator.deploy.schedule.time.sleep", pass_time)
    keep_schedule("0 * * * *", work, lambda: len(begun) == 3, said.append, lambda: now[0])
    assert [each.hour for each in begun] == [3, 5, 7]
    assert said[2] == "skipped: law is away; see that it runs"
    assert [each for each in said if "starts at" in each] == [
        f"the next round starts at 2027-03-28 0{h}:00 UTC" for h in (3, 5, 7)
    ]


def test_a_round_that_waits_for_changes_opens_nothing_before(tmp_path: Path) -> None:
    """The first round runs whatever it waits for; later ones count who has a new epoch, and say how many do."""
    parties = found(tmp_path, mode="masked")
    populate(parties, {"code": "code", "code-2": "code", "law": "law", "medicine": "medicine"})
    federation, wishes = parties.federation(), RoundWishes(min_changed=4)
    first = run_round(federation, Direct(parties), no_watch, wishes)
    for name in ("code", "law"):
        parties.ready(name)
    with pytest.raises(RoundFailed, match=r"2 holders are new .* the round needs 4"):
        run_round(federation, Direct(parties), no_watch, wishes)
    assert len(federation.ledger.journal.entries("totalled")) == 1
    assert federation.ledger.standing().releases[-1].release == first.release
    for name in ("code-2", "medicine"):
        parties.ready(name)
    assert run_round(federation, Direct(parties), no_watch, wishes).number == 2
