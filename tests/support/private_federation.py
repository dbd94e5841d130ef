"""A federation of private rounds, over the tiny encoder, with a prior of made-up public text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeway.common.privacy.public_prior import make_prior, write_prior
from ridgeway.coordinator.round.federation import PRIOR
from tests.support.corpora_on_disk import ALPHABETS, sentences
from tests.support.simulated_federation import Parties, found


def found_private(folder: Path, **settings: Any) -> Parties:
    """A federation without holders, whose rounds are private."""
    parties = found(folder, mode="private", **settings)
    prior = make_prior(parties.encoder, [sentences(name, 30) for name in ALPHABETS])
    write_prior(prior, folder / "coordinator" / PRIOR)
    return parties
