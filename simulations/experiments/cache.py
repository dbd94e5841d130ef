"""Finished pieces of work, kept as JSON under a digest of what decided them, so that they are not done again.

Knows files. Knows nothing of experiments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ridgeway.common.base.files import canonical_json, sha256, write_whole

VERSION = 1


class Cache:
    """Law: kept(key, make) calls `make` at most once for equal keys, in this process or any other; what it gives is
    what JSON makes of it."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        """fresh: what is there is not taken, but replaced."""
        self._folder = folder
        self._fresh = fresh
        self._made: set[str] = set()

    def kept(self, name: str, key: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """name: what the piece of work is called; also part of the key. A damaged file counts as none."""
        digest = sha256(canonical_json({"version": VERSION, "name": name, "key": key}))
        path = self._folder / f"{name}-{digest[:24]}.json"
        found = None if self._fresh and digest not in self._made else _read(path, digest)
        if found is None:
            found = {"digest": digest, "key": dict(key), "value": make()}
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(found, indent=1, ensure_ascii=False).encode())
            found = json.loads(path.read_bytes())
            self._made.add(digest)
        return found["value"]


def _read(path: Path, digest: str) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
        return found if found["digest"] == digest and "value" in found else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
