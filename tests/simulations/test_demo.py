"""The demo that the README begins with: its commands, as a newcomer would see them run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeway.simulations import demo
from tests.support.commands import Workshop


def test_the_demo_runs_the_whole_path(
    tmp_path: Path, smollm2_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends well, routes its prompts where they belong, and leaves a release that is nearly always right.

    As on a second run, it finds the encoder converted. Its commands run in this process, which spares seconds for each.
    """
    shutil.copytree(smollm2_cache, tmp_path / "demo-run" / "cache")
    monkeypatch.chdir(tmp_path)

    def run(command: Sequence[str], *, check: bool, env: dict[str, str]) -> None:
        assert Path(command[0]).exists() and check
        own = {name: env[name] for name in ("RIDGEWAY_CACHE", "RIDGEWAY_CONFIG", "RIDGEWAY_STATE")}
        assert all(value.startswith("demo-run/") for value in own.values())
        done = Workshop(tmp_path).call(*command[1:], cwd=None, stdin=b"", **own)
        assert done.code == 0, done.stderr
        print(done.stdout)

    monkeypatch.setattr(demo, "subprocess", SimpleNamespace(run=run))
    assert demo.main() == 0
    told = capsys.readouterr().out
    answers = [line.split()[0] for line in told.splitlines() if "confidence" in line]
    assert answers == ["law", "mathematics", "python", "law"]
    assert "mean over domains" in told
    manifest = json.loads((tmp_path / "demo-run" / "release" / "manifest.json").read_bytes())
    assert manifest["evaluation"]["accuracy"] > 95
    assert manifest["cohort"]["holders"] == len(manifest["domains"])
