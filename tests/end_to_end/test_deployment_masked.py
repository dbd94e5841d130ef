"""Masked rounds in a federation that is deployed for real: a holder dies in the middle, one is asked for the clear.

The encoder has the width of large models, 4096: 67 MB a holder, sealed. One story in the order of this file, as in
test_deployment.py: each test begins where the one before has ended.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ridgeway.common.masking.agreement import threshold_for
from tests.support.commands import Finished
from tests.support.deployment import Copy, Deployment, files_of
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
WIDTH = 4096
TRIANGLE_BYTES = (WIDTH + 1) * (WIDTH + 2) // 2 * 8
MOST_BYTES = 2_000_000_000
LOOK_S = 0.5
KINDS = {
    "SuperLink": r"flower-superlink",
    "ServerApp": r"flwr-serverapp",
    "SuperNode": r"deploy\.supernode_process",
    "ClientApp": r"approved_bundle\.py flwr-clientapp",
    "gate": r"deploy\.fleet_proxy",
    "coordinator up": r"ridgeway coordinator up",
    "coordinator round": r"ridgeway coordinator round",
    "client join": r"ridgeway client join",
}
"""What a process is, by its command line."""


class Peaks:
    """The peak resident memory of every kind of process, looked at again and again until told to stop."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes: dict[str, int] = {}

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_S):
            for pid, words in self._deployment.processes().items():
                kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, words)), words[:60])
                self.bytes[kind] = max(self.bytes.get(kind, 0), _peak(pid))

    def table(self) -> str:
        rows = sorted(self.bytes.items(), key=lambda item: -item[1])
        return "\n".join(f"{kind:<20}{size / 1e6:8,.0f} MB" for kind, size in rows)


def _peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


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
    """A round's outcome, the folders as they were before it, and the memory that it took."""

    finished: Finished
    before: Copy
    peaks: Peaks


@pytest.fixture(scope="module")
def first(town: Deployment, go_on: Callable[[], None], tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A masked round in which one member is killed as soon as it has shared its secrets."""
    go_on()
    assert threshold_for(len(ALL)) == len(STAYING)
    before = Copy(town, STAYING, tmp_path_factory.mktemp("before"))
    began = time.monotonic()
    with Peaks(town) as peaks:
        running = town.round()
        town.wait_for("music has shared its secrets", lambda: town.heard("shared", DYING))
        town.kill(DYING)
        finished = running.end()
    print(f"{peaks.table()}\nround               {time.monotonic() - began:8.1f} s")
    return Played(finished, before, peaks)


def test_a_member_killed_after_sharing_does_not_stop_the_round(town: Deployment, first: Played) -> None:
    """Its masks are taken off by the others' shares; the release is that of those who sent."""
    done = first.finished
    assert done.code == 0, done.stderr
    assert done.json["domains"] == list(STAYING)
    assert DYING in done.json["absent"]
    assert town.sent(DYING, "sealed_sums") == 0
    assert {name: town.sent(name, "revealed") for name in STAYING} == dict.fromkeys(STAYING, 3)


def test_no_process_of_the_round_takes_two_gigabytes(town: Deployment, first: Played) -> None:
    """Every process of the operator and of the holders, at its peak; and the sums did travel whole."""
    assert max(each.stat().st_size for each in (town.coordinator / "contributions").iterdir()) >= TRIANGLE_BYTES
    peaks = first.peaks.bytes
    assert {"SuperLink", "ServerApp", "SuperNode", "ClientApp", "gate", "coordinator round"} <= set(peaks)
    assert {kind: size for kind, size in peaks.items() if size >= MOST_BYTES} == {}


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
