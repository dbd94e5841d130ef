"""The files of a release: sdist and wheel, built twice from two folders; they are the same bytes,
or this fails.

python -m tests.support.release_files OUT
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "ridgeway common client coordinator serving simulations tests docs "
    "examples packages"
).split()
FILES = tuple(path.name for path in ROOT.iterdir() if path.is_file())
SOURCES = (*FOLDERS, *FILES, ".ci", ".github")
EPOCH = 1_700_000_000
"""The time that all files of a release bear, in seconds since 1970."""
OPEN_UMASK = 0o022


def copy_sources(folder: Path) -> None:
    """The files that a build reads, without what earlier builds have left."""
    left_out = shutil.ignore_patterns("__pycache__", "*.so")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=left_out)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)


def build(folder: Path, out: Path) -> tuple[Path, Path]:
    """The sdist of a folder of sources, and the wheel that is built from the sdist."""
    words = "-m build --no-isolation --outdir".split()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
    done = subprocess.run(
        [sys.executable, *words, out, folder],
        env=environment,
        umask=OPEN_UMASK,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    [sdist], [wheel] = out.glob("*.tar.gz"), out.glob("*.whl")
    sdist.write_bytes(timeless(sdist.read_bytes()))
    return sdist, wheel


def timeless(sdist: bytes) -> bytes:
    """The same archive, whoever packed it and when: setuptools writes owners and times into it."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=EPOCH, filename="") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old, key=lambda entry: entry.name):
            content = old.extractfile(member)
            member.pax_headers = {}
            member.mtime = EPOCH
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            new.addfile(member, content)
    return packed.getvalue()


def main(out: Path) -> None:
    """Build twice, compare, and leave the files in `out`."""
    with tempfile.TemporaryDirectory() as name:
        built = []
        for folder in (Path(name, "one"), Path(name, "another", "place")):
            copy_sources(folder / "sources")
            built.append(build(folder / "sources", folder / "dist"))
        for first, second in zip(*built, strict=True):
            if first.read_bytes() != second.read_bytes():
                raise SystemExit(f"two builds of {first.name} differ")
            out.mkdir(exist_ok=True)
            shutil.copy(first, out)
            print(f"built twice, the same bytes: {out / first.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
