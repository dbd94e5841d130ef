"""The releases of a federation over time: how accurate, with how much doubt, and what changed
between two of them.

Accuracies are shares of held-out texts, each with the interval in which the true share lies in 95
of 100 cases.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ridgeway.common.routing.coverage import wilson
from ridgeway.common.routing.release import MANIFEST, release_id
from ridgeway.coordinator.round.ledger import LedgerRelease

Accuracy = dict[str, Any]
Manifest = Mapping[str, Any]

_SETTINGS: Mapping[str, Callable[[Manifest], str]] = {
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


@dataclass(frozen=True, slots=True)
class ReleaseHistory:
    """Reads each manifest once: a release never changes."""

    _folder: Path
    _read: dict[str, Manifest] = field(default_factory=dict)

    def manifest(self, made: LedgerRelease) -> Manifest | None:
        """The manifest of a release; None if it is gone, or is not the one that the ledger speaks
        of.
        """
        if made.release not in self._read:
            path = self._folder / f"{made.number:04}" / MANIFEST
            with suppress(OSError, ValueError, TypeError, AttributeError):
                content = json.loads(path.read_bytes())
                if release_id(content) == made.release:
                    self._read[made.release] = content
        return self._read.get(made.release)

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
            "mean": noisy_mean(manifest) or mean_accuracy(accuracies),
        }

    def changes(self, before: LedgerRelease, after: LedgerRelease) -> dict[str, Any]:
        """What is different in `after`: domains, members, settings, accuracies."""
        old = self.summary(before)
        new = self.summary(after)
        was = {member.name: member.source for member in before.members}
        now = {member.name: member.source for member in after.members}
        old_settings = {"mode": old["mode"], **old["settings"]}
        new_settings = {"mode": new["mode"], **new["settings"]}
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
                    name
                    for name, source in was.items()
                    if now.get(name, source) != source
                ),
            },
            "settings": [
                {"name": name, "before": old_settings.get(name), "after": value}
                for name, value in (dict.fromkeys(old_settings) | new_settings).items()
                if old_settings.get(name) != value
            ],
            "accuracies": accuracy_changes(old["accuracies"], new["accuracies"]),
        }


def domain_accuracies(manifest: Manifest | None) -> dict[str, Accuracy]:
    """The accuracy on each domain's held-out texts, by domain; empty where the release was not
    evaluated.
    """
    evaluation = manifest["evaluation"] if manifest else None
    if not evaluation:
        return {}
    rows = zip(evaluation["order"], evaluation["confusion"], strict=True)
    intervals = evaluation.get("intervals", {})
    accuracies = {}
    for column, (name, row) in enumerate(rows):
        texts = sum(row)
        if name in intervals and name in evaluation["domains"]:
            percent = evaluation["domains"][name]
            accuracies[name] = _of_percent(percent, intervals[name], texts)
        elif texts:
            share = row[column] / texts
            accuracies[name] = _accuracy_of(share, *wilson(share, texts), texts)
    return accuracies


def noisy_mean(manifest: Manifest | None) -> Accuracy | None:
    """The mean over domains, where the manifest names its interval: that of counts under noise."""
    evaluation = (manifest or {}).get("evaluation") or {}
    if "interval" not in evaluation:
        return None
    texts = sum(map(sum, evaluation["confusion"]))
    return _of_percent(evaluation["accuracy"], evaluation["interval"], texts)


def _of_percent(percent: float, interval: Sequence[float], texts: int) -> Accuracy:
    """As a manifest has it."""
    low, high = interval
    return _accuracy_of(percent / 100, low / 100, high / 100, texts)


def _accuracy_of(share: float, low: float, high: float, texts: int) -> Accuracy:
    return {"share": share, "low": low, "high": high, "texts": texts}


def mean_accuracy(accuracies: Mapping[str, Accuracy]) -> Accuracy | None:
    """The mean over domains, its doubt made of theirs."""
    if not accuracies:
        return None
    values = accuracies.values()
    share = fmean(value["share"] for value in values)
    down = math.hypot(*(value["share"] - value["low"] for value in values))
    rise = math.hypot(*(value["high"] - value["share"] for value in values))
    low = share - down / len(values)
    high = share + rise / len(values)
    return _accuracy_of(share, low, high, sum(value["texts"] for value in values))


def accuracy_changes(
    before: Mapping[str, Accuracy], after: Mapping[str, Accuracy]
) -> list[dict[str, Any]]:
    """By domain, the greatest loss first. doubt: half the interval of the change, as of different
    texts.
    """
    rows = []
    for name in dict.fromkeys((*before, *after)):
        old = before.get(name)
        new = after.get(name)
        row: dict[str, Any] = {"domain": name, "before": old, "after": new}
        row |= {"change": None, "doubt": None}
        if old and new:
            widths = (value["high"] - value["low"] for value in (old, new))
            row["change"] = new["share"] - old["share"]
            row["doubt"] = math.hypot(*widths) / 2
        rows.append(row)
    return sorted(
        rows,
        key=lambda row: (row["change"] is None, row["change"] or 0.0, row["domain"]),
    )


def settings_words(manifest: Manifest | None) -> dict[str, str]:
    """The settings that a release was made with; those that a manifest does not name are left
    out.
    """
    settings: dict[str, str] = {}
    for name, words in _SETTINGS.items():
        with suppress(KeyError, TypeError, AttributeError):
            settings[name] = words(manifest or {})
    return settings


def _ridge(ridge: Mapping[str, Any]) -> str:
    relative = " of the mean diagonal" if ridge["relative"] else ""
    return f"{ridge['value']:g}{relative}"


def _selector(selector: Mapping[str, Any]) -> str:
    k = f", k = {selector['k']}" if selector["name"] == "entropy" else ""
    return f"{selector['name']}{k}"
