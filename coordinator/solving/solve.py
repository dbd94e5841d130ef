"""Statistics → total → weights → compiled table → signed release: the whole path, and the equation
in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base import machine
from ridgeway.common.base.errors import (
    EncoderMismatch,
    InputError,
    StatisticsError,
    UnsolvableTotal,
)
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.machine import one_blas_thread
from ridgeway.common.base.settings import (
    EQUAL_MASS,
    Confidence,
    Preset,
    Ridge,
    Sampling,
    Selector,
    Weighting,
)
from ridgeway.common.privacy.noise import count_unit
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.routing.quality import QualityTable
from ridgeway.common.routing.release import (
    CASCADE,
    QUALITY,
    amend_release,
    check_signer,
    load_release,
    save_release,
)
from ridgeway.common.routing.sentence_table import USUAL_MARGIN, compile_router
from ridgeway.common.routing.token_table import RouterTable, normalised_columns
from ridgeway.common.statistics import Integers, Prepared, Statistics
from ridgeway.common.text.table_encoder import TableEncoder, of_table_rows, stacked

# Statistics → weights: W = (A + λI)⁻¹B by Cholesky in float64, on the CPU, or on a GPU where A is
# large.


# Statistics of several holders → one total over the domains, in an order that does not depend on
# who came first.


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


_Matrix = NDArray[np.float64]

MIN_GPU_FEATURES = 4096
"""From this many features on a GPU is used where there is one; below it, the CPU is done before a
GPU is set up.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Solution:
    """weights: F×C in the embedding's own units, the last row belonging to the constant feature.

    ridge:     the λ that was added to the diagonal, as an absolute number.
    condition: an estimate of the condition number of A + λI (1-norm).
    residual:  ‖(A + λI)W − B‖ / ‖B‖.
    device:    `cpu` or `cuda`; the last bits of the weights may differ between them.
    note:      why the CPU has solved what a GPU was meant for, in words for the operator; mostly
               empty.
    """

    weights: _Matrix
    ridge: float
    condition: float
    residual: float
    device: str = "cpu"
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Equation:
    """(A + λI)W = B in the embedding's own units: `gram` holds the λ, `added`, already."""

    gram: _Matrix
    cross: _Matrix
    added: float
    mass: int


def solve(total: Statistics, scale: float, ridge: Ridge) -> Solution:
    """Solve for the router's weights. Columns are independent: those of other domains do not change
    a domain's own.
    """
    posed = equation(total, scale, ridge)
    if len(posed.gram) < MIN_GPU_FEATURES:
        return on_cpu(posed)
    gpus = machine.gpus()
    if gpus:
        try:
            return on_gpu(posed, gpus[0])
        except MemoryError as error:
            return replace(on_cpu(posed), note=f"{error}; using the CPU")
    reason = machine.missed()
    return replace(on_cpu(posed), note=f"{reason}; using the CPU" if reason else "")


def solve_router(total: Statistics, encoder: TableEncoder, ridge: Ridge) -> Solution:
    """The weights of an encoder's router. Where it reads sentences, the columns of its table
    follow, which come out of a block of the same total.
    """
    whole = solve(total, encoder.scale, ridge)
    if not encoder.sentences:
        return whole
    rows = of_table_rows(encoder)
    block = Statistics(total.gram[np.ix_(rows, rows)], total.cross[rows])
    table = solve(block, encoder.scale, ridge)
    weights = stacked(whole.weights, table.weights, encoder)
    return replace(whole, weights=weights)


def equation(total: Statistics, scale: float, ridge: Ridge) -> Equation:
    """What is to be solved."""
    units = np.full(total.shape[0], scale)
    units[-1] = 1.0
    gram = total.gram.astype(np.float64) * units[:, None] * units[None, :]
    cross = total.cross.astype(np.float64) * units[:, None]
    added = (
        ridge.value * float(gram.diagonal().mean()) if ridge.relative else ridge.value
    )
    gram[np.diag_indices_from(gram)] += added
    return Equation(gram, cross, added, total.mass)


def on_cpu(posed: Equation) -> Solution:
    """The same bits whatever the number of threads: LAPACK is held to one. Raises
    UnsolvableTotal.
    """
    from scipy.linalg import cho_factor, cho_solve

    with one_blas_thread():
        try:
            factor = cho_factor(posed.gram, lower=True)
        except np.linalg.LinAlgError as error:
            raise _unsolvable(posed) from error
        condition = estimated_condition(posed.gram, factor[0])
        weights = cho_solve(factor, posed.cross)
        rest = np.linalg.norm(posed.gram @ weights - posed.cross)
        residual = float(rest / np.linalg.norm(posed.cross))
    return Solution(weights, posed.added, condition, residual)


def estimated_condition(gram: _Matrix, factor: _Matrix) -> float:
    """LAPACK's estimate of a matrix's condition number in the 1-norm, from its Cholesky factor."""
    from scipy.linalg.lapack import dpocon

    norm = np.abs(gram).sum(axis=0).max()
    reciprocal, _ = dpocon(factor, norm, uplo="L")
    return float(1 / reciprocal) if reciprocal else float("inf")


def on_gpu(posed: Equation, device: str) -> Solution:
    """Raises UnsolvableTotal, and MemoryError if the GPU cannot hold the work."""
    try:
        weights, condition, residual = solved(posed.gram, posed.cross, device)
    except np.linalg.LinAlgError as error:
        raise _unsolvable(posed) from error
    except RuntimeError as error:
        if machine.is_out_of_memory(error):
            raise MemoryError(
                f"not enough memory on {device} to solve {len(posed.gram):,} features"
            ) from error
        raise
    return Solution(weights, posed.added, condition, residual, device.partition(":")[0])


def _unsolvable(posed: Equation) -> UnsolvableTotal:
    return UnsolvableTotal(
        f"the total over {posed.mass:_} samples is not positive definite at"
        f" λ={posed.added:g}; there may be too little text for this λ, or a mask did"
        " not cancel: raise the ridge or run the round again, and keep the ledger"
    )


def solved(gram: _Matrix, cross: _Matrix, device: str) -> tuple[_Matrix, float, float]:
    """Weights, estimated condition number and residual of `gram @ weights = cross`, by torch.

    Raises LinAlgError if the matrix is not positive definite.
    """
    import torch

    matrix = torch.from_numpy(np.ascontiguousarray(gram)).to(device)
    right = torch.from_numpy(np.ascontiguousarray(cross)).to(device)
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info):
        raise np.linalg.LinAlgError(
            f"the leading minor of order {int(info)} is not positive"
        )
    weights = torch.cholesky_solve(right, factor)
    residual = float(
        torch.linalg.norm(matrix @ weights - right) / torch.linalg.norm(right)
    )
    condition = estimated_condition(gram, factor.cpu().numpy())
    return np.ascontiguousarray(weights.cpu().numpy()), condition, residual


NO_ABSTENTION = Confidence()


@dataclass(frozen=True, slots=True)
class RouterChoices:
    """What the operator decides about a release."""

    weighting: Weighting
    ridge: Ridge
    normalise_columns: bool
    selector: Selector
    confidence: Confidence
    margin: float = USUAL_MARGIN

    @classmethod
    def of_preset(
        cls, preset: Preset, confidence: Confidence = NO_ABSTENTION
    ) -> RouterChoices:
        """The choices of a named set of settings."""
        return cls(
            preset.weighting,
            preset.ridge,
            preset.normalise_columns,
            preset.selector,
            confidence,
        )

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> RouterChoices:
        """What was decided about a release, as its manifest says."""
        return cls(
            weighting=manifest["weighting"],
            ridge=Ridge(**manifest["ridge"]),
            normalise_columns=manifest["normalise_columns"],
            selector=Selector(**manifest["selector"]),
            confidence=Confidence.of_json(manifest["confidence"]),
            margin=manifest.get(CASCADE, {"margin": USUAL_MARGIN})["margin"],
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Draft:
    """A router that was solved and compiled, ready to be signed."""

    total: Total
    solution: Solution
    compiled: RouterTable
    encoder: TableEncoder
    facts: dict[str, Any]


def draft(
    parts: Sequence[Prepared], encoder: TableEncoder, choices: RouterChoices
) -> Draft:
    """Add up, solve and compile; nothing is written. The order of the parts changes no byte."""
    total = add_up(parts, choices.weighting)
    if encoder.fingerprint != total.fingerprint:
        raise EncoderMismatch(
            f"the statistics were made with encoder {total.encoder_name}"
            f" ({total.fingerprint}), but this machine has {encoder.name}"
            f" ({encoder.fingerprint}); set the right one with --encoder"
        )
    return compose(
        total, encoder, choices, solve_router(total.statistics, encoder, choices.ridge)
    )


def compose(
    total: Total,
    encoder: TableEncoder,
    choices: RouterChoices,
    solution: Solution,
    **more: Any,
) -> Draft:
    """Compile a solved total; `more` are facts of the manifest beyond the usual ones."""
    if choices.normalise_columns:
        solution = replace(solution, weights=normalised_columns(solution.weights))
    compiled = compile_router(encoder, solution.weights, choices.margin)
    facts = _facts(total, encoder, choices, solution) | more
    return Draft(total, solution, compiled, encoder, facts)


def sign(made: Draft, identity: Identity, folder: Path) -> str:
    """Write a draft as a signed release; returns its id."""
    return save_release(
        folder,
        made.facts,
        made.solution.weights,
        made.compiled,
        made.encoder.definition,
        identity,
    )


def sign_quality(folder: Path, table: QualityTable, identity: Identity) -> str:
    """Put what was measured of experts into a release; returns its new id. Only its signer may
    change it.
    """
    loaded = load_release(folder)
    check_signer(loaded, identity)
    quality = table.of_domains(loaded.domains).to_json()
    return amend_release(folder, {QUALITY: quality}, identity)


def _facts(
    total: Total, encoder: TableEncoder, choices: RouterChoices, solution: Solution
) -> dict[str, Any]:
    return {
        "domains": list(total.domains),
        "masses": total.masses,
        "cohort": {"holders": total.holders},
        "encoder": {
            "name": total.encoder_name,
            "fingerprint": encoder.fingerprint,
            "rows": encoder.rows,
            "width": encoder.width,
            "scale": encoder.scale,
            **encoder.more,
        },
        "sampling": total.sampling.to_json(),
        "holdout": total.holdout,
        "weighting": choices.weighting,
        "ridge": asdict(choices.ridge),
        "normalise_columns": choices.normalise_columns,
        "selector": asdict(choices.selector),
        "confidence": choices.confidence.to_json(),
        "solved": {
            "ridge": solution.ridge,
            # an estimate, whose last digits vary
            "condition": float(f"{solution.condition:.6g}"),
            "residual": solution.residual,
            "device": solution.device,
        },
        "evaluation": None,
        "parent": None,
    }


# Whether a new router does worse than the last release, by more than chance explains.
#
# Both have routed the same held-out documents, so only those matter on which they differ: if
# neither is better, each of these is as likely lost as won (McNemar's exact test, one-sided). Masks
# hide a false sum, but not what it does to a router.


SIGNIFICANCE = 1e-3
"""How often, at most, a round in which no domain got worse is called worse in any: it is shared
among the domains.
"""
LEAST_LOSS = 0.02
"""A smaller share of a domain's documents is not called worse, however sure it is."""


@dataclass(frozen=True, slots=True)
class DomainChange:
    """lost, won: how many of a domain's documents only the last release, and only the new router,
    routed rightly.
    """

    domain: str
    lost: int
    won: int
    documents: int


def worse(changes: Sequence[DomainChange]) -> list[DomainChange]:
    """The domains that got worse."""
    # the binomial distribution, without the second that scipy.stats takes to import
    from scipy.special import bdtrc

    return [
        change
        for change in changes
        if change.lost - change.won >= max(1, LEAST_LOSS * change.documents)
        and bdtrc(change.lost - 1, change.lost + change.won, 0.5)
        < SIGNIFICANCE / len(changes)
    ]
