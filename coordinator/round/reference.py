"""A whole exact round in one function, in the clear and under masks: start reading here.

A real round does the same in messages (common/protocol/messages.py has their table), survives
absent holders and crashes, and adds counts, calibration and the signed release. The laws of rounds
compare it with this function.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.identity import Identity
from ridgeway.common.base.settings import Ridge
from ridgeway.common.masking.reference_session import masked_sum
from ridgeway.common.protocol.cohort import Cohort
from ridgeway.common.statistics.sums import Statistics
from ridgeway.coordinator.solving.solve import solve


def reference_round(
    cohort: Cohort,
    sums: Mapping[str, Statistics],
    scale: float,
    ridge: Ridge,
    identities: Mapping[str, Identity] | None = None,
) -> NDArray[np.float64]:
    """The weights of the router that these holders' sums give.

    sums:       each holder's own, of its one domain, by its key.
    scale:      what one unit of the encoder's integers stands for.
    identities: the holders' keys, if sums travel under masks.
    """
    terms = cohort.terms
    vectors = {}
    for member in cohort.members:
        # 1. A holder weights its sums to its share of its domain's mass (0: as they are) ...
        share = cohort.shares[member.key]
        weighted = sums[member.key].weighted(share) if share else sums[member.key]
        # ... and puts them into the column of its domain.
        column = cohort.domains.index(member.domain)
        vectors[member.key] = terms.vector_of(
            weighted.placed(column, len(cohort.domains))
        )

    # 2. The coordinator learns the sum: of plain vectors, or of masked ones, and then nothing else.
    if identities is None:
        total = np.stack(list(vectors.values())).sum(axis=0)
    else:
        members = [identities[key] for key in vectors]
        in_order = list(vectors.values())
        session = masked_sum(members, in_order, {}, lambda *_: secrets.token_bytes)
        total = session.total

    # 3. It solves W = (A + λI)⁻¹B.
    added = terms.statistics_of(total, len(cohort.domains))
    return solve(added, scale, ridge).weights
