"""What a joined holder makes of the end of its SuperNode: it goes on, or says what a person has to
change.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeway.client.deploy.supernode import LogTail, NodeSettings, _judge_end
from ridgeway.common.base.errors import NodeRefused

ADDRESS = "router.example.org:9443"


def judged(folder: Path, *said: str) -> None:
    """Judge the end of a SuperNode that has said this, bit by bit, and was ended by the
    coordinator's refusal.
    """
    log = folder / "supernode.log"
    log.touch()
    tail = LogTail(log, ADDRESS, lambda words: None)
    for words in said:
        with log.open("a") as file:
            file.write(words)
        tail.read()
    node: Any = SimpleNamespace(process=SimpleNamespace(returncode=0), log=log)
    settings = NodeSettings(folder, ADDRESS, tuple)
    _judge_end(tail, node, settings)
    assert not tail.has_connected, "the next one is judged by what it says itself"


def test_a_holder_that_was_connected_goes_on_after_the_coordinator_was_restored(
    tmp_path: Path,
) -> None:
    """However much was said since it connected; the restored coordinator does not know its
    connection any more.
    """
    judged(tmp_path, "INFO: SuperNode ID: 77\n")
    judged(
        tmp_path,
        "INFO: SuperNode ID: 77\n",
        *["INFO: Receiving: query message\n" * 100] * 20,
    )


def test_a_holder_that_never_connected_is_told_of_the_clocks(tmp_path: Path) -> None:
    with pytest.raises(NodeRefused, match="a clock that is wrong"):
        judged(tmp_path, "INFO: Starting Flower SuperNode\n")
