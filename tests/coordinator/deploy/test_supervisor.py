"""A run that is followed while the coordinator stops: nobody waits for what cannot come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.errors import LinkDown, RoundFailed
from ridgeway.common.deploy.processes import only_one
from ridgeway.coordinator.deploy import supervisor
from ridgeway.coordinator.round.progress import no_watch


class Away:
    """A SuperLink that does not answer for some looks, and then says that the run has ended."""

    def __init__(self, folder: Path, looks: int) -> None:
        self.folder, self.looks, self.said = folder, looks, ""

    def has_finished(self, number: int) -> bool:
        self.looks -= 1
        if self.looks >= 0:
            raise LinkDown("away")
        return True


def followed(folder: Path, looks: int, monkeypatch: pytest.MonkeyPatch) -> Away:
    monkeypatch.setattr(supervisor, "_SILENCE_S", 0.0)
    link = Away(folder, looks)
    client: Any = link
    with pytest.raises(RoundFailed) as failed:
        supervisor._follow(folder / "progress.jsonl", client, 1, no_watch)
    link.said = str(failed.value)
    return link


def test_a_round_ends_with_a_sentence_once_nobody_runs_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first look, not after minutes."""
    link = followed(tmp_path, 1000, monkeypatch)
    assert link.looks == 999
    assert "check that `coordinator up` is running" in link.said


def test_a_round_waits_for_a_superlink_that_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a renewed certificate: `coordinator up` runs, and so the round may go on."""
    with only_one(tmp_path, "a coordinator"):
        link = followed(tmp_path, 3, monkeypatch)
    assert link.looks == -1 and "was interrupted" in link.said
