"""The audit of dependencies fails on findings, and never says more than it knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.vulnerabilities import FINDINGS, judged

SKIPPED = {
    "name": "fastapi",
    "skip_reason": "Dependency not found on PyPI and could not be audited: fastapi (1.0)",
}
CLEAN = {"name": "numpy", "version": "2.0", "vulns": []}
BAD = {
    "name": "aiohttp",
    "version": "3.0",
    "vulns": [
        {
            "id": "PYSEC-1",
            "fix_versions": ["3.1", "4.0"],
            "aliases": [],
            "description": "bad",
        },
        {"id": "GHSA-2", "fix_versions": [], "aliases": [], "description": "worse"},
    ],
}


def report(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_clean_packages_pass() -> None:
    """And those of which nothing is known are named."""
    assert judged(report(CLEAN)) == (0, "audit: no known vulnerability in 1 packages")
    code, sentence = judged(report(CLEAN, SKIPPED))
    assert (
        code == 0
        and sentence
        == "audit: no known vulnerability in 1 packages; not audited: fastapi"
    )


@pytest.mark.parametrize("others", [(), (CLEAN,), (SKIPPED,), (CLEAN, SKIPPED)])
def test_a_finding_fails(others: tuple[dict[str, Any], ...]) -> None:
    """Whatever else was found or not; each is named, with the version that mends it."""
    code, sentence = judged(report(*others, BAD))
    assert code == FINDINGS != 0
    assert "2 known vulnerabilities" in sentence
    assert (
        "aiohttp 3.0: PYSEC-1, mended in 3.1, 4.0" in sentence
        and "GHSA-2, mended in none" in sentence
    )


def test_an_index_that_knows_nothing_is_told_plainly() -> None:
    """Then the check neither fails nor pretends."""
    code, sentence = judged(report(SKIPPED, {**SKIPPED, "name": "numpy"}))
    assert (
        code == 0
        and "NOTHING WAS AUDITED" in sentence
        and "no known vulnerability" not in sentence
    )


@pytest.mark.parametrize("said", ["", "no json", "{}", "[]", "null"])
def test_an_audit_that_did_not_happen_is_told_plainly(said: str) -> None:
    """Nor is it a finding that there is no network."""
    code, sentence = judged(said, "WARNING: x\nERROR: connection refused\n")
    assert (
        code == 0
        and "NOTHING WAS AUDITED" in sentence
        and "connection refused" in sentence
    )
