"""Reading in processes of its own: the same ids, whatever becomes of the processes, and none left
behind.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeway.client.sums import piece_readers, prepare
from ridgeway.client.sums.corpus import CorpusFile, Counters, find_sources
from ridgeway.client.sums.piece_readers import (
    PieceBatch,
    Read,
    ReadingRules,
    read_batches,
    samples_of,
)
from ridgeway.client.sums.prepare import Interrupted
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.base.settings import Sampling, WordFeatures
from ridgeway.common.text.table_encoder import TableEncoder, with_words
from tests.support.corpora_on_disk import (
    Stopper,
    job,
    must_agree,
    sentences,
    write_jsonl,
)
from tests.support.waiting import wait_for

RULES = ReadingRules(
    ("text",), 0.2, True, 300, Sampling(4, stride=8, units=20, mistyped=3)
)


@pytest.fixture
def pieces(tmp_path: Path) -> list[tuple[CorpusFile, int]]:
    """Files with blanks, stray bytes, broken records and a name that is not UTF-8; some documents
    to pass over.
    """
    folder = tmp_path / "corpus"
    write_jsonl(
        folder / "a.jsonl",
        ["", *sentences("law", 40), "lone \ud800 surrogate", "žluťoučký 小"],
    )
    write_jsonl(folder / "b.jsonl", [])
    (folder / "c.jsonl").write_bytes(
        b'{"text": "stray \xff byte"}\n{broken\n{"text": "after"}\n' * 20
    )
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("\n".join(sentences("code", 30)))
    return [
        (source, 3 * number) for number, source in enumerate(find_sources([folder])[0])
    ]


def gathered(
    batches: Iterator[Read], encoder: TableEncoder, count: int
) -> list[tuple[object, ...]]:
    """Of each piece: what was met, where it ended, its broken records, its tokens and its
    samples.
    """
    by_piece: list[tuple[Counters, list[PieceBatch], list[object]]] = [
        (Counters(), [], []) for _ in range(count)
    ]
    for number, batch, samples in batches:
        met, seen, taken = by_piece[number]
        assert not seen or not seen[-1].ends
        assert not seen or batch.stop >= seen[-1].stop
        count, tokens, layers = samples or samples_of(
            batch.texts, encoder.reader, RULES.sampling
        )
        met.add(batch.met)
        seen.append(batch)
        taken += [
            count,
            *(array.tolist() for array in tokens.arrays().values()),
            *(
                (times, positions.tolist(), bounds.tolist())
                for positions, bounds, times in layers
            ),
        ]
    return [
        (met, seen[-1].stop, [w for b in seen for w in b.broken], taken)
        for met, seen, taken in by_piece
    ]


def read_here(
    pieces: list[tuple[CorpusFile, int]], rules: ReadingRules = RULES
) -> Iterator[Read]:
    for number, (source, first) in enumerate(pieces):
        for batch in read_batches(source, first, rules):
            yield number, batch, None


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def has_ended(pid: int) -> bool:
    """Also where nobody has asked for its exit code."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@pytest.mark.parametrize("after", [0, 4])
def test_processes_that_die_lose_nothing(
    pieces: list[tuple[CorpusFile, int]], encoder: TableEncoder, after: int
) -> None:
    """What they did not bring is read here, from where they ended."""
    expected = gathered(read_here(pieces), encoder, len(pieces))
    made: list[int] = []

    def killing(batches: Iterator[Read]) -> Iterator[Read]:
        for _ in range(after):
            yield next(batches)
        for process in multiprocessing.active_children():
            assert process.pid is not None
            made.append(process.pid)
            process.kill()
        yield from batches

    with piece_readers.piece_readers(encoder.reader, pieces, RULES, 2) as batches:
        assert gathered(killing(batches), encoder, len(pieces)) == expected
    assert len(made) == 2
    assert all(is_gone(pid) for pid in made)


def test_a_machine_that_starts_no_process_reads_itself(
    pieces: list[tuple[CorpusFile, int]],
    encoder: TableEncoder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All pieces, in order."""

    def refused(self: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", refused)
    with piece_readers.piece_readers(encoder.reader, pieces, RULES, 2) as batches:
        read = gathered(batches, encoder, len(pieces))
    assert read == gathered(read_here(pieces), encoder, len(pieces))


def test_what_cannot_be_read_is_said_as_if_read_here(
    pieces: list[tuple[CorpusFile, int]], encoder: TableEncoder
) -> None:
    """With the place of the record."""
    strict = replace(RULES, skip_broken=False)
    reading = piece_readers.piece_readers(encoder.reader, pieces, strict, 2)
    with (
        pytest.raises(CorpusError, match=r"c\.jsonl, line 2: not JSON"),
        reading as batches,
    ):
        list(batches)


@pytest.mark.parametrize("some", [0, 2])
def test_leaving_early_ends_every_process(
    pieces: list[tuple[CorpusFile, int]], encoder: TableEncoder, some: int
) -> None:
    """Also one that is stopped, and where nobody has taken what was read."""
    with piece_readers.piece_readers(encoder.reader, pieces, RULES, 3) as batches:
        for _ in range(some):
            next(batches)
        made = [process.pid for process in multiprocessing.active_children()]
        for pid in made:
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
    assert len(made) == 3
    assert all(pid is not None and is_gone(pid) for pid in made)


def test_processes_do_not_hear_ctrl_c(
    pieces: list[tuple[CorpusFile, int]], encoder: TableEncoder
) -> None:
    """Not even while they start; the environment and the parent are as before."""
    before = dict(os.environ)
    with piece_readers.piece_readers(encoder.reader, pieces, RULES, 2) as batches:
        for process in multiprocessing.active_children():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGINT)
        assert all(samples is not None for _, _, samples in batches)
    assert dict(os.environ) == before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


ORPHANS = """
import multiprocessing, os, sys
from pathlib import Path
from ridgeway.client.sums.corpus import find_sources
from ridgeway.client.sums.piece_readers import piece_readers
from tests.client.sums.test_piece_readers import RULES
from tests.support.tiny import tiny_encoder

if __name__ == "__main__":
    encoder = tiny_encoder()
    pieces = [(source, 0) for source in find_sources([Path(sys.argv[1])])[0]]
    with piece_readers(encoder.reader, pieces, RULES, 2) as batches:
        next(batches)
        print(*(process.pid for process in multiprocessing.active_children()), flush=True)
        os._exit(0)
"""


def test_processes_end_when_their_parent_is_gone(
    pieces: list[tuple[CorpusFile, int]], tmp_path: Path
) -> None:
    """The pipe that closes with the parent is all that they live by."""
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script), str(tmp_path / "corpus")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    made = [int(word) for word in done.stdout.split()]
    assert len(made) == 2
    wait_for("the end of the processes", lambda: all(has_ended(pid) for pid in made))


def test_what_lies_in_the_current_folder_is_not_run(
    pieces: list[tuple[CorpusFile, int]],
    encoder: TableEncoder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A corpus may hold Python files of any name; they are text."""
    for name in ("numpy.py", "signal.py", "client.py"):
        (tmp_path / name).write_text(
            f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(1)\n"
        )
    monkeypatch.chdir(tmp_path)
    with piece_readers.piece_readers(encoder.reader, pieces, RULES, 1) as batches:
        assert all(samples is not None for _, _, samples in batches)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (Sampling(1), False),
        (Sampling(1), True),
        (Sampling(4, stride=8, units=20, mistyped=3), True),
    ],
)
def test_a_corpus_prepared_with_processes_has_the_same_sums(
    pieces: list[tuple[CorpusFile, int]],
    encoder: TableEncoder,
    sampling: Sampling,
    words: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the byte, with every count, in one go and when it is stopped again and again; mistyped
    copies too.
    """
    if words:
        encoder = with_words(encoder, WordFeatures(width=5))
        write_jsonl(
            tmp_path / "corpus" / "d.jsonl",
            [text.upper() for text in sentences("law", 9)],
        )
    work = replace(
        job(tmp_path / "corpus", holdout=0.2), sampling=sampling, skip_broken=0.9
    )
    alone = prepare.prepare(work, encoder, tmp_path / "alone")
    monkeypatch.setattr(prepare, "MIN_READERS_BYTES", 0)
    monkeypatch.setattr(prepare, "MAX_THREADS_ALONE", 0)
    monkeypatch.setattr(prepare, "PROCESS_BATCH_CHARACTERS", 300)
    monkeypatch.setattr(prepare, "PART_INTERVAL_S", -1e9)
    whole = prepare.prepare(replace(work, threads=2), encoder, tmp_path / "whole")
    stops = 0
    while True:
        try:
            resumed = prepare.prepare(
                replace(work, threads=2),
                encoder,
                tmp_path / "resumed",
                Stopper(5).watch,
            )
            break
        except Interrupted:
            stops += 1
    assert stops > 1
    for outcome in (whole, resumed):
        must_agree(outcome, alone)
