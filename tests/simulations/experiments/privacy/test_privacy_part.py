"""The attacks of the audit on tiny corpora: what is cut, what is measured, and what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.audit import CLEAR, COLUMN
from ridgeway.common.base.settings import DEFAULT, Sampling
from ridgeway.simulations.experiments.dataset import Tokens
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.privacy import privacy_part as privacy
from ridgeway.simulations.experiments.privacy.attack_trials import (
    CALLED,
    AttackResult,
    Ground,
    Trial,
    attacked,
    lay_ground,
)
from ridgeway.simulations.experiments.report.report_tables import ReportPart, part_from_json
from tests.support.experiment_settings import tiny_dataset, tiny_plan
from tests.support.tiny import tiny_encoder

SIZE = privacy.PrivacySizes(
    rows=38,
    width=12,
    widths=(4, 12),
    tokens=(200, 1600),
    middle=200,
    share=200,
    domains=3,
    holders=(1, 2),
    windows=(1, 16),
    few_windows=(1, 16),
)
PLAIN = Sampling(window=1)


def ground(rows: int | None = None, tokens: int = 1600) -> Ground:
    return lay_ground(tiny_dataset(), tiny_encoder(16), domains=3, tokens=tokens, others=800, rows=rows, seed=1)


def seen(trial: Trial, on: Ground | None = None) -> dict[str, AttackResult]:
    found = privacy.RESULTS.validate_json(json.dumps(attacked(on or ground(), trial)))
    return {each.view: each for each in found}


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9), data=st.data())
def test_parts_of_a_row_are_the_row(lengths: list[int], data: st.DataObject) -> None:
    """Cut anywhere, no token is lost or comes twice, and the documents of each part add up to its tokens."""
    row = Tokens(np.arange(sum(lengths), dtype=np.int32), np.array(lengths))
    cut = data.draw(st.integers(0, len(row.ids)))
    parts = row.part(0, cut), row.part(cut, len(row.ids) - cut)
    assert np.concatenate([part.ids for part in parts]).tolist() == row.ids.tolist()
    assert [int(part.lengths.sum()) for part in parts] == [len(part.ids) for part in parts]
    assert all((part.lengths > 0).all() for part in parts)


def test_a_cut_table_keeps_the_tokens_that_are_used() -> None:
    """The same embeddings stand behind the same text, and the others are as many as were asked for."""
    whole, cut = ground(), ground(rows=38)
    assert cut.encoder.rows == 38 < whole.encoder.rows
    for name, row in whole.rows.items():
        before, after = whole.encoder.table[row.ids], cut.encoder.table[cut.rows[name].ids]
        assert np.array_equal(before, after)
    assert cut.used <= 38


def test_a_table_is_never_cut_below_what_is_used() -> None:
    """Asked for less, it keeps all that occurs."""
    assert ground(rows=1).encoder.rows == ground().used


def test_the_domain_with_the_least_text_that_is_enough_is_attacked() -> None:
    """And the one with the most where none has enough."""
    dataset = tiny_dataset()
    uneven = replace(
        dataset, train={**dataset.train, "law": dataset.train["law"][:20], "poetry": dataset.train["poetry"][:3]}
    )

    def chosen(tokens: int) -> str:
        return lay_ground(uneven, tiny_encoder(), domains=2, tokens=tokens, others=9, rows=None, seed=1).domain

    assert chosen(300) == "poetry"
    assert chosen(2000) == "law"
    assert chosen(10**6) in {"code", "medicine"}


def test_single_tokens_in_the_clear_come_back_whole() -> None:
    """With windows of one token the counts follow from the sums, and the attacker can prove it."""
    clear = seen(Trial(1600, 16, PLAIN))[CLEAR]
    assert (clear.recovered, clear.mass, clear.exact, clear.precision, clear.proven) == (100, 100, 100, 100, True)


def test_several_holders_dilute_what_is_named() -> None:
    """The sums of a domain name the tokens of all its holders; fewer of them are the one's, and counts are not."""
    alone, shared = (seen(Trial(40, 16, PLAIN, count, cohort=True)) for count in (1, 8))
    assert set(alone) == set(shared) == {CLEAR, COLUMN, CALLED}
    assert alone[CLEAR].exact == 100 > shared[CLEAR].exact
    assert shared[CLEAR].distinct == alone[CLEAR].distinct
    assert shared[CLEAR].found >= alone[CLEAR].found


def test_usual_sampling_is_attacked_too() -> None:
    """What holders send unless told otherwise is in the table of sizes, whatever it is."""
    assert DEFAULT.sampling in privacy._samplings((1, 64))
    assert privacy._samplings((1, 64))[:2] == [Sampling(window=1), Sampling(window=64)]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ExperimentPlan:
    return tiny_plan(tmp_path_factory.mktemp("privacy"))


@pytest.fixture(scope="module")
def part(plan: ExperimentPlan) -> ReportPart:
    return privacy.attack(plan, SIZE)


def test_the_part_has_every_view_of_every_trial(part: ReportPart) -> None:
    """Sizes, widths and holders, each with its table and plot; and it survives JSON."""
    tables = {table.key: table for table in part.tables}
    samplings = len(privacy._samplings(SIZE.windows))
    assert len(tables["privacy-corpus"].rows) == 2 * 2 * samplings
    assert len(tables["privacy-width"].rows) == 2 * 2 * 2
    assert len(tables["privacy-holders"].rows) == 3 * 2 * samplings
    assert {plot.key for plot in part.plots}.isdisjoint(tables)
    assert part_from_json(json.loads(json.dumps(part.to_json()))).tables == part.tables


def test_two_runs_find_the_same(plan: ExperimentPlan, part: ReportPart, tmp_path: Path) -> None:
    """Everything is drawn from the seed."""
    again = privacy.attack(replace(tiny_plan(tmp_path), encoder=plan.encoder), SIZE)
    assert (again.tables, again.words) == (part.tables, part.words)


def test_what_was_cut_is_said(part: ReportPart) -> None:
    """Nobody takes a cut encoder for the whole one."""
    assert "The encoder is cut to 38 of its 42 tokens" in part.words[0]
    assert part.facts["attacked"]["width"] == 12


def test_text_that_is_missing_is_left_out_by_name(plan: ExperimentPlan) -> None:
    """A size that no corpus reaches is named, and the others are attacked."""
    few = replace(SIZE, widths=(12,), holders=(1,), windows=(1,), few_windows=(1,))
    found = privacy.attack(plan, replace(few, tokens=(200, 10**7)))
    assert any("10,000,000 tokens" in words for words in found.left_out)
    assert set(found.tables[0].column("tokens")) == {200}
