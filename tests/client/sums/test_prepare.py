"""Preparing a corpus: interrupted, resumed, changed, damaged, and never counted twice."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ridgeway.client.sums.piece_readers
import ridgeway.client.sums.prepare
from ridgeway.client.sums.corpus import Counters, find_sources
from ridgeway.client.sums.part_store import PartStore, StoredPart, Stretch, stamped
from ridgeway.client.sums.prepare import (
    Interrupted,
    PrepareJob,
    PrepareOutcome,
    Watch,
    held_out_documents,
    prepare,
)
from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.common.base.settings import Sampling
from ridgeway.common.text.table_encoder import TableEncoder
from tests.support.corpora_on_disk import (
    Stopper,
    content,
    job,
    must_agree,
    sentences,
    spied_encoder,
    touch_later,
    without_cache,
    write_jsonl,
)
from tests.support.tiny import tiny_encoder

Run = Callable[..., PrepareOutcome]


@pytest.fixture
def keeping_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of four documents, and a part kept after each of them."""
    monkeypatch.setattr(ridgeway.client.sums.piece_readers, "BATCH_DOCUMENTS", 4)
    monkeypatch.setattr(ridgeway.client.sums.prepare, "PART_INTERVAL_S", -1e9)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with something of everything that is counted: documents, blanks, stray bytes."""
    folder = tmp_path / "private-corpus"
    write_jsonl(folder / "a.jsonl", sentences("law", 23, size=30))
    blanks = [
        text
        for number, text in enumerate(sentences("code", 17, size=30))
        for text in ([text, " "][: 1 + number % 2])
    ]
    write_jsonl(folder / "b.jsonl", ["", *blanks, "\n"])
    stray = [b'{"text": "stray \xff byte %d"}\n' % number for number in range(9)]
    (folder / "c.jsonl").write_bytes(b"".join(stray))
    (folder / "d.txt").write_bytes(b"a letter of the secret kind \xfe\n")
    (folder / "e.txt").touch()
    return folder


@pytest.fixture
def run(encoder: TableEncoder, tmp_path: Path) -> Run:
    """Runs with one encoder and one cache."""
    return partial(prepare, encoder=encoder, cache=tmp_path / "cache")


def part_files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.part"))


def recorder(seen: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda done, total: seen.append((done, total))


def must_be_whole(outcome: PrepareOutcome, work: PrepareJob, folder: Path) -> None:
    """The outcome is that of one run over everything."""
    whole = without_cache(work, tiny_encoder(), folder / "other")
    must_agree(outcome, whole)


def in_runs(run: Run, work: PrepareJob, looks: int) -> tuple[PrepareOutcome, int]:
    """Prepare, stopped again and again after so many looks, until it is done; and how often it was
    stopped.
    """
    for stops in range(100):
        try:
            return run(work, watch=Stopper(looks).watch), stops
        except Interrupted:
            continue
    raise AssertionError("a hundred runs did not come to an end")


# Interrupted


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("looks", [0, 2, 5, 13])
@pytest.mark.usefixtures("keeping_often")
def test_a_run_in_pieces_is_a_run_in_one(
    corpus: Path, run: Run, tmp_path: Path, looks: int, threads: int
) -> None:
    """However often it is stopped and taken up, the file is the same to the byte, and so is every
    count.
    """
    work = job(corpus, holdout=0.2, threads=threads)
    resumed, stops = in_runs(run, work, looks)
    assert stops > 0
    assert (resumed.files, resumed.files_skipped) == (5, 0)
    must_be_whole(resumed, work, tmp_path)


@pytest.mark.usefixtures("keeping_often")
def test_counters_say_what_was_met(corpus: Path, run: Run) -> None:
    """Documents, blanks, stray bytes, held-out documents and tokens, in one go and in pieces."""
    outcome, _ = in_runs(run, job(corpus), 2)
    texts = sentences("law", 23, size=30) + sentences("code", 17, size=30)
    stray = sum(len(f"stray ? byte {number}") for number in range(9)) + len(
        "a letter of the secret kind ?\n"
    )
    tokens = sum(map(len, texts)) + stray
    assert outcome.counters == Counters(
        documents=50, held_out=0, empty=11, replaced=10, tokens=tokens
    )
    work = job(corpus, holdout=0.2)
    held_out = len(list(held_out_documents(work)))
    assert run(work).counters.held_out == held_out > 0


@pytest.mark.usefixtures("keeping_often")
def test_progress_ends_at_the_size_of_the_corpus(
    corpus: Path, encoder: TableEncoder, run: Run, tmp_path: Path
) -> None:
    """The bar never goes back or beyond its end, in one go and when resumed."""
    size = sum(path.stat().st_size for path in corpus.iterdir())
    with pytest.raises(Interrupted):
        run(job(corpus), watch=Stopper(4).watch)
    for cache in (tmp_path / "cache", tmp_path / "other"):
        seen: list[tuple[int, int]] = []
        prepare(job(corpus), encoder, cache, Watch(progress=recorder(seen)))
        done = [bar[0] for bar in seen]
        assert done == sorted(done)
        assert seen[-1] == (size, size)
        assert {bar[1] for bar in seen} == {size}


# What was read is not read again


def test_an_unchanged_corpus_is_not_read_again(corpus: Path, tmp_path: Path) -> None:
    """The second run gives the same file and the same counts without tokenising a document."""
    encoder, seen = spied_encoder()
    first = prepare(job(corpus, holdout=0.2), encoder, tmp_path / "cache")
    seen.clear()
    second = prepare(job(corpus, holdout=0.2), encoder, tmp_path / "cache")
    assert (first.files_read, second.files_read, second.bytes_read, seen) == (
        5,
        0,
        0,
        [],
    )
    must_agree(second, first)


def test_a_fresh_run_reads_everything(corpus: Path, run: Run, tmp_path: Path) -> None:
    """And leaves one part, not two."""
    first = run(job(corpus))
    second = run(job(corpus), fresh=True)
    assert (second.files_read, content(second)) == (5, content(first))
    assert len(part_files(tmp_path / "cache")) == 1


def test_only_an_added_file_is_read(corpus: Path, tmp_path: Path) -> None:
    """A corpus that grows by a file costs that file."""
    encoder, seen = spied_encoder()
    prepare(job(corpus), encoder, tmp_path / "cache")
    write_jsonl(corpus / "new.jsonl", ["the new document"])
    seen.clear()
    grown = prepare(job(corpus), encoder, tmp_path / "cache")
    assert (grown.files_read, seen) == (1, ["the new document"])
    must_be_whole(grown, job(corpus), tmp_path)


@pytest.mark.parametrize("same_size", [True, False])
def test_a_changed_file_is_read_again(
    corpus: Path, run: Run, tmp_path: Path, same_size: bool
) -> None:
    """Its old sums vanish, even where it kept its size."""
    before = run(job(corpus))
    path = corpus / "a.jsonl"
    raw = path.read_bytes()
    path.write_bytes(
        raw.replace(b"l0 ", b"zzz") if same_size else raw.replace(b"l0 ", b"z")
    )
    touch_later(path)
    after = run(job(corpus))
    assert content(after) != content(before)
    must_be_whole(after, job(corpus), tmp_path)


def test_a_removed_file_is_removed_from_the_sums(
    corpus: Path, run: Run, tmp_path: Path
) -> None:
    """Nothing of it is left, neither in the sums nor in the counts nor in the cache."""
    run(job(corpus))
    (corpus / "a.jsonl").unlink()
    after = run(job(corpus))
    must_be_whole(after, job(corpus), tmp_path)
    assert not any(
        b"a.jsonl" in path.read_bytes() for path in part_files(tmp_path / "cache")
    )


@pytest.mark.parametrize(
    "order",
    [
        ("ab", "a", "abc"),
        ("a", "ab", "b"),
        ("abc", "bc", "c", "ab"),
        ("a", "b", "ab"),
        ("ae", "be", "abe"),
    ],
    ids="-".join,
)
def test_overlapping_corpora_never_count_twice(
    encoder: TableEncoder, run: Run, tmp_path: Path, order: tuple[str, ...]
) -> None:
    """Whatever other corpora the cache has seen, each has the statistics of its own files."""
    for name, domain in (("a", "law"), ("b", "code"), ("c", "medicine")):
        write_jsonl(tmp_path / f"{name}.jsonl", sentences(domain, 5))
    write_jsonl(tmp_path / "e.jsonl", ["", " "])
    for names in order:
        work = job(*(tmp_path / f"{name}.jsonl" for name in names))
        cached = run(work)
        fresh = without_cache(work, encoder, tmp_path / f"without-{names}")
        must_agree(cached, fresh)


@pytest.mark.usefixtures("keeping_often")
def test_two_runs_at_once_never_count_twice(
    encoder: TableEncoder, tmp_path: Path
) -> None:
    """Parts of two runs that did not know of each other overlap; a third run takes up those that
    fit together.
    """
    path = write_jsonl(tmp_path / "a.jsonl", sentences("law", 30))
    for looks in (3, 5):
        with pytest.raises(Interrupted):
            prepare(
                job(path), encoder, tmp_path / f"cache{looks}", Stopper(looks).watch
            )
    [folder] = (tmp_path / "cache3" / "prepared").iterdir()
    for part in part_files(tmp_path / "cache5"):
        (folder / part.name).write_bytes(part.read_bytes())
    outcome = prepare(job(path), encoder, tmp_path / "cache3")
    must_be_whole(outcome, job(path), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda work: replace(work, sampling=Sampling(5)),
        lambda work: replace(work, sampling=Sampling(4, max_tokens=9)),
        lambda work: replace(work, holdout=0.5),
        lambda work: replace(work, text_fields=("other", "text")),
    ],
    ids=["window", "max_tokens", "holdout", "text_fields"],
)
def test_other_terms_have_other_parts(
    encoder: TableEncoder,
    run: Run,
    tmp_path: Path,
    change: Callable[[PrepareJob], PrepareJob],
) -> None:
    """Sums that were taken in another way are never taken up."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(
            f'{{"text": "{text}", "other": "zz"}}\n' for text in sentences("code", 12)
        )
    )
    before = run(job(path))
    after = run(change(job(path)))
    assert (
        content(after)
        == content(without_cache(change(job(path)), encoder, tmp_path / "other"))
        != content(before)
    )


def test_a_file_under_a_name_of_another_kind_is_read_as_that_kind(
    run: Run, tmp_path: Path
) -> None:
    """A link called .txt to a file of records is text; the sums of the one are not those of the
    other.
    """
    records = write_jsonl(tmp_path / "records.jsonl", sentences("code", 12))
    (tmp_path / "link.txt").symlink_to(records)
    run(job(tmp_path / "link.txt"))
    after = run(job(records))
    must_be_whole(after, job(records), tmp_path)


# Records that cannot be read

BROKEN = ["{broken", "[1]", '{"text": 7}', '{"body": "x"}', "7"]


@pytest.fixture
def holey(tmp_path: Path) -> Path:
    """Two files with broken records first, last and in between, and the same without them in a
    folder beside.
    """
    for name in ("a.jsonl", "b.jsonl"):
        texts = [
            f'{{"text": "{name} {text}"}}' for text in sentences("code", 18, size=30)
        ]
        for folder, lines in (
            ("whole", texts),
            ("holey", [line for text in texts for line in (BROKEN[0], text)]),
        ):
            path = tmp_path / folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                "".join(
                    f"{line}\n"
                    for line in [*lines, *(BROKEN if folder == "holey" else ())]
                )
            )
    return tmp_path / "holey"


@pytest.mark.parametrize("looks", [0, 2, 1000])
@pytest.mark.usefixtures("keeping_often")
def test_broken_records_that_are_passed_over_leave_no_trace_in_the_sums(
    holey: Path, encoder: TableEncoder, run: Run, tmp_path: Path, looks: int
) -> None:
    """However often it was stopped: the sums are those of the corpus without them, and each is
    listed once.
    """
    work = replace(job(holey, holdout=0.25), skip_broken=0.6)
    outcome, _ = in_runs(run, work, looks)
    whole = prepare(
        job(holey.with_name("whole"), holdout=0.25), encoder, tmp_path / "other"
    )
    assert content(outcome) == content(whole)
    assert outcome.counters == replace(whole.counters, broken=2 * (18 + len(BROKEN)))
    listed = tmp_path / "broken.txt"
    run(work, broken_list=listed)
    places = [line.partition(": ")[0] for line in listed.read_text().splitlines()]
    lines = [*range(1, 36, 2), *range(37, 42)]
    assert places == [
        f"{holey / name}, line {line}"
        for name in ("a.jsonl", "b.jsonl")
        for line in lines
    ]
    assert stat.S_IMODE(listed.stat().st_mode) == 0o600
    assert list(held_out_documents(work)) == list(
        held_out_documents(job(holey.with_name("whole"), holdout=0.25))
    )


def test_more_broken_records_than_may_be_are_an_error_and_are_listed(
    holey: Path, encoder: TableEncoder, run: Run, tmp_path: Path
) -> None:
    """Of 82 records 46 are broken: a share of 0.56 is too little. Not even one passes unless it was
    allowed.
    """
    listed = tmp_path / "broken.txt"
    for share in (0.56, 0.01):
        with pytest.raises(
            CorpusError,
            match=r"46 of 82 records cannot be read, .*a\.jsonl, line 1: not JSON",
        ):
            run(
                replace(job(holey), skip_broken=share),
                broken_list=listed,
            )
        assert len(listed.read_text().splitlines()) == 46
    with pytest.raises(
        CorpusError,
        match=r"46 of 82 records cannot be read, more than the allowed share of 0",
    ):
        run(job(holey))
    with pytest.raises(
        CorpusError, match=r"a\.jsonl, line 1: not JSON .*skip_broken in client\.toml"
    ):
        without_cache(job(holey), encoder, tmp_path / "empty")


def test_a_list_of_broken_records_goes_with_them(
    holey: Path, run: Run, tmp_path: Path
) -> None:
    """A mended corpus leaves no old list behind."""
    listed = tmp_path / "broken.txt"
    listed.write_text("an old one")
    run(job(holey.with_name("whole")), broken_list=listed)
    assert not listed.exists()


# Damage and errors


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:-1],
        lambda raw: raw + b"\0",
        lambda raw: raw.replace(b'version\\": 1', b'version\\": 2'),
    ],
    ids=["empty", "short", "long", "version"],
)
@pytest.mark.usefixtures("keeping_often")
def test_a_damaged_part_is_made_again(
    corpus: Path,
    run: Run,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
) -> None:
    """Whatever the cache has become, the statistics are those of the corpus."""
    whole = run(job(corpus))
    parts = part_files(tmp_path / "cache")
    raw = parts[1].read_bytes()
    assert damage(raw) != raw
    parts[1].write_bytes(damage(raw))
    again = run(job(corpus))
    assert again.files_read > 0
    must_agree(again, whole)
    assert run(job(corpus)).files_read == 0


def test_a_part_with_any_bit_changed_is_not_used(tmp_path: Path) -> None:
    """Not its sums, not the stretches that it covers, not its counts: a flipped bit anywhere makes
    it void.
    """
    path = tmp_path / "corpus.txt"
    path.write_text("text")
    [stamp] = stamped(find_sources([path])[0])
    store = PartStore(tmp_path / "cache", {"terms": "of a test"})
    counters = Counters(documents=4, held_out=1, empty=2, replaced=3, tokens=99)
    store.save(
        StoredPart(
            (Stretch(stamp, 0, 5, ends_file=False),), counters, {"gram": np.arange(6)}
        )
    )
    [part] = store.usable({stamp})
    assert (part.counters, part.state["gram"].tolist()) == (
        counters,
        [0, 1, 2, 3, 4, 5],
    )
    [file] = part_files(tmp_path / "cache")
    raw = file.read_bytes()
    used = []
    for index in range(len(raw)):
        for bit in (1, 4, 32):
            file.write_bytes(raw[:index] + bytes([raw[index] ^ bit]) + raw[index + 1 :])
            if store.usable({stamp}):
                used.append(raw[max(index - 12, 0) : index + 2])
    assert used == []


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("failing", [0, 7, 21])
@pytest.mark.usefixtures("keeping_often")
def test_an_error_in_a_worker_loses_nothing_that_was_kept(
    tmp_path: Path, failing: int, threads: int
) -> None:
    """The error comes out as it is; parts of before stay, none is wrong, and the next run goes on
    from them.
    """
    texts = sentences("law", 24)
    path = write_jsonl(tmp_path / "a.jsonl", texts)

    def refuse(text: str) -> None:
        if text == texts[failing]:
            raise RuntimeError("a worker failed")

    broken, _ = spied_encoder(refuse)
    with pytest.raises(RuntimeError, match="a worker failed"):
        prepare(job(path, threads=threads), broken, tmp_path / "cache")
    assert len(part_files(tmp_path / "cache")) == failing // 4
    sound, seen = spied_encoder()
    outcome = prepare(job(path, threads=threads), sound, tmp_path / "cache")
    assert sorted(seen) == sorted(texts[failing // 4 * 4 :])
    must_be_whole(outcome, job(path), tmp_path)


@pytest.mark.parametrize(
    ("texts", "holdout", "message"),
    [
        ([], 0.0, "contains no text; empty documents: 0"),
        (["", " "], 0.0, "contains no text; empty documents: 2"),
        (["one"], 0.999999, "all documents of .* \\(1\\) are held out"),
        (["<end><end>"], 0.0, "contains no tokens"),
    ],
)
def test_a_corpus_without_anything_to_sum_is_refused(
    run: Run,
    tmp_path: Path,
    texts: list[str],
    holdout: float,
    message: str,
) -> None:
    """Every time, whether or not its files were read before."""
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    for _ in range(2):
        with pytest.raises(CorpusError, match=message):
            run(job(path, holdout=holdout))


@pytest.mark.parametrize(
    "changes",
    [{"holdout": 1.0}, {"holdout": -0.1}, {"holdout": float("nan")}, {"threads": 0}],
)
def test_work_that_makes_no_sense_is_refused(
    tmp_path: Path, changes: dict[str, float]
) -> None:
    """Before a file is opened."""
    with pytest.raises(InputError):
        job(tmp_path, **changes)  # type: ignore[arg-type]


# Privacy


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_parts_are_readable_by_their_owner_only(
    corpus: Path, run: Run, tmp_path: Path
) -> None:
    """They name private files."""
    before = os.umask(0)
    try:
        run(job(corpus))
    finally:
        os.umask(before)
    [part] = part_files(tmp_path / "cache")
    assert stat.S_IMODE(part.stat().st_mode) == 0o600
    assert stat.S_IMODE(part.parent.stat().st_mode) == 0o700


def test_a_statistics_file_holds_no_text_and_no_path(
    corpus: Path, run: Run, tmp_path: Path
) -> None:
    """Neither a name of a file or a folder nor a word of a document."""
    outcome = run(job(corpus))
    raw = content(outcome)
    part = part_files(tmp_path / "cache")[0].read_bytes()
    for secret in (b"private-corpus", b"a.jsonl", b"jsonl", os.fsencode(tmp_path.name)):
        assert secret in part, "the holder's own part does name the files"
        assert secret not in raw
    for secret in (
        b"secret",
        b"letter",
        b"stray",
        sentences("law", 1, size=30)[0][:8].encode(),
    ):
        assert secret not in raw


def test_a_file_that_changes_while_it_is_read_is_an_error(
    run: Run, tmp_path: Path
) -> None:
    """Sums of half an old file and half a new one are never written; the next run is right
    again.
    """
    path = tmp_path / "law.jsonl"
    write_jsonl(path, sentences("law", 20))
    work = job(path)

    def change(done: int, total: int) -> None:
        write_jsonl(path, sentences("law", 30))

    with pytest.raises(CorpusError, match="changed while it was read"):
        run(work, watch=Watch(progress=change))
    again = run(work)
    must_be_whole(again, work, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.usefixtures("keeping_often")
def test_gpus_share_a_corpus(
    tmp_path: Path, encoder: TableEncoder, window: int
) -> None:
    """Two devices and several threads give the bits of one thread on the CPU, also over parts that
    were kept.
    """
    corpus = tmp_path / "corpus"
    for domain, count in (("law", 3), ("code", 2)):
        write_jsonl(corpus / f"{domain}.jsonl", sentences(domain, count, size=6))
    alone = prepare(job(corpus, window=window), encoder, tmp_path / "alone")
    work = replace(job(corpus, window=window, threads=3), devices=("cpu", "cpu"))
    shared = prepare(work, encoder, tmp_path / "shared")
    assert shared.prepared.statistics.equals(alone.prepared.statistics)
    for kept in part_files(tmp_path / "shared")[::2]:
        kept.unlink()
    assert prepare(work, encoder, tmp_path / "shared").prepared.statistics.equals(
        alone.prepared.statistics
    )
