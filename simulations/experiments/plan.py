"""The parts of the experiments, and what each is given: datasets, a seed, how much to do, a work
folder, a cache of finished work; and what a report says of the machine it was made on: versions,
processor, cores, GPU.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from ridgeway.common.base.devices import chosen
from ridgeway.common.base.files import canonical_json, sha256, write_whole
from ridgeway.common.base.threads import cores
from ridgeway.simulations.experiments.dataset import Dataset

PARTS = {
    "accuracy": "How often prompts reach the right expert, beside other routers.",
    "robustness": "Prompts that are misspelt, cut off, or belong nowhere.",
    "scaling": "Time, memory and traffic as holders and text grow.",
    "privacy": "What can be learnt from what is shared.",
    "experts": "Answers of the experts that prompts are sent to.",
    "scores": "Real models that are not domains, chosen by measured quality.",
}
"""In the order of a report, with what help says of each."""
PACKAGES = (
    *(
        "numpy",
        "scipy",
        "tokenizers",
        "safetensors",
        "cryptography",
        "flwr",
        "ray",
        "torch",
        "transformers",
    ),
    *("datasets", "scikit-learn", "matplotlib"),
)
"""Whose versions may matter; those that are not installed are not named."""

Tick = Callable[[], None]
Ticking = Callable[[str, int], AbstractContextManager[Tick]]


def part_module(name: str) -> str:
    """The module of a part: it has KEY, TITLE, `run(plan)`, and perhaps CODE, a number that changes
    with results.
    """
    folder = f"{name}." if name in ("scaling", "privacy", "experts") else ""
    return f"ridgeway.simulations.experiments.{folder}{name}_part"


@contextmanager
def silent(label: str, total: int) -> Iterator[Tick]:
    yield lambda: None


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """
    datasets: at least one.
    full:     the whole of it, for hours or a GPU; otherwise what two cores do in minutes.
    device:   auto, cpu, cuda or cuda:N, for what can use a GPU.
    work:     a folder for federations and other scratch, empty at the start.
    cache:    remembers finished pieces of work by what decided them.
    ticking:  `with plan.ticking("kNN", 12) as tick:` shows a bar; tick() after each of 12 pieces of
              work.
    """

    datasets: tuple[Dataset, ...]
    work: Path
    cache: Cache
    encoder: str = "smollm2"
    full: bool = False
    device: str = "auto"
    seed: int = 1
    ticking: Ticking = field(default=silent)

    def facts(self) -> Mapping[str, Any]:
        """What decides results, apart from code: part of every key in the cache."""
        digests = {dataset.name: dataset.digest for dataset in self.datasets}
        return {
            "settings": digests,
            "encoder": self.encoder,
            "full": self.full,
            "seed": self.seed,
        }


# The machine


def surroundings(device: str) -> dict[str, Any]:
    """What results of time and memory depend on, and what exact ones should not."""
    from ridgeway import __version__

    machine = {
        "cores": cores(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if names := chosen(device):
        from ridgeway.simulations.bench.device import Device

        machine["gpu"] = str(Device(names[0]).facts()["gpu"])
    packages = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    return {
        "ridgeway": __version__,
        "python": platform.python_version(),
        "packages": packages,
        "machine": machine,
    }


def machine_in_words(device: str) -> str:
    about = surroundings(device)["machine"]
    return ", ".join(
        [
            f"{about['cores']} cores",
            about["processor"],
            *([about["gpu"]] if "gpu" in about else []),
        ]
    )


def _processor() -> str:
    """The model, where the system tells: in its list of processors, or by the command lscpu."""
    listed = Path("/proc/cpuinfo")
    command = shutil.which("lscpu")
    environment = {**os.environ, "LC_ALL": "C"}
    found = _model_name(listed.read_text(errors="replace")) if listed.exists() else ""
    if not found and command is not None:
        done = subprocess.run(
            [command],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=10,
        )
        found = _model_name(done.stdout)
    return found or platform.processor() or "unknown"


def _model_name(lines: str) -> str:
    found = re.search(r"^\s*model name\s*:(.*)$", lines, re.MULTILINE | re.IGNORECASE)
    return found[1].strip() if found else ""


# Finished pieces of work, kept as JSON under a digest of what decided them


VERSION = 1


class Cache:
    """Law: kept(key, make) calls `make` at most once for equal keys, in this process or any other;
    what it gives is what JSON makes of it.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        """fresh: what is there is not taken, but replaced."""
        self._folder = folder
        self._fresh = fresh
        self._made: set[str] = set()

    def kept(self, name: str, key: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """name: what the piece of work is called; also part of the key. A damaged file counts as
        none.
        """
        digest = sha256(canonical_json({"version": VERSION, "name": name, "key": key}))
        path = self._folder / f"{name}-{digest[:24]}.json"
        found = (
            None if self._fresh and digest not in self._made else _read(path, digest)
        )
        if found is None:
            found = {"digest": digest, "key": dict(key), "value": make()}
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(found, indent=1, ensure_ascii=False).encode())
            found = json.loads(path.read_bytes())
            self._made.add(digest)
        return found["value"]


def _read(path: Path, digest: str) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
        return found if found["digest"] == digest and "value" in found else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
