"""What `pip install` puts on a machine: one import name, plain files, and commands that work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any
from venv import EnvBuilder

import pytest
from packaging.requirements import Requirement

from ridgeway.__main__ import COMMANDS, MORE_EXTRAS, command
from ridgeway.common.text.encoder_files import save_encoder
from tests.support.commands import Workshop, output_of
from tests.support.corpora_on_disk import write_domains
from tests.support.making import allowing
from tests.support.release_files import build, copy_sources
from tests.support.tiny import tiny_encoder

pytestmark = pytest.mark.slow

BUILT = ".so"
NATIVE = "ridgeway/_native.abi3.so"
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist of a copy of this checkout, and the wheel that is built from the sdist."""
    copy = tmp_path_factory.mktemp("checkout")
    copy_sources(copy)
    return build(copy, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def environment(
    built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An empty virtual environment into which the wheel alone was installed."""
    folder = tmp_path_factory.mktemp("environment")
    EnvBuilder(with_pip=False).create(folder)
    install = [
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        "--disable-pip-version-check",
        str(built[1]),
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), *install],
        check=True,
    )
    return folder


FRONT = ("__init__.py", "__main__.py", "_native.pyi", "py.typed")
PACKAGED = "client common coordinator serving simulations".split()
FROM_A_CHECKOUT = {("simulations", "bench"), ("simulations", "experiments")}


def site_packages(environment: Path) -> Path:
    [packages] = environment.glob("lib/python*/site-packages")
    return packages


def test_two_builds_are_the_same_bytes(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    """Wheel and sdist, whatever the folder, the times of files and the user's umask."""
    copy_sources(tmp_path / "another" / "checkout")
    for path in (tmp_path / "another").rglob("*.py"):
        os.utime(path, (10**9, 10**9))
    with allowing(0o077):
        again = build(tmp_path / "another" / "checkout", tmp_path / "dist")
    assert [path.name for path in again] == [path.name for path in built]
    assert [path.read_bytes() for path in again] == [
        path.read_bytes() for path in built
    ]


def test_the_wheel_owns_one_import_name(environment: Path) -> None:
    """Nothing called common, client or tests lies beside other people's packages."""
    names = {path.name for path in site_packages(environment).iterdir()}
    [about] = [name for name in names if name.endswith(".dist-info")]
    assert names == {"ridgeway", about}


def test_wheel_and_sdist_hold_plain_files_and_the_same_code(
    built: tuple[Path, Path],
) -> None:
    """The links of a checkout become folders in the wheel, without C; the sdist has the shape of
    the checkout.
    """
    sdist, wheel = built
    tracked = {
        path.relative_to(ROOT) for folder in PACKAGED for path in _code(ROOT / folder)
    }
    installed = [
        name
        for name in tracked
        if name.parts[:2] not in FROM_A_CHECKOUT and name.suffix not in {".c", ".h"}
    ]
    expected = {f"ridgeway/{name}" for name in installed} | {
        f"ridgeway/{name}" for name in FRONT
    }
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if name.startswith("ridgeway/")}
    with tarfile.open(sdist) as packed:
        assert not [
            member.name for member in packed if member.issym() or member.islnk()
        ]
        in_sdist = {name.partition("/")[2] for name in packed.getnames()}
    assert {name for name in in_wheel if not name.endswith(BUILT)} == expected
    beside = {
        "Makefile",
        "requirements.lock",
        "CHANGELOG.md",
        "docs/index.md",
        "tests/support/tiny.py",
    }
    assert {str(name) for name in tracked} | {
        f"ridgeway/{name}" for name in FRONT
    } | beside <= in_sdist


def test_the_tests_of_an_sdist_run(built: tuple[Path, Path], tmp_path: Path) -> None:
    """As whoever packages Ridgeway runs them: build in the unpacked folder, then pytest."""
    with tarfile.open(built[0]) as packed:
        packed.extractall(tmp_path, filter="data")
    [folder] = tmp_path.iterdir()
    for words in (
        ["setup.py", "--quiet", "build_ext", "--inplace"],
        ["-m", "pytest", "tests/vectors", "--quick"],
    ):
        printed = output_of([sys.executable, *words], folder)
    assert " passed" in printed


def test_the_description_leads_to_the_repository(built: tuple[Path, Path]) -> None:
    """Links and pictures of README are absolute, and lead to files that are there."""
    with zipfile.ZipFile(built[1]) as archive:
        [about] = [
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA")
        ]
        text = archive.read(about).decode()
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links and all(link.startswith("https://") for link in links)
    paths = [link.partition("/main/")[2] for link in links if "/main/" in link]
    assert len(paths) > 10 and all((ROOT / path).exists() for path in paths)


def test_benchmarks_and_experiments_are_not_in_the_wheel_and_nothing_in_it_needs_them(
    built: tuple[Path, Path],
) -> None:
    """They run from a checkout; the simulation, the demonstration and the audit stay."""
    packages = [".".join(("ridgeway", *folder)) for folder in sorted(FROM_A_CHECKOUT)]
    with zipfile.ZipFile(built[1]) as archive:
        held = [name for name in archive.namelist() if name.endswith(".py")]
        sources = {name: archive.read(name).decode() for name in held}
    assert not [
        name for name in held if name.replace("/", ".").startswith(tuple(packages))
    ]
    assert not [
        name
        for name, source in sources.items()
        if any(package in source for package in packages)
    ]
    assert {"ridgeway/simulations/simulate.py", "ridgeway/simulations/demo.py"} <= set(
        held
    )


def test_the_compiled_module_is_in_the_wheel_for_every_python_to_come(
    built: tuple[Path, Path],
) -> None:
    """Built where there is a compiler, against the stable interface: one wheel for all versions
    from 3.11 on.
    """
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("there is no C compiler here")
    with zipfile.ZipFile(built[1]) as archive:
        assert NATIVE in archive.namelist()
    assert "-cp311-abi3-" in built[1].name


def _code(folder: Path) -> list[Path]:
    kinds = set(".py .pyi .c .h .js .css .html .svg .txt".split())
    return [
        path
        for path in folder.rglob("*")
        if path.suffix in kinds and "__pycache__" not in path.parts
    ]


def required(
    of: Distribution,
    extras: frozenset[str],
    seen: dict[tuple[str, frozenset[str]], Distribution],
) -> None:
    """Every distribution that one with these extras requires here, and what those require, as pip
    would find them.
    """
    for words in of.requires or ():
        wanted = Requirement(words)
        if wanted.marker is None or any(
            wanted.marker.evaluate({"extra": extra}) for extra in extras | {""}
        ):
            key = wanted.name, frozenset(wanted.extras)
            if key not in seen:
                seen[key] = (
                    of if wanted.name == "ridgeway" else distribution(wanted.name)
                )
                required(seen[key], key[1], seen)


def installed(environment: Path, folder: Path, *extras: str) -> Path:
    """The Python of an environment with the wheel, what it requires with these extras, and nothing
    else: links.
    """
    EnvBuilder(with_pip=False).create(folder)
    for path in site_packages(environment).iterdir():
        (site_packages(folder) / path.name).symlink_to(path)
    [about] = site_packages(environment).glob("ridgeway-*.dist-info")
    packages: dict[tuple[str, frozenset[str]], Distribution] = {}
    required(Distribution.at(about), frozenset(extras), packages)
    for package in packages.values():
        names = {file.parts[0] for file in package.files or () if file.suffix != ".pth"}
        for name in names - {"..", "__pycache__"}:
            link = site_packages(folder) / name
            if not link.exists():
                link.symlink_to(Path(str(package.locate_file(name))))
    return folder / "bin/python"


@pytest.fixture(scope="module")
def plain(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of `pip install .`."""
    return installed(environment, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def whole(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of `pip install '.[all]'`."""
    return installed(environment, tmp_path_factory.mktemp("whole"), "all")


def said(python: Path, folder: Path, *words: str) -> str:
    return output_of([python, "-P", *words], folder)


def test_an_installed_wheel_routes_a_prompt_and_tells_its_version(
    plain: Path, shop: Workshop
) -> None:
    """With no checkout in sight, and no package that routing does not need."""
    place = said(plain, shop.folder, "-c", "import ridgeway; print(ridgeway.__file__)")
    assert Path(place.strip()).is_relative_to(plain.parents[1])
    assert said(plain, shop.folder, "-m", "ridgeway", "--version").startswith(
        "ridgeway 0."
    )
    assert all(
        name in said(plain, shop.folder, "-m", "ridgeway", "--help")
        for name in COMMANDS
    )
    routed = said(
        plain, shop.folder, "-m", "ridgeway", "route", str(shop / "release"), "abcdefgh"
    )
    assert routed.startswith("law")


RUN_ALL = """
import contextlib, io, json, sys, traceback
from ridgeway.__main__ import main
answers = []
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(words)
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = traceback.format_exc()
    answers.append((words, code, said.getvalue()))
print(json.dumps(answers))
"""


def paths(group: Any, *above: str) -> Iterator[list[str]]:
    """Every group and command, as it is typed."""
    for name, inner in getattr(group, "commands", {}).items():
        yield [*above, name]
        yield from paths(inner, *above, name)


def test_every_command_of_a_plain_install_answers_or_names_its_extra(
    plain: Path, tmp_path: Path
) -> None:
    """Bare and with --help: its help, what is wrong with its words, or one sentence with the extra
    that it needs.
    """
    asked = [[*path, *more] for path in paths(command()) for more in ([], ["--help"])]
    answers = json.loads(said(plain, tmp_path, "-c", RUN_ALL, json.dumps(asked)))
    assert len(answers) > 100
    missing = 0
    for words, code, output in answers:
        assert code in (0, 2), (words, code, output)
        assert output.strip() and "Traceback" not in output
        if output.startswith("ridgeway: `ridgeway"):
            extra = MORE_EXTRAS.get(" ".join(words[:2])) or COMMANDS[words[0]].extra
            assert (code, output.count("\n")) == (
                2,
                1,
            ) and f"pip install '.[{extra}]'" in output, output
            missing += 1
    assert missing > 80


@pytest.mark.parametrize("extra", ["client", "coordinator", "serve", "simulation"])
def test_the_extra_of_a_command_is_all_that_its_help_needs(
    environment: Path, tmp_path: Path, extra: str
) -> None:
    """Whoever installs what the sentence names is told what to type next."""
    python = installed(environment, tmp_path / "environment", extra)
    asked = [
        [*path, "--help"]
        for path in paths(command())
        if COMMANDS[path[0]].extra == extra
    ]
    answers = json.loads(said(python, tmp_path, "-c", RUN_ALL, json.dumps(asked)))
    assert [answer for answer in answers if answer[1] != 0] == []


IMPORT_ALL = """
import pkgutil, sys, warnings
import ridgeway
warnings.simplefilter("ignore")
names = [each.name for each in pkgutil.walk_packages(ridgeway.__path__, "ridgeway.")]
apart = (".gpu", "_adapter", "__main__")
for name in sorted(name for name in names if not any(part in name for part in apart)):
    __import__(name)
print(len(names))
"""


def test_every_module_of_an_installed_wheel_can_be_imported(
    whole: Path, tmp_path: Path
) -> None:
    """None of them needs what stayed in the checkout; what knows GPUs is imported where one is."""
    assert int(said(whole, tmp_path, "-c", IMPORT_ALL)) > 150


def test_an_installed_wheel_simulates_a_federation(whole: Path, tmp_path: Path) -> None:
    """`ridgeway simulate`, over a folder of corpora, to a release."""
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    write_domains(tmp_path, 30, 30)
    words = "simulate --data . --encoder dir:encoder --out release --json".split()
    result = json.loads(said(whole, tmp_path, "-m", "ridgeway", *words))
    assert result["holders"] == 3
    assert (tmp_path / "release").is_dir()
