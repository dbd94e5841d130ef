"""The release in use, and the next one taking its place while requests go on.

Knows releases. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.compiled import CompiledTable
from common.errors import InputError, ReleaseError
from common.files import file_stamp
from common.release import MANIFEST, ROUTER, TOKENIZER, Release, load_release
from common.router import Router

LATEST = Path("releases", "latest")


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """A release that was verified and is ready to route; `since`: when it was taken, in seconds since 1970."""

    release: Release
    folder: Path
    since: float

    @property
    def id(self) -> str:
        return str(self.release.router.release)  # worked out once, when it was read

    @property
    def router(self) -> Router:
        return self.release.router

    @property
    def runs_a_model(self) -> bool:
        return not isinstance(self.router.compiled, CompiledTable)

    def card(self) -> dict[str, Any]:
        manifest = self.release.manifest
        return {
            "release": self.id,
            "signer": self.release.signer,
            "since": self.since,
            "domains": manifest["domains"],
            "masses": manifest["masses"],
            "manifest": {name: value for name, value in manifest.items() if name != "signature"},
        }


def find_release(path: Path) -> Path:
    """The folder of the release: the path itself, or the newest of a coordinator's folder or of its releases."""
    for place in (path, path / LATEST, path / LATEST.name):
        if (place / MANIFEST).is_file():
            return place
    raise ReleaseError(f"{path} holds no release: neither {MANIFEST} nor {LATEST} is there")


@dataclass(frozen=True, slots=True)
class Source:
    """Where releases come from, and what is asked of them.

    key:          the public key that must have signed them; without one, whoever signed the first.
    model, device: of a contextual encoder.
    check:        raises if a release cannot be used here, for a reason of its own.
    """

    folder: Path
    key: str | None = None
    model: Path | None = None
    device: str = "auto"
    check: Callable[[Router], None] = lambda router: None

    def stamp(self) -> list[object]:
        """What changes when the release does."""
        return [_stamp(self.folder / name) for name in (MANIFEST, ROUTER, TOKENIZER)]

    def open(self, signer: str | None = None) -> Live:
        """Read and verify the release that is there now, and route a first prompt with it."""
        folder = self.folder.resolve()
        release = load_release(folder, key=self.key or signer, model=self.model, device=self.device)
        self.check(release.router)
        release.router.route("Is it ready?")
        return Live(release, folder, time.time())


def _stamp(path: Path) -> object:
    try:
        return file_stamp(path)
    except OSError:
        return None


class Current:
    """The release in use. `refresh` takes a new one if there is one and it is good; a bad one is refused."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stamp = source.stamp()
        self.live = source.open()
        self.refused: str | None = None

    def refresh(self) -> bool:
        """Whether the release in use, or what is known of a refused one, has changed."""
        stamp = self._source.stamp()
        if stamp == self._stamp or None in stamp:  # in the middle of being replaced
            return False
        self._stamp = stamp
        before = (self.live.id, self.refused)
        try:
            taken = self._source.open(self.live.release.signer)
        except (ReleaseError, InputError, OSError) as error:
            self.refused = str(error)
        else:
            self.refused = None
            if taken.id != self.live.id:
                self.live = taken
        return before != (self.live.id, self.refused)
