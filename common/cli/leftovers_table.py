"""How what may be pruned, or was, is shown: a table with the room that it takes, or JSON.

Knows rows of plain values. Knows nothing of what they are about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeway.common.cli.terminal import emit_json, size, step, table


def show_leftovers(rows: Sequence[Mapping[str, Any]], *, removed: bool, json: bool) -> None:
    total = sum(row["bytes"] for row in rows)
    if json:
        emit_json({"removed": removed, "bytes": total, "kinds": list(rows)})
        return
    cells = [[row["what"], f"{row['files']:,}", size(row["bytes"]), row["stays"]] for row in rows]
    table(["went" if removed else "would go", "files", "room", "stays"], cells, numbers_from=4)
    if removed:
        step("pruned", size(total))
    else:
        step("next", f"with --remove {size(total)} are freed" if total else "there is nothing to take away")
