"""Torch held to one thread, while threads of the project run it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

from ridgeway.common.base.machine import one_torch_thread


def test_threads_that_keep_torch_to_themselves_leave_it_as_it_was() -> None:
    """However they overlap."""
    before, inside = torch.get_num_threads(), Barrier(2)

    def work() -> int:
        with one_torch_thread():
            inside.wait()
            return torch.get_num_threads()

    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.submit(work), pool.submit(work)
            assert one.result() == other.result() == 1
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)
