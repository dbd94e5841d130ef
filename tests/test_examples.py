"""The scripts of examples/, run as their first lines say, one on what another has made."""

from __future__ import annotations

import io
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from ridgeway import Router
from ridgeway.common.encoding.encoder_sources import find_encoder
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LEGAL = sentences("law", 70)[-1].replace("\n", " ")


def run(name: str, *words: str | Path) -> list[str]:
    """The lines that `python examples/NAME WORDS...` prints, without a process of its own."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return printed.getvalue().splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpora of three domains, and the encoder that own_encoder.py makes of public text."""
    place = tmp_path_factory.mktemp("examples")
    for domain in ALPHABETS:
        write_jsonl(place / "data" / f"{domain}.train.jsonl", sentences(domain, 60))
        write_jsonl(place / "data" / f"{domain}.test.jsonl", sentences(domain, 70)[60:])
    (place / "public.txt").write_text("\n".join(text for domain in ALPHABETS for text in sentences(domain, 20)))
    told = run("own_encoder.py", place / "encoder", place / "public.txt")
    assert told[1] == f"fingerprint {find_encoder(named(place)).fingerprint}"
    return place


def named(folder: Path) -> str:
    return f"dir:{folder / 'encoder'}"


@pytest.fixture(scope="module")
def release(folder: Path) -> Path:
    """What federation.py makes with this encoder."""
    first, *_, place, accuracy = run("federation.py", folder / "work", folder / "data", named(folder))
    assert first == "ready       code"
    assert accuracy == "accuracy    100.0 %"
    return Path(place.split()[1])


def test_an_encoder_of_your_own_makes_a_release(release: Path) -> None:
    """own_encoder.py and federation.py, one after the other."""
    assert Router.load(release).domains == tuple(ALPHABETS)


def test_prompts_are_routed_in_python(release: Path) -> None:
    """What the router is not sure of goes to the fallback."""
    sure, unsure = run("route.py", release, LEGAL, "\u2603")
    assert sure.startswith("law ") and sure.endswith(LEGAL)
    assert unsure.startswith("generalist ")


def test_a_fastapi_app_routes_chats(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And answers 422 to what is no chat."""
    monkeypatch.setenv("RELEASE", str(release))
    with TestClient(runpy.run_path(str(EXAMPLES / "fastapi_app.py"))["app"]) as client:
        assert client.post("/ask", json=[{"role": "user", "content": LEGAL}]).json()["domain"] == "law"
        assert client.post("/ask", json=[{"content": LEGAL}]).status_code == 422


def test_a_private_round_ends_with_a_statement(folder: Path, tmp_path: Path) -> None:
    """Of what one document of the first holder has cost."""
    told = run("private_round.py", tmp_path / "work", folder / "data", named(folder))
    assert told[0] == "What one document of code has cost"
    assert any("ε" in line for line in told)


def test_every_example_is_short_and_compiles() -> None:
    """LiteLLM's hook too, which tests/adapters runs in LiteLLM's proxy."""
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) == 6
    for script in scripts:
        text = script.read_text()
        compile(text, script.name, "exec")
        assert len(text.splitlines()) <= 40, script.name
