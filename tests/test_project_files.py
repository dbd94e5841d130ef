"""What an organisation reads before it takes part: the papers agree with the code and with each
other.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import ridgeway
from tests.support.mutants import FILES

ROOT = Path(__file__).resolve().parents[1]
THREATS = ROOT / "docs" / "reference" / "threat-model.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def read(name: str) -> str:
    return (ROOT / name).read_text()


def rows() -> list[str]:
    """The rows of the tables, without headings."""
    lines = [line for line in THREATS.read_text().splitlines() if line.startswith("|")]
    return [
        line
        for line in lines
        if "the attacker |" not in line and not line.startswith("|---")
    ]


def test_every_promise_names_a_test() -> None:
    assert len(rows()) > 20
    assert [row for row in rows() if not NAMED.search(row)] == []


@pytest.mark.parametrize(
    ("file", "test"), sorted(set(NAMED.findall(THREATS.read_text())))
)
def test_every_test_that_a_promise_names_is_there(file: str, test: str) -> None:
    """A test that is renamed takes its line in the threat model along."""
    body = ast.parse(read(file)).body
    assert test in {
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_paper_tells_the_same_version() -> None:
    """That of the package."""
    version = ridgeway.__version__
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version
    assert yaml.safe_load(read("packages/chart/Chart.yaml"))["version"] == version
    assert (
        re.findall(r"^## (\S+) \(\d", read("CHANGELOG.md"), re.MULTILINE)[0] == version
    )
    app = tomllib.loads(read("examples/flower-app/pyproject.toml"))
    assert app["project"]["version"] == version
    minor = ".".join(version.split(".")[:2])
    assert f": now {minor}." in read("SECURITY.md")


def test_every_dependency_on_flower_has_the_same_range() -> None:
    """The package's extras and the app's."""
    extras = PROJECT["project"]["optional-dependencies"]
    app = tomllib.loads(read("examples/flower-app/pyproject.toml"))["project"][
        "dependencies"
    ]
    named = [
        word
        for words in (*extras.values(), app)
        for word in words
        if word.startswith("flwr")
    ]
    assert len(named) == 4
    assert {word.partition(">=")[2] for word in named} == {"1.41,<1.43"}


def test_the_flower_app_has_nothing_installed() -> None:
    """Flower installs what an app depends on before it runs; nobody owns the name ridgeway on a
    registry.
    """
    app = tomllib.loads(read("examples/flower-app/pyproject.toml"))
    names = [re.split(r"\W", word)[0] for word in app["project"]["dependencies"]]
    assert names == app["tool"]["uv"]["exclude-dependencies"] == ["flwr"]


def test_continuous_integration_runs_what_the_project_runs() -> None:
    """`.ci/run`, on every Python that it is for; macOS; the linters; other versions; wheels; the
    files of a release.
    """
    jobs = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]
    steps = {
        name: "\n".join(step.get("run", "") for step in job["steps"])
        for name, job in jobs.items()
    }
    assert ".ci/run" in steps["tests"]
    pythons = [
        line
        for line in PROJECT["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", line)
    ]
    assert [
        f"Programming Language :: Python :: {version}"
        for version in jobs["tests"]["strategy"]["matrix"]["python"]
    ] == pythons
    assert "macos" in jobs["macos"]["runs-on"] and "make demo" in steps["macos"]
    assert "make lint" in steps["checks"]
    assert "cibuildwheel" in steps["wheels"]
    assert {*jobs["tests"]["strategy"]["matrix"]["os"]} < {
        *jobs["wheels"]["strategy"]["matrix"]["os"]
    }
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    asked = re.findall(
        r"make ((?:[a-z][a-z-]* ?)+)", "\n".join([read(".ci/run"), *steps.values()])
    )
    assert (
        {"demo", "check-lock", "test"}
        <= {target for words in asked for target in words.split()}
        <= targets
    )


def test_every_file_whose_checks_are_removed_is_there() -> None:
    """A holder's file that is moved takes its line in tests/support/mutants.py along."""
    assert [file for file in FILES if not (ROOT / file).is_file()] == []
