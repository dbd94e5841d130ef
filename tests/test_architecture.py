"""What may import what, read from the source with `ast`: the table of the design, enforced."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("common", "client", "coordinator", "simulations")
FRONT_DOOR = "ridgeway.py"

FORBIDDEN_PACKAGES = {
    "common": {"client", "coordinator", "simulations", "ridgeway"},
    "client": {"coordinator", "simulations", "ridgeway"},
    "coordinator": {"client", "simulations", "ridgeway"},
}
UNPICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
CARD = "client/gpu/"
"""This folder may know torch throughout, because nothing outside imports it before a card is used."""
HEAVY = {"torch", "transformers", "triton"}
HEAVY_PLACES = {
    "client/contextual.py",
    "common/transformer.py",
    "common/devices.py",
    "coordinator/gpu_solve.py",
}


@dataclass(frozen=True, slots=True)
class Import:
    """A module that a file imports; `deferred` if only when a function is called."""

    module: str
    deferred: bool

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


def imports(source: str, file: str) -> list[Import]:
    """Every import of a source, also those by name: import_module("torch") and its like."""
    found: list[Import] = []
    _collect(ast.parse(source), file, False, found)
    return found


def _collect(node: ast.AST, file: str, deferred: bool, found: list[Import]) -> None:
    found.extend(Import(module, deferred) for module in _modules(node, file))
    inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_for_types(node)
    for child in ast.iter_child_nodes(node):
        _collect(child, file, inside, found)


def _is_for_types(node: ast.AST) -> bool:
    """Whether a block is read by type checkers alone."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse


def _modules(node: ast.AST, file: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parent = file.split("/")[: -node.level] if node.level else []
        base = ".".join([*parent, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and "import" in _name(node.func):
        yield from (
            word.value for word in node.args[:1] if isinstance(word, ast.Constant) and isinstance(word.value, str)
        )


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def violations(source: str, file: str) -> list[str]:
    """What a file imports and may not, one sentence each."""
    package = file.partition("/")[0]
    found = imports(source, file)
    return sorted(
        {f"{file} imports {each.module}: {reason}" for each in found for reason in _reasons(each, file, package)}
    )


def _reasons(each: Import, file: str, package: str) -> Iterator[str]:
    if each.package in FORBIDDEN_PACKAGES.get(package, set()):
        yield f"{package} knows nothing of {each.package}"
    if each.package == "flwr" and not (
        package == "simulations" or file.endswith("/app.py") or file in ("common/flower.py", "client/pinned.py")
    ):
        yield "Flower is for */app.py, common/flower.py, the pinned runner and simulations"
    if each.module.startswith("client.gpu") and not each.deferred and not file.startswith(CARD):
        yield "what knows cards is imported by the functions that use one"
    if each.package in HEAVY and package != "simulations" and not file.startswith(CARD):
        if not each.deferred:
            yield "torch and transformers are imported by the functions that need them"
        if file not in HEAVY_PLACES:
            yield "torch and transformers are for cards, contextual encoders, large solves and simulations"
    if each.package in {"fastapi", "starlette", "uvicorn"} and not file.startswith(
        ("coordinator/serve/", "coordinator/gate.py", "simulations/bench/serving/")
    ):
        yield "HTTP is for coordinator/serve, the gate and the benchmark of serving"
    if each.package in UNPICKLERS:
        yield "nothing is ever unpickled"


def project_files() -> list[str]:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [FRONT_DOOR, *(path.relative_to(ROOT).as_posix() for path in files)]


@pytest.mark.parametrize("file", project_files())
def test_every_file_imports_only_what_it_may(file: str) -> None:
    """Roles are folders: the vocabulary depends on nothing, holder and operator do not know each other."""
    assert violations((ROOT / file).read_text(encoding="utf-8"), file) == []


@pytest.mark.parametrize("file", [file for file in project_files() if not file.startswith("simulations/")])
def test_no_array_file_is_opened_as_a_pickle(file: str) -> None:
    """numpy and torch can unpickle when told to; no file tells them."""
    calls = [
        node for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
    ]
    assert not [node.lineno for node in calls for word in node.keywords if word.arg == "allow_pickle"]
    assert not [node.lineno for node in calls if ast.unparse(node.func) == "torch.load"]


def test_the_whole_project_is_looked_at() -> None:
    """A folder that is moved away is missed here, not silently left unread."""
    files = project_files()
    assert {"common/errors.py", "client/prepare.py", "coordinator/solve.py", "ridgeway.py"} <= set(files)
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders == {*PACKAGES, "tests"}


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("common/a.py", "import client.prepare"),
        ("common/a.py", "from coordinator import solve"),
        ("common/a.py", "def f():\n    from simulations.corpora import builtin"),
        ("common/masking/a.py", "from ...client import prepare"),
        ("common/a.py", "import ridgeway"),
        ("client/a.py", "from coordinator.solve import solve"),
        ("client/a.py", "if TYPE_CHECKING:\n    import simulations"),
        ("coordinator/serve/a.py", "import client"),
        ("client/holder.py", "import flwr"),
        ("common/messages.py", "def f():\n    from flwr.common import Message"),
        ("client/contextual.py", "import torch"),
        ("client/contextual.py", "try:\n    import torch\nexcept ImportError:\n    torch = None"),
        ("client/contextual.py", "class A:\n    import torch.nn as nn"),
        ("client/accumulate.py", "def g():\n    import torch"),
        ("client/crew.py", "from client.gpu.sums import card_accumulators"),
        ("simulations/a.py", "import client.gpu.planes"),
        ("coordinator/a.py", "def f():\n    import triton"),
        ("common/router.py", "def f():\n    import torch"),
        ("ridgeway.py", "def main():\n    from transformers import AutoModel"),
        ("common/router.py", "def f():\n    return import_module('torch')"),
        ("common/router.py", "torch = importlib.import_module('torch.nn')"),
        ("common/router.py", "torch = __import__('torch')"),
        ("coordinator/cli.py", "from fastapi import FastAPI"),
        ("coordinator/server.py", "def f():\n    import uvicorn"),
        ("common/release.py", "import pickle"),
        ("simulations/a.py", "def f():\n    from joblib import load"),
        ("simulations/a.py", "import os, shelve"),
    ],
)
def test_a_forbidden_import_is_noticed(file: str, source: str) -> None:
    """The checker sees imports at any depth, relative ones, and those by name."""
    assert len(violations(source, file)) >= 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("ridgeway.py", "def main():\n    import client.cli\n    import coordinator.cli"),
        ("client/a.py", "from common.errors import RidgewayError\nfrom .corpus import cut"),
        ("client/app.py", "from flwr.clientapp import ClientApp"),
        ("coordinator/app.py", "from flwr.serverapp import ServerApp"),
        ("common/flower.py", "from flwr.common import Message"),
        ("client/contextual.py", "def f():\n    import torch"),
        ("client/gpu/sums.py", "import torch\nfrom client.gpu.planes import split"),
        ("client/crew.py", "def f():\n    from client.gpu.sums import card_accumulators"),
        ("client/contextual.py", "if TYPE_CHECKING:\n    import torch"),
        ("simulations/a.py", "import torch\nimport transformers\nimport flwr\nimport client\nimport coordinator"),
        ("coordinator/serve/a.py", "from fastapi import FastAPI"),
        ("common/a.py", "import clients\nfrom torchless import pickles"),
    ],
)
def test_an_allowed_import_is_let_pass(file: str, source: str) -> None:
    """The checker forbids what the design forbids, and nothing more."""
    assert violations(source, file) == []
