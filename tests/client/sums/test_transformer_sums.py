"""Sums over a contextual encoder's windows: what they are, and that nothing but the windows decides them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.client.round.scoring import HeldOut, Scorer, router_table
from ridgeway.client.sums.accumulate import State, add_states
from ridgeway.client.sums.held_out import _MAX_DOCUMENT_TOKENS, held_out_sample
from ridgeway.client.sums.prepare import makers, prepare
from ridgeway.client.sums.transformer_sums import ContextualSums
from ridgeway.common.base.errors import DeviceError, EncoderError
from ridgeway.common.base.settings import FEATURE_LIMIT, Sampling, Selector
from ridgeway.common.encoding.model_rows import Rows
from ridgeway.common.encoding.transformer import Transformer
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
from ridgeway.common.encoding.windows import window_starts
from ridgeway.common.routing.evaluation import CONFIDENCE_EDGES, CURVES, evaluate, split_calibration
from ridgeway.common.routing.hidden_state_table import compile_router
from ridgeway.common.routing.router import Router
from ridgeway.common.statistics.statistics_file import to_bytes
from ridgeway.common.statistics.sums import Integers, unpacked
from tests.support.corpora_on_disk import job, sentences, write_jsonl
from tests.support.seeds import few_examples
from tests.support.tiny_models import (
    ROWS,
    WIDTH,
    a_corpus,
    added,
    loaded,
    plain_states,
)
from tests.support.tiny_models import model_folder as model_folder
from tests.support.tiny_models import tiny_model_encoder as tiny_model_encoder

WINDOW = Sampling(window=16)
documents = st.lists(st.lists(st.integers(2, ROWS - 1), max_size=60), min_size=1, max_size=8)


def sums(encoder: ContextualEncoder, sampling: Sampling = WINDOW) -> ContextualSums:
    return ContextualSums(loaded(encoder), encoder, sampling)


def gram(state: State) -> Integers:
    return unpacked(state["gram"], np.zeros((WIDTH + 1, 1), dtype=np.int64)).gram


def windows_of(texts: Sequence[Sequence[int]], window: int) -> list[list[int]]:
    found = []
    for text in texts:
        bounds = [*window_starts(np.array([len(text)]), window).tolist(), len(text)]
        found += [list(text[start:stop]) for start, stop in pairwise(bounds) if stop > start]
    return found


def expected(folder: Path, encoder: ContextualEncoder, texts: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """The features of all windows before rounding, in float64, one window after the other."""
    means = [plain_states(folder, window).mean(dim=0).numpy() for window in windows_of(texts, WINDOW.window)]
    return np.array(means).reshape(-1, WIDTH) / encoder.scale


class Recorder:
    """Stands where the sums are, and keeps the samples."""

    def __init__(self) -> None:
        self.samples: list[NDArray[Any]] = []

    def add(self, samples: torch.Tensor) -> None:
        self.samples.append(samples.cpu().numpy())

    def triangle(self) -> Integers:
        return np.empty(0, dtype=np.int64)


def features(accumulator: ContextualSums, texts: Sequence[Sequence[int]]) -> NDArray[Any]:
    """The features that are added for these texts, sorted, since windows wait for others of their shape."""
    recorder = Recorder()
    accumulator._gram = recorder
    added(accumulator, texts).state()
    return np.array(sorted(np.concatenate([*recorder.samples, np.empty((0, WIDTH))]).tolist()))


# What is summed


def test_features_are_those_of_the_plain_model(folder: Path, encoder: ContextualEncoder) -> None:
    """In batches, with padding and in float32, a feature is within one unit of the window read alone in float64."""
    texts = a_corpus(1, 40)
    found = features(sums(encoder), texts)
    plain = expected(folder, encoder, texts)
    assert len(found) == len(plain)
    assert np.abs(plain).max() <= FEATURE_LIMIT
    rounded = np.rint(plain)
    order = np.lexsort(rounded.T[::-1])
    near = np.array([np.abs(found - row).max(axis=1).min() for row in rounded[order]])
    assert near.max() <= 1


def test_sums_are_the_products_of_the_features(encoder: ContextualEncoder) -> None:
    """The gram matrix over the integer features and the constant one; special tokens and fillers are in no sum."""
    texts = a_corpus(2, 25)
    samples = np.ones((len(windows_of(texts, WINDOW.window)), WIDTH + 1), dtype=np.int64)
    samples[:, :-1] = features(sums(encoder), texts)
    assert np.array_equal(gram(added(sums(encoder), texts).state()), samples.T @ samples)


def test_only_the_first_tokens_of_a_document_count(encoder: ContextualEncoder) -> None:
    """max_tokens cuts documents as with a table."""
    texts = a_corpus(3, 10)
    cut = added(sums(encoder, replace(WINDOW, max_tokens=20)), texts).state()
    assert np.array_equal(cut["gram"], added(sums(encoder), [text[:20] for text in texts]).state()["gram"])


# Nothing but the windows decides


@few_examples
@given(texts=documents, data=st.data())
def test_dividing_and_ordering_a_corpus_changes_no_bit(
    encoder: ContextualEncoder, texts: list[list[int]], data: Any
) -> None:
    """However documents are dealt to accumulators, ordered, batched, kept and resumed: the same integers."""
    whole = added(sums(encoder), texts).state()["gram"]
    order = data.draw(st.permutations(range(len(texts))))
    cut = data.draw(st.integers(0, len(texts)))
    one, other = sums(encoder), sums(encoder)
    for place in order[:cut]:
        added(one, [texts[place]])
        if data.draw(st.booleans()):
            one.state()
    added(other, [texts[place] for place in order[cut:]])
    assert np.array_equal(add_states(one.state(), other.state())["gram"], whole)


def test_neighbours_in_a_pass_change_no_bit(encoder: ContextualEncoder) -> None:
    """In full passes, with any other windows beside it, a window has the features that it has alone."""
    texts = a_corpus(4, 120)
    together = features(sums(encoder), texts)
    alone = np.array(sorted(row for text in texts for row in features(sums(encoder), [text]).tolist()))
    assert np.array_equal(together, alone)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_byte_of_a_statistics_file(encoder: ContextualEncoder, tmp_path: Path, threads: int) -> None:
    """As many passes at once as there are threads, each on one thread."""
    path = write_jsonl(tmp_path / "law.jsonl", sentences("law", 60, 90))
    made = [prepare(job(path, window=16, threads=n), encoder, tmp_path / f"cache{n}").prepared for n in (1, threads)]
    assert to_bytes(made[0]) == to_bytes(made[1])
    assert len(makers(encoder, WINDOW, (), threads)) == threads


def test_where_nothing_is_new_no_model_is_loaded(
    encoder: ContextualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corpus that was summed before is not read by the model again."""
    path = write_jsonl(tmp_path / "law.jsonl", sentences("law", 20, 90))
    before = prepare(job(path, window=16), encoder, tmp_path / "cache").prepared
    monkeypatch.setattr("ridgeway.client.sums.transformer_sums.transformer", None)
    assert to_bytes(prepare(job(path, window=16), encoder, tmp_path / "cache").prepared) == to_bytes(before)


# What cannot be summed


def test_a_feature_beyond_the_bound_is_an_error_and_never_clipped(encoder: ContextualEncoder) -> None:
    """A scale that is too small for the text ends the work in one sentence."""
    small = ContextualEncoder("local", encoder.definition, encoder.width, encoder.scale / 4096, encoder.weights)
    accumulator = ContextualSums(loaded(encoder), small, WINDOW)
    with pytest.raises(EncoderError, match="beyond ±4096"):
        added(accumulator, a_corpus(6, 30)).state()


class Cramped:
    """A model on a device whose memory holds passes of `most` rows; with a thread, as a GPU has one, or without."""

    def __init__(self, model: Transformer, most: int, executor: ThreadPoolExecutor | None = None) -> None:
        self._model, self._most, self.executor, self.device = model, most, executor, "cpu"
        self.frame, self.pass_tokens = model.frame, model.pass_tokens

    def means(self, rows: Rows) -> torch.Tensor:
        if len(rows) > self._most:
            raise torch.OutOfMemoryError
        return self._model.means(rows)


@pytest.mark.parametrize("window", [1, 8])
def test_a_gpus_thread_takes_in_every_pass_once(encoder: ContextualEncoder, window: int) -> None:
    """Passes that a thread of the GPU makes, one behind the other, add up to the bits of those made at once."""
    texts, sampling = a_corpus(9, 300), Sampling(window)
    with ThreadPoolExecutor(1) as executor:
        handed = Cramped(loaded(encoder), 1 << 30, executor)
        accumulator = ContextualSums(handed, encoder, sampling)  # type: ignore[arg-type]
        halves = [added(accumulator, texts[:150]).state(), added(accumulator, texts[150:]).state()]
    usual = added(ContextualSums(loaded(encoder), encoder, sampling), texts).state()
    np.testing.assert_array_equal(halves[1]["gram"], usual["gram"])
    assert halves[0]["gram"][-1] < usual["gram"][-1]


@pytest.mark.parametrize("most", [1, 3, 50])
def test_when_memory_runs_out_passes_become_smaller(encoder: ContextualEncoder, most: int) -> None:
    """Every window is counted once all the same."""
    texts = a_corpus(7, 60)
    accumulator = ContextualSums(Cramped(loaded(encoder), most), encoder, WINDOW)  # type: ignore[arg-type]
    found = features(accumulator, texts)
    usual = features(sums(encoder), texts)
    assert found.shape == usual.shape
    assert np.abs(found.sum(axis=0) - usual.sum(axis=0)).max() <= 2


@pytest.mark.parametrize("threads", [0, 1])
def test_a_device_without_room_for_one_window_says_so(encoder: ContextualEncoder, threads: int) -> None:
    """Nothing can be made smaller then; from a thread of a GPU it is raised when the sums are asked for."""
    with ThreadPoolExecutor(1) as executor:
        model = Cramped(loaded(encoder), 0, executor if threads else None)
        accumulator = ContextualSums(model, encoder, WINDOW)  # type: ignore[arg-type]
        with pytest.raises(DeviceError, match="too little free memory for the model and one window"):
            added(accumulator, a_corpus(8, 5)).state()


# Held-out documents


DOMAINS = ("code", "law", "medicine")


def weights(seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((WIDTH + 1, len(DOMAINS)))


@pytest.mark.parametrize("rule", [Selector(), Selector("all"), Selector("entropy", 3)])
def test_a_document_counts_for_the_domain_that_the_router_would_name(
    encoder: ContextualEncoder, rule: Selector
) -> None:
    """Held-out documents are read as prompts are."""
    texts = [*sentences("law", 8, 50), "", *sentences("code", 5, 20)]
    ids, lengths = encoder.tokenizer.encode_many(texts)
    scorer = Scorer(router_table(encoder, WINDOW, weights(1), "cpu"), rule, HeldOut(ids, lengths), 0)
    router = Router(DOMAINS, compile_router(encoder, WINDOW, weights(1)), encoder.tokenizer, rule)
    named = [router.route(text).best for text in texts if text]
    routed = scorer.routed().tolist()
    assert routed == [named.count(name) for name in DOMAINS]
    counted = evaluate(router, {"code": [text for text in texts if text], "law": [], "medicine": []})
    assert routed == list(counted.confusion[0])
    reliable, _ = split_calibration(scorer.calibration((0.5, 1.0)), 2)
    assert reliable.shape == (len(CURVES), 2, len(CONFIDENCE_EDGES), 2)
    assert reliable[0, 0, :, 0].sum() >= len(named)


def test_a_model_reads_a_bounded_sample(
    encoder: ContextualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents are cut, and only as many are taken as have so many tokens together."""
    monkeypatch.setattr("ridgeway.client.sums.held_out.MAX_STATES", 1300)
    path = write_jsonl(tmp_path / "law.jsonl", [f"{place} {'x' * 900}" for place in range(40)])
    ids, lengths = held_out_sample(job(path, window=16, holdout=0.5), encoder)
    assert lengths.tolist() == [_MAX_DOCUMENT_TOKENS] * 2
    assert len(ids) == 2 * _MAX_DOCUMENT_TOKENS
