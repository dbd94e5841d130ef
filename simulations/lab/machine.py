"""What a report says of the machine it was made on: versions, processor, cores, card.

Knows the operating system and installed packages. Knows nothing of experiments.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from common.devices import chosen
from common.threads import cores

PACKAGES = (
    "numpy",
    "scipy",
    "tokenizers",
    "safetensors",
    "cryptography",
    "flwr",
    "ray",
    "torch",
    "transformers",
    "datasets",
    "scikit-learn",
    "matplotlib",
)
"""Whose versions may matter; those that are not installed are not named."""


def surroundings(device: str) -> dict[str, Any]:
    """What results of time and memory depend on, and what exact ones should not."""
    from ridgeway import __version__

    return {
        "ridgeway": __version__,
        "python": platform.python_version(),
        "packages": _versions(),
        "machine": {"cores": cores(), "processor": _processor(), "system": _system(), **_card(device)},
    }


def device_kind(device: str) -> str:
    """`card` or `cpu`: what the word means here."""
    return "card" if chosen(device) else "cpu"


def _versions() -> dict[str, str]:
    found = {name: _version(name) for name in PACKAGES}
    return {name: version for name, version in found.items() if version is not None}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _system() -> str:
    return f"{platform.system()} {platform.machine()}"


def _processor() -> str:
    """The model, where the system tells."""
    return _named(_cpuinfo(), "model name") or _named(_lscpu(), "Model name") or platform.processor() or "unknown"


def _named(lines: str, name: str) -> str:
    found = [line.partition(":") for line in lines.splitlines()]
    return next((words.strip() for key, _, words in found if key.strip() == name), "")


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text(errors="replace") if path.exists() else ""


def _lscpu() -> str:
    """What the command says; nothing where there is none."""
    command = shutil.which("lscpu")
    if command is None:
        return ""
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run([command], capture_output=True, text=True, env=environment, check=False, timeout=10).stdout


def _card(device: str) -> dict[str, str]:
    names = chosen(device)
    if not names:
        return {}
    from simulations.bench.device import Device

    return {"card": str(Device(names[0]).facts()["card"])}
