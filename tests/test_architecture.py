"""What may import what, read from the source with `ast`: the rooms of the house, enforced."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import LONGEST, NOT_COLLECTED

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("common", "client", "coordinator", "serving", "simulations")
FRONT_DOOR = ("ridgeway/__init__.py", "ridgeway/__main__.py")

ROOMS = {
    "common/base": "",
    "common/statistics": "common/base",
    "common/text": "common/base",
    "common/masking": "common/base common/statistics",
    "common/privacy": "common/base common/text common/statistics common/masking",
    "common/protocol": "common/base common/privacy common/statistics common/masking",
    "common/routing": "common/base common/text",
    "common/web": "common/base",
    "common/deploy": "common/base common/protocol",
    "common/cli": (
        "common/base common/text common/statistics common/routing common/web"
    ),
    "common": "",
    "serving": "common/base common/routing common/web common/cli ridgeway",
    "client/sums": (
        "common/base common/text common/privacy common/statistics ridgeway"
    ),
    "client/round": (
        "common/base common/text common/privacy common/statistics common/routing "
        "common/masking common/protocol"
    ),
    "client/deploy": "common/base common/protocol common/deploy client/round",
    "client/cli": "common/* client/*",
    "client": "common/* client/sums client/round client/deploy",
    "coordinator/solving": (
        "common/base common/text common/privacy common/statistics common/routing "
        "common/protocol"
    ),
    "coordinator/round": (
        "common/base common/text common/privacy common/statistics common/routing "
        "common/masking common/protocol coordinator/solving"
    ),
    "coordinator/deploy": "common/base common/protocol common/deploy coordinator/round",
    "coordinator/cli": "common/* coordinator/*",
    "coordinator": (
        "common/* coordinator/solving coordinator/round coordinator/deploy"
    ),
    "simulations": "common/* client/* coordinator/* serving ridgeway",
    "ridgeway": "common/* client/* coordinator/* serving simulations/*",
}
"""What each room may import beside itself; `x/*` stands for x and every room in it.

A round never reads a corpus, so client/round knows nothing of client/sums; client/ready.py, which
opens epochs, knows both. Serving knows neither side of a round.
"""

NATIVE = "ridgeway/_native"
NATIVE_FILE = "common/base/machine.py"
"""The compiled module is imported in one place, where it is also turned off."""
UNPICKLERS = set(
    "pickle _pickle cPickle cloudpickle dill joblib shelve marshal".split()
)
GPU = "client/sums/gpu_"
"""These files may know torch throughout, because nothing else imports them before a GPU is used."""
HEAVY = {"torch", "transformers"}
HEAVY_FILES = {
    "common/text/sentence_transformer.py",
    "common/text/sentence_network.py",
    "common/base/machine.py",
    "coordinator/solving/solve.py",
}
FLOWER_INTERNALS = (
    "common/deploy/flower_patches.py",
    "simulations/bench/peer_flower.py",
)
"""What runs on Flower's internals, and benchmarks beside Flower's own secure aggregation."""
FLOWER_FILES = {
    "client/client_app.py",
    "coordinator/server_app.py",
    "common/protocol/flower.py",
    FLOWER_INTERNALS[0],
}
PUBLIC_FLOWER = re.compile(r"flwr\.(app|clientapp|serverapp)(\.[A-Z]\w*)?")
"""Its public modules, and the classes in them."""
HTTP = (
    "common/web/",
    "serving/",
    "coordinator/federation_page.py",
    "client/holder_view.py",
    "coordinator/deploy/fleet_proxy.py",
    "simulations/bench/stand_ins.py",
)


@dataclass(frozen=True, slots=True)
class Import:
    """A module that a file imports; `deferred` if only when a function is called."""

    module: str
    deferred: bool

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def place(self) -> str | None:
        """The file or folder of the project that it names, without an ending; None if it is
        another's.
        """
        if self.package != "ridgeway":
            return None
        inside = self.module.partition(".")[2].replace(".", "/")
        return (
            inside
            if inside.partition("/")[0] in PACKAGES
            else f"ridgeway/{inside}".rstrip("/")
        )


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def imports(source: str, file: str) -> list[Import]:
    """Every import of a source, also those by name: import_module("torch") and its like."""
    found: list[Import] = []
    lines = [
        number
        for number, line in enumerate(source.splitlines(), start=1)
        if "import" in line
    ]
    _collect(parsed(source), file, False, found, lines)
    return found


def _collect(
    node: ast.AST, file: str, deferred: bool, found: list[Import], lines: list[int]
) -> None:
    """What is imported below a node. lines: those that hold the word; no other statement is looked
    into.
    """
    if isinstance(node, ast.stmt) and not any(
        node.lineno <= line <= (node.end_lineno or 0) for line in lines
    ):
        return
    found.extend(Import(module, deferred) for module in _modules(node, file))
    inside = (
        deferred
        or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        or _is_for_types(node)
    )
    for child in ast.iter_child_nodes(node):
        _collect(child, file, inside, found, lines)


def _is_for_types(node: ast.AST) -> bool:
    """Whether a block is read by type checkers alone."""
    return (
        isinstance(node, ast.If)
        and ast.unparse(node.test) == "TYPE_CHECKING"
        and not node.orelse
    )


def _modules(node: ast.AST, file: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        folder = file.split("/")[: -node.level] if node.level else []
        parent = (
            folder if not folder or folder[0] == "ridgeway" else ["ridgeway", *folder]
        )
        base = ".".join([*parent, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and "import" in _name(node.func):
        yield from (
            word.value
            for word in node.args[:1]
            if isinstance(word, ast.Constant) and isinstance(word.value, str)
        )


def _name(function: ast.expr) -> str:
    return (
        function.attr
        if isinstance(function, ast.Attribute)
        else getattr(function, "id", "")
    )


def room_of(place: str) -> str:
    """The innermost room that a file or folder lies in."""
    parts = place.removesuffix(".py").split("/")
    return next(
        room
        for end in range(len(parts), 0, -1)
        if (room := "/".join(parts[:end])) in ROOMS
    )


def violations(source: str, file: str) -> list[str]:
    """What a file imports and may not, one sentence each."""
    found = imports(source, file)
    return sorted(
        {
            f"{file} imports {module.module}: {reason}"
            for module in found
            for reason in _reasons(module, file)
        }
    )


def _reasons(imported: Import, file: str) -> Iterator[str]:
    package = file.partition("/")[0]
    if imported.package in PACKAGES:
        yield f"the folder {imported.package} is imported through ridgeway"
    if imported.place == NATIVE:
        if file != NATIVE_FILE:
            yield f"the compiled module is imported by {NATIVE_FILE}"
    elif imported.place is not None and not _may_enter(room_of(file), imported.place):
        yield f"{room_of(file)} knows nothing of {room_of(imported.place)}"
    if (
        imported.package == "flwr"
        and package != "simulations"
        and file not in FLOWER_FILES
    ):
        yield "Flower is for the two apps, protocol/flower.py, flower_patches.py and simulations"
    if (
        imported.package == "flwr"
        and not file.startswith(FLOWER_INTERNALS)
        and not PUBLIC_FLOWER.fullmatch(imported.module)
    ):
        yield f"what is not public in Flower is for {FLOWER_INTERNALS[0]}"
    if (
        (imported.place or "").startswith(GPU.rstrip("/"))
        and not imported.deferred
        and not file.startswith(GPU)
    ):
        yield "what knows GPUs is imported by the functions that use one"
    if (
        imported.package in HEAVY
        and package != "simulations"
        and not file.startswith(GPU)
    ):
        if not imported.deferred:
            yield "torch and transformers are imported by the functions that need them"
        if file not in HEAVY_FILES:
            yield (
                "torch and transformers are for GPUs, models of folders, large "
                "solves and simulations"
            )
    if imported.package in {"fastapi", "starlette", "uvicorn"} and not file.startswith(
        HTTP
    ):
        yield (
            "HTTP is for common/web, serving, the pages, the fleet proxy and the benchmark"
            " of serving"
        )
    if imported.package in UNPICKLERS:
        yield "nothing is ever unpickled"


def _may_enter(room: str, place: str) -> bool:
    """Whether a room may import a file. The folders around the rooms are passed through and hold
    nothing.
    """
    other = room_of(place)
    allowed = ROOMS[room].split()
    if place in PACKAGES:
        return any(
            known_room.startswith(f"{place}/") for known_room in (*allowed, f"{room}/")
        )
    return other in (room, *allowed) or any(
        known.endswith("/*") and f"{other}/".startswith(known.removesuffix("*"))
        for known in allowed
    )


def project_files() -> list[str]:
    files = [
        path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
    ]
    return [*FRONT_DOOR, *(path.relative_to(ROOT).as_posix() for path in files)]


def rooms_file(room: str) -> Path:
    folder = ROOT / room
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def read(file: str) -> str:
    return (ROOT / file).read_text()


def test_every_file_imports_only_what_it_may() -> None:
    """Rooms know the rooms below them; holder and operator do not know each other."""
    assert [
        words for file in project_files() for words in violations(read(file), file)
    ] == []


def test_nothing_imports_in_circles() -> None:
    """Files depend on each other in one direction, also where an import waits for a function or for
    type checkers.
    """
    modules = {
        file.removesuffix(".py").removesuffix("/__init__"): file
        for file in project_files()
    }
    graph = {
        place: {
            name.place
            for name in imports(read(file), file)
            if name.place in modules and name.place != place
        }
        for place, file in modules.items()
    }
    for place in graph:  # a package is no more than a way to what lies in it
        graph[place] -= {
            above for above in graph[place] if place.startswith(f"{above}/")
        }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_test_imports_a_folder_but_through_ridgeway() -> None:
    """A folder that is imported under two names would exist twice."""
    tests = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")
    }
    imported = re.compile(
        rf"^\s*(?:from|import) (?:{'|'.join(PACKAGES)})\b.*$", re.MULTILINE
    )
    found = {file: imported.findall(read(file)) for file in tests}
    assert len(found) > 200
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_no_public_class_and_no_file_has_another_of_its_name() -> None:
    """One name for one thing, one thing for one name. Packages' own files and `cli` are free."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in project_files():
        stem = Path(file).stem
        if stem not in {"__init__", "__main__", "cli"}:
            places[f"{stem}.py"].append(file)
        for node in parsed(read(file)).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[f"class {node.name}"].append(file)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_array_file_is_opened_as_a_pickle() -> None:
    """numpy and torch can unpickle when told to; no file tells them."""
    for file in (
        file for file in project_files() if not file.startswith("simulations/")
    ):
        calls = [
            node for node in ast.walk(parsed(read(file))) if isinstance(node, ast.Call)
        ]
        assert not [
            (file, node.lineno)
            for node in calls
            for word in node.keywords
            if word.arg == "allow_pickle"
        ]
        loads = [
            node
            for node in calls
            if isinstance(node.func, ast.Attribute) and node.func.attr == "load"
        ]
        assert not [
            (file, node.lineno)
            for node in loads
            if ast.unparse(node.func) == "torch.load"
        ]


def test_the_whole_project_is_looked_at() -> None:
    """A folder that is moved away is missed here, not silently left unread; every room is there."""
    files = project_files()
    assert {
        "common/base/errors.py",
        "client/sums/prepare.py",
        "coordinator/solving/solve.py",
    } <= set(files)
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {
        *PACKAGES,
        "ridgeway",
        "tests",
    }
    assert {room for room in ROOMS if not rooms_file(room).is_file()} == set()


def test_the_files_that_begin_first_or_are_left_out_are_there() -> None:
    """A file that was renamed takes its place in the order of a run along."""
    assert [
        path
        for path in (*(ROOT / "tests" / name for name in LONGEST), *NOT_COLLECTED)
        if not path.exists()
    ] == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("common/base/a.py", "import client.sums.prepare"),
        ("common/base/a.py", "import ridgeway.client.sums.prepare"),
        (
            "common/routing/a.py",
            "def f():\n    from ridgeway.simulations.corpora import builtin",
        ),
        ("common/masking/a.py", "from ...client.sums import prepare"),
        ("client/round/a.py", "from ridgeway.client.sums.corpus import documents"),
        ("client/round/a.py", "if TYPE_CHECKING:\n    import ridgeway.simulations"),
        ("client/round/holder.py", "import flwr"),
        (
            "common/protocol/messages.py",
            "def f():\n    from flwr.common import Message",
        ),
        (
            "common/text/sentence_network.py",
            "try:\n    import torch\nexcept ImportError:\n    torch = None",
        ),
        ("client/sums/accumulate.py", "def g():\n    import torch"),
        ("simulations/a.py", "import ridgeway.client.sums.gpu_gram"),
        ("common/routing/router.py", "def f():\n    return import_module('torch')"),
        ("common/routing/router.py", "torch = __import__('torch')"),
        ("coordinator/deploy/server.py", "def f():\n    import uvicorn"),
        ("common/routing/release.py", "import pickle"),
        ("simulations/a.py", "import os, shelve"),
    ],
)
def test_a_forbidden_import_is_noticed(file: str, source: str) -> None:
    """The checker sees imports at any depth, relative ones, and those by name."""
    assert len(violations(source, file)) >= 1
