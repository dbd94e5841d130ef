"""The release in use, and the next one taking its place while requests go on.

Knows releases. Knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.compiled import CompiledTable
from common.errors import FormatError, ReleaseError, RidgewayError
from common.files import stamp_if_there
from common.release import MANIFEST, ROUTER, TOKENIZER, Release, load_release
from common.router import Router
from coordinator import leverage
from coordinator.leverage import Leverage

log = logging.getLogger("ridgeway.serve")

LATEST = Path("releases", "latest")


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """A release that was verified and is ready to route.

    since:    when it was taken, in seconds since 1970.
    leverage: what the operator keeps beside it to tell how unusual a prompt is, if that is there.
    """

    release: Release
    folder: Path
    since: float
    leverage: Leverage | None = None

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
    if not path.is_dir():
        raise ReleaseError(f"there is no folder {path}; name that of a release, or a coordinator's")
    raise ReleaseError(f"{path} holds no release: neither {MANIFEST} nor {LATEST} is there")


@dataclass(frozen=True, slots=True)
class Source:
    """Where releases come from, and what is asked of them.

    key:          the public key that must have signed them; without one, whoever signed the first.
    model, device: of a contextual encoder.
    check:        raises if a release cannot be used here, for a reason of its own.
    changes:      of the confidence that releases come with: threshold, fallback.
    """

    folder: Path
    key: str | None = None
    model: Path | None = None
    device: str = "auto"
    check: Callable[[Router], None] = lambda router: None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def stamp(self) -> list[object]:
        """What changes when the release does."""
        return [stamp_if_there(self.folder / name) for name in (MANIFEST, ROUTER, TOKENIZER)]

    def open(self, signer: str | None = None) -> Live:
        """Read and verify the release that is there now, and route a first prompt with it."""
        folder = self.folder.resolve()
        release = load_release(folder, key=self.key or signer, model=self.model, device=self.device)
        if self.changes:
            release = replace(release, router=release.router.with_confidence(**self.changes))
        self.check(release.router)
        release.router.route("Is it ready?")
        return Live(release, folder, time.time(), _leverage(folder, release))


def _leverage(folder: Path, release: Release) -> Leverage | None:
    """What lies beside the release; if it cannot be used, the release can."""
    try:
        found = leverage.load(folder, release.manifest["files"][ROUTER])
    except (FormatError, OSError) as error:
        log.warning("the companion of release %s cannot be used: %s", release.id[:12], type(error).__name__)
        return None
    if found is not None and len(found.rows) < release.router.tokenizer.rows:
        log.warning("the companion of release %s is of another tokenizer", release.id[:12])
        return None
    return found


def _public(words: str, folder: Path) -> str:
    """What is wrong with a release, without saying where on this machine it lies."""
    for path in (str(folder.resolve()), str(folder.absolute())):
        words = words.replace(f"the release in {path}", "the new release").replace(f"{path}/", "")
    return words


class Current:
    """The release in use. `refresh` takes a new one if there is one and it is good; a bad one is refused."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stamp = source.stamp()
        self.live = source.open()
        self.refused: str | None = None

    def look_again(self) -> None:
        """What a release was refused for may be different now."""
        if self.refused is not None:
            self._stamp = []

    def refresh(self) -> bool:
        """Whether the release in use, or what is known of a refused one, has changed."""
        stamp = self._source.stamp()
        if stamp == self._stamp or None in stamp:  # in the middle of being replaced
            return False
        self._stamp = stamp
        before = (self.live.id, self.refused)
        try:
            taken = self._source.open(self.live.release.signer)
        except OSError:
            self._stamp = []  # that may pass: look again
            self.refused = "it cannot be read now, and is tried again"
        except RidgewayError as error:
            self.refused = _public(str(error), self._source.folder)
        else:
            self.refused = None
            if taken.id != self.live.id:
                self.live = taken
        return before != (self.live.id, self.refused)
