"""The part `selectors`: routers over one dataset, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import UnsolvableTotal
from ridgeway.common.base.settings import DEFAULT, PAPER, Sampling, Selector
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.routing.evaluation import evaluate
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.token_table import compile_table, normalised_columns
from ridgeway.common.statistics.sums import Statistics
from ridgeway.simulations.experiments.dataset import HELD_OUT, Dataset, DomainTokens, Tokens, batches, sums_of
from ridgeway.simulations.experiments.plan import Cache, ExperimentPlan
from ridgeway.simulations.experiments.report.report_tables import ReportPart, part_from_json
from ridgeway.simulations.experiments.selectors import selectors_part as selectors
from ridgeway.simulations.experiments.selectors.selector_bench import (
    LabelledTexts,
    SelectorBench,
    coarser,
    coarser_logits,
)
from ridgeway.simulations.experiments.selectors.selectors_part import (
    HELD,
    SHORT,
    TEST,
    AccuracyCurve,
    CurvePoint,
    Figure,
    plot,
    table,
)
from tests.support.corpora_on_disk import ALPHABETS, job, sentences, without_cache, write_jsonl
from tests.support.tiny import tiny_encoder

WIDTH = 16


def small_dataset(name: str = "small") -> Dataset:
    """Three domains in letters of their own; tests are short enough to go wrong."""
    texts = {domain: sentences(domain, 90) for domain in ALPHABETS}
    train = {domain: tuple(own[:70]) for domain, own in texts.items()}
    return Dataset(name, "made for a test", train, {domain: tuple(own[70:]) for domain, own in texts.items()})


@pytest.fixture(scope="module")
def own_encoder() -> TableEncoder:
    return tiny_encoder(WIDTH)


@pytest.fixture(scope="module")
def bench(own_encoder: TableEncoder) -> SelectorBench:
    return SelectorBench(own_encoder, small_dataset(), seed=1)


# Tokens, sums and routers


@st.composite
def token_rows(draw: st.DrawFn) -> Tokens:
    lengths = draw(st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(any))
    return Tokens(np.arange(sum(lengths), dtype=np.int32), np.array(lengths, dtype=np.int64))


@given(tokens=token_rows(), few=st.integers(1, 200), more=st.integers(0, 200), seed=st.integers(0, 5))
def test_what_is_drawn_for_fewer_tokens_stands_first_in_what_is_drawn_for_more(
    tokens: Tokens, few: int, more: int, seed: int
) -> None:
    """As many tokens as were asked for, or all there are; lengths and ids belong together."""
    small, large = (tokens.drawn(most, str(seed)) for most in (few, few + more))
    assert len(small.ids) == min(few, len(tokens.ids))
    assert int(small.lengths.sum()) == len(small.ids)
    assert np.array_equal(large.ids[: len(small.ids)], small.ids)
    assert len(set(small.ids.tolist())) == len(small.ids)


@given(tokens=token_rows(), size=st.integers(1, 64))
def test_batches_hold_every_text_whole_and_in_order(tokens: Tokens, size: int) -> None:
    """Put together again they are the texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ridgeway.simulations.experiments.dataset.BATCH_TOKENS", size)
        found = batches(tokens)
    assert np.array_equal(np.concatenate([each.ids for each in found]), tokens.ids)
    assert np.array_equal(np.concatenate([each.lengths for each in found]), tokens.lengths)
    assert all(len(each.ids) == each.lengths.sum() for each in found)


@pytest.mark.parametrize("window", [1, 8])
def test_sums_are_those_of_a_holder_that_keeps_text_back(
    bench: SelectorBench, own_encoder: TableEncoder, window: int, tmp_path: Path
) -> None:
    """Bit for bit what `client prepare` makes of the same training text with the same share held out."""
    path = write_jsonl(tmp_path / "law.jsonl", bench.dataset.train["law"])
    prepared = without_cache(job(path, window=window, holdout=HELD_OUT), own_encoder, tmp_path / "cache").prepared
    assert sums_of(own_encoder, Sampling(window), bench.fit)["law"].equals(prepared.statistics)
    assert all(len(own.lengths) for own in bench.held.values())


@pytest.mark.parametrize("preset", [DEFAULT, PAPER, replace(DEFAULT, selector=Selector("all"))])
def test_accuracy_is_that_of_the_router_people_would_use(
    bench: SelectorBench, own_encoder: TableEncoder, preset: object
) -> None:
    """Rows that no text uses are not compiled, and all else is as `Router` has it."""
    assert isinstance(preset, type(DEFAULT))
    method = bench.router(preset)
    whole = method.table(np.arange(own_encoder.rows, dtype=np.int32))
    router = Router(bench.domains, whole, own_encoder.tokenizer, preset.selector)
    cut = {name: tuple(text[:12] for text in own) for name, own in bench.dataset.test.items()}
    tokens = {name: Tokens(*own_encoder.tokenizer.encode_many(cut[name])) for name in bench.domains}
    assert LabelledTexts(tokens).accuracy(method) == evaluate(router, cut).accuracy


def test_the_preset_decides_the_weights(bench: SelectorBench, own_encoder: TableEncoder) -> None:
    """The paper's columns have norm one; the default's do not."""
    rows = np.arange(own_encoder.rows, dtype=np.int32)
    for preset in (DEFAULT, PAPER):
        found = bench.router(preset).table(rows)
        design = np.append(own_encoder.table * own_encoder.scale, np.ones((len(rows), 1)), axis=1)
        weights = np.linalg.lstsq(design, found.logits * found.step, rcond=None)[0]
        again = compile_table(own_encoder.table, own_encoder.scale, normalised_columns(weights))
        same = np.allclose(again.logits * again.step, found.logits * found.step, atol=1e-5)
        assert same == (preset is PAPER)


def test_sums_over_all_text_are_taken_once(own_encoder: TableEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """λ, k and logits are tried on the same sums."""
    taken = []

    def spied(encoder: TableEncoder, sampling: Sampling, library: DomainTokens) -> dict[str, Statistics]:
        taken.append(sampling)
        return sums_of(encoder, sampling, library)

    monkeypatch.setattr("ridgeway.simulations.experiments.selectors.selector_bench.sums_of", spied)
    own = SelectorBench(own_encoder, small_dataset(), seed=1)
    for measure in (selectors.over_ridge, selectors.over_k(DEFAULT), selectors.over_logit_bits):
        measure(own, SHORT)
    own.contenders()
    assert taken == [DEFAULT.sampling, PAPER.sampling]


def test_a_table_of_fewer_bits_is_smaller_and_as_near_as_can_be(own_encoder: TableEncoder) -> None:
    """No value beyond 2^bits, each within half a step of the table's own; twelve bits are the table itself."""
    for bits in selectors.BITS:
        found = coarser(own_encoder, bits)
        assert np.abs(found.table).max() <= 2**bits
        off = np.abs(found.table * found.scale - own_encoder.table * own_encoder.scale)
        assert off.max() <= found.scale / 2 * (1 + 1e-12)
    assert np.array_equal(coarser(own_encoder, 12).table, own_encoder.table)


def test_logits_of_many_bits_decide_like_the_router(bench: SelectorBench, own_encoder: TableEncoder) -> None:
    """And those of a single bit are one step up, one down or none."""
    method = bench.router()
    test = bench.tests[0]
    assert test.accuracy(coarser_logits(own_encoder, method, 30)) == test.accuracy(method)
    rough = coarser_logits(own_encoder, method, 0).table(np.arange(own_encoder.rows, dtype=np.int32))
    assert set(np.unique(rough.logits).tolist()) <= {-1, 0, 1}


def test_where_there_is_no_router_there_is_a_gap(bench: SelectorBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that cannot be solved leave a hole in the curve, and the others stay."""

    def refuse(*_: object, **__: object) -> None:
        raise UnsolvableTotal("too little text")

    monkeypatch.setattr(bench, "router", refuse)
    found = selectors.over_text(bench, SHORT)
    assert found.series == ("ours", "the paper's", "naive Bayes")
    assert all(row.values[0] is None and row.values[2] is not None for row in found.points)


def test_plain_windows_stand_beside_what_the_preset_has(bench: SelectorBench) -> None:
    """Each size has its place on the axis; the preset's own samples have none unless they are plain windows."""
    found = selectors.over_window(bench, SHORT)
    assert [row.x for row in found.points if row.x is not None] == list(selectors.WINDOWS)
    assert sum(row.label == selectors.USUAL for row in found.points) == 1
    assert found.points[-1].label == selectors.WHOLE


def test_more_text_is_never_beyond_what_there_is(bench: SelectorBench) -> None:
    """Budgets that no domain fills are left out, and what was drawn is told."""
    found = selectors.over_text(bench, SHORT)
    assert [row.label for row in found.points] == ["1,000", "3,000", "10,000", "all"]
    places = [row.x for row in found.points if row.x is not None]
    assert places[:3] == [1_000, 3_000, 10_000]
    assert places == sorted(places)


# What is shown


def curve(*rows: tuple[str, float | None, float | None, float | None]) -> AccuracyCurve:
    return AccuracyCurve((TEST, HELD), tuple(CurvePoint(label, x, (test, held)) for label, x, test, held in rows))


FIGURE = Figure("k", "k", "k", selectors.over_k(PAPER), "10")
SOME = curve(("1", 1.0, 80.0, 70.0), ("10", 10.0, 85.0, 90.0), ("100", 100.0, 95.0, 90.0), ("all", None, 60.0, 50.0))


def test_what_has_no_place_on_the_axis_is_drawn_across() -> None:
    """The first as a level, the next as a flat line; the table has them all."""
    more = replace(SOME, points=(*SOME.points, CurvePoint("average", None, (99.0, 98.0))))
    drawn = plot(FIGURE, more, "here", "key")
    assert drawn.level == ("all, test", 60.0)
    assert [line.name for line in drawn.series] == [TEST, HELD, "average, test"]
    assert drawn.series[2].y == (99.0, 99.0, 99.0)
    assert all(len(line.x) == 3 for line in drawn.series)
    assert table(FIGURE, more, "here", "key").column("k") == ("1", "10", "100", "all", "average")


# The part


def run(folder: Path, own_encoder: TableEncoder, *settings: Dataset) -> ReportPart:
    if not (folder / "encoder").exists():
        save_encoder(own_encoder, folder / "encoder")
    source = f"dir:{folder / 'encoder'}"
    return selectors.run(
        ExperimentPlan(datasets=settings, work=folder, cache=Cache(folder / "cache"), encoder=source, seed=1)
    )


def test_every_setting_has_every_figure_and_a_second_run_takes_them_from_the_cache(
    tmp_path: Path, own_encoder: TableEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table and a plot for each, under names of their own; the part survives JSON, and nothing is done twice."""
    other = small_dataset("other one").sampled(1, train=40)
    part = run(tmp_path, own_encoder, small_dataset(), other)
    keys = [each.key for each in part.tables] + [each.key for each in part.plots]
    assert len(set(keys)) == len(keys) == 2 * 2 * len(selectors.FIGURES)
    assert "selectors-window-other-one" in keys
    assert part_from_json(json.loads(json.dumps(part.to_json()))) == part
    cells = [cell for each in part.tables for row in each.rows for cell in row[1:]]
    assert all(isinstance(cell, float) and 0 <= cell <= 100 for cell in cells)
    assert any(each.note == f"The preset has {DEFAULT.ridge.value:g}." for each in part.tables)
    monkeypatch.setattr(SelectorBench, "_tokens", None)
    assert run(tmp_path, own_encoder, small_dataset(), other) == part
    monkeypatch.setattr(
        "ridgeway.simulations.experiments.selectors.selectors_part.DEFAULT", replace(DEFAULT, sampling=Sampling(5))
    )
    with pytest.raises(TypeError):  # another preset is measured anew
        run(tmp_path, own_encoder, small_dataset(), other)


def test_the_same_seed_gives_the_same_part(tmp_path: Path, own_encoder: TableEncoder) -> None:
    """On another cache, from the beginning."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    few = small_dataset().sampled(1, train=20, test=8)
    assert run(tmp_path / "one", own_encoder, few).tables == run(tmp_path / "two", own_encoder, few).tables


def test_an_encoder_without_a_table_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, and the part is there."""
    monkeypatch.setattr(
        "ridgeway.simulations.experiments.selectors.selectors_part.find_encoder", lambda source: object()
    )
    plan = ExperimentPlan(datasets=(small_dataset(),), work=tmp_path, cache=Cache(tmp_path), encoder="contextual:some")
    part = selectors.run(plan)
    assert "contextual:some has no table over tokens" in part.left_out[0]
    assert not part.tables
