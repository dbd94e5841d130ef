"""What the bundle that holders approve is made of: the client and what it imports, and nothing
else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.common.deploy.approved_bundle import NATIVE
from ridgeway.common.deploy.bundle import (
    PACKAGE,
    SERVER_FILE,
    installed_bundle,
    installed_sha256,
    source_files,
    unpacked_bundle,
    write_app,
)
from tests.support.commands import Workshop, workshop
from tests.test_architecture import imports


def test_a_bundle_holds_the_client_and_what_it_imports_alone() -> None:
    """Every further module is more for a careful holder to read. What reads a corpus is not among
    them.
    """
    rooms = {
        name.removeprefix(f"{PACKAGE}/").rpartition("/")[0] for name in source_files()
    }
    assert rooms == {
        *("", "common", "client", "client/round"),
        *(
            f"common/{room}"
            for room in (
                "base",
                "masking",
                "privacy",
                "protocol",
                "routing",
                "text",
            )
        ),
    }
    assert not any("coordinator" in name for name in source_files())


def test_what_only_type_checkers_import_is_not_in_a_bundle(tmp_path: Path) -> None:
    """An import in a function runs one day; one under TYPE_CHECKING never does."""
    sources = tmp_path / PACKAGE
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(IMPORT_ROOT / PACKAGE, sources, ignore=without_caches)
    app = sources / "client/client_app.py"
    lines = (
        "if TYPE_CHECKING:\n    import ridgeway.simulations.demo\n"
        "def f():\n    import ridgeway.client.ready\n"
    )
    app.write_text(app.read_text() + lines)
    added = {*source_files(package=sources)} - {*source_files()}
    assert (
        f"{PACKAGE}/client/ready.py" in added
        and f"{PACKAGE}/simulations/demo.py" not in added
    )


def test_the_code_of_a_bundle_imports_nothing_outside_it() -> None:
    """A bundle stands on its own: what a round imports, now or later, is in it, or is compiled and
    not needed.

    The front door names what users import, which no round does.
    """
    files = source_files()
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in files
    }
    modules.add(NATIVE)
    for name, content in files.items():
        if name == f"{PACKAGE}/__init__.py":
            continue
        for imported in imports(content.decode(), name.removeprefix(f"{PACKAGE}/")):
            if imported.package == PACKAGE:
                assert (
                    imported.module in modules
                    or imported.module.rpartition(".")[0] in modules
                ), (name, imported.module)


def test_both_apps_load_from_an_unpacked_bundle(tmp_path: Path) -> None:
    """With the bundle before everything else on the path, as Flower puts it, all of Ridgeway comes
    from there.
    """
    write_app(tmp_path / "app", also=[SERVER_FILE])
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import ridgeway.client.client_app, ridgeway.coordinator.server_app\n"
        "names = [name for name in sys.modules"
        " if name.partition('.')[0] == 'ridgeway' and '_native' not in name]\n"
        "assert all(sys.modules[name].__file__.startswith(sys.argv[1]) for name in names), names"
    )
    environment = os.environ | {"RIDGEWAY_NATIVE": "0"}
    subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path / "app")],
        check=True,
        cwd=tmp_path,
        env=environment,
    )


def test_the_command_lists_every_file_with_its_lines_and_hash(tmp_path: Path) -> None:
    """What a careful holder reads before approving, and the folder to read it in."""
    listing = (
        Workshop(tmp_path)
        .call("client", "bundle", "--json", "--out", tmp_path / "app")
        .json
    )
    files = unpacked_bundle(installed_bundle())
    assert {"pyproject.toml", *source_files()} == set(files)
    assert listing["bundle"] == installed_sha256()
    assert [entry["name"] for entry in listing["files"]] == list(files)
    assert listing["lines"] == sum(content.count(b"\n") for content in files.values())
    assert all(
        (tmp_path / "app" / name).read_bytes() == content
        for name, content in files.items()
    )


def test_the_command_compares_with_what_a_holder_has_approved(tmp_path: Path) -> None:
    """A holder that approved this code hears so; one that approved other code, or none, gets a
    sentence.
    """
    shop = workshop(tmp_path)
    encoder = f"--encoder {shop.encoder}"
    for words in (
        f"coordinator init co --listen 127.0.0.1:9443 --mode masked {encoder}",
        "coordinator invite co",
        "client init law --invite co/invite --domain law --corpus law.jsonl"
        f" --accept-mode masked {encoder}",
    ):
        done = shop.call(*words.split())
        assert done.code == 0, done.stderr
    assert shop.call("client", "bundle", "law", "--json").json["approved"] is True
    settings = tmp_path / "law" / "client.toml"
    settings.write_text(settings.read_text().replace(installed_sha256(), "0" * 64))
    refused = shop.call("client", "bundle", "law")
    assert refused.code == 2 and "does not approve the bundle" in refused.stderr
    nobody = shop.call("client", "bundle", "co")
    assert nobody.code == 2 and "is not a holder's folder" in nobody.stderr
