"""What `make check-mutants` removes: every kind of check, one at a time, and the rest of the file stays as it is."""

from __future__ import annotations

import ast

import pytest

from tests.support.mutants import FILES, ROOT, changed, find_checks

SOURCE = b"""
def answer(holder, request):
    check_terms(request)
    if request.mass < 0 or "\xc3\xa4" in request:
        raise Refused("a")
    elif request.mode == "clear":
        for each in request:
            raise _refused("b")
    holder.totals.sign(request)
    try:
        return holder.weights(request)
    except ValueError:
        raise Refused("c") from None

def overlap(members):
    if members > 3:
        return "one"
    if members:
        print(members)
"""
MUTANTS = [
    ("check_terms(request)", "pass"),
    ("request.mass < 0", "False"),
    ('"ä" in request', "False"),
    ('request.mode == "clear"', "False"),
    ('raise _refused("b")', "pass"),
    ("holder.totals.sign(request)", "pass"),
    ('raise Refused("c") from None', "pass"),
    ("members > 3", "False"),
    ("members", "False"),
]


def test_every_kind_of_check_is_found_and_removed_alone() -> None:
    """Conditions that decide upon a refusal, refusals without one, calls of checks, memory, and what judges."""
    found = sorted(find_checks("a.py", SOURCE), key=lambda check: check.start)
    assert [(check.text, check.instead) for check in found] == MUTANTS
    for check in found:
        before, after = SOURCE[: check.start], SOURCE[check.end :]
        assert changed(SOURCE, [(check, check.instead)]) == before + check.instead.encode() + after


@pytest.mark.parametrize("file", FILES)
def test_every_mutant_is_a_program(file: str) -> None:
    """One that could not be read would be noticed by every test, and show nothing."""
    source = (ROOT / file).read_bytes()
    for check in find_checks(file, source):
        ast.parse(changed(source, [(check, check.instead)]))
