"""Releases that are fetched by HTTPS from where their operator has put them, and verified before they are used.

An address names the folder of a release on any server of files. The manifest is fetched now and then. If it is another
than before, and the pinned key signed it, its files are fetched and compared with it, and the whole takes the place of
the release before it. A server that does not answer, or answers something else, changes nothing.

Knows urllib and releases. Knows nothing of routing.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import InputError, ReleaseError, RidgewayError
from ridgeway.common.base.files import cache_folder, whole_folder, write_whole
from ridgeway.common.routing.release import MANIFEST, ROUTER, TOKENIZER, load_manifest, release_id

log = logging.getLogger("ridgeway.serve")

SCHEME = "https://"
TIMEOUT_S = 30.0
MAX_MANIFEST_BYTES = 16 * 1024**2
MAX_FILE_BYTES = 4 * 1024**3
KNOWN_FILES = (ROUTER, TOKENIZER)
LATEST = "latest"


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """An address is the one that the operator gave, and no other."""

    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


class PulledRelease:
    """The release at an address, kept in a folder of the cache; `folder` is where the newest good one lies."""

    def __init__(self, url: str, key: str | None, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if key is None:
            raise InputError("a release that is fetched must be known by its signer: give --key, the public key")
        self._url = url.rstrip("/")
        self._key = key
        self._every_s = every_s
        self._clock = clock
        self._next = 0.0
        self._home = cache_folder() / "pulled" / hashlib.sha256(self._url.encode()).hexdigest()[:16]
        self._opener = urllib.request.build_opener(NoRedirects())

    @property
    def folder(self) -> Path:
        return self._home / LATEST

    def first(self) -> Path:
        """Fetch the release; if that is not possible now, the one that was fetched before is used."""
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self.pull()
        except RidgewayError as error:
            if not (self.folder / MANIFEST).is_file():
                raise
            log.warning("%s; the release that was fetched before is used", error)
        self._next = self._clock() + self._every_s
        return self.folder

    def watch(self) -> None:
        """Fetch the release if it is time and it has changed."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + self._every_s
        try:
            if self.pull():
                log.warning("a new release was fetched")
        except RidgewayError as error:
            log.error("%s; the old one goes on", error)

    def pull(self) -> bool:
        """Whether there was a new one. Raises if it cannot be had, or is not what the key has signed."""
        raw = self._get(MANIFEST, MAX_MANIFEST_BYTES)
        current = self.folder / MANIFEST
        if current.is_file() and current.read_bytes() == raw:
            return False
        draft = self._home / "draft"
        draft.mkdir(exist_ok=True)
        write_whole(draft / MANIFEST, raw)
        try:
            manifest = load_manifest(draft, key=self._key)  # nothing else is fetched for anyone else's word
        except ReleaseError:
            words = "is damaged, or was signed by another than the key you trust"
            raise ReleaseError(f"the release at {self._url} {words}") from None
        place = self._home / release_id(manifest)
        with whole_folder(place) as new:
            write_whole(new / MANIFEST, raw)
            for name in KNOWN_FILES:
                content = self._get(name, MAX_FILE_BYTES)
                if hashlib.sha256(content).hexdigest() != manifest["files"].get(name):
                    words = "is not the one that its manifest names; it may be in the middle of being replaced"
                    raise ReleaseError(f"{name} at {self._url} {words}")
                write_whole(new / name, content)
        self._switch(place)
        return True

    def _switch(self, place: Path) -> None:
        """In one step; older releases are dropped, but for the one before."""
        before = self.folder.resolve() if self.folder.is_symlink() else None
        link = self._home / ".latest.new"
        link.unlink(missing_ok=True)
        link.symlink_to(place.name)
        link.replace(self.folder)
        for old in self._home.iterdir():
            if old.is_dir() and not old.is_symlink() and old not in (place, before):
                for path in old.iterdir():
                    path.unlink()
                with contextlib.suppress(OSError):
                    old.rmdir()

    def _get(self, name: str, most: int) -> bytes:
        request = urllib.request.Request(f"{self._url}/{name}", headers={"user-agent": "ridgeway"})
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                content: bytes = answer.read(most + 1)
        except urllib.error.HTTPError as error:
            raise ReleaseError(f"{name} cannot be fetched from {self._url}: status {error.code}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ReleaseError(f"{name} cannot be fetched from {self._url}: {reason}") from None
        if len(content) > most:
            raise ReleaseError(f"{name} at {self._url} is larger than any release")
        return content
