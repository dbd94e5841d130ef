"""The events of a round in words: one aligned line each, on stderr.

Knows how results are shown. Knows nothing of how they come about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.terminal import CountingBar, count, size, step

MANY = 20
BY_HOLDER = ("offered", "received", "scored", "shared", "sealed")


class Narrator:
    """A watch that tells what happens, step by step. Where holders are many, a bar counts them instead."""

    def __init__(self) -> None:
        self._holders = 0
        self._bar = CountingBar()
        self._online = -1

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        tell = getattr(self, f"_{event}", None)
        if tell is not None:
            if event not in BY_HOLDER:
                self._bar.close()
            tell(**facts)

    def _of_holder(self, verb: str, name: str, *figures: str) -> None:
        if self._holders > MANY:
            self._bar.advance(verb, self._holders)
        else:
            step(verb, name, *figures)

    def _opened(self, number: int, holders: int, encoder_name: str, mode: str, **_: Any) -> None:
        self._holders = holders
        step("round", str(number), count(holders, "holder"), f"encoder {encoder_name}", f"statistics {mode}")

    def _other_bundle(self, folder: str) -> None:
        words = "this Ridgeway is not the one that holders were invited to run, so they may refuse it"
        step("note", words, f"run: ridgeway coordinator invite {folder}")

    def _failed_peer(self, code: int, reason: str) -> None:
        if self._holders <= MANY:
            step("failed", "a holder's SuperNode", reason or f"error {code}")

    def _note(self, words: str) -> None:
        step("note", words)

    def _waiting(self, online: int, wanted: int) -> None:
        if online != self._online:
            step("waiting", "for holders", f"{online} of {wanted} online")
        self._online = online

    def _offered(self, name: str, domain: str) -> None:
        self._of_holder("ready", name, f"domain {domain}")

    def _received(self, name: str, domain: str, bytes: int) -> None:
        self._of_holder("received", name, f"domain {domain}", size(bytes))

    def _shared(self, name: str) -> None:
        if self._holders > MANY:
            self._bar.advance("shared", self._holders)

    def _sealed(self, name: str, lot: str, bytes: int) -> None:
        if self._holders > MANY:
            self._bar.advance(f"sealed {lot}", self._holders)
        elif lot == "statistics":
            step("sealed", name, lot, size(bytes))

    def _kept_total(self, members: int) -> None:
        step("kept", f"the total of {count(members, 'holder')}", "nobody in it has changed")

    def _opened_sum(self, lot: str, members: int, of: int) -> None:
        step(
            "opened", f"the sum of {lot}", f"of {members} members", f"{of - members} fell away" if of > members else ""
        )

    def _not_counted(self, lot: str, reason: str) -> None:
        step("note", f"no {lot} were counted, so the router is not chosen by them", reason)

    def _scored(self, name: str) -> None:
        if self._holders > MANY:
            self._bar.advance("scored", self._holders)

    def _refused(self, name: str | None, code: str, reason: str, **_: Any) -> None:
        step("refused", name or "someone unknown", code, reason)

    def _absent(self, names: list[str], **at: Any) -> None:
        step("absent", ", ".join(names), f"no answer to {at['step']}")

    def _added(self, holders: int, domains: list[str]) -> None:
        step("added", f"sums of {count(holders, 'holder')}", f"{len(domains)} domains", ", ".join(domains))

    def _solved(self, features: int, condition: float) -> None:
        step("solved", f"{features} features", f"condition {condition:.1e}")

    def _chosen(
        self, candidates: int, documents: int, ridge: float, selector: str, accuracy: float | None, **_: Any
    ) -> None:
        if accuracy is None:
            step("chosen", "the first candidate", "no held-out documents")
            return
        step("tried", count(candidates, "candidate"), f"on {documents:,} held-out documents")
        step("chosen", f"λ {ridge:g}, {selector}", f"held-out accuracy {accuracy:.1f} %")

    def _calibrated(self, temperature: float, growth: float, gap: float) -> None:
        step("fitted", f"temperature {temperature:.3g}", f"growth {growth:.1f}", f"gap to accuracy {gap:.1f} %")

    def _released(self, number: int, release: str, domains: list[str]) -> None:
        step("release", f"{number:04}", release[:12], count(len(domains), "domain"))

    def _delivered(self, number: int, names: list[str]) -> None:
        step("delivered", f"release {number:04}", f"to {count(len(names), 'holder')}")
