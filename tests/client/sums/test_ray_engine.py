"""A corpus on a Ray cluster: the bytes of one machine, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import ridgeway.client.sums.corpus
import ridgeway.client.sums.ray_engine
from ridgeway.client.sums.corpus import CorpusFile
from ridgeway.client.sums.part_store import Stamp, StoredPart
from ridgeway.client.sums.prepare import Engine, Interrupted, Unread, prepare
from ridgeway.client.sums.ray_engine import (
    MAX_TASK_BYTES,
    Worker,
    cluster,
    gpus_of_cluster,
    ray_engine,
    tasks,
    workers,
)
from ridgeway.common.base.errors import CorpusError, DeviceError, RidgewayError
from ridgeway.common.text.encoder_files import find_encoder, save_encoder
from tests.support.corpora_on_disk import (
    Stopper,
    job,
    must_agree,
    sentences,
    write_jsonl,
)
from tests.support.tiny import tiny_encoder

pytestmark = [  # Ray leaves files and processes to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def pieces(*sizes: int) -> list[Unread]:
    stamps = [Stamp(str(number), size, 0, 0, 0) for number, size in enumerate(sizes)]
    return [
        Unread(stamp, CorpusFile(Path(stamp.path), "text", ""), 0) for stamp in stamps
    ]


def test_every_gpu_and_every_core_has_a_worker() -> None:
    """Machines with GPUs sum on them, the others on their cores."""
    nodes = [{"CPU": 16.0, "GPU": 2.0}, {"CPU": 20.0}, {"CPU": 1.0}]
    gpu, cpu = Worker(8, gpu=True), Worker(8, gpu=False)
    assert workers(nodes, 0, gpus=True) == [gpu, gpu, cpu, cpu, Worker(1, gpu=False)]
    assert workers(nodes[1:], 5, gpus=True) == [Worker(5, gpu=False)] * 4 + [
        Worker(1, gpu=False)
    ]
    assert len(workers(nodes, 1, gpus=False)) == 37
    with pytest.raises(DeviceError, match="no free core"):
        workers([{}], 0, gpus=True)


def test_tasks_hold_every_piece_once() -> None:
    """In their order, in groups that are neither tiny nor a worker's whole work."""
    todo = pieces(*[1 << 20] * 100, 1 << 31, 5)
    cpu, gpu = Worker(2, gpu=False), Worker(8, gpu=True)
    made = tasks(todo, [cpu] * 2)
    assert [piece for group in made for piece in group] == todo
    assert all(
        len(group) == 1 or sum(piece.stamp.bytes for piece in group) <= MAX_TASK_BYTES
        for group in made
    )
    assert len(tasks(todo[:100], [cpu] * 3)) == 25
    assert (
        len(tasks(todo[:100], [cpu, gpu])) == 1
    )  # starting what reads for a GPU would take longer than the sums
    assert tasks([], [cpu]) == []


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of many tasks."""
    monkeypatch.setattr(ridgeway.client.sums.corpus, "PIECE_BYTES", 2_000)
    for least in ("MIN_TASK_BYTES", "MIN_GPU_TASK_BYTES"):
        monkeypatch.setattr(ridgeway.client.sums.ray_engine, least, 1)
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    write_jsonl(tmp_path / "corpus" / "law.jsonl", sentences("law", 60))
    (tmp_path / "corpus" / "code.txt").write_text("\n".join(sentences("code", 60)))
    return tmp_path / "corpus"


@pytest.mark.slow
def test_a_lost_machine_and_gpus_of_a_cluster(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the largest machine had begun is summed by others once it is lost; machines with GPUs
    use them.
    """
    monkeypatch.setenv(
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
    )  # read when Ray is imported: loopback alone
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    word = f"dir:{tmp_path / 'encoder'}"
    encoder, work = find_encoder(word), job(corpus, holdout=0.1)
    alone = prepare(work, encoder, tmp_path / "alone")
    machines = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    other = machines.add_node(num_cpus=2, num_gpus=1)

    def losing(todo: Sequence[Unread]) -> Iterator[StoredPart | None]:
        left = True
        for part in ray_engine(work, encoder, word, gpus=False, threads=0)(todo):
            yield part
            if left and part is not None:
                machines.remove_node(other, allow_graceful=False)
                left = False
        assert not left

    try:
        with cluster(machines.address, 1):
            assert gpus_of_cluster()
            with pytest.raises(
                CorpusError, match="device cuda is not available"
            ):  # Ray was told of a GPU that is none
                prepare(
                    work,
                    encoder,
                    tmp_path / "gpus",
                    engine=ray_engine(work, encoder, word, gpus=True, threads=1),
                )
            shared = prepare(work, encoder, tmp_path / "shared", engine=losing)
            assert (
                len(
                    ridgeway.client.sums.ray_engine._machines(
                        ridgeway.client.sums.ray_engine._ray()
                    )
                )
                == 1
            )
    finally:
        machines.shutdown()
    must_agree(shared, alone)


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[None]:
    with cluster("", 2):
        yield


def worker_processes() -> list[int]:
    """The processes that run tasks of the cluster that this process has started."""
    named = {
        int(path.parent.name): path.read_bytes()
        for path in Path("/proc").glob("[0-9]*/cmdline")
    }
    tasks = [
        pid
        for pid, name in named.items()
        if name.startswith((b"ray::_summed", b"ray::IDLE"))
    ]
    return [pid for pid in tasks if parent(parent(pid)) == os.getpid()]


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def harmed(engine: Engine) -> Engine:
    """An engine whose workers are all killed after the first part."""

    def killing(todo: Sequence[Unread]) -> Iterator[StoredPart | None]:
        killed = False
        for part in engine(todo):
            yield part
            pids = worker_processes() if part is not None and not killed else []
            killed |= bool(pids)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        assert killed

    return killing


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/cmdline").exists(), reason="processes are found through /proc"
)
@pytest.mark.usefixtures("local_cluster")
def test_a_cluster_gives_the_bytes_of_one_machine(corpus: Path, tmp_path: Path) -> None:
    """Also where workers are killed in the middle, and where a run is stopped and taken up."""
    assert {
        node["NodeManagerAddress"]
        for node in ridgeway.client.sums.ray_engine._ray().nodes()
    } == {"127.0.0.1"}
    word = f"dir:{tmp_path / 'encoder'}"
    encoder, work = find_encoder(word), job(corpus, holdout=0.1)
    alone = prepare(work, encoder, tmp_path / "alone")
    engine = ray_engine(work, encoder, word, gpus=False, threads=1)
    seen: list[tuple[int, int]] = []
    shared = prepare(work, encoder, tmp_path / "shared", engine=harmed(engine))
    with pytest.raises(Interrupted):
        prepare(work, encoder, tmp_path / "stopped", Stopper(3).watch, engine=engine)
    kept = len(list((tmp_path / "stopped").rglob("*.part")))
    watch = replace(
        Stopper(1 << 30).watch, progress=lambda done, total: seen.append((done, total))
    )
    resumed = prepare(work, encoder, tmp_path / "stopped", watch, engine=engine)
    assert kept > 0
    assert 0 < seen[0][0] < seen[-1][0] == seen[-1][1]
    for outcome in (shared, resumed):
        must_agree(outcome, alone)


@pytest.mark.slow
@pytest.mark.usefixtures("local_cluster")
def test_what_a_machine_of_the_cluster_cannot_do_is_one_sentence(
    corpus: Path, tmp_path: Path
) -> None:
    """Broken text, another encoder, and files that are not the same everywhere; no traceback of
    Ray.
    """
    word = f"dir:{tmp_path / 'encoder'}"
    encoder, work = find_encoder(word), job(corpus)
    other = ray_engine(work, tiny_encoder(seed=1), word, gpus=False, threads=1)
    with pytest.raises(RidgewayError, match="has another dir:"):
        prepare(work, encoder, tmp_path / "one", engine=other)
    engine = ray_engine(work, encoder, word, gpus=False, threads=1)
    with pytest.raises(CorpusError, match="differs between machines of the cluster"):
        list(engine(pieces(5)))
    (corpus / "law.jsonl").write_text("{broken\n")
    with pytest.raises(CorpusError, match=r"law\.jsonl, line 1: not JSON") as raised:
        prepare(work, encoder, tmp_path / "two", engine=engine)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:port", "127.0.0.1:70000"]
)
def test_a_cluster_that_does_not_answer_is_one_sentence(address: str) -> None:
    """At once, by somebody who connects before Ray does; and nothing is started instead."""
    with (
        pytest.raises(DeviceError, match=f"no Ray cluster at {address}") as raised,
        cluster(address, 1),
    ):
        pass
    assert "\n" not in str(raised.value)
