"""Which GPUs a word means, and that nothing about them is passed over in silence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeway.common.base import machine as devices
from ridgeway.common.base.errors import DeviceError, InputError
from tests.support.waiting import MAX_WAIT_S

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A made machine: with or without a driver, with this torch or none."""

    def make(*, driver: bool = True, perhaps: bool = False, torch: Any = None) -> None:
        here, gone = (tmp_path,), (tmp_path / "absent",)
        monkeypatch.setattr(devices, "DRIVERS", here if driver else gone)
        monkeypatch.setattr(devices, "POSSIBLE_DRIVERS", here if perhaps else gone)
        monkeypatch.setattr(
            devices, "find_spec", lambda name: None if torch is None else object()
        )
        if torch is not None:
            monkeypatch.setitem(sys.modules, "torch", torch)

    return make


def made_torch(count: int, cuda: str | None = "13.0", warn: str = "") -> Any:
    def available() -> bool:
        if warn:
            import warnings

            warnings.warn(warn, stacklevel=1)
        return count > 0

    version = SimpleNamespace(cuda=cuda)
    return SimpleNamespace(
        __version__="9.9",
        version=version,
        cuda=SimpleNamespace(is_available=available, device_count=lambda: count),
    )


def test_words_mean_gpus(machine: Machine) -> None:
    """auto and cuda are all GPUs, cuda:N is one of them, cpu is none."""
    machine(torch=made_torch(2))
    assert devices.gpus() == ["cuda:0", "cuda:1"]
    assert devices.chosen("auto") == devices.chosen("cuda") == ("cuda:0", "cuda:1")
    assert devices.chosen("cuda:1") == ("cuda:1",)
    assert devices.chosen("cpu") == ()
    assert devices.missed() is None


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(
    machine: Machine,
) -> None:
    """The sentence names the machine's GPUs."""
    machine(torch=made_torch(2))
    with pytest.raises(
        DeviceError,
        match="device cuda:2 not found; the GPUs of this machine are cuda:0, cuda:1",
    ):
        devices.chosen("cuda:2")


@pytest.mark.parametrize(
    "word",
    ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:one", "cuda:²", "cuda:0 ", "cpu:0"],
)
def test_an_unknown_word_is_refused(machine: Machine, word: str) -> None:
    """One sentence says what may be said, whatever the machine has."""
    machine(driver=False)
    with pytest.raises(
        InputError, match="use auto, cpu, cuda, or one GPU such as cuda:0"
    ):
        devices.chosen(word)


def test_a_machine_without_a_driver_uses_the_cpu_and_misses_nothing(
    machine: Machine,
) -> None:
    """auto is the CPU without a word; asking for a GPU is refused."""
    machine(driver=False, torch=made_torch(1))
    assert devices.chosen("auto") == ()
    assert devices.missed() is None
    with pytest.raises(DeviceError, match="no NVIDIA driver found"):
        devices.chosen("cuda")


@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        (None, r"torch is not installed; install ridgeway\[gpu\]"),
        (
            made_torch(0, cuda=None),
            r"torch 9\.9 is built without CUDA; install ridgeway\[gpu\]",
        ),
        (made_torch(0), r"torch 9\.9 finds no usable GPU"),
        (
            made_torch(0, warn="the driver is too old\nmore"),
            r"finds no usable GPU \(the driver is too old\)",
        ),
    ],
    ids=["no torch", "torch without CUDA", "no GPU", "old driver"],
)
def test_a_gpu_that_cannot_be_used_is_missed_with_the_reason(
    machine: Machine, torch: Any, reason: str
) -> None:
    """auto goes on with the CPU and can say why; cuda is refused for the same reason."""
    machine(torch=torch)
    assert devices.chosen("auto") == ()
    words = devices.missed()
    assert words is not None
    assert words.startswith("NVIDIA driver found, but ")
    for word in ("cuda", "cuda:0"):
        with pytest.raises(DeviceError, match=reason) as refusal:
            devices.chosen(word)
        assert (
            str(refusal.value).removeprefix(f"device {word} is not available: ")
            in words
        )


def test_a_torch_that_does_not_load_is_a_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged installation does not end the command that could do without it."""
    machine(torch=made_torch(1))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert devices.chosen("auto") == ()
    assert "torch fails to import" in (devices.missed() or "")


def test_a_driver_of_another_maker_is_no_miss(machine: Machine) -> None:
    """Where only some driver shows, torch is asked, and its silence is no news."""
    machine(driver=False, perhaps=True, torch=made_torch(0))
    assert devices.missed() is None
    machine(driver=False, perhaps=True, torch=made_torch(1))
    assert devices.chosen("auto") == ("cuda:0",)


@pytest.mark.skipif(
    any(path.exists() for path in devices.DRIVERS + devices.POSSIBLE_DRIVERS),
    reason="a driver is here",
)
def test_a_machine_without_a_driver_never_imports_torch() -> None:
    """Looking costs a few file names, not seconds of imports."""
    look = "import sys; from ridgeway.common.base.machine import gpus, missed; gpus(); missed(); "
    look += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", look], check=True, timeout=MAX_WAIT_S)
