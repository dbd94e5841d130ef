"""Findings as plain values: what JSON carries away comes back the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from ridgeway.simulations.experiments.report.report_tables import ReportPart, Table, part_from_json
from tests.support.report_samples import a_table, parts


@settings(max_examples=20)
@given(part=parts)
def test_a_part_survives_json(part: ReportPart) -> None:
    """Written as text and read again it is an equal part, tuples and all."""
    assert part_from_json(json.loads(json.dumps(part.to_json()))) == part


def test_a_column_is_found_by_its_name() -> None:
    """Its cells from top to bottom; a name that is not there is an error, not an empty column."""
    table: Table = a_table()
    assert table.column("accuracy") == (97.25, 91.5, None)
    with pytest.raises(ValueError, match="speed"):
        table.column("speed")
