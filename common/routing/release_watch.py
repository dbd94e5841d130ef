"""The release in use, and the next one taking its place.

Knows how releases follow each other; what is made of one to route with is its opener's to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ridgeway.common.base.errors import ReleaseError, RidgewayError
from ridgeway.common.base.files import stamp_if_there
from ridgeway.common.routing.release import (
    MANIFEST,
    ROUTER,
    TOKENIZER,
    Release,
    load_manifest,
)

_LATEST = Path("releases", "latest")


class OpenedRelease(Protocol):
    """What a release was made into."""

    @property
    def release(self) -> Release: ...


_Opened = TypeVar("_Opened", bound=OpenedRelease)
_OpenedNow = TypeVar("_OpenedNow", bound=OpenedRelease, covariant=True)


class ReleaseOpener(Protocol[_OpenedNow]):
    """Where releases come from. open: reads and verifies the one that is in the folder now; signer:
    the newest key that is known of those who sign.
    """

    @property
    def folder(self) -> Path: ...

    def open(self, signer: str | None = None) -> _OpenedNow: ...


def _release_stamp(folder: Path) -> list[object]:
    """What changes when the release in a folder does."""
    return [stamp_if_there(folder / name) for name in (MANIFEST, ROUTER, TOKENIZER)]


def find_release(path: Path) -> Path:
    """The folder of the release: the path itself, or the newest of a coordinator's folder or of its
    releases.
    """
    for folder in (path, path / _LATEST, path / _LATEST.name):
        if (folder / MANIFEST).is_file():
            return folder
    if not path.is_dir():
        raise ReleaseError(
            f"there is no folder {path}; use that of a release or of a coordinator"
        )
    raise ReleaseError(
        f"{path} contains no release: {MANIFEST} and {_LATEST} are missing"
    )


def _without_path(words: str, folder: Path) -> str:
    """What is wrong with a release, without saying where on this machine it lies."""
    for path in (str(folder.resolve()), str(folder.absolute())):
        words = words.replace(f"the release in {path}", "the new release").replace(
            f"{path}/", ""
        )
    return words


class CurrentRelease(Generic[_Opened]):
    """The release in use. `refresh` takes a new one if there is one and it is good; a bad one is
    refused.

    It does not go back: neither to a lower number, nor to a release that it left, nor to a key that
    was handed over. This is kept in memory: a new process begins with the release that is there.
    """

    def __init__(self, source: ReleaseOpener[_Opened]) -> None:
        self._source = source
        self._stamp = _release_stamp(source.folder)
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
        stamp = _release_stamp(self._source.folder)
        if stamp == self._stamp or None in stamp:  # in the middle of being replaced
            return False
        self._stamp = stamp
        before = (self.served.release.id, self.refused)
        try:
            manifest = load_manifest(self._source.folder.resolve(), key=self._signer)
            # newer, even if the release is refused
            self._signer = str(manifest["signature"]["key"])
            taken = self._source.open(self._signer)
            self._check_order(taken)
        except OSError:
            self._stamp = []  # that may pass: look again
            self.refused = "it cannot be read now; trying again"
        except RidgewayError as error:
            self.refused = _without_path(str(error), self._source.folder)
        else:
            self.refused = None
            if taken.release.id != self.served.release.id:
                self._older.add(self.served.release.id)
                self.served = taken
        return before != (self.served.release.id, self.refused)

    def _check_order(self, taken: _Opened) -> None:
        """Raise if a release is older than the one in use. Releases that no federation made have no
        number.
        """
        number = taken.release.number
        in_use = self.served.release.number
        if number < in_use:
            raise ReleaseError(
                f"release {number} is older than release {in_use}, which is in use; "
                "`coordinator rollback` publishes an earlier router under a higher "
                "number"
            )
        if taken.release.id in (
            *self._older,
            self.served.release.manifest.get("parent"),
        ):
            raise ReleaseError(
                "it is older than the one in use, or was replaced before; publish it "
                "under a higher number"
            )
