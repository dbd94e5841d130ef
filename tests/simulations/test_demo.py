"""The demo that the README begins with, run as a newcomer would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path


def test_the_demo_runs_the_whole_path(tmp_path: Path, smollm2_cache: Path) -> None:
    """It ends well, routes its prompts where they belong, and leaves a release that is nearly always right.

    As on a second run, it finds the encoder converted.
    """
    shutil.copytree(smollm2_cache, tmp_path / "demo-run" / "cache")
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "ridgeway.simulations.demo"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = [line.split()[0] for line in done.stdout.splitlines() if "confidence" in line]
    assert answers == ["law", "mathematics", "python", "law"]
    assert "mean over domains" in done.stdout
    manifest = json.loads((tmp_path / "demo-run" / "release" / "manifest.json").read_bytes())
    assert manifest["evaluation"]["accuracy"] > 95
    assert manifest["cohort"]["holders"] == len(manifest["domains"])
