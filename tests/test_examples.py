"""The scripts of examples/, run as their first lines say, one on what another has made."""

from __future__ import annotations

import importlib
import io
import re
import runpy
import sys
import tomllib
import zipfile
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ridgeway import Router
from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.deploy.processes import flower_environment, script
from ridgeway.common.text.encoder_files import find_encoder
from tests.support.commands import output_of
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_domains
from tests.support.flower_parts import (
    MESSAGE_TYPE,
    FlowerMessage,
    LocalGrid,
    RecordDict,
    local_grid,
)

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
def folder(module_path: Path) -> Path:
    """Corpora of three domains, and the encoder that own_encoder.py makes of public text."""
    write_domains(module_path / "data", 60, 10)
    (module_path / "public.txt").write_text(
        "\n".join(text for domain in ALPHABETS for text in sentences(domain, 20))
    )
    printed = run("own_encoder.py", module_path / "encoder", module_path / "public.txt")
    assert printed[1] == f"fingerprint {find_encoder(named(module_path)).fingerprint}"
    return module_path


def named(folder: Path) -> str:
    return f"dir:{folder / 'encoder'}"


@pytest.fixture(scope="module")
def release(folder: Path) -> Path:
    """What federation.py makes with this encoder."""
    first, *_, folder_line, accuracy = run(
        "federation.py", folder / "work", folder / "data", named(folder)
    )
    assert first == "ready       code"
    assert accuracy == "accuracy    100.0 %"
    return Path(folder_line.split()[1])


def test_an_encoder_of_your_own_makes_a_release(release: Path) -> None:
    """own_encoder.py and federation.py, one after the other."""
    assert Router.load(release).domains == tuple(ALPHABETS)


def test_prompts_are_routed_in_python(release: Path) -> None:
    """What the router is not sure of goes to the fallback."""
    sure, unsure = run("route.py", release, LEGAL, "\u2603")
    assert sure.startswith("law ") and sure.endswith(LEGAL)
    assert unsure.startswith("generalist ")


def test_a_fastapi_app_routes_chats(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And answers 422 to what is no chat."""
    monkeypatch.setenv("RELEASE", str(release))
    with TestClient(runpy.run_path(str(EXAMPLES / "fastapi_app.py"))["app"]) as client:
        assert (
            client.post("/ask", json=[{"role": "user", "content": LEGAL}]).json()[
                "domain"
            ]
            == "law"
        )
        assert client.post("/ask", json=[{"content": LEGAL}]).status_code == 422


def test_a_private_round_ends_with_a_statement(
    folder: Path, tmp_path: Path, private_sentences: None
) -> None:
    """Of what one document of the first holder has cost."""
    encoder = named(folder) + "+words+sentence"
    printed = run("private_round.py", tmp_path / "work", folder / "data", encoder)
    assert printed[0] == "What one document of code has cost"
    assert any("ε" in line for line in printed)


@pytest.fixture
def flower_app(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the Flower app, of which Python finds the package."""
    folder = EXAMPLES / "flower-app"
    monkeypatch.syspath_prepend(str(folder))
    return folder


Config = dict[str, Any]


@pytest.fixture
def config(
    flower_app: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Config:
    """The app's, for a masked round in a new folder on the corpora of three domains."""
    usual: Config = tomllib.loads((flower_app / "pyproject.toml").read_text())["tool"][
        "flwr"
    ]["app"]["config"]
    monkeypatch.setenv("RIDGEWAY_SIMULATION", "")
    places = {
        "work": str(tmp_path / "work"),
        "data": str(folder / "data"),
        "encoder": named(folder),
    }
    return usual | places | {"mode": "masked", "wait": 0}


def run_app(config: Config, nodes: int) -> None:
    """The app's two parts on a grid that gives nodes their number and the run's settings, as
    Flower's engine does.
    """
    grid = LocalGrid(
        importlib.import_module("ridgeway_app.client_app").app,
        dict.fromkeys(range(1, nodes + 1), Path()),
    )
    for node, context in grid._contexts.items():
        context.node_config = {"partition-id": node - 1, "num-partitions": nodes}
        context.run_config = config
    server = importlib.import_module("ridgeway_app.server_app")
    server.main(grid, SimpleNamespace(run_id=local_grid.RUN, run_config=config))


def test_the_flower_app_runs_a_round_with_a_holder_for_each_node(
    config: Config, tmp_path: Path
) -> None:
    """In a folder of this run alone."""
    run_app(config, 3)
    assert (
        Router.load(tmp_path / f"work/{local_grid.RUN}/coordinator/releases/0001")
        .route(LEGAL)
        .best
        == "law"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"work": ""}, "work is ''; name a folder by its whole path"),
        ({"work": "rounds"}, "work is 'rounds'; name a folder by its whole path"),
        ({"mode": "secret"}, "there is no mode 'secret'; use private, masked, clear"),
        ({"epsilon": 0}, "ε must be above 0"),
        ({}, "2 SuperNodes are there after 0 s, and the round needs 3; start more"),
        ({"coordinator": "nowhere"}, "nowhere is not a coordinator's folder"),
    ],
)
def test_the_flower_app_refuses_in_a_sentence_what_cannot_run(
    changes: Config,
    words: str,
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RidgewayError, match=re.escape(words)):
        run_app(config | changes, 2)
    assert list(tmp_path.iterdir()) == []


def test_the_flower_app_asks_holders_for_what_they_have_agreed_to(
    release: Path, config: Config
) -> None:
    """A mode or an ε that is not the coordinator's is refused before any holder is asked."""
    place = {"coordinator": str(release.parents[1])}
    with pytest.raises(
        InputError,
        match=r"the run asks for mode clear and epsilon 1, and holders .* mode masked",
    ):
        run_app(config | place | {"mode": "clear"}, 3)


def test_a_supernode_without_a_holder_says_so(flower_app: Path) -> None:
    """To the coordinator, in words that tell nothing of its machine."""
    grid = LocalGrid(
        importlib.import_module("ridgeway_app.client_app").app, {1: Path()}
    )
    grid._contexts[1].node_config = {}
    [reply] = grid.send_and_receive([FlowerMessage(RecordDict(), 1, MESSAGE_TYPE)])
    assert (
        reply.error.reason
        == "this SuperNode was started without --node-config 'holder=\"DIR\"'"
    )


def test_the_flower_app_says_that_ridgeway_is_missing(
    flower_app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how to install it, since no registry has it."""
    monkeypatch.delitem(sys.modules, "ridgeway_app", raising=False)
    monkeypatch.setitem(sys.modules, "ridgeway", None)
    with pytest.raises(ImportError, match="Ridgeway is not installed"):
        importlib.import_module("ridgeway_app")


def test_flower_builds_the_app(flower_app: Path, tmp_path: Path) -> None:
    """In the newest format, which checks the licence and the versions of Flower that it names."""
    environment = flower_environment(tmp_path / "home")
    command = [script("flwr"), "build", "--app", str(flower_app)]
    output_of(command, tmp_path, env=environment)
    [built] = tmp_path.glob("ridgeway.ridgeway-round.*.fab")
    with zipfile.ZipFile(built) as archive:
        held = set(archive.namelist())
    assert {
        "pyproject.toml",
        "LICENSE.md",
        "ridgeway_app/client_app.py",
        "ridgeway_app/server_app.py",
    } <= held


def test_every_example_is_short_and_compiles() -> None:
    """LiteLLM's hook too, which tests/adapters runs in LiteLLM's proxy."""
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) == 6
    for path in scripts:
        text = path.read_text()
        compile(text, path.name, "exec")
        assert len(text.splitlines()) <= 40, path.name
