"""An engine for `prepare` on a Ray cluster: pieces of a corpus go out as tasks, sums come back and
add up exactly.

A task reads its pieces from where all machines see them, a shared folder or an object store, and
returns a part as the bytes in which parts are kept, with their digest. A task whose worker or
machine is lost is run again by Ray; what a run had received before it was stopped is kept. Ray
pickles what its processes exchange and has no access control, so the cluster is the holder's own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import ridgeway
from ridgeway.client.sums.part_store import StoredPart, first_changed
from ridgeway.client.sums.prepare import Engine, PrepareJob, Unread, sum_pieces
from ridgeway.common.base.errors import (
    CorpusError,
    DeviceError,
    EncoderMismatch,
    RidgewayError,
    first_line,
)
from ridgeway.common.base.machine import chosen
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.table_encoder import TableEncoder

MIN_TASK_BYTES = 4 << 20
MAX_TASK_BYTES = 512 << 20
MIN_GPU_TASK_BYTES = 256 << 20
MAX_GPU_TASK_BYTES = 4 << 30
"""Where GPUs sum: a task has processes of its own that read for its GPU, which take seconds to
start.
"""
TASKS_PER_WORKER = 8
"""A task has about this share of a worker's work, so that all end at about the same time."""
MAX_THREADS_PER_WORKER = 8
_WAIT_S = 0.5
REACH_S = 5.0
_RETRIES = 5


@dataclass(frozen=True, slots=True)
class Worker:
    """What one task takes of the cluster: threads, and a GPU or none."""

    threads: int
    gpu: bool


@contextmanager
def cluster(address: str, threads: int) -> Iterator[None]:
    """A connection to a cluster; without an address, one on this machine alone, which ends with the
    block.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray would tell its makers
    # or it warns that it will do so in future
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    if not address:
        # what stays on one machine listens on loopback alone
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray = _ray()
    _reached(address)
    local: dict[str, Any] = {"num_cpus": threads, "include_dashboard": False}
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="ERROR",
            **({} if address else local),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_answer(address or "this machine", error) from error
    try:
        yield
    finally:
        ray.shutdown()


def _reached(address: str) -> None:
    """Somebody listens at an address of the form [ray://]HOST:PORT; Ray itself would try for
    minutes, and say so.
    """
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        if parts.hostname and parts.port:
            socket.create_connection(
                (parts.hostname, parts.port), timeout=REACH_S
            ).close()
    except (OSError, ValueError) as error:
        raise _no_answer(address, error) from error


def _no_answer(where: str, error: Exception) -> DeviceError:
    return DeviceError(
        f"no Ray cluster at {where} ({first_line(error)}); is it started?"
    )


def ray_engine(
    job: PrepareJob, encoder: TableEncoder, word: str, *, gpus: bool, threads: int
) -> Engine:
    """word: how the encoder is named, since every machine finds it by itself. threads: of each
    worker; 0: as fits.
    """

    def free_workers(machines: Sequence[Mapping[str, float]]) -> list[Worker]:
        return workers(machines, threads, gpus=gpus)

    def engine(todo: Sequence[Unread]) -> Iterator[StoredPart | None]:
        ray = _ray()
        idle = free_workers(_machines(ray))
        waiting = tasks(todo, idle)
        running: dict[Any, tuple[Worker, list[Unread]]] = {}
        try:
            while waiting or running:
                while waiting and idle:
                    worker = idle.pop(0)
                    group = waiting.pop(0)
                    task = _submitted(
                        ray, job, word, encoder.fingerprint, group, worker
                    )
                    running[task] = (worker, group)
                done, _ = ray.wait(list(running), timeout=_WAIT_S)
                for task in done:
                    worker, _ = running.pop(task)
                    idle.append(worker)
                    yield _received(ray, task)
                if done:
                    continue
                machines = _machines(ray)
                for task, (worker, group) in list(running.items()):
                    if not _fits(worker, machines):
                        # its machine is lost, and no other is as large
                        ray.cancel(task, force=True)
                        del running[task]
                        waiting.append(group)
                if waiting and not running:
                    idle += free_workers(machines)
                yield None
        finally:
            for task in running:
                ray.cancel(task, force=True)

    return engine


def _machines(ray: Any) -> list[Mapping[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _fits(worker: Worker, machines: Sequence[Mapping[str, float]]) -> bool:
    """Whether a machine of the cluster has the cores and the GPU that a worker takes."""
    return any(
        machine.get("CPU", 0) >= worker.threads and machine.get("GPU", 0) >= worker.gpu
        for machine in machines
    )


def gpus_of_cluster() -> bool:
    return bool(_ray().cluster_resources().get("GPU"))


def workers(
    nodes: Sequence[Mapping[str, float]], threads: int, *, gpus: bool
) -> list[Worker]:
    """As many workers as the machines of a cluster have room for: one a GPU, and on machines
    without one, by cores.
    """
    idle: list[Worker] = []
    for node in nodes:
        cores = int(node.get("CPU", 0))
        gpus_here = int(node.get("GPU", 0)) if gpus else 0
        if gpus_here:
            idle += [Worker(max(1, cores // gpus_here), gpu=True)] * gpus_here
        else:
            per_worker = min(threads or MAX_THREADS_PER_WORKER, max(1, cores))
            idle += [Worker(per_worker, gpu=False)] * (cores // per_worker)
    if not idle:
        raise DeviceError(
            "the Ray cluster has no free core; add machines with `ray start`"
        )
    return idle


def tasks(todo: Sequence[Unread], workers: Collection[Worker]) -> list[list[Unread]]:
    """Pieces in groups of about the same size."""
    least = MIN_TASK_BYTES
    most = MAX_TASK_BYTES
    if any(worker.gpu for worker in workers):
        least = MIN_GPU_TASK_BYTES
        most = MAX_GPU_TASK_BYTES
    total = sum(piece.stamp.bytes for piece in todo)
    size = min(most, max(least, total // (TASKS_PER_WORKER * len(workers))))
    groups: list[list[Unread]] = []
    room = 0
    for piece in todo:
        if room < piece.stamp.bytes or not groups:
            groups.append([])
            room = size
        groups[-1].append(piece)
        room -= piece.stamp.bytes
    return groups


def _submitted(
    ray: Any,
    job: PrepareJob,
    word: str,
    fingerprint: str,
    todo: list[Unread],
    worker: Worker,
) -> Any:
    # max_calls: Ray would end a process with a GPU after one task, and the next would load the
    #            encoder again
    task = ray.remote(
        num_cpus=worker.threads,
        num_gpus=int(worker.gpu),
        max_calls=0,
        max_retries=_RETRIES,
    )(_summed)
    return task.remote(
        replace(job, threads=worker.threads, devices=()),
        word,
        fingerprint,
        todo,
        worker.gpu,
    )


def _received(ray: Any, task: Any) -> StoredPart:
    try:
        content, error = ray.get(task)
    except ray.exceptions.RayError as lost:
        raise CorpusError(
            f"the cluster lost a task repeatedly ({first_line(lost)}); check that its "
            "machines have enough memory and can read the corpus. Finished parts are "
            "kept; the same command resumes"
        ) from lost
    if error:
        raise CorpusError(error)
    part = StoredPart.from_bytes(content)
    if part is None:
        raise CorpusError(
            "a machine of the cluster returned corrupt sums, or has another version "
            "of Ridgeway"
        )
    return part


def check_ray() -> None:
    """Raise unless Ray is installed."""
    if find_spec("ray") is None:
        raise DeviceError(
            "Ray is not installed; leave out --engine, or install ridgeway[simulation]"
            " under a Python that Ray is made for (3.15 is too new)"
        )


def _ray() -> Any:
    check_ray()
    import ray

    return ray


# On the cluster's machines


def _summed(
    job: PrepareJob, word: str, fingerprint: str, todo: list[Unread], gpu: bool
) -> tuple[bytes, str]:
    """The part of some pieces, or the sentence that says why there is none."""
    try:
        encoder = _encoder(word)
        if encoder.fingerprint != fingerprint:
            raise EncoderMismatch(
                f"encoder mismatch: a machine of the cluster has another {word} "
                f"({encoder.fingerprint[:12]}, not {fingerprint[:12]}), with Ridgeway "
                f"{ridgeway.__version__}; install the same on all"
            )
        changed = first_changed(piece.stamp for piece in todo)
        if changed:
            raise CorpusError(
                f"{changed.name} differs between machines of the cluster, or has "
                "changed; all must read the corpus from one shared place"
            )
        work = replace(job, devices=chosen("cuda")[:1] if gpu else ())
        return sum_pieces(work, encoder, todo).to_bytes(), ""
    except (RidgewayError, OSError) as error:
        return b"", str(error)


@lru_cache(maxsize=1)
def _encoder(word: str) -> TableEncoder:
    return find_encoder(word)
