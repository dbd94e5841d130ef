"""The demo that the README begins with: its commands, as a newcomer would see them run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeway import Router
from ridgeway.simulations import demo
from tests.support.commands import Workshop, home_variables

VISITORS = Path(__file__).parents[1] / "data" / "visitors.jsonl"
"""Questions as people type them, each with the domain of its expert, or none. They are to judge by:
nothing is chosen on them, and none of them may be added to the corpora.
"""


def test_the_demo_runs_the_whole_path(
    tmp_path: Path,
    use_cache: Path,
    sentences_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ends well, routes its prompts where they belong, and leaves a release that knows what a
    visitor asks about.

    As on a second run, it finds the encoders converted. Its commands run in this process, which
    spares seconds.
    """
    for cache in (use_cache, sentences_cache):
        shutil.copytree(cache, tmp_path / "demo-run" / "cache", dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def run(command: Sequence[str], *, check: bool, env: dict[str, str]) -> None:
        assert Path(command[0]).exists() and check
        folders = {name: env[name] for name in home_variables(tmp_path)}
        assert all(value.startswith("demo-run/") for value in folders.values())
        done = Workshop(tmp_path).do(*command[1:], **folders)
        print(done.stdout)

    monkeypatch.setattr(demo, "subprocess", SimpleNamespace(run=run))
    assert demo.main() == 0
    printed = capsys.readouterr().out
    answers = [line.split()[0] for line in printed.splitlines() if "confidence" in line]
    assert answers == ["law", "mathematics", "python", "no", "law"]
    assert "mean over domains" in printed
    release = tmp_path / "demo-run" / "release"
    manifest = json.loads((release / "manifest.json").read_bytes())
    assert manifest["cohort"]["holders"] == len(manifest["domains"])
    router = Router.load(release)
    asked = [json.loads(line) for line in VISITORS.read_text().splitlines()]
    routed = router.route_many([question["text"] for question in asked])
    pairs = [
        (visitor["domain"], decision.domain)
        for visitor, decision in zip(asked, routed, strict=True)
    ]
    known = [domain == found for domain, found in pairs if domain]
    unknown = [found is None for domain, found in pairs if not domain]
    assert sum(known) >= 0.85 * len(
        known
    )  # 63 of 72 with the packages of requirements.lock
    assert sum(unknown) >= 0.7 * len(unknown)  # 21 of 24
    offered = {router.route(prompt).domain for prompt in manifest["examples"]}
    assert offered == {"law", "c", "mathematics", "machine_learning", None}
