"""A private round, and the statement of what it cost one holder's documents.

    python examples/private_round.py work       # text of this machine
    python examples/private_round.py work DATA dir:encoder+words+sentence

DATA has DOMAIN.{train,test}.jsonl. It prints one page for the holder's privacy officer:

    What one document of c has cost
    ...
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from ridgeway.client.evidence import HolderRecord
from ridgeway.client.statement import as_text, statement
from ridgeway.coordinator.round.federation import PrivacySettings
from ridgeway.coordinator.round.progress import no_watch
from ridgeway.simulations.simulate import simulate_federation


def main(
    work: str, data: str | None = None, encoder: str = "use+words+sentence"
) -> None:
    # Noise hides whether any one document was there: its (ε, δ) is (1, 10⁻⁶) in this round.
    privacy = PrivacySettings(epsilon=1.0, delta=1e-6)
    texts = Path(data) if data else None
    folder = Path(work)
    simulate_federation(
        folder, no_watch, data=texts, encoder=encoder, mode="private", privacy=privacy
    )
    first = min((folder / "holders").iterdir())
    print(as_text(statement(HolderRecord(first), datetime.now(UTC).isoformat())))


if __name__ == "__main__":
    main(*sys.argv[1:])
