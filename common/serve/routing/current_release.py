"""Releases as they are served: verified, with the experts checked, and ready to route."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeway.common.base.settings import SentenceUse
from ridgeway.common.routing.release import Release, load_release
from ridgeway.common.routing.router import Router, router_of


@dataclass(frozen=True, slots=True, eq=False)
class ServedRelease:
    """A release that was verified and is ready to route.

    since:        when it was taken, in seconds since 1970.
    is_quick:     whether a short prompt is decided in less time than it takes to hand it to another
                  thread, unless its sentences have to be read.
    """

    release: Release
    router: Router
    folder: Path
    since: float
    id: str = field(init=False)
    is_quick: bool = field(init=False)

    def __post_init__(self) -> None:
        # what every request reads is worked out once
        object.__setattr__(self, "id", str(self.router.release))
        object.__setattr__(self, "is_quick", self.router.make_fast())

    @property
    def number(self) -> int:
        """Its number in its federation; 0 without one."""
        return self.release.number

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


@dataclass(frozen=True, slots=True)
class ReleaseSource:
    """Where releases come from, and what is asked of them.

    key:          the public key that must have signed the first one; without one, whoever signed it
                  is trusted.
    check:        raises if a release cannot be used here, for a reason of its own.
    changes:      of the confidence that releases come with: threshold, fallback, scope.
    sentences:    which prompts a release's sentence encoder reads.
    """

    folder: Path
    key: str | None = None
    check: Callable[[Router], None] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    sentences: SentenceUse = "auto"

    def open(self, signer: str | None = None) -> ServedRelease:
        """Read and verify the release that is there now, and route a first prompt with it.

        signer: the newest key that is known of those who sign; an earlier one, also `key`, counts
                no more.
        """
        folder = self.folder.resolve()
        release = load_release(folder, key=signer or self.key, sentences=self.sentences)
        if self.changes:
            release = replace(
                release, confidence=release.confidence.abstaining(**self.changes)
            )
        router = router_of(release)
        if self.check is not None:
            self.check(router)
        router.route("Is it ready?")
        return ServedRelease(release, router, folder, time.time())
