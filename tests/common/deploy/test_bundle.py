"""The bundle: the same code gives the same bytes everywhere, and they are the bytes that Flower
makes.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from ridgeway.common.base.errors import BundleError
from ridgeway.common.base.files import write_whole
from ridgeway.common.deploy import bundle
from ridgeway.common.deploy.bundle import (
    installed_bundle,
    installed_sha256,
    source_files,
    write_app,
)
from ridgeway.common.deploy.processes import flower_environment
from tests.support.making import allowing, contents


def packed(app: Path) -> bytes:
    """The bundle of an app folder."""
    project = (app / "pyproject.toml").read_bytes()
    return bundle._pack(
        {"pyproject.toml": project, **source_files(package=app / "ridgeway")}
    )


def spoil_what_does_not_count(folder: Path) -> None:
    """Other times, other permissions, and files that are no part of an app."""
    for path in folder.rglob("*.py"):
        os.utime(path, (time.time() - 10**7, 10**9))
        path.chmod(0o640)
    for name in ("__pycache__/app.cpython-311.pyc", "notes.md", "../../corpus.jsonl"):
        write_whole(folder / "ridgeway/client" / name, b"no part of it")


def test_the_same_code_has_the_same_hash_whatever_its_times_permissions_and_order(
    tmp_path: Path,
) -> None:
    """Times, permissions, umask and files beside the code do not change a bundle."""
    write_app(tmp_path / "one")
    with allowing(0o077):
        write_app(tmp_path / "two")
    spoil_what_does_not_count(tmp_path / "two")
    assert packed(tmp_path / "one") == packed(tmp_path / "two") == installed_bundle()
    assert hashlib.sha256(installed_bundle()).hexdigest() == installed_sha256()


def test_flower_makes_the_same_bytes(tmp_path: Path) -> None:
    """`flwr build`, and so `flwr run`, gives the bundle whose hash the holder computed without
    Flower.
    """
    app = tmp_path / "app"
    write_app(app)
    spoil_what_does_not_count(app)
    # Ridgeway is imported before the app's folder is looked into, which has the code of holders
    # alone
    program = "import ridgeway.coordinator; from flwr.cli.app import app; app()"
    command = [sys.executable, "-c", program, "build", "--app", str(app)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=flower_environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = tmp_path.glob("ridgeway.ridgeway.*.fab")
    assert made.read_bytes() == installed_bundle()


def test_a_bundle_holds_code_and_nothing_else() -> None:
    """Only .py files of the three packages, the generated pyproject.toml and the list of
    contents.
    """
    with zipfile.ZipFile(io.BytesIO(installed_bundle())) as archive:
        names = archive.namelist()
        assert names[0] == "pyproject.toml" and names[-1] == ".info/CONTENT"
        assert names[1:-1] == sorted(names[1:-1])
        assert all(
            name.endswith(".py") and name.startswith("ridgeway/")
            for name in names[1:-1]
        )
        assert b"dependencies = []" in archive.read("pyproject.toml")


def test_an_app_folder_is_replaced_whole_but_no_other_folder(tmp_path: Path) -> None:
    write_app(tmp_path / "app")
    left = tmp_path / "app/ridgeway/client/left_over.py"
    left.touch()
    write_app(tmp_path / "app")
    assert not left.exists()
    write_whole(tmp_path / "other/thesis.txt", b"x")
    with pytest.raises(BundleError, match="not an app folder"):
        write_app(tmp_path / "other")
    assert contents(tmp_path / "other") == {"thesis.txt": b"x"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"ridgeway/client/round/test_it.py": b""}, "leave"),
        ({"ridgeway/client/round/it_test.py": b""}, "leave"),
        ({"ridgeway/long.py": b"#" * (bundle.MAX_FILE_BYTES + 1)}, "divide it"),
        ({f"ridgeway/m{n}.py": b"" for n in range(bundle.MAX_FILES + 1)}, "merge"),
    ],
    ids=["test_it.py", "it_test.py", "a large file", "many files"],
)
def test_what_flower_would_refuse_or_leave_out_is_refused(
    files: dict[str, bytes], words: str
) -> None:
    with pytest.raises(BundleError, match=words):
        bundle._pack(files)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_app(tmp_path / "app")
    (tmp_path / "app" / "ridgeway/client/client_app.py").unlink()
    with pytest.raises(BundleError, match=r"client_app\.py is missing"):
        packed(tmp_path / "app")
