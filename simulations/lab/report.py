"""A report: the parts found so far, in their order, with facts about the machine; and what its files are called.

Knows nothing of how files are written, nor of how anything is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.files import sha256
from simulations.lab.findings import Part
from simulations.lab.parts import PARTS

KIND = "ridgeway report"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Report:
    """Everything found so far.

    facts:    versions, machine, seed and date of the last command.
    failures: for parts that could not be run the last time, the reason.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    def having(self, part: Part) -> Report:
        """With this part in its place; an older one of its name gives way."""
        parts = sorted([part, *(each for each in self.parts if each.key != part.key)], key=_place)
        failures = {key: reason for key, reason in self.failures.items() if key != part.key}
        return Report(self.facts, tuple(parts), failures)

    def failing(self, key: str, reason: str) -> Report:
        """With the reason why a part is missing; one of an earlier run stays."""
        return Report(self.facts, self.parts, {**self.failures, key: reason})

    def to_json(self) -> dict[str, Any]:
        parts = [part.to_json() for part in self.parts]
        return {
            "kind": KIND,
            "version": VERSION,
            "facts": dict(self.facts),
            "parts": parts,
            "failures": dict(self.failures),
        }


def _place(part: Part) -> int:
    return list(PARTS).index(part.key) if part.key in PARTS else len(PARTS)


def table_path(key: str, kind: str) -> str:
    return f"tables/{file_name(key)}.{kind}"


def plot_path(key: str) -> str:
    return f"plots/{file_name(key)}.svg"


def file_name(key: str) -> str:
    """The key itself where it is a plain name; otherwise one that is, and unlike that of any other key."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", key)
    return plain if plain == key != "" else f"{plain}-{sha256(key.encode(errors='replace'))[:8]}"
