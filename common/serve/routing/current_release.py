"""The release in use, and the next one taking its place while requests go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import ReleaseError, RidgewayError
from ridgeway.common.base.files import stamp_if_there
from ridgeway.common.base.settings import SentenceUse
from ridgeway.common.routing.release import (
    MANIFEST,
    ROUTER,
    TOKENIZER,
    Release,
    load_manifest,
    load_release,
)
from ridgeway.common.routing.router import Router, router_of

log = logging.getLogger("ridgeway.serve")

_LATEST = Path("releases", "latest")


@dataclass(frozen=True, slots=True, eq=False)
class ServedRelease:
    """A release that was verified and is ready to route.

    since:        when it was taken, in seconds since 1970.
    runs_a_model: whether deciding runs a model, which keeps all cores busy by itself.
    is_quick:     whether a short prompt is decided in less time than it takes to hand it to another
                  thread, unless its sentences have to be read.
    """

    release: Release
    router: Router
    folder: Path
    since: float
    id: str = field(init=False)
    runs_a_model: bool = field(init=False)
    is_quick: bool = field(init=False)

    def __post_init__(self) -> None:
        # what every request reads is worked out once
        object.__setattr__(self, "id", str(self.router.release))
        object.__setattr__(self, "runs_a_model", self.router.compiled.runs_a_model)
        object.__setattr__(
            self, "is_quick", self.router.make_fast() and not self.runs_a_model
        )

    @property
    def number(self) -> int:
        """Its number in its federation; 0 without one."""
        number = self.release.manifest.get("number")
        return number if isinstance(number, int) else 0

    def card(self) -> dict[str, Any]:
        manifest = self.release.manifest
        return {
            "release": self.id,
            "signer": self.release.signer,
            "since": self.since,
            "domains": manifest["domains"],
            "masses": manifest["masses"],
            "manifest": {
                name: value for name, value in manifest.items() if name != "signature"
            },
        }


def find_release(path: Path) -> Path:
    """The folder of the release: the path itself, or the newest of a coordinator's folder or of its
    releases.
    """
    for place in (path, path / _LATEST, path / _LATEST.name):
        if (place / MANIFEST).is_file():
            return place
    if not path.is_dir():
        raise ReleaseError(
            f"there is no folder {path}; name that of a release, or a coordinator's"
        )
    raise ReleaseError(
        f"{path} holds no release: neither {MANIFEST} nor {_LATEST} is there"
    )


@dataclass(frozen=True, slots=True)
class ReleaseSource:
    """Where releases come from, and what is asked of them.

    key:          the public key that must have signed the first one; without one, whoever signed it
                  is trusted.
    model, device: of a contextual encoder.
    check:        raises if a release cannot be used here, for a reason of its own.
    changes:      of the confidence that releases come with: threshold, fallback, scope.
    sentences:    which prompts a release's sentence encoder reads.
    """

    folder: Path
    key: str | None = None
    model: Path | None = None
    device: str = "auto"
    check: Callable[[Router], None] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    sentences: SentenceUse = "auto"

    def stamp(self) -> list[object]:
        """What changes when the release does."""
        return [
            stamp_if_there(self.folder / name) for name in (MANIFEST, ROUTER, TOKENIZER)
        ]

    def open(self, signer: str | None = None) -> ServedRelease:
        """Read and verify the release that is there now, and route a first prompt with it.

        signer: the newest key that is known of those who sign; an earlier one, also `key`, counts
                no more.
        """
        folder = self.folder.resolve()
        release = load_release(
            folder,
            key=signer or self.key,
            model=self.model,
            device=self.device,
            sentences=self.sentences,
        )
        if self.changes:
            release = replace(
                release, confidence=release.confidence.abstaining(**self.changes)
            )
        router = router_of(release)
        if self.check is not None:
            self.check(router)
        router.route("Is it ready?")
        return ServedRelease(release, router, folder, time.time())


def _without_path(words: str, folder: Path) -> str:
    """What is wrong with a release, without saying where on this machine it lies."""
    for path in (str(folder.resolve()), str(folder.absolute())):
        words = words.replace(f"the release in {path}", "the new release").replace(
            f"{path}/", ""
        )
    return words


class CurrentRelease:
    """The release in use. `refresh` takes a new one if there is one and it is good; a bad one is
    refused.

    It does not go back: neither to a lower number, nor to a release that it left, nor to a key that
    was handed over. This is kept in memory: a new process begins with the release that is there.
    """

    def __init__(self, source: ReleaseSource) -> None:
        self._source = source
        self._stamp = source.stamp()
        self._older: set[str] = set()
        self.served = source.open()
        self._signer = self.served.release.signer
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
        before = (self.served.id, self.refused)
        try:
            manifest = load_manifest(self._source.folder.resolve(), key=self._signer)
            # newer, even if the release is refused
            self._signer = str(manifest["signature"]["key"])
            taken = self._source.open(self._signer)
            self._check_order(taken)
        except OSError:
            self._stamp = []  # that may pass: look again
            self.refused = "it cannot be read now, and is tried again"
        except RidgewayError as error:
            self.refused = _without_path(str(error), self._source.folder)
        else:
            self.refused = None
            if taken.id != self.served.id:
                self._older.add(self.served.id)
                self.served = taken
        return before != (self.served.id, self.refused)

    def _check_order(self, taken: ServedRelease) -> None:
        """Raise if a release is older than the one in use. Releases that no federation made have no
        number.
        """
        if taken.number < self.served.number:
            raise ReleaseError(
                f"it is number {taken.number}, and number {self.served.number} is in"
                " use; `coordinator rollback` publishes an earlier router under a"
                " higher number"
            )
        if taken.id in (*self._older, self.served.release.manifest.get("parent")):
            raise ReleaseError(
                "it is an earlier state of the one in use, or was replaced before;"
                " publish it under a higher number"
            )
