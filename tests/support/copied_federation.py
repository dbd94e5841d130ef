"""A simulated federation copied to another folder, so that the same holders can run two rounds."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from ridgeway.client.round.holder import CLIENT_TOML
from ridgeway.coordinator.round.federation import Federation
from ridgeway.simulations.simulated_federation import SimulatedFederation


def copied(simulated: SimulatedFederation, folder: Path) -> SimulatedFederation:
    """The same holders with the same keys, sums and corpora; what they spend in the copy is spent there."""
    for part in ("coordinator", "holders"):
        shutil.copytree(simulated.folder / part, folder / part, symlinks=True)
    nodes = {name: folder / "holders" / home.name for name, home in simulated.nodes.items()}
    before = str((simulated.folder / "spending").resolve())
    after = str((folder / "spending").resolve())
    for home in nodes.values():
        settings = (home / CLIENT_TOML).read_text(encoding="utf-8")
        (home / CLIENT_TOML).write_text(settings.replace(before, after), encoding="utf-8")
    federation = Federation(folder / "coordinator", encoder=simulated.federation.encoder)
    return replace(simulated, folder=folder, federation=federation, nodes=nodes)
