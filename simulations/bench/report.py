"""Results as a table on the terminal, as JSON, and in a file; and whether every aim was reached.

Knows how results are shown. Knows nothing of how they come about.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.files import write_whole
from common.terminal import emit_json, step, table
from simulations.bench.measuring import Result


@dataclass(slots=True)
class Report:
    """The results of one benchmark so far, and what could not be measured here, with the reason."""

    name: str
    facts: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, what: str, reason: str) -> None:
        step("left out", what, reason)
        self.left_out.append(f"{what}: {reason}")

    def add(self, results: list[Result]) -> None:
        self.results.extend(results)

    @property
    def reached(self) -> bool:
        return all(result.reached for result in self.results)

    def to_json(self) -> dict[str, Any]:
        results = [result.to_json() for result in self.results]
        return {"name": self.name, **self.facts, "left_out": self.left_out, "reached": self.reached, "results": results}

    def show(self, folder: Path, *, as_json: bool) -> None:
        """Print the results and keep them in a file."""
        if as_json:
            emit_json(self.to_json())
        else:
            headings = ["what", "ratio", "aim", "reached", "ours", "beside it"]
            table(headings, [_row(result) for result in self.results])
        path = folder / f"{self.name}.json"
        write_whole(path, json.dumps(self.to_json(), indent=2).encode())
        step("wrote", str(path))


def _row(result: Result) -> list[str]:
    reached = "–" if result.aim == "–" else "yes" if result.reached else "NO"
    return [result.name, f"{result.ratio:.3g}", result.aim, reached, result.ours, result.theirs]
