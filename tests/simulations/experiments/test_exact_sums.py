"""The attacks of the audit on tiny corpora: what is cut, what is measured, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.audit import CLEAR
from ridgeway.common.attacks import Measures
from ridgeway.common.base.settings import Sampling
from ridgeway.simulations.experiments.dataset import Dataset
from ridgeway.simulations.experiments.exact_sums import (
    AttackedText,
    AttackSizes,
    Tokens,
    Trial,
    attack_tables,
    attacked,
    attacked_text,
)
from ridgeway.simulations.experiments.plan import ExperimentPlan
from tests.support.experiment_settings import tiny_dataset, tiny_plan
from tests.support.tiny import tiny_encoder

SIZE = AttackSizes(
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


def text(rows: int | None = None, tokens: int = 1600, dataset: Dataset | None = None) -> AttackedText:
    size = replace(SIZE, rows=rows, tokens=(tokens,), middle=0, share=100, holders=(1, 8))
    return attacked_text(dataset or tiny_dataset(), tiny_encoder(16), size, 1)


def seen(trial: Trial) -> dict[str, Measures]:
    return attacked(text(), tiny_encoder(16), trial)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9), data=st.data())
def test_parts_of_a_row_are_the_row(lengths: list[int], data: st.DataObject) -> None:
    """Cut anywhere, no token is lost or comes twice, and the documents of each part add up to its tokens."""
    row = Tokens(np.arange(sum(lengths), dtype=np.int32), np.array(lengths))
    cut = data.draw(st.integers(0, len(row.ids)))
    parts = row.part(0, cut), row.part(cut, len(row.ids) - cut)
    assert np.concatenate([part.ids for part in parts]).tolist() == row.ids.tolist()
    assert [int(part.lengths.sum()) for part in parts] == [len(part.ids) for part in parts]
    assert all((part.lengths > 0).all() for part in parts)


def test_single_tokens_in_the_clear_come_back_whole() -> None:
    """With windows of one token the counts follow from the sums."""
    clear = seen(Trial(1600, 16, PLAIN))[CLEAR]
    assert (clear.recovered, clear.exact, clear.precision) == (1, 1, 1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ExperimentPlan:
    return tiny_plan(tmp_path_factory.mktemp("privacy"))


def test_there_is_a_row_for_every_view_of_every_trial(plan: ExperimentPlan) -> None:
    """Sizes, holders and widths, the default among the windows."""
    tables, left_out = attack_tables(plan, SIZE)
    assert [len(table.rows) for table in tables] == [2 * 2 * 3, 3 * 2 * 3, 2 * 2 * 2]
    assert set(tables[0].column("window")) == {"1", "16", "default"}
    assert "38 of 42 tokens" in tables[0].title
    assert left_out == []
