"""Masked rounds in a federation that is deployed for real: a holder dies in the middle, one is asked for the clear.

One story in the order of this file, as in test_deployment.py: each test begins where the one before has ended. What a
wide encoder takes, in time and in memory, `ridgeway bench deployment` measures.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ridgeway.common.masking.agreement import threshold_for
from tests.support.commands import Finished
from tests.support.deployment import Copy, Deployment, files_of
from tests.support.flower_parts import SMALL_BULK_BYTES
from tests.support.tiny import tiny_encoder

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc"),
    pytest.mark.usefixtures("show_logs"),
]

STAYING = ("code", "law", "medicine")
DYING = "music"
ALL = (*STAYING, DYING)
DEADLINE_S = 600.0
"""For each answer. Nobody waits so long: a SuperNode that was killed is given up as soon as its heartbeat is missed."""
WIDTH = 800
"""Sealed sums are larger than what travels in one piece."""
TRIANGLE_BYTES = (WIDTH + 1) * (WIDTH + 2) // 2 * 8


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A coordinator that is up, and four holders that have pinned each other and are connected."""
    with Deployment(tmp_path_factory.mktemp("masked-town"), tiny_encoder(WIDTH)) as made:
        made.found("masked", wait=5.0, deadline=DEADLINE_S, ridges="[0.001]", normalise_columns="[false]")
        for name in ALL:
            made.settle(name)
            made.admit(name)
        made.pin(*ALL)
        made.up()
        made.join(*ALL)
        yield made


def test_a_round_in_the_clear_is_refused_by_everybody(town: Deployment) -> None:
    """The operator asks for it, each holder says no, and nobody has sent anything but that."""
    done = town.round("--clear").end()
    assert done.code != 0
    refused = [line.split()[1:3] for line in done.stderr.splitlines() if line.startswith("refused")]
    assert sorted(refused) == [[name, "masking_required"] for name in sorted(ALL)]
    assert {name: town.sent(name, "clear_statistics") for name in ALL} == dict.fromkeys(ALL, 0)
    assert town.releases() == []


@dataclass(frozen=True, slots=True)
class Played:
    """A round's outcome, and the folders as they were before it."""

    finished: Finished
    before: Copy


@pytest.fixture(scope="module")
def first(town: Deployment, go_on: Callable[[], None], tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A masked round in which a member is killed after it has shared its secrets, and the SuperLink after it has passed
    on what opened the total. While the round waits for the member, others have sealed and nobody has signed; then
    another's process with the imported bundle is killed, and another's that starts its answers.
    """
    go_on()
    assert threshold_for(len(ALL)) == len(STAYING)
    before = Copy(town, STAYING, tmp_path_factory.mktemp("before"))
    running = town.round()
    town.wait_for("music has shared its secrets", lambda: town.heard("shared", DYING))
    town.kill(DYING)
    for name in ("code", "law"):
        town.wait_for(f"{name} has sealed", lambda name=name: town.sent(name, "sealed_sums") == 1)  # type: ignore[misc]
        town.wait_for(f"{name} keeps the bundle", lambda name=name: len(town.answering(name)) == 2)  # type: ignore[misc]
    os.kill(town.answering("code")[1], signal.SIGKILL)
    os.kill(town.answering("law")[0], signal.SIGKILL)
    town.wait_for("the total is opened", lambda: bool(town.ledger("opened_sum")))
    os.kill(town.process("flower-superlink"), signal.SIGKILL)
    return Played(running.end(), before)


def test_a_member_killed_after_sharing_does_not_stop_the_round(town: Deployment, first: Played) -> None:
    """Its masks are taken off by the others' shares; the release is that of those who sent."""
    done = first.finished
    assert done.code == 0, done.stderr
    assert done.json["domains"] == list(STAYING)
    assert DYING in done.json["absent"]
    assert town.sent(DYING, "sealed_sums") == 0
    assert {name: town.sent(name, "revealed") for name in STAYING} == dict.fromkeys(STAYING, 2)
    assert max(each.stat().st_size for each in (town.coordinator / "contributions").iterdir()) >= TRIANGLE_BYTES
    assert TRIANGLE_BYTES > SMALL_BULK_BYTES
    assert "superlink ended with code -9; it is started again" in town.running["up"].said


def test_a_member_signs_and_opens_though_what_answers_for_it_was_killed(town: Deployment, first: Played) -> None:
    """What it has sealed lies on its disk: the process that comes next signs for that, and for nothing else."""
    assert {name: town.sent(name, "confirmed") for name in STAYING} == dict.fromkeys(STAYING, 2)
    assert "superexec ended" not in town.running["code"].said
    assert "superexec ended with code -9; it is started again" in town.running["law"].said


def test_the_masked_release_is_that_of_the_survivors_byte_for_byte(town: Deployment, first: Played) -> None:
    """As if they had run a round among themselves, in memory."""
    assert files_of(town.coordinator / "releases" / "0001") == first.before.release()


def test_the_coordinator_has_seen_a_total_and_nobodys_sums(town: Deployment, first: Played) -> None:
    """A file of sums and two of counts about them, and no entry of anybody's contribution."""
    assert len(list((town.coordinator / "contributions").iterdir())) == 3
    assert town.ledger("contributed") == []
    [opened] = [entry for entry in town.ledger("opened_sum") if entry.facts["lot"] == "statistics"]
    assert len(opened.facts["parts"]) == len(STAYING)
    verified = town.do("coordinator", "verify", town.coordinator, "--json").json
    assert (verified["contributions"], verified["totals"], verified["releases"]) == (0, 1, 1)


def test_sessions_leave_nothing_behind_on_holders_machines(town: Deployment, first: Played) -> None:
    """Once the release has come, the state of the session is gone."""
    assert [name for name in STAYING if (town.holder(name) / "session").exists()] == []


def test_a_total_that_would_show_one_holder_is_not_asked_for(town: Deployment, first: Played) -> None:
    """One corpus has changed: the operator reads whose and what to do, and nobody has sealed anything for it."""
    town.grow("law", seed=1)
    before = {name: town.sent(name, "sealed_sums") for name in STAYING}
    done = town.round().end()
    assert done.code != 0
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("ridgeway: since an earlier masked total only law has changed"), done.stderr
    assert {name: town.sent(name, "sealed_sums") for name in STAYING} == before
    assert town.releases() == ["0001"]
