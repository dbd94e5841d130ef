"""Statistics of several holders → one total over the domains, in an order that does not depend on
who came first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from ridgeway.common.base.errors import EncoderMismatch, InputError, StatisticsError
from ridgeway.common.base.settings import EQUAL_MASS, Sampling, Weighting
from ridgeway.common.privacy.document_bound import count_unit
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.common.statistics.sums import Integers, Statistics


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Total:
    """The sum over a cohort, ready to solve.

    holdout: the shares of documents that each domain's holders kept out of the sums.
    masses: each domain's sample mass in the total, which under `equal` weighting says nothing of
            its corpus; under noise, about how many documents it has.
    """

    domains: tuple[str, ...]
    statistics: Statistics
    masses: dict[str, int]
    encoder_name: str
    fingerprint: str
    sampling: Sampling
    holders: int
    holdout: dict[str, list[float]]

    def __repr__(self) -> str:
        return f"<Total {len(self.domains)} domains of {self.holders} holders>"


def add_up(parts: Sequence[Prepared], weighting: Weighting) -> Total:
    """Add the files of each domain, weight the domains, and add those. Raises unless all were made
    alike.
    """
    first = must_agree(parts)
    domains = tuple(sorted({part.domain for part in parts}))
    if len(domains) < 2:
        raise InputError(
            f"all statistics are of {domains[0]!r}; a router needs at least two domains"
        )
    sums = [_domain(name, parts, weighting) for name in domains]
    # each domain's sums stand in its own column
    statistics = reduce(
        add, (part.placed(column, len(domains)) for column, part in enumerate(sums))
    )
    statistics.check(rounded=len(domains) if weighting == "equal" else 0)
    names = (part.encoder_name for part in parts)
    return Total(
        domains=domains,
        statistics=statistics,
        masses={name: part.mass for name, part in zip(domains, sums, strict=True)},
        encoder_name=min(names, key=lambda name: (name == "local", name)),
        fingerprint=first.fingerprint,
        sampling=first.sampling,
        holders=len(parts),
        holdout={
            name: sorted({part.holdout for part in parts if part.domain == name})
            for name in domains
        },
    )


def add_weighted(parts: Iterable[tuple[str, Statistics, float]], terms: Terms) -> Total:
    """Add what holders have weighted themselves, one after the other: a domain, its sums, its
    held-out share.

    Law: the order of the parts does not change a bit.
    """
    grams: Statistics | None = None
    columns: dict[str, Integers] = {}
    holdout: dict[str, set[float]] = {}
    holders = 0
    for domain, statistics, share in parts:
        # its counts are in units of their own, and have room
        if grams is not None and terms.privacy:
            grams = Statistics(
                grams.gram + statistics.gram, grams.cross + statistics.cross
            )
        else:
            grams = statistics if grams is None else grams + statistics
        columns[domain] = columns.get(domain, 0) + statistics.cross[:, 0]
        holdout.setdefault(domain, set()).add(share)
        holders += 1
    if grams is None or len(columns) < 2:
        raise InputError(
            f"there are sums of {len(columns)} domains; a router needs two"
        )
    domains = tuple(sorted(columns))
    cross = np.stack([columns[name] for name in domains], axis=1)
    shares = {name: sorted(holdout[name]) for name in domains}
    return total_of(domains, Statistics(grams.gram, cross), terms, holders, shares)


def total_of(
    domains: tuple[str, ...],
    statistics: Statistics,
    terms: Terms,
    holders: int,
    holdout: dict[str, list[float]],
) -> Total:
    """The total over these domains, however it was added up; raises unless some text could have
    given it.
    """
    if terms.privacy:
        statistics.check_noisy()
    else:
        statistics.check(rounded=holders if terms.mass else 0)
    unit = count_unit(terms.privacy.mode) if terms.privacy else 1
    return Total(
        domains=domains,
        statistics=statistics,
        masses={
            name: max(0, round(int(mass) / unit))
            for name, mass in zip(domains, statistics.cross[-1], strict=True)
        },
        encoder_name=terms.encoder_name,
        fingerprint=terms.encoder,
        sampling=terms.sampling,
        holders=holders,
        holdout=holdout,
    )


def _domain(name: str, parts: Sequence[Prepared], weighting: Weighting) -> Statistics:
    total = reduce(add, (part.statistics for part in parts if part.domain == name))
    return total.weighted(EQUAL_MASS) if weighting == "equal" else total


def must_agree(parts: Sequence[Prepared]) -> Prepared:
    if not parts:
        raise InputError("there are no statistics to add")
    first = parts[0]
    seen: set[str] = set()
    for part in parts:
        if part.fingerprint != first.fingerprint:
            raise EncoderMismatch(
                f"{first.domain!r} was made with encoder {first.encoder_name}"
                f" ({first.fingerprint}) and {part.domain!r} with {part.encoder_name}"
                f" ({part.fingerprint}); prepare them with the same encoder"
            )
        if part.sampling != first.sampling:
            raise StatisticsError(
                f"{first.domain!r} was made with {first.sampling} and {part.domain!r}"
                f" with {part.sampling}; prepare them with the same sampling"
            )
        if part.content in seen:
            raise InputError(
                f"the statistics of {part.domain!r} with digest {part.digest[:12]}"
                " were given twice; remove one"
            )
        seen.add(part.content)
    return first
