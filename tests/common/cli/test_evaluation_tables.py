"""How an evaluation is shown: a matrix of few domains, the weakest and their confusions of many."""

from __future__ import annotations

import pytest

from ridgeway.common.cli.route_commands import (
    MAX_MATRIX_DOMAINS,
    MAX_ROWS_SHOWN,
    evaluation_lines,
)
from ridgeway.common.cli.terminal import show
from ridgeway.common.routing.evaluation import Evaluation


def evaluation(many: int) -> Evaluation:
    """Ten texts a domain; the n-th domain loses n of them, at most nine, to the domain after it."""
    rows = []
    for number in range(many):
        row = [0] * many
        lost = min(number, 9)
        row[number] += 10 - lost
        row[(number + 1) % many] += lost
        rows.append(tuple(row))
    return Evaluation(tuple(f"d{number:03}" for number in range(many)), tuple(rows))


def test_few_domains_are_a_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    """Every count of a small matrix is printed."""
    show(None, *evaluation_lines(evaluation(3)), json=False)
    printed = capsys.readouterr().out
    assert all(f"→ d{number:03}" in printed for number in range(3))
    assert "most confused with" not in printed


def test_of_many_domains_the_weakest_come_first_with_what_they_are_taken_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table of 150 columns is read by nobody: each weak domain names the domains that get its
    texts.
    """
    show(None, *evaluation_lines(evaluation(150)), json=False)
    out, notes = capsys.readouterr()
    lines = [line for line in out.splitlines() if line.strip().startswith("d")]
    shown = [line.split()[0] for line in lines if line.split()[0] != "domain"]
    assert len(shown) == MAX_ROWS_SHOWN
    assert "d000" not in shown
    assert all(
        line.split()[-2:] == [f"d{(int(line.split()[0][1:]) + 1) % 150:03}", "9"]
        for line in lines[1:]
    )
    assert max(map(len, out.splitlines())) < 120
    assert "mean over domains" in out
    assert "150 domains" in out + notes


def test_the_largest_matrix_has_every_domain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The step from one way of showing to the other loses no domain."""
    show(None, *evaluation_lines(evaluation(MAX_MATRIX_DOMAINS)), json=False)
    assert f"→ d{MAX_MATRIX_DOMAINS - 1:03}" in capsys.readouterr().out
    show(None, *evaluation_lines(evaluation(MAX_MATRIX_DOMAINS + 1)), json=False)
    out = capsys.readouterr().out
    assert all(f"d{number:03}" in out for number in range(MAX_MATRIX_DOMAINS + 1))
