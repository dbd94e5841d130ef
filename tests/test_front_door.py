"""What users import, and what importing it costs: a routed prompt needs none of the heavy
packages.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import requires
from typing import Any

import pytest

import ridgeway
from ridgeway.__main__ import command, main
from tests.support.commands import Workshop

HEAVY = (
    "torch flwr transformers scipy pyarrow gguf huggingface_hub zstandard matplotlib"
).split()

TYPERS = {"pydantic"} & {words.partition(">")[0] for words in requires("typer") or ()}
"""What newer versions of typer import for themselves."""
LIBRARY = """
import ridgeway
router = ridgeway.Router.load(RELEASE)
said = [router.route("abcdefgh"), router.explain("0123").decision, *router.route_many(["nopq"])]
said = [decision.domain for decision in said]
"""
COMMAND = """
import contextlib, io
from ridgeway.__main__ import main
said = []
for words in RUNS:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main(words)
    said.append(shown.getvalue())
"""
ROUTED = """
PROMPTS = ["abcdefgh"], ["0123", "--explain"], ["nopq", "--json"]
RUNS = [["route", RELEASE, *words] for words in PROMPTS]
"""
SERVICE = """
from dataclasses import fields
from importlib.metadata import requires
from pathlib import Path
from ridgeway.common.routing.experts_file import ExpertsFile
from ridgeway.serving.serve_command import create_app
from ridgeway.serving.gateway import Gateway
from ridgeway.serving.routing_service import ReleaseSource
from ridgeway.serving.routing_service import RoutingService
service = RoutingService(ReleaseSource(Path(RELEASE)))
experts = Path(RELEASE).with_name("experts.toml")
expert = 'fallback = "x"\\n[experts.x]\\nbase_url = "http://127.0.0.1:9/v1"\\nmodel = "x"\\n'
experts.write_text(expert)
create_app(service, gateway=Gateway(service, ExpertsFile(experts)))
service.threads.close()
said = []
"""


def in_a_new_process(code: str, shop: Workshop) -> tuple[list[Any], set[str]]:
    """What the code said, and every module that it had imported in the end."""
    report = "import json, sys; print(json.dumps([said, sorted(sys.modules)]))"
    script = f"RELEASE = {str(shop / 'release')!r}\n{code}\n{report}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=shop.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    said, modules = json.loads(done.stdout.splitlines()[-1])
    return said, {name.removeprefix("ridgeway.").partition(".")[0] for name in modules}


def test_the_exported_names_are_pinned() -> None:
    """A name that appears or goes is a change of the interface, and is made on purpose."""
    assert (
        sorted(ridgeway.__all__)
        == (
            "ConversationTurn Conversations Decision ExpertChoice ExpertChooser "
            "Explanation FollowedRouter RidgewayError Router Turn WordWeight "
            "__version__ weighted_turns"
        ).split()
    )
    assert all(hasattr(ridgeway, name) for name in ridgeway.__all__)


def test_the_public_names_of_a_router_are_pinned() -> None:
    """What applications call."""
    public = {name for name in vars(ridgeway.Router) if not name.startswith("_")}
    public -= {field.name for field in fields(ridgeway.Router)}
    assert public == set(
        (
            "explain explain_turns follow load route route_many route_turns make_fast "
            "with_confidence with_selector without has_sentences reads_sentences route_by_table"
        ).split()
    )
    assert ridgeway.Decision._fields == tuple(
        "domain confidence scores abstained best tokens scope reason router".split()
    )
    assert ridgeway.Explanation._fields == ("decision", "runner_up", "margin", "words")
    assert ridgeway.WordWeight._fields == ("text", "domain", "weight", "parts")


def test_routing_imports_nothing_heavy(shop: Workshop) -> None:
    """An application that loads a release and routes needs neither torch nor Flower nor the
    holder's packages.
    """
    said, modules = in_a_new_process(LIBRARY, shop)
    assert said == ["law", "code", "medicine"]
    assert modules.isdisjoint(HEAVY)
    assert {"numpy", "tokenizers", "safetensors"} <= modules


def test_the_route_command_imports_nothing_heavy(shop: Workshop) -> None:
    """Nor the holder's and the operator's commands, which it knows by name."""
    said, modules = in_a_new_process(f"{ROUTED}\n{COMMAND}", shop)
    assert [text.split()[0] for text in said[:2]] == ["law", "code"]
    assert json.loads(said[2])["domain"] == "medicine"
    assert "typer" in modules
    assert modules.isdisjoint(
        {*HEAVY, "pydantic", "client", "coordinator", "simulations"} - TYPERS
    )


def test_commands_use_one_thread_of_blas(shop: Workshop) -> None:
    """Where a release reads sentences, a busy machine would make a prompt wait for the others."""
    unset = (
        "import os; [os.environ.pop(name, None) for name in ('OMP_NUM_THREADS', "
        "'OPENBLAS_NUM_THREADS')]"
    )
    counted = (
        "from threadpoolctl import threadpool_info; said = [each['num_threads'] for "
        "each in threadpool_info()]"
    )
    said, _ = in_a_new_process(f"{unset}\n{ROUTED}\n{COMMAND}\n{counted}", shop)
    assert set(said) == {1}


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_the_front_door_imports_no_command(word: str, shop: Workshop) -> None:
    """The list of commands, and the version, need no package of any extra."""
    said, modules = in_a_new_process(f"RUNS = [[{word!r}]]\n{COMMAND}", shop)
    assert "ridgeway" in said[0]
    assert modules.isdisjoint(
        {*HEAVY, "pydantic", "numpy", "client", "coordinator", "simulations"} - TYPERS
    )


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    """In the words with which its own help begins."""
    listed = command(()).commands
    for name, shown in command().commands.items():
        assert " ".join(shown.help.split()).startswith(listed[name].short_help)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            ModuleNotFoundError("No module named 'absent'", name="absent.part"),
            "needs absent of the extra `serve`: ",
        ),
        (
            ModuleNotFoundError("No module named 'numpy.gone'", name="numpy.gone"),
            r"cannot use numpy [\d.]+ \(No module",
        ),
        (ModuleNotFoundError("ridgeway.gone", name="ridgeway.gone"), None),
    ],
)
def test_only_what_another_package_lacks_is_told_as_such(
    raised: ModuleNotFoundError,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence names the extra, or the version that does not fit; an error within Ridgeway
    shows itself.
    """

    def add_key(*words: object, **options: object) -> None:
        raise raised

    monkeypatch.setattr("ridgeway.common.cli.web_commands.add_key", add_key)
    with pytest.raises(SystemExit if said else ModuleNotFoundError, match=r"2|gone"):
        main(["keys", "add", "file", "name"])
    if said:
        assert re.fullmatch(
            f"ridgeway: `ridgeway keys` {said}.*\n", capsys.readouterr().err
        )


@pytest.mark.slow
def test_serving_imports_neither_torch_nor_flower(shop: Workshop) -> None:
    """The whole application, gateway and page included, over a release with a table."""
    _, modules = in_a_new_process(SERVICE, shop)
    assert modules.isdisjoint(
        set("torch transformers flwr grpc ray scipy client".split())
    )
    assert {"fastapi", "aiohttp"} <= modules


def test_importing_the_front_door_does_no_work(shop: Workshop) -> None:
    """Not a folder is made, and the packages of the command line are left alone."""
    home = shop.folder / "untouched"
    folders = (
        "import os; os.environ['RIDGEWAY_CACHE'] = os.environ['RIDGEWAY_CONFIG'] = "
        f"{str(home)!r}"
    )
    code = f"{folders}\nimport ridgeway\nsaid = []"
    _, modules = in_a_new_process(code, shop)
    assert not home.exists()
    assert modules.isdisjoint((*HEAVY, "typer", "rich"))
