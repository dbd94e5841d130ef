"""Tokenising in processes of its own: the same ids, whatever becomes of the processes, and none left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.sums import tokenizer_pool as module
from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.client.sums.tokenizer_pool import (
    THREADS_PER_PROCESS,
    TokenizerPool,
    TokenizerProcess,
    Tokens,
    packed_texts,
    tokenising,
    unpacked_texts,
)
from ridgeway.common.base.jsonl import storable
from ridgeway.common.base.settings import Sampling
from ridgeway.common.encoding.table_encoder import TableEncoder
from tests.support.waiting import MAX_WAIT_S, processes_per_core, wait_for

TEXTS = ["a bee sees the sea", "", "two\nlines", "žluťoučký 小", "lone \ud800 surrogate", "the end " * 50]


@pytest.fixture
def helpers(encoder: TableEncoder) -> Iterator[TokenizerPool]:
    made = TokenizerPool(encoder.tokenizer, encoder.definition, 2 * THREADS_PER_PROCESS)
    yield made
    made.close()


def ready(helpers: TokenizerPool, count: int = 2) -> None:
    """Wait until so many processes are ready."""
    wait_for("the processes are ready", lambda: len(helpers._ready) >= count)


def assert_tokenised(helpers: TokenizerPool, encoder: TableEncoder, texts: list[str]) -> None:
    ids, lengths = helpers.encode_many(texts)
    expected, sizes = encoder.tokenizer.encode_many(texts)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(lengths, sizes)
    assert ids.dtype == expected.dtype
    assert lengths.dtype == sizes.dtype


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_processes_give_the_ids_that_the_tokenizer_gives(helpers: TokenizerPool, encoder: TableEncoder) -> None:
    """Empty texts, many scripts, lone surrogates and no texts at all included, one batch after another."""
    ready(helpers)
    for texts in (TEXTS, [], [""], TEXTS[::-1] * 30):
        assert_tokenised(helpers, encoder, texts)


def test_before_any_process_is_ready_this_one_tokenises(encoder: TableEncoder) -> None:
    """Nothing waits for processes to start."""
    alone = TokenizerPool(encoder.tokenizer, encoder.definition, 0)
    assert_tokenised(alone, encoder, TEXTS)
    alone.close()


def test_a_process_that_dies_loses_nothing(helpers: TokenizerPool, encoder: TableEncoder) -> None:
    """Its batch is tokenised here, and so are later ones when all are gone."""
    ready(helpers)
    for helper in helpers._all:
        os.kill(helper.pid, signal.SIGKILL)
    for _ in range(4):
        assert_tokenised(helpers, encoder, TEXTS)
    assert helpers._ready == []


class Astray:
    """A process that answers, but not what it was asked."""

    busy = 0

    def __init__(self, ids: list[int], lengths: list[int]) -> None:
        self._tokens = np.array(ids, dtype=np.int32), np.array(lengths, dtype=np.int64)

    def ask(self, texts: list[str]) -> Future[Tokens]:
        answer: Future[Tokens] = Future()
        answer.set_result(self._tokens)
        return answer


@pytest.mark.parametrize(
    ("ids", "lengths"), [([1, 2], [1]), ([1, 2], [3]), ([1], [2, -1]), ([10**6], [1]), ([-1], [1]), ([], [])]
)
def test_an_answer_that_cannot_be_right_is_not_used(encoder: TableEncoder, ids: list[int], lengths: list[int]) -> None:
    """Ids that the tokenizer does not have, or more or fewer than it says: this process tokenises itself."""
    alone = TokenizerPool(encoder.tokenizer, encoder.definition, 0)
    alone._ready.append(Astray(ids, lengths))  # type: ignore[arg-type]
    assert_tokenised(alone, encoder, ["a bee"])
    assert alone._ready == []


def test_a_process_that_is_stopped_for_a_while_answers_whole(
    encoder: TableEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Python is told not to buffer: a write that is cut short is taken up again."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    made = TokenizerPool(encoder.tokenizer, encoder.definition, 4)
    ready(made, 1)
    texts = ["bees and seas " * 5_000]
    asked = [made._all[0].ask(texts) for _ in range(12)]
    for _ in range(20):
        os.kill(made._all[0].pid, signal.SIGSTOP)
        time.sleep(0.01)
        os.kill(made._all[0].pid, signal.SIGCONT)
        time.sleep(0.01)
    expected, _ = encoder.tokenizer.encode_many(texts)
    for each in asked:
        np.testing.assert_array_equal(each.result(MAX_WAIT_S)[0], expected)
    made.close()


def test_a_process_that_is_frozen_before_it_begins_is_let_go(encoder: TableEncoder) -> None:
    """Closing does not wait for what will never come."""
    made = TokenizerPool(encoder.tokenizer, encoder.definition * 50, 4)
    while not made._all:
        time.sleep(0.001)
    os.kill(made._all[0].pid, signal.SIGSTOP)
    started = time.monotonic()
    made.close()
    assert time.monotonic() - started < 10 * processes_per_core()
    assert is_gone(made._all[0].pid)


def test_what_lies_in_the_current_folder_is_not_run(
    encoder: TableEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corpus may hold Python files of any name; they are text."""
    for name in ("numpy.py", "struct.py", "client.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    made = TokenizerPool(encoder.tokenizer, encoder.definition, 4)
    ready(made, 1)
    assert_tokenised(made, encoder, TEXTS)
    made.close()
    assert not (tmp_path / "ran").exists()


def test_many_threads_share_the_processes(helpers: TokenizerPool, encoder: TableEncoder) -> None:
    """Every answer belongs to its question."""
    ready(helpers)
    texts = [[f"bee {number} " * (number % 7 + 1)] for number in range(200)]
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(helpers.encode_many, texts))
    for asked, (ids, _) in zip(texts, found, strict=True):
        np.testing.assert_array_equal(ids, encoder.tokenizer.encode_many(asked)[0])


def test_closing_ends_every_process(encoder: TableEncoder) -> None:
    """Also those that are still starting."""
    for wait in (0, 2):
        made = TokenizerPool(encoder.tokenizer, encoder.definition, 2 * THREADS_PER_PROCESS)
        ready(made, wait)
        made.close()
        assert all(is_gone(helper.pid) for helper in made._all)


def test_a_process_ends_when_its_parent_is_gone(encoder: TableEncoder) -> None:
    """The pipe that closes with the parent is all that it lives by."""
    helper = TokenizerProcess()
    helper.begin(encoder.definition, 2)
    sink, _ = helper._pipes()
    sink.close()
    assert helper._process.wait(MAX_WAIT_S) == 0
    helper.end()


@pytest.mark.parametrize(("threads", "size"), [(1, 1 << 40), (4, 1 << 40), (16, 1000)])
def test_little_work_starts_no_process(
    encoder: TableEncoder, threads: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On few cores, or for little text, this process keeps up alone."""
    monkeypatch.setattr(module, "TokenizerPool", None)
    with tokenising(encoder.tokenizer, encoder.definition, threads, size) as (encode, hands):
        assert len(encode(["a bee"])[1]) == 1
        assert hands == threads


@pytest.mark.parametrize("window", [1, 4])
def test_a_corpus_prepared_with_processes_has_the_same_sums(
    encoder: TableEncoder, window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, and documents that are held out stay out."""
    (tmp_path / "corpus").mkdir()
    for number in range(6):
        (tmp_path / "corpus" / f"{number}.txt").write_text(f"bees and seas {number}\n" * 40 * (number + 1))
    monkeypatch.setattr("ridgeway.client.sums.prepare.BATCH_DOCUMENTS", 1)

    def summed(threads: int, folder: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        job = PrepareJob((tmp_path / "corpus",), "bees", Sampling(window), 0.2, ("text",), threads)
        return prepare(job, encoder, tmp_path / folder).prepared.statistics.gram

    alone = summed(6, "alone")
    real = TokenizerPool.__init__

    def patient(self: TokenizerPool, *rest: object) -> None:
        real(self, *rest)  # type: ignore[arg-type]
        ready(self, 1)

    monkeypatch.setattr(module, "MIN_POOL_BYTES", 0)
    monkeypatch.setattr(TokenizerPool, "__init__", patient)
    np.testing.assert_array_equal(summed(6, "helped"), alone)


def test_a_batch_that_a_process_fails_on_is_tokenised_here(helpers: TokenizerPool, encoder: TableEncoder) -> None:
    """A process that ends over a question takes nobody down with it."""
    ready(helpers)
    asked = [helper.ask(TEXTS) for helper in helpers._all]
    for helper in helpers._all:
        helper._process.kill()
    for each in asked:
        with contextlib.suppress(EOFError):
            assert len(each.result(MAX_WAIT_S)[1]) == len(TEXTS)
    assert_tokenised(helpers, encoder, TEXTS)


@given(texts=st.lists(st.text(), max_size=10))
def test_packing_texts_can_be_undone(texts: list[str]) -> None:
    """Apart from what UTF-8 cannot hold, which is replaced as it is everywhere."""
    size, content = packed_texts(texts)
    assert size == len("".join(map(storable, texts)).encode())
    assert unpacked_texts(content, len(texts)) == [storable(text) for text in texts]
