"""A deployed masked round with an encoder of width 4096, the width of large models: 67 MB a holder, sealed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Finished
from tests.support.deployment import Deployment
from tests.support.tiny import tiny_encoder

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc"),
]

WIDTH = 4096
TRIANGLE_BYTES = (WIDTH + 1) * (WIDTH + 2) // 2 * 8
MOST_BYTES = 2_000_000_000
LOOK_S = 0.2
HOLDERS = ("code", "law", "music")
KINDS = {
    "SuperLink": r"flower-superlink",
    "ServerApp": r"flwr-serverapp",
    "SuperNode": r"deploy\.supernode_process",
    "ClientApp": r"client/deploy/approved_bundle\.py",
    "SuperExec": r"flower-superexec",
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
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A coordinator and three holders, all of them connected, over an encoder of few tokens and great width."""
    with Deployment(tmp_path_factory.mktemp("wide"), tiny_encoder(WIDTH)) as made:
        made.found("masked", wait=30.0)
        for name in HOLDERS:
            made.settle(name)
            made.admit(name)
        made.pin(*HOLDERS)
        made.up()
        made.join(*HOLDERS)
        yield made


def test_a_round_at_width_4096_stays_below_two_gigabytes_a_process(wide: Deployment) -> None:
    """Every process of the operator and of the holders, at its peak; and the sums did travel whole."""
    began = time.monotonic()
    with Peaks(wide) as peaks:
        done: Finished = wide.round().end()
    print(f"{peaks.table()}\nround               {time.monotonic() - began:8.1f} s")
    assert done.code == 0, f"{done.stderr}\n{wide.tails()}"
    assert done.json["domains"] == list(HOLDERS)
    [total] = (wide.coordinator / "contributions").iterdir()
    assert total.stat().st_size >= TRIANGLE_BYTES
    sealed = [each for each in done.stderr.splitlines() if each.startswith("sealed")]
    assert len(sealed) == len(HOLDERS)
    assert {"SuperLink", "ServerApp", "SuperNode", "ClientApp", "gate", "coordinator round"} <= set(peaks.bytes)
    assert {kind: size for kind, size in peaks.bytes.items() if size >= MOST_BYTES} == {}
