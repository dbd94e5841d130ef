"""What happens in a round, as lines of JSON that another process can follow while it happens.

Knows files. Knows nothing of rounds: whoever shows the events gives them their words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from common.errors import RidgewayError

Event = tuple[str, Mapping[str, Any]]


class ProgressFile:
    """A watch that writes. The last event is `done`, or `failed` with a reason."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, kind: str, facts: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"event": kind, **facts}) + "\n")
        self._file.flush()

    def __enter__(self) -> ProgressFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self("done", {})
        else:
            known = isinstance(error, RidgewayError)
            self("failed", {"reason": str(error) if known else f"the coordinator's program failed: {error!r}"})
        self._file.close()


class Follower:
    """Reads a progress file from where it was left, whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def events(self) -> Iterator[Event]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                facts = json.loads(line)
                yield facts.pop("event"), facts
