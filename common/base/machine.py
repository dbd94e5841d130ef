"""What the machine offers: the compiled module, threads, GPUs."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import DeviceError, InputError, first_line

# The compiled module `ridgeway._native`, or None where it is missing or turned off.
#
# Every caller has a reference in Python, which gives the same and takes longer.


__all__ = ["native", "sentence_kernel", "why_not"]

_NATIVE_SWITCH = "RIDGEWAY_NATIVE"
"""Set to 0, this variable turns the module off."""
_KERNEL_SWITCH = "RIDGEWAY_KERNEL"
"""This variable names the kernel of the module's sentence network."""

_TABLE = [-3, 4, 10, 5]
_LETTERS = b"aab\nA\xff "
_COUNTS = array("q", [1, 2])
_CODES = [4, 4, 4, 4, 1, 4, 1, 1, 2, 2, 5, 2, 4, 5, 3, 3, 3, 1, 1, 0]
"""Three tokens of two texts, whose letters end at 2, 5 and 7, and of a table of two rows."""


def _agrees() -> bool:
    """Whether the module gives known results."""
    ids = array("i", [0, 1, 1])
    bounds = array("q", [0, 1, 3])
    lower = array("I", range(0x110000))
    lower[ord("A")] = ord("a")
    stops = array("q", [2, 5, 7])
    runs = native.letter_runs(_LETTERS, stops, _COUNTS, lower, 3)
    means = array("h", bytes(2 * 2 * (2 + 3)))
    table = array("h", _TABLE)
    native.row_means(table, 2, ids, bounds, means, ids, *runs, 3, 7)
    buckets = array("i", [1, 0, 0, 1, 2, 2])
    sums = native.token_sums(ids, _COUNTS, table, 2, b"\0\1", buckets, *runs)
    return (
        all(hasattr(native, name) for name in ("SentenceNetwork", "Unigram"))
        and means.tolist() == [-3, 4, 14, 0, -35, 10, 5, 7, -14, 7]
        and array("q", sums).tolist() == [-11, -12, 24, 24]
        and array("H", runs[0]).tolist() == _CODES
        and array("q", runs[1]).tolist() == [7, 15, 20]
    )


why_not = (
    "turned off by RIDGEWAY_NATIVE=0" if os.environ.get(_NATIVE_SWITCH) == "0" else ""
)
"""Why there is no module; empty if there is."""

if not why_not:
    try:
        import ridgeway._native as native
    except ImportError:
        why_not = "not built: install a wheel, or install a C compiler before Ridgeway"
    else:
        why_not = "" if _agrees() else "wrong results: rebuild it"
if why_not:
    native = None  # type: ignore[assignment]


def sentence_kernel() -> str:
    """How the module multiplies for sentences: as is fastest on this processor, or as the variable
    RIDGEWAY_KERNEL says. The bits are the same.
    """
    usable = native.sentence_variants()
    name = os.environ.get(_KERNEL_SWITCH) or usable[0]
    if name not in usable:
        raise InputError(
            f"{_KERNEL_SWITCH}={name} names no kernel of this processor; it runs "
            f"{', '.join(usable)}"
        )
    return name


_TOKENIZERS_SWITCH = "TOKENIZERS_PARALLELISM"

# Libraries held to one thread each while we run our own.


_lock = threading.Lock()
_users = 0
_before: str | None = None
_torch_users = 0
_torch_threads = 1
"""How many threads torch had before anybody was inside `one_torch_thread`."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While this lasts, linear algebra runs on one thread, where threadpoolctl is there to say so.

    Products and solutions are then the same bits on every number of cores. And on a busy machine
    two threads that wait for each other take many times as long as one does for a small matrix.
    """
    libraries = _libraries(len(sys.modules))
    with libraries.limit(limits=1, user_api="blas") if libraries else nullcontext():
        yield


@lru_cache(maxsize=1)
def _libraries(modules: int) -> Any:
    """The libraries that are loaded, looked for again once something else was imported: that takes
    milliseconds.
    """
    if find_spec("threadpoolctl") is None:
        return None
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """While this lasts, torch keeps to the threads it is called in, so that the number of cores
    does not change a bit.

    As many threads as there are may be inside at once; the last to leave puts things back.
    """
    import torch

    global _torch_users, _torch_threads
    with _lock:
        if _torch_users == 0:
            _torch_threads = torch.get_num_threads()
        _torch_users += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _torch_users -= 1
            if _torch_users == 0:
                torch.set_num_threads(_torch_threads)


@contextmanager
def serial_tokenizers() -> Iterator[None]:
    """While any block of this kind runs, the tokenizers library starts no threads; afterwards it
    may as before.
    """
    global _users, _before
    with _lock:
        if _users == 0:
            _before = os.environ.get(_TOKENIZERS_SWITCH)
            os.environ[_TOKENIZERS_SWITCH] = "false"
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _before is None:
                os.environ.pop(_TOKENIZERS_SWITCH, None)
            elif _users == 0 and _before is not None:
                os.environ[_TOKENIZERS_SWITCH] = _before


# Which GPUs there are, and which of them a word on the command line means.
#
# Looks for an NVIDIA driver first, so that a machine without one never imports torch.


DRIVERS = (
    Path("/proc/driver/nvidia"),
    Path("/dev/nvidiactl"),
    Path("/usr/lib/wsl/lib/libcuda.so.1"),
)
"""Where an NVIDIA driver shows, on Linux and in its subsystem on Windows."""

POSSIBLE_DRIVERS = (Path("/dev/dxg"),)
"""Where a driver of some maker shows: worth asking torch, and no word if torch has no answer."""

INSTALL = "install ridgeway[gpu]"


def gpus() -> list[str]:
    """The GPUs that torch can use now, such as `cuda:0`. Where there is no driver, torch is not
    imported.
    """
    return _seen()[0]


def missed() -> str | None:
    """Why a machine whose NVIDIA driver is there has no GPU to use, in one sentence; None where
    nothing is missed.
    """
    names, reason = _seen()
    is_there = any(path.exists() for path in DRIVERS)
    return f"NVIDIA driver found, but {reason}" if is_there and not names else None


def chosen(device: str) -> tuple[str, ...]:
    """The GPUs that `auto`, `cpu`, `cuda` or `cuda:N` means; none of them is the CPU.

    `auto` takes every GPU there is, and `missed` says why it may have found none; `cuda` wants at
    least one.
    """
    if device == "cpu":
        return ()
    numbered = re.fullmatch("cuda:([0-9]{1,3})", device)
    if device not in ("auto", "cuda") and not numbered:
        raise InputError(
            f"unknown device {device!r}; use auto, cpu, cuda, or one GPU such as cuda:0"
        )
    names, reason = _seen()
    if not names and device != "auto":
        raise DeviceError(f"device {device} is not available: {reason}")
    if not numbered:
        return tuple(names)
    name = f"cuda:{int(numbered[1])}"
    if name not in names:
        raise DeviceError(
            f"device {device} not found; the GPUs of this machine are "
            f"{', '.join(names)}"
        )
    return (name,)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch, or a library below it, says that a GPU's memory has run out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = str(error)
    return isinstance(error, RuntimeError) and (
        "out of memory" in words.lower() or "ALLOC_FAILED" in words
    )


def _seen() -> tuple[list[str], str]:
    """The GPUs, and the reason if there are none."""
    if not any(path.exists() for path in DRIVERS + POSSIBLE_DRIVERS):
        return [], "no NVIDIA driver found on this machine"
    if find_spec("torch") is None:
        return [], f"torch is not installed; {INSTALL}"
    try:
        import torch
    except (ImportError, OSError) as error:
        cause = first_line(error)
        return [], f"torch fails to import ({cause}); reinstall it: {INSTALL}"
    if torch.version.cuda is None:
        built = f"torch {torch.__version__} is built without CUDA"
        return [], f"{built}; {INSTALL} with a CUDA build of torch"
    # a driver too old for torch speaks as a warning
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cause = f" ({first_line(warned[0].message)})" if warned else ""
    names = [f"cuda:{number}" for number in range(count)]
    return names, f"torch {torch.__version__} finds no usable GPU{cause}"
