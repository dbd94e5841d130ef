"""What a folder holds that nothing needs any more: kinds of files, how many, how large; and taking
them away.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Leftover:
    """One kind. what: they are. kept: what stays of the kind. paths: files, and folders that go
    with all they hold.
    """

    what: str
    kept: str
    paths: Sequence[Path]

    @property
    def size(self) -> int:
        files = (file for path in self.paths for file in (path, *path.rglob("*")))
        return sum(file.lstat().st_size for file in files if not file.is_dir())

    def row(self) -> dict[str, Any]:
        """What is told of it, and still can be when it is gone."""
        return {
            "what": self.what,
            "files": len(self.paths),
            "bytes": self.size,
            "stays": self.kept,
        }

    def remove(self) -> None:
        for path in self.paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def outdated_apps(flower_home: Path, kept: Iterable[str]) -> Leftover:
    """The bundles that Flower has unpacked and that no longer run; it names a folder by the hash's
    first digits.
    """
    ends = tuple(digest[:8] for digest in kept)
    paths = sorted((flower_home / "apps").glob("*"))
    return Leftover(
        "unpacked bundles that no longer run",
        "those that may run",
        [path for path in paths if not path.name.endswith(ends)],
    )
