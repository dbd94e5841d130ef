"""Statistics → total → weights → compiled table → signed release: the whole path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import EncoderMismatch
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.settings import (
    Confidence,
    Preset,
    Ridge,
    Selector,
    Weighting,
)
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
from ridgeway.common.statistics import Prepared
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.solving.solve import Solution, Total, add_up, solve_router

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
