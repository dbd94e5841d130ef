"""Several processes that serve at one address: started, watched, restarted one by one; and what
they share.

The first process binds the sockets and starts the workers, each of which loads everything. A worker
that ends by itself is started anew. On SIGHUP each in turn is replaced: the new one serves before
the old one takes no more connections, so that no request fails. Rates are counted in a file that
all map into memory; each writes its metrics every second, and whoever is asked adds up those of
all.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from operator import add
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.operating_system import process_context
from ridgeway.common.web.request_context import is_json

log = logging.getLogger("ridgeway.http")

LOOK_S = 0.05
RESTART_PAUSE_S = 1.0
"""A worker that ends by itself is started again no sooner."""
RETIRE = signal.SIGUSR1
"""Tells a worker to take no more connections, and to end when those that it has are closed."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SLOTS = 1 << 16
SLOT = struct.Struct("<Qd")
SUMMED_GAUGES = (
    "ridgeway_streams",
    "ridgeway_requests_in_flight",
    "ridgeway_expert_requests_in_flight",
)


@dataclass(frozen=True, slots=True)
class ServingWorker:
    """One of several processes. folder: what they share. ready: is told when it serves."""

    folder: Path
    parent: int
    ready: Connection

    def started(self) -> None:
        self.ready.send_bytes(b"1")
        self.ready.close()

    @property
    def rates(self) -> Path:
        return self.folder / "rates"

    def watch_parent(self) -> None:
        """End in good order if nobody would start or stop this process any more."""
        if os.getppid() != self.parent:
            os.kill(os.getpid(), signal.SIGTERM)


class SharedTimes:
    """A number for each name, in a file that processes share; a name may lose its number to
    another.

    Use it in a `with`, one process at a time.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._handle, _SLOTS * SLOT.size)
        self._map = mmap.mmap(self._handle, _SLOTS * SLOT.size)

    def __enter__(self) -> SharedTimes:
        fcntl.lockf(self._handle, fcntl.LOCK_EX)
        return self

    def __exit__(self, *error: object) -> None:
        fcntl.lockf(self._handle, fcntl.LOCK_UN)

    def get(self, name: str, default: float) -> float:
        mark, offset = _slot(name)
        held, value = SLOT.unpack_from(self._map, offset)
        return float(value) if held == mark else default

    def put(self, name: str, value: float) -> None:
        mark, offset = _slot(name)
        SLOT.pack_into(self._map, offset, mark, value)


def _slot(name: str) -> tuple[int, int]:
    mark = (
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        | 1
    )
    return mark, (mark >> 1) % _SLOTS * SLOT.size


class PeerMetrics:
    """The metrics of all workers: each writes down its own, and adds those of the others when it is
    asked.

    What a worker that has ended had counted stays counted; what it measured last does not.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = folder / f"{os.getpid()}.metrics"

    def publish(self, content: bytes) -> None:
        write_whole(self._own, content)

    def merged(self, content: bytes) -> bytes:
        texts = [(content, True)]
        for path in sorted(self._folder.glob("*.metrics")):
            if path != self._own:
                with contextlib.suppress(OSError):
                    texts.append((path.read_bytes(), _is_running(int(path.stem))))
        return merged_metrics(texts)


def merged_metrics(texts: list[tuple[bytes, bool]]) -> bytes:
    """Metrics of several processes as those of one; of those that do not run, counts alone."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for text, is_running in texts:
        for family in text_string_to_metric_families(text.decode()):
            is_count = family.type in ("counter", "histogram")
            if not (is_running or is_count):
                continue
            families.setdefault(family.name, family)
            join = add if is_count or family.name in SUMMED_GAUGES else max
            totals = values.setdefault(family.name, {})
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                before = totals.get(key)
                if before is None or math.isnan(before):
                    totals[key] = sample.value
                else:
                    totals[key] = join(before, sample.value)  # max(1, nan) is 1
    for name, family in families.items():
        family.samples = [
            Sample(sample_name, dict(labels), value)
            for (sample_name, labels), value in values[name].items()
        ]
    return generate_latest(_Collected(families.values()))


@dataclass(frozen=True, slots=True)
class _Collected(Collector):
    """Metrics that were put together before."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


@dataclass(slots=True)
class Supervisor:
    """Keeps `count` workers running until it is told to stop.

    work: what a worker does; it returns when it has been told to stop. It is pickled where a
          process may not be forked.
    """

    count: int
    work: Callable[[ServingWorker], None]
    folder: Path
    _running: dict[int, BaseProcess] = field(default_factory=dict)
    _stopping: bool = False
    _renewing: bool = False
    _code: int = 0

    def run(self) -> int:
        """The exit code: 0, or that of a worker that could not begin."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._renew)
        for _ in range(self.count):
            if not self._stopping and self._start() is None:
                self._stop()
        code = self._code
        while self._running:
            if self._renewing and not self._stopping:
                self._renewing = False
                self._replace_all()
            self._reap()
            time.sleep(LOOK_S)
        return code

    def _stop(self, *signalled: object) -> None:
        self._stopping = True
        for process in tuple(self._running.values()):
            process.terminate()

    def _renew(self, *signalled: object) -> None:
        self._renewing = True

    def _replace_all(self) -> None:
        """One after the other, and only if the new one serves."""
        for pid in tuple(self._running):
            if pid not in self._running:
                continue  # it has ended by itself, and another was started
            if self._stopping or self._start() is None:
                log.error("reload failed; keeping the old workers")
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, RETIRE)
            while pid in self._running and not self._stopping:
                self._reap(expected=pid)
                time.sleep(LOOK_S)

    def _reap(self, expected: int | None = None) -> None:
        """Take note of a worker that has ended, and start another in its place if nobody wanted
        that.
        """
        ended = [
            process
            for process in self._running.values()
            if process.exitcode is not None
        ]
        if not ended:
            return
        pid = ended[0].pid or 0
        del self._running[pid]
        if pid != expected and not self._stopping:
            log.error(
                "a worker exited with code %d; starting another", ended[0].exitcode
            )
            time.sleep(RESTART_PAUSE_S)
            while not self._stopping and self._start() is None:
                log.error("a worker could not start; trying again")
                time.sleep(RESTART_PAUSE_S)

    def _start(self) -> int | None:
        """The process of a worker, once it serves; None if it ended before."""
        reader, writer = Pipe(duplex=False)
        worker = ServingWorker(self.folder, os.getpid(), writer)
        process = process_context().Process(
            target=_be_a_worker, args=(self.work, worker), daemon=True
        )
        # A signal waits until the worker can be stopped, and the worker has handlers of its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        process.start()
        pid = process.pid or 0
        self._running[pid] = process
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        writer.close()
        while not reader.poll(LOOK_S) and not self._stopping:
            pass
        with reader, contextlib.suppress(EOFError):
            if self._stopping or reader.recv_bytes():
                return pid
        process.join()
        del self._running[pid]
        self._code = self._code or process.exitcode or 0
        return None


def _be_a_worker(work: Callable[[ServingWorker], None], worker: ServingWorker) -> None:
    """Never returns in a worker."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, RETIRE):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        work(worker)
        code = 0
    except RidgewayError as error:
        if is_json():
            log.error("%s", error)
        else:
            print(f"ridgeway: {error}", file=sys.stderr)
        code = 2
    except BaseException as error:
        log.error("a worker failed: %s", type(error).__name__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """What workers share while they run."""
    with tempfile.TemporaryDirectory(prefix="ridgeway-serve-") as folder:
        yield Path(folder)
