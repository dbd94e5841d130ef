"""Libraries held to one thread each while we run our own."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

_SWITCH = "TOKENIZERS_PARALLELISM"

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
            _before = os.environ.get(_SWITCH)
            os.environ[_SWITCH] = "false"
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _before is None:
                os.environ.pop(_SWITCH, None)
            elif _users == 0 and _before is not None:
                os.environ[_SWITCH] = _before
