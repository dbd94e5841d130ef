"""The releases of a federation over time: how accurate, with how much doubt, and what changed
between two of them.

Accuracies are shares of held-out texts, each with the interval in which the true share lies in 95
of 100 cases.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeway.common.routing.coverage import wilson
from ridgeway.common.routing.release import MANIFEST, release_id
from ridgeway.coordinator.round.ledger import LedgerRelease

Accuracy = dict[str, Any]
Manifest = Mapping[str, Any]

SETTINGS: Mapping[str, Callable[[Manifest], str]] = {
    "λ": lambda manifest: _ridge(manifest["ridge"]),
    "selector": lambda manifest: _selector(manifest["selector"]),
    "columns": lambda manifest: (
        "normalised" if manifest["normalise_columns"] else "as solved"
    ),
    "weighting": lambda manifest: str(manifest["weighting"]),
    "encoder": lambda manifest: (
        f"{manifest['encoder']['name']} {manifest['encoder']['fingerprint'][:12]}"
    ),
    "samples": lambda manifest: ", ".join(
        f"{name} {value}" for name, value in manifest["sampling"].items()
    ),
}
"""What a manifest says that may differ between releases, and in which words."""


class ReleaseHistory:
    """Reads each manifest once: a release never changes."""

    def __init__(self, releases: Path) -> None:
        self._folder = releases
        self._read: dict[str, Manifest] = {}

    def manifest(self, made: LedgerRelease) -> Manifest | None:
        """The manifest of a release; None if it is gone, or is not the one that the ledger speaks
        of.
        """
        if made.release not in self._read:
            try:
                content = json.loads(
                    (self._folder / f"{made.number:04}" / MANIFEST).read_bytes()
                )
                if release_id(content) != made.release:
                    return None
            except (OSError, ValueError, TypeError, AttributeError):
                return None
            self._read[made.release] = content
        return self._read[made.release]

    def summary(self, made: LedgerRelease) -> dict[str, Any]:
        manifest = self.manifest(made)
        accuracies = domain_accuracies(manifest)
        return {
            "number": made.number,
            "release": made.release,
            "time": made.time,
            "cause": made.cause,
            "mode": made.terms.mode,
            "domains": list(made.domains),
            "members": len({member.name for member in made.members}),
            "whole": manifest is not None,
            "settings": settings_words(manifest),
            "accuracies": accuracies,
            "mean": mean_accuracy(accuracies),
        }

    def changes(self, before: LedgerRelease, after: LedgerRelease) -> dict[str, Any]:
        """What is different in `after`: domains, members, settings, accuracies."""
        old = self.manifest(before)
        new = self.manifest(after)
        was, now = (
            {member.name: member.source for member in each.members}
            for each in (before, after)
        )
        return {
            "before": before.number,
            "after": after.number,
            "domains": {
                "added": sorted(set(after.domains) - set(before.domains)),
                "lost": sorted(set(before.domains) - set(after.domains)),
            },
            "members": {
                "joined": sorted(set(now) - set(was)),
                "left": sorted(set(was) - set(now)),
                "changed": sorted(
                    name for name in set(was) & set(now) if was[name] != now[name]
                ),
            },
            "settings": _differing(
                {"mode": before.terms.mode, **settings_words(old)},
                {"mode": after.terms.mode, **settings_words(new)},
            ),
            "accuracies": accuracy_changes(
                domain_accuracies(old), domain_accuracies(new)
            ),
        }


def domain_accuracies(manifest: Manifest | None) -> dict[str, Accuracy]:
    """The accuracy on each domain's held-out texts, by domain; empty where the release was not
    evaluated.
    """
    evaluation = manifest["evaluation"] if manifest else None
    if not evaluation:
        return {}
    rows = zip(evaluation["order"], evaluation["confusion"], strict=True)
    told = evaluation.get("intervals", {})
    return {
        name: _accuracy(row[place], sum(row), told.get(name))
        for place, (name, row) in enumerate(rows)
        if sum(row)
    }


def _accuracy(right: int, texts: int, told: Sequence[float] | None = None) -> Accuracy:
    """told: the interval that the manifest names, in percent: that of counts under noise."""
    low, high = (each / 100 for each in told) if told else wilson(right / texts, texts)
    return {"share": right / texts, "low": low, "high": high, "texts": texts}


def mean_accuracy(accuracies: Mapping[str, Accuracy]) -> Accuracy | None:
    """The mean over domains, its doubt made of theirs."""
    if not accuracies:
        return None
    many = len(accuracies)
    values = accuracies.values()
    share = sum(each["share"] for each in values) / many
    down = math.sqrt(sum((each["share"] - each["low"]) ** 2 for each in values)) / many
    rise = math.sqrt(sum((each["high"] - each["share"]) ** 2 for each in values)) / many
    return {
        "share": share,
        "low": share - down,
        "high": share + rise,
        "texts": sum(each["texts"] for each in values),
    }


def accuracy_changes(
    old: Mapping[str, Accuracy], new: Mapping[str, Accuracy]
) -> list[dict[str, Any]]:
    """By domain, the greatest loss first. doubt: half the interval of the change, as of different
    texts.
    """
    rows = [
        {
            "domain": name,
            "before": old.get(name),
            "after": new.get(name),
            **_difference(old.get(name), new.get(name)),
        }
        for name in dict.fromkeys((*old, *new))
    ]
    return sorted(
        rows,
        key=lambda row: (row["change"] is None, row["change"] or 0.0, row["domain"]),
    )


def _difference(old: Accuracy | None, new: Accuracy | None) -> dict[str, float | None]:
    if old is None or new is None:
        return {"change": None, "doubt": None}
    halves = [(each["high"] - each["low"]) / 2 for each in (old, new)]
    return {"change": new["share"] - old["share"], "doubt": math.hypot(*halves)}


def settings_words(manifest: Manifest | None) -> dict[str, str]:
    """The settings that a release was made with; those that a manifest does not name are left
    out.
    """
    found: dict[str, str] = {}
    for name, words in SETTINGS.items():
        try:
            found[name] = words(manifest or {})
        except (KeyError, TypeError, AttributeError):
            continue
    return found


def _ridge(ridge: Mapping[str, Any]) -> str:
    return f"{ridge['value']:g}" + (
        " of the mean diagonal" if ridge["relative"] else ""
    )


def _selector(selector: Mapping[str, Any]) -> str:
    return str(selector["name"]) + (
        f", k = {selector['k']}" if selector["name"] == "entropy" else ""
    )


def _differing(
    old: Mapping[str, str], new: Mapping[str, str]
) -> Sequence[dict[str, str | None]]:
    return [
        {"name": name, "before": old.get(name), "after": new.get(name)}
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
