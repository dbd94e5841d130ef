"""Which GPUs there are, and which of them a word on the command line means.

Looks for an NVIDIA driver first, so that a machine without one never imports torch.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ridgeway.common.base.errors import DeviceError, InputError, first_line

DRIVERS = (
    Path("/proc/driver/nvidia"),
    Path("/dev/nvidiactl"),
    Path("/usr/lib/wsl/lib/libcuda.so.1"),
)
"""Where an NVIDIA driver shows, on Linux and in its subsystem on Windows."""

POSSIBLE_DRIVERS = (Path("/dev/dxg"),)
"""Where a driver of some maker shows: worth asking torch, and no word if torch has no answer."""

INSTALL = "install ridgeway[gpu]"

Made = TypeVar("Made")


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


def halving(make: Callable[[int], Made], size: int, least: int) -> Made:
    """What `make` makes of a size; each time memory runs out, of half the size. Raises DeviceError
    below the least.
    """
    import torch

    while True:
        try:
            return make(size)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if size // 2 < least:
                raise DeviceError(
                    "not enough free GPU memory for these sums; free some, or use "
                    "--device cpu"
                ) from error
        size //= 2
        torch.cuda.empty_cache()


def _seen() -> tuple[list[str], str]:
    """The GPUs, and the reason if there are none."""
    if not any(path.exists() for path in DRIVERS + POSSIBLE_DRIVERS):
        return [], "no NVIDIA driver found on this machine"
    if importlib.util.find_spec("torch") is None:
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
